"""Greedy reduction of mixtures against loops that try every pair, and the moments that merging keeps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from benchmarks.greedy import merge_by

from cramix import Diagonal, MultivariateNormalMixture, Tied
from cramix.fitting.compression import merge_greedily
from tests.multivariate_oracle import (
    Kind,
    covariance_of,
    every_kind,
    every_singular_kind,
    free_parameters,
    mean_of,
    of_free,
)
from tests.sliced_oracle import randn, random_mixture

COSTS = ["runnalls", "salmond", "west"]
every_cost = pytest.mark.parametrize("cost", COSTS)

Component = tuple[float, np.ndarray, np.ndarray]


# Loops over all pairs, from the definitions


def merged(*parts: Component) -> Component:
    """One component with the moments of several."""
    total = sum(w for w, _, _ in parts)
    shares = np.array([w / total for w, _, _ in parts])
    means, matrices = [m for _, m, _ in parts], [c for _, _, c in parts]
    return total, mean_of(shares, means, matrices), covariance_of(shares, means, matrices)


def runnalls(a: Component, b: Component, overall: np.ndarray) -> float:
    both = merged(a, b)
    return 0.5 * sum(sign * part[0] * np.linalg.slogdet(part[2])[1] for sign, part in ((1, both), (-1, a), (-1, b)))


def salmond(a: Component, b: Component, overall: np.ndarray) -> float:
    gap = a[1] - b[1]
    return a[0] * b[0] / (a[0] + b[0]) * gap @ np.linalg.inv(overall) @ gap


def cheapest(parts: list[Component], cost: Callable[..., float]) -> tuple[int, int]:
    overall = merged(*parts)[2]
    pairs = [(i, j) for j in range(len(parts)) for i in range(j)]
    return min(pairs, key=lambda pair: cost(parts[pair[0]], parts[pair[1]], overall))


def lightest(parts: list[Component]) -> tuple[int, int]:
    i = min(range(len(parts)), key=lambda i: parts[i][0])
    # Salmond's distance, with the covariance of the small component.
    j = min((j for j in range(len(parts)) if j != i), key=lambda j: salmond(parts[i], parts[j], parts[i][2]))
    return min(i, j), max(i, j)


CHOICES: dict[str, Callable[[list[Component]], tuple[int, int]]] = {
    "runnalls": lambda parts: cheapest(parts, runnalls),
    "salmond": lambda parts: cheapest(parts, salmond),
    "west": lightest,
}


def by_loops(mixture: MultivariateNormalMixture, k: int, cost: str) -> list[Component]:
    arrays = (x.double().numpy() for x in (mixture.weights, mixture.means, mixture.covariances))
    parts: list[Component] = [(float(w), m, c) for w, m, c in zip(*arrays, strict=True)]
    while len(parts) > k:
        i, j = CHOICES[cost](parts)
        parts[i] = merged(parts[i], parts[j])
        del parts[j]
    return parts


def agrees(found: MultivariateNormalMixture, parts: list[Component], tolerance: float = 1e-10) -> bool:
    truth = [torch.tensor(np.array([part[i] for part in parts])) for i in range(3)]
    ours = found.weights, found.means, found.covariances
    return all(
        a.shape == b.shape and torch.allclose(a.double(), b, rtol=tolerance, atol=tolerance)
        for a, b in zip(ours, truth, strict=True)
    )


@every_cost
@pytest.mark.parametrize("d", [1, 2, 5])
def test_the_choices_are_those_of_loops_over_all_pairs(cost: str, d: int) -> None:
    for seed in range(4):
        mixture = random_mixture(k=18, d=d, seed=seed)
        for k in (1, 2, 5, 17, 18):
            assert agrees(merge_by(cost, mixture, k), by_loops(mixture, k, cost)), (seed, k)


@every_cost
@every_kind
def test_kinds_of_covariances(kind: Kind, cost: str) -> None:
    mixture = of_free(kind, *free_parameters(kind, k=12, d=3, seed=1))
    found = merge_by(cost, mixture, 4)
    assert found.covariance_kind.name == "full"
    assert agrees(found, by_loops(mixture, 4, cost))


@every_cost
def test_the_comparison_notices_one_percent_and_other_choices(cost: str) -> None:
    mixture = random_mixture(k=18, seed=0)
    parts = by_loops(mixture, 5, cost)
    assert not agrees(merge_by(cost, mixture, 5), [(w, m, 1.01 * c) for w, m, c in parts])
    for other in COSTS:
        assert (other == cost) == agrees(merge_by(other, mixture, 5), parts)


def test_many_components_in_the_plane() -> None:
    """Runnalls' cost where merges make up most of the list, against a table of all pairs that is computed anew."""
    mixture = random_mixture(k=150, seed=3)
    weights, means, matrices = (x.numpy() for x in (mixture.weights, mixture.means, mixture.covariances))
    while len(weights) > 4:
        total = weights[:, None] + weights
        share = weights / total
        gap = means - means[:, None]
        both = (1 - share)[..., None, None] * matrices[:, None] + share[..., None, None] * matrices
        both = both + (share * (1 - share))[..., None, None] * gap[..., :, None] * gap[..., None, :]
        log = np.log(np.linalg.det(matrices))
        costs = total * np.log(np.linalg.det(both)) - weights[:, None] * log[:, None] - weights * log
        np.fill_diagonal(costs, np.inf)
        i, j = sorted(np.unravel_index(costs.argmin(), costs.shape))
        place = (1 - share[i, j]) * means[i] + share[i, j] * means[j]
        weights[i], means[i], matrices[i] = total[i, j], place, both[i, j]
        weights, means, matrices = (np.delete(x, j, axis=0) for x in (weights, means, matrices))
    assert agrees(merge_greedily(random_mixture(k=150, seed=3), 4), list(zip(weights, means, matrices, strict=True)))


