"""Wasserstein's distances against scipy, POT, closed forms and brute-force integration over levels."""

from __future__ import annotations

import itertools
import math

import numpy as np
import ot
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from cramix import (
    Full,
    MultivariateNormalMixture,
    NormalMixture,
    lp_distance,
    sliced_wasserstein_distance,
    sliced_wasserstein_loss,
    wasserstein_distance,
)
from cramix.directions import orthogonal
from cramix.distance.wasserstein import wasserstein_power
from tests import oracle


def wasserstein(p: NormalMixture | Tensor, q: NormalMixture | Tensor, order: int = 2) -> Tensor:
    """The distance with tensors as sets of samples `(*batch, n)`."""
    return wasserstein_distance(of_samples(p), of_samples(q), order)


def of_samples(x: NormalMixture | Tensor) -> NormalMixture:
    return NormalMixture.from_samples(x) if isinstance(x, Tensor) else x


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def mixture(weights: list[float], means: list[float], scales: list[float]) -> NormalMixture:
    return NormalMixture(*(torch.tensor(t, dtype=torch.float64) for t in (weights, means, scales)))


def quantiles(p: NormalMixture, z: np.ndarray) -> np.ndarray:
    """Quantiles at the levels of standard normal quantiles z, by bisection on log probabilities of the nearer tail."""
    w, m, s = (t.numpy()[:, None] for t in (p.weights, p.means, p.scales))
    sign = np.where(z < 0, 1.0, -1.0)
    target = scipy.special.log_ndtr(sign * z)
    low, high = (m + np.minimum(z, -1) * s - 1).min(0), (m + np.maximum(z, 1) * s + 1).max(0)
    for _ in range(90):
        x = 0.5 * (low + high)
        tail = np.log((w * scipy.special.ndtr(sign * (x - m) / s)).sum(0))
        beyond = sign * (tail - target) > 0
        low, high = np.where(beyond, low, x), np.where(beyond, x, high)
    return 0.5 * (low + high)


def dips(p: NormalMixture) -> list[float]:
    """Where the density has minima, as levels Phi(z): there the quantile function is steep."""
    x = torch.linspace(
        (p.means - p.scales).min().item(), (p.means + p.scales).max().item(), 20_001, dtype=torch.float64
    )
    f = p.log_prob(x)
    at = x[1:-1][(f[1:-1] < f[2:]) & (f[1:-1] <= f[:-2])]
    return scipy.special.ndtri(p.cdf(at).numpy()).tolist()


def brute(p: NormalMixture, q: NormalMixture, panels: int = 2000) -> float:
    """W2^2 as an integral over the levels Phi(z), with panels that shrink towards the dips."""
    shrinking = 2.0 ** -np.arange(45)
    around = [z + sign * shrinking for z in (*dips(p), *dips(q)) for sign in (-1, 0, 1)]
    edges = np.sort(np.concatenate((np.linspace(-9, 9, panels + 1), *around)))
    x, w = np.polynomial.legendre.leggauss(8)
    z = ((edges[1:] + edges[:-1])[:, None] / 2 + np.diff(edges)[:, None] / 2 * x).ravel()
    weights = (np.diff(edges)[:, None] / 2 * w).ravel() * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return float((weights * (quantiles(p, z) - quantiles(q, z)) ** 2).sum())


# Points


@pytest.mark.parametrize(("n", "m"), [(1, 1), (7, 7), (30, 45), (1, 9)])
def test_points_are_scipys_and_pots(n: int, m: int) -> None:
    x, y = randn(n, seed=0), 2 * randn(m, seed=1) + 1
    a, b = (torch.rand(k, generator=seeded(k), dtype=torch.float64) for k in (n, m))
    for u, v in ((torch.ones_like(a), torch.ones_like(b)), (a, b)):
        p, q = NormalMixture.from_samples(x, u), NormalMixture.from_samples(y, v)
        first = scipy.stats.wasserstein_distance(x.numpy(), y.numpy(), u.numpy(), v.numpy())
        assert wasserstein(p, q, 1).item() == pytest.approx(first, rel=1e-12)
        second = ot.wasserstein_1d(x.numpy(), y.numpy(), (u / u.sum()).numpy(), (v / v.sum()).numpy(), p=2)
        assert wasserstein(p, q, 2).item() == pytest.approx(math.sqrt(second), rel=1e-12)
    assert wasserstein(x, y, 1).item() == pytest.approx(lp_distance(x, y, 1.0).item(), rel=1e-12)


