"""Small problems, which are NumPy's, against the same ones by torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from cramix import Factor, MultivariateNormalMixture
from cramix.distance.energy import small
from cramix.distance.energy.flat_mixtures import Components, Points
from tests.sliced_oracle import KINDS, randn, random_mixture, random_values, sliced_loss

N = 20


def value_and_gradients(loss: Callable[..., Tensor], leaves: list[Tensor], backend: str) -> list[Tensor]:
    value = loss(*leaves, backend=backend)
    weight = torch.linspace(1, 2, value.numel(), dtype=value.dtype).view(value.shape)
    return [value.detach(), *torch.autograd.grad((weight * value).sum(), leaves)]


def both_ways(loss: Callable[..., Tensor], leaves: list[Tensor]) -> None:
    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    before = [x.detach().clone() for x in leaves]
    by_numpy, by_torch = (value_and_gradients(loss, leaves, backend) for backend in ("small", "blocked"))
    assert all(map(torch.equal, leaves, before))  # memory is shared, and must not be written to
    for a, b in zip(by_numpy, by_torch, strict=True):
        assert a.dtype == b.dtype
        rounding = 1e-5 if a.dtype == torch.float32 else 1e-12
        torch.testing.assert_close(a, b, rtol=0, atol=rounding * (1 + b.abs().max().item()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "batch"])
def test_to_points(kind: str, batch: tuple[int, ...]) -> None:
    """With gradients for all tensors; one set of points serves a batch too."""
    p, x = random_mixture(*batch, k=4, d=3, kind=kind, seed=1), randn(N, 3, seed=2)

    def loss(weights: Tensor, means: Tensor, values: Tensor, x: Tensor, backend: str) -> Tensor:
        total = weights.sum(-1, keepdim=True).detach()
        return sliced_loss(
            MultivariateNormalMixture(weights / total, means, KINDS[kind](values)), x, reduction="none", backend=backend
        )

    both_ways(loss, [p.weights, p.means, p.covariance_kind.values, x])


def test_in_float32() -> None:
    """Enough points for float32 inside."""
    p = random_mixture(k=4, d=3, kind="factor", seed=3, dtype=torch.float32)
    x = randn(1001, 3, seed=4, dtype=torch.float32)
    both_ways(
        lambda m, s, backend: sliced_loss(MultivariateNormalMixture(p.weights, m, Factor(s)), x, backend=backend),
        [p.means, p.covariance_kind.values],
    )


@pytest.mark.parametrize("kinds", [("full", "full"), ("diagonal", "spherical"), ("factor", "diagonal")])
def test_to_another_mixture(kinds: tuple[str, str]) -> None:
    p, q = random_mixture(2, k=3, kind=kinds[0], seed=5), random_mixture(2, k=4, kind=kinds[1], seed=6)

    def loss(p_means: Tensor, p_values: Tensor, q_means: Tensor, q_values: Tensor, backend: str) -> Tensor:
        return sliced_loss(
            MultivariateNormalMixture(p.weights, p_means, KINDS[kinds[0]](p_values)),
            MultivariateNormalMixture(q.weights, q_means, KINDS[kinds[1]](q_values)),
            reduction="none",
            backend=backend,
        )

    leaves = [p.means, p.covariance_kind.values, q.means, q.covariance_kind.values]
    both_ways(loss, leaves)


@pytest.mark.parametrize("kind", ["tied", "full"])
@pytest.mark.parametrize("target_self_energy", [True, False])
def test_to_a_target_that_stays_the_same(kind: str, target_self_energy: bool) -> None:
    p, q = random_mixture(k=3, seed=7), random_mixture(k=N, kind=kind, seed=8)
    both_ways(
        lambda m, c, backend: sliced_loss(
            MultivariateNormalMixture(p.weights, m, c), q, target_self_energy=target_self_energy, backend=backend
        ),
        [p.means, p.covariances],
    )


@pytest.mark.parametrize("flat", ["points", "a point", "one axis", "equal variances"])
def test_singular_and_equal_variances(flat: str) -> None:
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
        lambda m, c, x, backend: sliced_loss(MultivariateNormalMixture(p.weights, m, c), x, backend=backend),
        [p.means, covariances, x],
    )


def components(k: int, d: int = 3) -> Components:
    p = random_mixture(1, k=k, d=d, seed=13)
    return Components(p.weights, p.means, p.covariances)


def points(n: int, d: int = 3) -> Points:
    return Points(torch.full((1, n), 1 / n, dtype=torch.float64), randn(1, n, d, seed=15))


def test_what_is_small() -> None:
    assert small.applies(components(3), points(N))
    assert small.applies(components(3), components(4))
    assert not small.applies(components(100), points(N))
    assert not small.applies(components(3), points(20_000))
    assert not small.applies(points(N), points(N))
    assert not small.applies(*(type(x)(*(t.to("meta") for t in x[:2]), *x[2:]) for x in (components(3), points(N))))


def test_modes_see_every_operation() -> None:
    """A mode that counts operations sees torch's."""
    p, x = random_mixture(k=3, kind="tied", seed=17), randn(N, 2, seed=18)

    def loss(means: Tensor) -> Tensor:
        return sliced_loss(MultivariateNormalMixture(p.weights, means, p.covariance_kind), x)

    value = loss(p.means)
    assert small.applies(components(3), points(N))
    with FlopCounterMode(display=False) as counter:
        assert not small.applies(components(3), points(N))
        torch.testing.assert_close(loss(p.means), value)
    assert counter.get_total_flops() > 0


# The reference


@pytest.mark.parametrize("backend", ["blocked", "small"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", ["points", "mixture", "constant"])
def test_every_implementation_is_the_reference(kind: str, other: str, backend: str) -> None:
    """Distances and derivatives of all tensors, with weights of any sum, to the tolerance."""
    p, q = random_mixture(2, k=3, d=3, kind=kind, seed=19), random_mixture(2, k=2, d=3, seed=20)
    x = randn(2, 7, 3, seed=21)

    def loss(weights: Tensor, means: Tensor, values: Tensor, x: Tensor, q_means: Tensor, backend: str) -> Tensor:
        a = MultivariateNormalMixture(weights, means, KINDS[kind](values), validate_args=False)
        if other == "points":
            return sliced_loss(a, x, reduction="none", backend=backend, tolerance=1e-12) + 0 * q_means.sum()
        b = MultivariateNormalMixture(
            q.weights, q_means if other == "mixture" else q.means, q.covariances, validate_args=False
        )
        losses = sliced_loss(
            a, b, reduction="none", backend=backend, tolerance=1e-12, target_self_energy=other == "mixture"
        )
        return losses + 0 * (x.sum() + q_means.sum())

    leaves = [2 * p.weights, p.means, p.covariance_kind.values, x, q.means]
    leaves = [t.detach().clone().requires_grad_() for t in leaves]
    found, truth = (value_and_gradients(loss, leaves, name) for name in (backend, "reference"))
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)
    assert not torch.allclose(1.01 * found[0], truth[0], rtol=1e-8, atol=1e-9)