# What merging keeps


@every_cost
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_are_kept(cost: str, dtype: torch.dtype) -> None:
    mixture = random_mixture(k=200, d=3, seed=4, dtype=dtype)
    rounding = 20 * torch.finfo(dtype).eps
    for k in (1, 7, 60):
        found = merge_by(cost, mixture, k)
        assert found.means.dtype == dtype
        assert found.n_components == k
        assert found.weights.sum().item() == pytest.approx(1, abs=rounding)
        torch.testing.assert_close(found.mean, mixture.mean, rtol=0, atol=rounding)
        torch.testing.assert_close(found.covariance, mixture.covariance, rtol=0, atol=10 * rounding)
    one = merge_by(cost, mixture, 1)
    torch.testing.assert_close(one.means[0], mixture.mean, rtol=0, atol=rounding)
    torch.testing.assert_close(one.covariances[0], mixture.covariance, rtol=0, atol=10 * rounding)


@every_cost
def test_as_many_as_there_are_changes_nothing(cost: str) -> None:
    mixture = random_mixture(k=6, seed=5)
    found = merge_by(cost, mixture, 6)
    for a, b in ((found.weights, mixture.weights), (found.means, mixture.means)):
        torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(found.covariances, mixture.covariances, rtol=1e-14, atol=1e-14)


@every_cost
def test_units_and_places_do_not_matter(cost: str) -> None:
    """The choices are the same after an affine map, with coordinates in units of 1e-8 and 1e8, far from the origin."""
    mixture = random_mixture(k=40, d=3, seed=6)
    matrix = torch.diag(torch.tensor([1e-8, 1.0, 1e8], dtype=torch.float64)) @ (torch.eye(3) + 0.3).double()
    offset = torch.tensor([1e-5, 1e3, -1e11], dtype=torch.float64)
    found, expected = merge_by(cost, mixture.affine(offset, matrix), 5), merge_by(cost, mixture, 5)
    torch.testing.assert_close(found.weights, expected.weights)
    size = matrix.diagonal()
    torch.testing.assert_close(
        (found.means - offset) / size, (expected.affine(0.0, matrix).means) / size, rtol=0, atol=1e-5
    )
    both = found.covariances, expected.affine(0.0, matrix).covariances
    torch.testing.assert_close(*(x / (size.unsqueeze(-1) * size) for x in both), rtol=1e-5, atol=1e-5)