@pytest.mark.parametrize("order", [1, 2])
def test_gradients_of_points(order: int) -> None:
    x, y = randn(4, seed=2).requires_grad_(), randn(3, seed=3).requires_grad_()
    a, b = (torch.rand(k, generator=seeded(k), dtype=torch.float64).requires_grad_() for k in (4, 3))

    def of(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return wasserstein(NormalMixture.from_samples(x, a), NormalMixture.from_samples(y, b), order)

    assert gradcheck(of, (x, y, a, b))
    assert gradgradcheck(of, (x, y, a, b))


# A mixture and points


def segments(p: NormalMixture, y: np.ndarray, shares: np.ndarray) -> float:
    """W2^2 as a sum of integrals over the pieces of the line that go to each point."""
    order = np.argsort(y)
    y, shares = y[order], shares[order]
    ends = quantiles(p, scipy.special.ndtri(np.cumsum(shares)[:-1]))
    ends = np.concatenate(([(p.means - 12 * p.scales).min().item()], ends, [(p.means + 12 * p.scales).max().item()]))

    cuts = ends[:-1, None] + np.diff(ends)[:, None] * np.linspace(0, 1, 41)  # (n, 41)
    nodes, w = np.polynomial.legendre.leggauss(12)
    half = np.diff(cuts)[..., None] / 2
    x = (cuts[:, 1:] + cuts[:, :-1])[..., None] / 2 + half * nodes
    density = sum(
        w * scipy.stats.norm.pdf(x, m, s)
        for w, m, s in zip(p.weights.tolist(), p.means.tolist(), p.scales.tolist(), strict=True)
    )
    return float((half * w * density * (x - y[:, None, None]) ** 2).sum())


@pytest.mark.parametrize("seed", [0, 1])
def test_the_first_order_from_a_mixture_to_points_is_the_area(seed: int) -> None:
    p, y = oracle.random_mixture(3, seed=seed), 3 * randn(5, seed=seed + 10)
    weights = torch.rand(5, generator=seeded(seed), dtype=torch.float64)
    for q in (NormalMixture.from_samples(y), NormalMixture.from_samples(y, weights)):
        assert wasserstein(p, q, 1).item() == pytest.approx(lp_distance(p, q, 1.0).item(), rel=1e-9)
    order = np.argsort(y.numpy())
    levels = np.concatenate(([0.0], np.cumsum(weights.numpy()[order]) / weights.sum().item()))
    w, m, s = p.weights.numpy(), p.means.numpy(), p.scales.numpy()

    def gap(x: float, level: float) -> float:
        return abs(float(w @ scipy.special.ndtr((x - m) / s)) - level)

    low, high = (m - 12 * s).min(), (m + 12 * s).max()
    ends = [min(low, y.min().item()), *y.numpy()[order], max(high, y.max().item())]
    crossings = quantiles(p, scipy.special.ndtri(levels[1:-1])).tolist()
    area = 0.0
    for j, (a, b) in enumerate(itertools.pairwise(ends)):
        cuts = sorted({a, b, *(c for c in (*crossings, *m) if a < c < b)})
        area += sum(scipy.integrate.quad(gap, c, d, (levels[j],), limit=200)[0] for c, d in itertools.pairwise(cuts))
    assert wasserstein(p, NormalMixture.from_samples(y, weights), 1).item() == pytest.approx(area, rel=1e-8)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_mixture_to_points(seed: int) -> None:
    p, y = oracle.random_mixture(3, seed=seed), 3 * randn(4, seed=seed + 10) + 50
    weights = torch.rand(4, generator=seeded(seed), dtype=torch.float64)
    for share in (torch.full_like(weights, 0.25), weights / weights.sum()):
        expected = math.sqrt(segments(p, y.numpy() - 50, share.numpy()))
        q = NormalMixture.from_samples(y - 50, share)
        assert wasserstein(p, q).item() == pytest.approx(expected, rel=1e-10)
        assert wasserstein(q, p).item() == pytest.approx(expected, rel=1e-10)
        shifted = wasserstein(p.affine(1e6, 1.0), NormalMixture.from_samples(y - 50 + 1e6, share))
        assert shifted.item() == pytest.approx(expected, rel=1e-8)  # numbers of 1e6 are known to 1e-10


def test_one_normal_and_one_point_and_points_of_no_weight() -> None:
    p = mixture([1.0], [3.0], [2.0])
    assert wasserstein(p, torch.zeros(1, dtype=torch.float64)).item() == pytest.approx(math.sqrt(13), rel=1e-14)
    y = torch.tensor([-9.0, 0.0, 0.0, 7.0], dtype=torch.float64)
    q = NormalMixture.from_samples(y, torch.tensor([0.0, 1.0, 2.0, 0.0], dtype=torch.float64))
    assert wasserstein(p, q).item() == pytest.approx(math.sqrt(13), rel=1e-12)


def test_many_points_of_a_mixture_come_close_to_it() -> None:
    p = oracle.random_mixture(2, seed=4)
    y = p.icdf((torch.arange(400, dtype=torch.float64) + 0.5) / 400)
    squared = segments(p, y.numpy(), np.full(400, 1 / 400))
    assert squared < 1e-2 * p.variance.item()
    assert wasserstein(p, y).item() ** 2 == pytest.approx(squared, rel=1e-9)


@pytest.mark.parametrize("order", [1, 2])
def test_gradients_of_a_mixture_to_points(order: int) -> None:
    w, m, s = (t.requires_grad_() for t in oracle.random_parameters(3, seed=5))
    y = randn(4, seed=6).requires_grad_()
    shares = torch.rand(4, generator=seeded(7), dtype=torch.float64).requires_grad_()

    def of(w: Tensor, m: Tensor, s: Tensor, y: Tensor, shares: Tensor) -> Tensor:
        w = w / w.sum(-1, keepdim=True)
        return wasserstein(NormalMixture(w, m, s, validate_args=False), NormalMixture.from_samples(y, shares), order)

    assert gradcheck(of, (w, m, s, y, shares))


def test_gradients_where_a_level_falls_into_a_gap() -> None:
    """Half of the points go to either component, so that each moves with its own half."""
    m = torch.tensor([-50.0, 50.0], dtype=torch.float64, requires_grad=True)
    half = torch.full((2,), 0.5, dtype=torch.float64)
    y = torch.tensor([-49.0, -48.0, 52.0, 51.0], dtype=torch.float64)
    squared = wasserstein(NormalMixture(half, m, 2 * half), y).square()
    assert torch.autograd.grad(squared, m)[0].tolist() == pytest.approx([-1.5, -1.5], rel=1e-10)


def test_atoms_beside_components() -> None:
    """The mixture's atom at 1 takes the levels from Phi(1)/2 to (1 + Phi(1))/2, cut at those of the points."""
    y = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64)
    p = mixture([0.5, 0.5], [0.0, 1.0], [1.0, 0.0])
    low, high = scipy.stats.norm.cdf(1) / 2, scipy.stats.norm.cdf(1) / 2 + 0.5

    def cost(u: float) -> float:
        x = scipy.stats.norm.ppf(2 * u) if u < low else (1.0 if u < high else scipy.stats.norm.ppf(2 * u - 1))
        return (x - y[min(int(3 * u), 2)].item()) ** 2

    pieces = [0, 1 / 3, low, 2 / 3, high, 1]
    expected = sum(scipy.integrate.quad(cost, a, b, epsabs=1e-10)[0] for a, b in itertools.pairwise(pieces))
    assert wasserstein(p, y).item() ** 2 == pytest.approx(expected, rel=1e-7)
    weights = p.weights.clone().requires_grad_()
    means = p.means.clone().requires_grad_()
    places = y.clone().requires_grad_()

    for order in (1, 2):

        def of(w: Tensor, m: Tensor, y: Tensor, order: int = order) -> Tensor:
            return wasserstein(NormalMixture(w / w.sum(), m, p.scales, validate_args=False), y, order)

        assert gradcheck(of, (weights, means, places))
    zeros = NormalMixture(p.weights, p.means, torch.zeros(2, dtype=torch.float64))
    points = NormalMixture.from_samples(p.means, p.weights)
    assert torch.equal(wasserstein(zeros, points.affine(1.0, 1.0)), torch.ones((), dtype=torch.float64))


