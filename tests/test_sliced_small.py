"""Small problems, which are NumPy's, against the same ones by torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from cramix import Factor, MultivariateNormalMixture, sliced_cramer_loss
from cramix.distance.multivariate import exact, sides
from tests.sliced_oracle import KINDS, randn, random_mixture, random_values

N = 20


@pytest.fixture
def small(monkeypatch) -> list[bool]:
    """Note of each evaluation whether it was small."""
    notes: list[bool] = []
    are_small = exact.are_small
    monkeypatch.setattr(exact, "are_small", lambda p, q: notes.append(are_small(p, q)) or notes[-1])
    return notes


def value_and_gradients(loss: Callable[..., Tensor], leaves: list[Tensor]) -> list[Tensor]:
    value = loss(*leaves)
    weight = torch.linspace(1, 2, value.numel(), dtype=value.dtype).view(value.shape)
    return [value.detach(), *torch.autograd.grad((weight * value).sum(), leaves)]


def both_ways(loss: Callable[..., Tensor], leaves: list[Tensor], small: list[bool], monkeypatch) -> None:
    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    before = [x.detach().clone() for x in leaves]
    by_numpy = value_and_gradients(loss, leaves)
    assert all(map(torch.equal, leaves, before))  # memory is shared, and must not be written to
    monkeypatch.setattr(sides, "_FEW", 0)
    by_torch = value_and_gradients(loss, leaves)
    assert small == [True, False]
    for a, b in zip(by_numpy, by_torch, strict=True):
        assert a.dtype == b.dtype
        rounding = 1e-5 if a.dtype == torch.float32 else 1e-12
        torch.testing.assert_close(a, b, rtol=0, atol=rounding * (1 + b.abs().max().item()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "batch"])
def test_to_points(kind: str, batch: tuple[int, ...], small: list[bool], monkeypatch) -> None:
    """With gradients for all tensors; one set of points serves a batch too."""
    p, x = random_mixture(*batch, k=4, d=3, kind=kind, seed=1), randn(N, 3, seed=2)

    def loss(weights: Tensor, means: Tensor, values: Tensor, x: Tensor) -> Tensor:
        total = weights.sum(-1, keepdim=True).detach()
        return sliced_cramer_loss(
            MultivariateNormalMixture(weights / total, means, KINDS[kind](values)), x, reduction="none"
        )

    both_ways(loss, [p.weights, p.means, p.covariance_kind.values, x], small, monkeypatch)


def test_in_float32(small: list[bool], monkeypatch) -> None:
    """Enough points for float32 inside."""
    p = random_mixture(k=4, d=3, kind="factor", seed=3, dtype=torch.float32)
    x = randn(1001, 3, seed=4, dtype=torch.float32)
    both_ways(
        lambda m, s: sliced_cramer_loss(MultivariateNormalMixture(p.weights, m, Factor(s)), x),
        [p.means, p.covariance_kind.values],
        small,
        monkeypatch,
    )


@pytest.mark.parametrize("kinds", [("full", "full"), ("diagonal", "spherical"), ("factor", "diagonal")])
def test_to_another_mixture(kinds: tuple[str, str], small: list[bool], monkeypatch) -> None:
    p, q = random_mixture(2, k=3, kind=kinds[0], seed=5), random_mixture(2, k=4, kind=kinds[1], seed=6)

    def loss(p_means: Tensor, p_values: Tensor, q_means: Tensor, q_values: Tensor) -> Tensor:
        return sliced_cramer_loss(
            MultivariateNormalMixture(p.weights, p_means, KINDS[kinds[0]](p_values)),
            MultivariateNormalMixture(q.weights, q_means, KINDS[kinds[1]](q_values)),
            reduction="none",
        )

    leaves = [p.means, p.covariance_kind.values, q.means, q.covariance_kind.values]
    both_ways(loss, leaves, small, monkeypatch)


@pytest.mark.parametrize("kind", ["tied", "full"])
@pytest.mark.parametrize("target_term", [True, False])
def test_to_a_target_that_stays_the_same(kind: str, target_term: bool, small: list[bool], monkeypatch) -> None:
    p, q = random_mixture(k=3, seed=7), random_mixture(k=N, kind=kind, seed=8)
    both_ways(
        lambda m, c: sliced_cramer_loss(MultivariateNormalMixture(p.weights, m, c), q, target_term=target_term),
        [p.means, p.covariances],
        small,
        monkeypatch,
    )


@pytest.mark.parametrize("flat", ["points", "a point", "one axis", "equal variances"])
def test_singular_and_equal_variances(flat: str, small: list[bool], monkeypatch) -> None:
    """Of which a mean lies on a sample."""
    covariances = random_values("full", k=3, d=3, seed=9)
    if flat == "equal variances":
        covariances = torch.eye(3, dtype=torch.float64).repeat(3, 1, 1)
    else:
        covariances[:: 1 if flat == "points" else 2] = 0
    if flat == "one axis":
        covariances[::2, 0, 0] = 1
    p, x = random_mixture(k=3, d=3, seed=10), randn(N, 3, seed=11)
    x[0] = p.means[0]
    both_ways(
        lambda m, c, x: sliced_cramer_loss(MultivariateNormalMixture(p.weights, m, c), x),
        [p.means, covariances, x],
        small,
        monkeypatch,
    )


def test_what_is_not_small(small: list[bool]) -> None:
    x = randn(N, 3, seed=12)
    sliced_cramer_loss(random_mixture(k=100, d=3, seed=13), x)
    sliced_cramer_loss(random_mixture(k=3, d=3, seed=14), randn(20_000, 3, seed=15), target_term=False)
    sliced_cramer_loss(x, randn(N, 3, seed=16))
    assert small == [False] * 3


def test_what_looks_on_sees_each_step(small: list[bool]) -> None:
    """A mode that counts operations sees torch's."""
    p, x = random_mixture(k=3, kind="tied", seed=17), randn(N, 2, seed=18)

    def loss(means: Tensor) -> Tensor:
        return sliced_cramer_loss(MultivariateNormalMixture(p.weights, means, p.covariance_kind), x)

    value = loss(p.means)
    with FlopCounterMode(display=False) as counter:
        torch.testing.assert_close(loss(p.means), value)
    assert counter.get_total_flops() > 0
    assert small == [True, False]