@every_cost
def test_two_far_groups_stay_apart(cost: str) -> None:
    x = torch.cat((randn(30, 2, seed=7), 100 + randn(60, 2, seed=8)))
    mixture = MultivariateNormalMixture(
        torch.full((90,), 1 / 90).double(), x, Tied(0.1 * torch.eye(2, dtype=torch.float64))
    )
    found = merge_by(cost, mixture, 2)
    torch.testing.assert_close(found.weights, torch.tensor([1 / 3, 2 / 3], dtype=torch.float64))
    for i, group in enumerate((x[:30], x[30:])):
        torch.testing.assert_close(found.means[i], group.mean(0))
        spread = torch.cov(group.T, correction=0) + 0.1 * torch.eye(2, dtype=torch.float64)
        torch.testing.assert_close(found.covariances[i], spread)


@every_cost
def test_components_without_weight_are_invisible(cost: str) -> None:
    mixture = random_mixture(k=12, seed=9)
    weights = torch.cat((torch.zeros(3, dtype=torch.float64), mixture.weights))
    means = torch.cat((1e3 * randn(3, 2, seed=10), mixture.means))
    more = MultivariateNormalMixture(weights, means, torch.cat((mixture.covariances[:3], mixture.covariances)))
    found, expected = merge_by(cost, more, 4), merge_by(cost, mixture, 4)
    for a, b in ((found.weights, expected.weights), (found.means, expected.means)):
        order_a, order_b = (m.means[:, 0].argsort() for m in (found, expected))
        torch.testing.assert_close(a[order_a], b[order_b])
    few = MultivariateNormalMixture(
        torch.tensor([1.0, 0.0, 0.0]), torch.tensor([[0.0], [1.0], [2.0]]), torch.ones(3, 1, 1)
    )
    assert merge_by(cost, few, 2).weights.sum() == 1


# Singular covariances


@every_cost
@every_singular_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_singular_covariances(kind: Kind, cost: str, dtype: torch.dtype) -> None:
    mixture = of_free(kind, *free_parameters(kind, k=30, d=3, seed=11)).to(dtype)
    found = merge_by(cost, mixture, 4)
    assert found.means.isfinite().all()
    assert found.covariances.isfinite().all()
    rounding = 50 * torch.finfo(dtype).eps
    torch.testing.assert_close(found.mean, mixture.mean, rtol=0, atol=rounding)
    torch.testing.assert_close(found.covariance, mixture.covariance, rtol=0, atol=10 * rounding)


@pytest.mark.parametrize("cost", ["salmond", "west"])
def test_points_are_merged_by_their_distance(cost: str) -> None:
    """Two clusters of points, on the line and on a line in space, where two directions do not exist."""
    x = torch.tensor([0.0, 1.0, 50.0, 52.0], dtype=torch.float64)
    for places in (x.unsqueeze(-1), x.unsqueeze(-1) * torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)):
        found = merge_by(cost, MultivariateNormalMixture.from_samples(places), 2)
        torch.testing.assert_close(found.means, torch.stack((places[:2].mean(0), places[2:].mean(0))))


@every_cost
def test_points_are_kernels_of_the_least_width(cost: str) -> None:
    points = MultivariateNormalMixture.from_samples(randn(25, 2, seed=12), randn(25, seed=13).exp())
    kernels = MultivariateNormalMixture(points.weights, points.means, Tied(1e-14 * points.covariance))
    for k in (1, 6, 15):
        assert agrees(merge_by(cost, points, k), by_loops(kernels, k, cost))


@every_cost
def test_equal_points(cost: str) -> None:
    same = merge_by(cost, MultivariateNormalMixture.from_samples(torch.ones(4, 2)), 2)
    assert torch.equal(same.means, torch.ones(2, 2))
    assert torch.equal(same.covariances, torch.zeros(2, 2, 2))


def test_the_mixture_is_left_alone_and_there_is_no_gradient() -> None:
    mixture = random_mixture(k=8, seed=13)
    means = mixture.means.clone().requires_grad_()
    variances = Diagonal(torch.ones(8, 2, dtype=torch.float64))
    before = means.detach().clone()
    found = merge_greedily(MultivariateNormalMixture(mixture.weights, means, variances), 2)
    assert torch.equal(means.detach(), before)
    assert torch.equal(variances.values, torch.ones(8, 2))
    assert not found.means.requires_grad