# Two mixtures


@pytest.mark.parametrize(("m", "s", "n", "t"), [(0, 1, 3, 5), (-2, 1e-3, 7, 100), (1e4, 1, 1e4, 1.1), (0, 2, 0, 2)])
def test_normals(m: float, s: float, n: float, t: float) -> None:
    p, q = mixture([1.0], [m], [s]), mixture([1.0], [n], [t])
    assert wasserstein(p, q, 2).item() == pytest.approx(math.hypot(m - n, s - t), rel=1e-10, abs=1e-11)


PAIRS = {
    "random": (oracle.random_mixture(3, seed=0), oracle.random_mixture(4, seed=20)),
    "random too": (oracle.random_mixture(5, seed=3), oracle.random_mixture(2, seed=23)),
    "a dip": (mixture([0.5, 0.5], [-3.0, 3.0], [1.0, 1.0]), mixture([0.3, 0.7], [0.0, 1.0], [1.0, 2.0])),
    "a deep dip": (mixture([0.5, 0.5], [-5.0, 5.0], [1.0, 1.0]), mixture([0.3, 0.7], [0.0, 1.0], [1.0, 2.0])),
    "two dips": (mixture([0.5, 0.5], [-4.0, 4.0], [1.0, 1.0]), mixture([0.45, 0.55], [-5.0, 5.0], [1.0, 2.0])),
    "scales": (mixture([0.2, 0.8], [0.3, 0.0], [1e-2, 1.0]), mixture([0.3, 0.7], [0.0, 1.0], [1.0, 2.0])),
}


