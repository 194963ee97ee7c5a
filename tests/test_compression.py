"""Compression: exact where it can be, nearer than greedy merges where not, and the same whatever the units."""

from __future__ import annotations

import pytest
import torch
from benchmarks.greedy import merge_by
from torch import Tensor

from cramix import MultivariateNormalMixture, NormalMixture, Tied, compress, density_l2_loss, sliced_cramer_distance

D = torch.float64


def hundred(dim: int, seed: int = 0, n: int = 100) -> MultivariateNormalMixture:
    g = torch.Generator().manual_seed(seed)
    means = (4 * torch.randn(10, dim, generator=g, dtype=D)).repeat_interleave(n // 10, 0)
    means = means + torch.randn(n, dim, generator=g, dtype=D)
    roots = torch.randn(n, dim, dim, generator=g, dtype=D) / dim**0.5
    weights = torch.rand(n, generator=g, dtype=D)
    return MultivariateNormalMixture(weights / weights.sum(), means, roots @ roots.mT + 0.05 * torch.eye(dim, dtype=D))


def kde(n: int, dim: int = 2, seed: int = 0) -> MultivariateNormalMixture:
    x = hundred(dim, seed).sample((n,), generator=torch.Generator().manual_seed(seed))
    return MultivariateNormalMixture(torch.full((n,), 1 / n, dtype=D), x, Tied(0.1 * torch.eye(dim, dtype=D)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", [lambda s: hundred(2, s), lambda s: hundred(5, s), lambda s: kde(300, 2, s)])
def test_nearer_than_every_greedy_merge(make, seed: int) -> None:
    mixture = make(seed)
    small = compress(mixture, 10)
    assert small.n_components == 10
    for cost in ("runnalls", "west", "salmond"):
        merged = merge_by(cost, mixture, 10)
        assert sliced_cramer_distance(small, mixture) < sliced_cramer_distance(merged, mixture)
    assert density_l2_loss(small, mixture) < density_l2_loss(merge_by("runnalls", mixture, 10), mixture)


def test_split_components_are_put_together() -> None:
    whole = hundred(3, n=10)
    parts = torch.tensor([0.2, 0.3, 0.5], dtype=D)
    split = MultivariateNormalMixture(
        (whole.weights.unsqueeze(-1) * parts).flatten(),
        whole.means.repeat_interleave(3, 0),
        whole.covariances.repeat_interleave(3, 0),
    )
    small = compress(split, 10)
    assert sliced_cramer_distance(small, whole) < 1e-5
    order = torch.cdist(whole.means, small.means).argmin(-1)
    torch.testing.assert_close(small.means[order], whole.means, rtol=0, atol=1e-3)
    torch.testing.assert_close(small.covariances[order], whole.covariances, rtol=0, atol=1e-2)


def test_one_component_is_a_stationary_point_of_the_distance() -> None:
    mixture = hundred(2, seed=4)
    scale, zero = torch.diag(1 / mixture.variance.sqrt()), torch.zeros(2, dtype=D)
    mixture, small = (p.affine(zero, scale) for p in (mixture, compress(mixture, 1, tol=1e-12)))
    means, roots = small.means.clone().requires_grad_(), torch.linalg.cholesky(small.covariances).requires_grad_()
    moved = MultivariateNormalMixture(small.weights, means, roots @ roots.mT)
    squared = sliced_cramer_distance(moved, mixture).square()
    gradients = torch.autograd.grad(squared, (means, roots))
    # To be compared with gradients of up to 1 away from it.
    assert max(g.abs().max().item() for g in gradients) < 1e-4


def test_univariate_mixtures_stay_univariate() -> None:
    g = torch.Generator().manual_seed(5)
    means = torch.randn(60, generator=g) + 6 * (torch.arange(60) % 3)
    mixture = NormalMixture(torch.full((60,), 1 / 60), means, 0.3 * torch.ones(60))
    small = compress(mixture, 3)
    assert isinstance(small, NormalMixture)
    assert small.means.dtype == torch.float32
    torch.testing.assert_close(small.means.sort().values, torch.tensor([0.0, 6.0, 12.0]), rtol=0, atol=0.5)
    torch.testing.assert_close(small.mean, mixture.mean, rtol=0, atol=0.02)


def test_units_do_not_matter() -> None:
    mixture = hundred(2, seed=6)
    scale = torch.diag(torch.tensor([1e-6, 1e6], dtype=D))
    small, scaled = compress(mixture, 5), compress(mixture.affine(torch.zeros(2, dtype=D), scale), 5)
    back = scaled.affine(torch.zeros(2, dtype=D), torch.linalg.inv(scale))
    assert sliced_cramer_distance(small, back) < 1e-3


def test_too_many_for_all_pairs() -> None:
    """Then a fit of the likelihood gives the start."""
    mixture = kde(800, 8, seed=7)
    small = compress(mixture, 10, tol=1e-6)
    assert sliced_cramer_distance(small, mixture) < 0.05
    torch.testing.assert_close(small.mean, mixture.mean, rtol=0, atol=0.1)


@pytest.mark.parametrize("x", [torch.randn(40, 2, generator=torch.Generator().manual_seed(8)), torch.zeros(3, 2)])
def test_points_too(x: Tensor) -> None:
    small = compress(MultivariateNormalMixture.from_samples(x), 2)
    assert small.means.isfinite().all()
    torch.testing.assert_close(small.mean, x.mean(0), rtol=0, atol=0.2)


@pytest.mark.parametrize(
    ("mixture", "k", "match"),
    [
        (torch.zeros(3, 2), 2, "mixture must be a NormalMixture or a MultivariateNormalMixture; got Tensor"),
        (hundred(2), 0, "n_components must be an integer >= 1; got 0"),
        (hundred(2), 101, "n_components must be at most the number of components with a weight, 100; got 101"),
        (
            NormalMixture(torch.tensor([0.5, 0.5, 0.0]), torch.arange(3.0), torch.ones(3)),
            3,
            "n_components must be at most the number of components with a weight, 2; got 3",
        ),
        (hundred(2).expand((3,)), 2, r"mixture must not have a batch; got batch shape \(3,\)"),
    ],
)
def test_bad_input(mixture, k: int, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        compress(mixture, k)