@pytest.mark.parametrize("name", PAIRS)
def test_mixtures_against_brute_force(name: str) -> None:
    p, q = PAIRS[name]
    expected = brute(p, q)
    squared = wasserstein(p, q).item() ** 2
    assert brute(p, q, 3000) == pytest.approx(expected, rel=1e-13)  # the truth is one
    assert squared == pytest.approx(expected, rel=1e-12)
    assert wasserstein(q, p).item() == pytest.approx(math.sqrt(squared), rel=1e-10)
    assert wasserstein(p, q, 1).item() == lp_distance(p, q, 1.0).item()


@pytest.mark.parametrize("gap", [10.0, 100.0, 1e6])
def test_components_far_apart(gap: float) -> None:
    """With equal weights on either side each component goes to its own."""
    p = mixture([0.5, 0.5], [-gap, gap], [1.0, 2.0])
    q = mixture([0.5, 0.5], [-gap + 1, gap + 3], [2.0, 0.5])
    # Levels are known to 1e-16, and as much mass may be on the wrong side.
    assert wasserstein(p, q).item() ** 2 == pytest.approx(
        0.5 * (1 + 1) + 0.5 * (9 + 2.25), rel=1e-9, abs=1e-15 * gap**2
    )
    third = mixture([1.0], [0.0], [gap / 10])
    assert wasserstein(p, third).item() == pytest.approx(math.sqrt(brute(p, third)), rel=1e-9)


def test_a_mean_that_both_share_costs_no_digits() -> None:
    p, q = mixture([0.5, 0.5], [0.0, 5.0], [1.0, 1.0]), mixture([0.25, 0.75], [-2.0, 0.0], [1.0, 3.0])
    far = wasserstein(p.affine(2.0**30, 1.0), q.affine(2.0**30, 1.0))
    assert far.item() == pytest.approx(wasserstein(p, q).item(), rel=1e-13)


def test_near_coincidence() -> None:
    """Close mixtures: a shift is a shift, however small, and to itself the distance is 0."""
    p = oracle.random_mixture(3, seed=7)
    for shift in (1e-3, 1e-6, 1e-9):
        assert wasserstein(p, p.affine(shift, 1.0)).item() == pytest.approx(shift, rel=1e-6, abs=1e-15)
    means = p.means.clone().requires_grad_()
    distance = wasserstein(NormalMixture(p.weights, means, p.scales), p)
    assert distance.item() < 1e-14
    assert torch.autograd.grad(distance, means)[0].isfinite().all()


@pytest.mark.parametrize("name", ["random", "a dip", "two dips", "scales"])
def test_gradients_of_mixtures(name: str) -> None:
    leaves = tuple(t.clone().requires_grad_() for side in PAIRS[name] for t in (side.weights, side.means, side.scales))

    def of(w: Tensor, m: Tensor, s: Tensor, v: Tensor, n: Tensor, t: Tensor) -> Tensor:
        p = NormalMixture(w / w.sum(), m, s, validate_args=False)
        return wasserstein(p, NormalMixture(v / v.sum(), n, t, validate_args=False))

    assert gradcheck(of, leaves, eps=1e-5, atol=1e-7, rtol=1e-5)


def test_the_gradient_of_a_weight_across_an_empty_gap() -> None:
    """Mass that changes sides pays (g - y)^2 less (-g - y)^2 at the other mixture's quantile y, and its own width."""
    logit = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    means, scales = torch.tensor([-80.0, 80.0], dtype=torch.float64), torch.ones(2, dtype=torch.float64)

    def squared(logit: Tensor) -> Tensor:
        weights = torch.stack((logit.sigmoid(), 1 - logit.sigmoid()))
        return wasserstein(NormalMixture(weights, means, scales), mixture([1.0], [0.0], [3.0])).square()

    weight = logit.sigmoid().item()
    cost = 4 * 80 * 3 * scipy.stats.norm.ppf(weight)
    assert torch.autograd.grad(squared(logit), logit)[0].item() == pytest.approx(weight * (1 - weight) * cost, rel=0.02)
    assert gradcheck(squared, logit, eps=1e-4, rtol=1e-6)


@pytest.mark.parametrize(("other", "order"), [("mixture", 2), ("points", 2), ("points", 1)])
def test_second_derivatives_are_refused(other: str, order: int) -> None:
    """They would be wrong, and nobody would know: a penalty on the gradient is an error, even beside other losses."""
    p, q = PAIRS["random"]
    means = p.means.clone().requires_grad_()
    distance = wasserstein(NormalMixture(p.weights, means, p.scales), q if other == "mixture" else q.means, order)
    for loss in (distance, distance.square()):
        (gradient,) = torch.autograd.grad(loss, means, create_graph=True, retain_graph=True)
        with pytest.raises(RuntimeError, match="first derivatives only"):
            torch.autograd.grad(gradient.square().sum() + means.square().sum(), means, retain_graph=True)


def test_blocks_of_rows_make_no_difference() -> None:
    p, q, y = oracle.random_mixture(5, 3, seed=8), oracle.random_mixture(5, 2, seed=9), randn(5, 4, seed=9)
    for other in (q, of_samples(y)):
        in_blocks, together = (wasserstein_power(p, other, 2, block=block) for block in (1, None))
        torch.testing.assert_close(in_blocks, together, rtol=1e-12, atol=0)


# Laws, batches, dtypes


@pytest.mark.parametrize("order", [1, 2])
def test_laws(order: int) -> None:
    a, b, c = (oracle.random_mixture(3, seed=s) for s in (10, 11, 12))
    y = randn(6, seed=13)
    for p, q in ((a, b), (a, y)):
        distance = wasserstein(p, q, order).item()
        assert distance > 0.1
        scaled = wasserstein(a.affine(5.0, -3.0), b.affine(5.0, -3.0) if q is b else 5 - 3 * y, order)
        assert scaled.item() == pytest.approx(3 * distance, rel=1e-9)
    assert wasserstein(a, c, order) <= wasserstein(a, b, order) + wasserstein(b, c, order) + 1e-12
    assert wasserstein(a, b, 1) <= wasserstein(a, b, 2)
    assert wasserstein(y, y, order).item() == 0


def test_batches_and_dtypes() -> None:
    p, q = oracle.random_mixture(2, 1, 3, seed=14), oracle.random_mixture(4, 2, seed=15)
    y = randn(4, 6, seed=16)
    single = NormalMixture(*(t.float() for t in (p.weights, p.means, p.scales)))
    for order in (1, 2):
        for other in (q, y):
            each = wasserstein(p, other, order)
            assert each.shape == (2, 4)
            one = NormalMixture(p.weights[1, 0], p.means[1, 0], p.scales[1, 0])
            alone = y[2] if other is y else NormalMixture(q.weights[2], q.means[2], q.scales[2])
            assert each[1, 2].item() == pytest.approx(wasserstein(one, alone, order).item(), rel=1e-10)
        rough = wasserstein(single, y.float(), order)
        assert rough.dtype == torch.float32
        torch.testing.assert_close(rough.double(), wasserstein(p, y, order), rtol=1e-5, atol=0)
        assert wasserstein(y.half(), y.half() + 1, order).dtype == torch.float32
        assert wasserstein(y[:0], y[:0], order).shape == (0,)


# Slices


@pytest.mark.parametrize("order", [1, 2])
def test_slices_of_points_are_pots(order: int) -> None:
    x, y = randn(20, 3, seed=17), randn(30, 3, seed=18) + 0.5
    directions = orthogonal(50, 3, generator=seeded(19), dtype=torch.float64)
    expected = ot.sliced_wasserstein_distance(x.numpy(), y.numpy(), projections=directions.T.numpy(), p=order)
    distance = sliced_wasserstein_distance(x, y, order, directions)
    assert distance.item() == pytest.approx(float(expected), rel=1e-10)
    loss = sliced_wasserstein_loss(MultivariateNormalMixture.from_samples(x), y, order=order, directions=directions)
    assert loss.item() == pytest.approx(float(expected) ** order, rel=1e-10)
    drawn = sliced_wasserstein_distance(x, y, order, 3000, seeded(20)).item()
    assert drawn == pytest.approx(float(expected), rel=0.1)
    assert sliced_wasserstein_distance(x.float(), y.float(), order, 10, seeded(0)).dtype == torch.float32


def test_slices_of_normals() -> None:
    root = randn(2, 3, 3, seed=21)
    covariances = root @ root.mT
    means = randn(2, 3, seed=22)
    one = torch.ones(1, dtype=torch.float64)
    p, q = (MultivariateNormalMixture(one, means[i : i + 1], Full(covariances[i : i + 1])) for i in (0, 1))
    directions = orthogonal(9, 3, generator=seeded(23), dtype=torch.float64)
    along = (directions.unsqueeze(0) @ covariances * directions).sum(-1).sqrt()
    expected = ((directions @ (means[0] - means[1])).square() + (along[0] - along[1]).square()).mean().sqrt()
    assert sliced_wasserstein_distance(p, q, 2, directions).item() == pytest.approx(expected.item(), rel=1e-10)
    rotation = orthogonal(3, 3, generator=seeded(24), dtype=torch.float64)
    turned = sliced_wasserstein_distance(p.affine(0.0, rotation), q.affine(0.0, rotation), 2, directions @ rotation.mT)
    assert turned.item() == pytest.approx(expected.item(), rel=1e-9)


def test_slices_have_gradients_and_reduce() -> None:
    w, m, s = oracle.random_parameters(2, 3, seed=25)
    means = torch.stack((m, m.flip(-1)), -1).requires_grad_()
    factors = (s[..., None, None] * torch.eye(2, dtype=torch.float64)).requires_grad_()
    y = randn(2, 2, seed=26).requires_grad_()
    directions = orthogonal(3, 2, generator=seeded(27), dtype=torch.float64)

    def of(means: Tensor, covariances: Tensor, y: Tensor) -> Tensor:
        symmetric = 0.5 * (covariances + covariances.mT)
        p = MultivariateNormalMixture(w, means, Full(symmetric), validate_args=False)
        return sliced_wasserstein_loss(p, y, directions=directions, reduction="none")

    assert gradcheck(of, (means, factors, y))
    assert of(means, factors, y).shape == (2,)


def test_bad_input() -> None:
    p, x = oracle.random_mixture(2, seed=28), randn(3, 2, seed=29)
    for order in (3, 1.5, 0):
        with pytest.raises(ValueError, match=rf"order must be 1 or 2; got {order}"):
            wasserstein_distance(p, p, order)
        with pytest.raises(ValueError, match=rf"order must be 1 or 2; got {order}"):
            sliced_wasserstein_distance(x, x, order)
    atom = mixture([0.5, 0.5], [0.0, 1.0], [1.0, 0.0])
    with pytest.raises(ValueError, match=r"q must have scales > 0 for W2 between two mixtures; got 0"):
        wasserstein_distance(p, atom)
    with pytest.raises(ValueError, match=r"p must be a NormalMixture or samples \(n,\), n >= 1; got shape \(1, 1\)"):
        wasserstein_distance([[1.0]], p)
    with pytest.raises(ValueError, match=r"p must be a NormalMixture or samples; got NoneType"):
        wasserstein_distance(None, p)
    with pytest.raises(ValueError, match=r"directions must be \(t, 2\)"):
        sliced_wasserstein_distance(x, x, directions=torch.ones(4, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r'directions must be "exact", a number >= 1 .*; got 0'):
        sliced_wasserstein_distance(x, x, directions=0)
    with pytest.raises(ValueError, match=r"p and q must have one event shape; got \(2,\) and \(1,\)"):
        sliced_wasserstein_distance(x, x[:, :1])


def test_slices_have_length_one() -> None:
    x, y = torch.randn(2, 20, 2, generator=torch.Generator().manual_seed(30), dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64)
    assert sliced_wasserstein_distance(x, y, directions=10 * eye).item() == pytest.approx(
        sliced_wasserstein_distance(x, y, directions=eye).item(), rel=1e-12
    )
    with pytest.raises(ValueError, match=r"directions must be \(t, 2\)"):
        sliced_wasserstein_distance(x, y, directions=torch.zeros(0, 2, dtype=torch.float64))
