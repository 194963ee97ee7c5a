"""The l_p distances and the L2 distance of densities against scipy."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats
import torch
from torch.autograd import gradcheck, gradgradcheck

from cramix import (
    Diagonal,
    Factor,
    Full,
    MultivariateNormalMixture,
    NormalMixture,
    Spherical,
    Tied,
    cramer_distance,
    density_l2_loss,
    lp_distance,
)
from cramix.distance.density import density_l2_squared
from tests import oracle


def quadrature(p: NormalMixture, q: NormalMixture, order: float) -> float:
    """The integral on a fine grid, cut at the sign changes of F - G so that each piece is smooth."""

    def difference(x: np.ndarray) -> np.ndarray:
        at = torch.as_tensor(x, dtype=torch.float64)
        return (p.cdf(at) - q.cdf(at)).numpy()

    both = torch.cat((p.means - 9 * p.scales, p.means + 9 * p.scales, q.means - 9 * q.scales, q.means + 9 * q.scales))
    grid = np.linspace(both.min().item(), both.max().item(), 4001)
    sign = np.sign(difference(grid))
    roots = [
        scipy.optimize.brentq(lambda x: difference(np.array(x)).item(), a, b, xtol=1e-14)
        for a, b, s, t in zip(grid[:-1], grid[1:], sign[:-1], sign[1:], strict=True)
        if s * t < 0
    ]
    cuts = np.sort(np.concatenate((grid, roots)))
    x, w = np.polynomial.legendre.leggauss(10)
    half = np.diff(cuts)[:, None] / 2
    nodes = (cuts[1:] + cuts[:-1])[:, None] / 2 + half * x
    return float((half * w * np.abs(difference(nodes)) ** order).sum() ** (1 / order))


@pytest.mark.parametrize("order", [1.0, 1.5, 3.0, 4.0, 7.25])
@pytest.mark.parametrize("seed", range(4))
def test_lp_of_mixtures(order: float, seed: int) -> None:
    p, q = oracle.random_mixture(3, seed=seed), oracle.random_mixture(4, seed=seed + 20)
    assert lp_distance(p, q, order).item() == pytest.approx(quadrature(p, q, order), rel=1e-9)


def test_high_orders_approach_the_largest_difference() -> None:
    p = NormalMixture(*(torch.tensor([t], dtype=torch.float64) for t in (1.0, 0.0, 1.0)))
    q = p.affine(0.5, 1.2)
    grid = torch.linspace(-6, 6, 200_001, dtype=torch.float64)
    largest = (p.cdf(grid) - q.cdf(grid)).abs().max().item()
    for order in (100.0, 1000.0):
        scaled = (p.cdf(grid) - q.cdf(grid)).abs() / largest
        integral = torch.trapezoid(scaled**order, grid).item()
        assert lp_distance(p, q, order).item() == pytest.approx(largest * integral ** (1 / order), rel=1e-9)


def test_order_two_is_the_cramer_distance() -> None:
    p, q = oracle.random_mixture(3, seed=0), oracle.random_mixture(4, seed=1)
    assert torch.equal(lp_distance(p, q), cramer_distance(p, q))
    assert lp_distance(p, q, 2.0 + 1e-9).item() == pytest.approx(cramer_distance(p, q).item(), rel=1e-8)


@pytest.mark.parametrize("order", [1.0, 2.5])
def test_lp_of_samples(order: float) -> None:
    x, y = (torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in (30, 45))
    points = np.sort(np.concatenate((x, y)))
    steps = np.searchsorted(np.sort(x), points, "right") / 30 - np.searchsorted(np.sort(y), points, "right") / 45
    brute = (np.diff(points) * np.abs(steps[:-1]) ** order).sum() ** (1 / order)
    assert lp_distance(x, y, order).item() == pytest.approx(brute, rel=1e-12)
    if order == 1:
        assert lp_distance(x, y, order).item() == pytest.approx(scipy.stats.wasserstein_distance(x, y), rel=1e-12)


@pytest.mark.slow
def test_lp_of_a_mixture_and_samples_and_of_very_different_scales() -> None:
    y = torch.tensor([-1.0, 0.0, 0.0, 2.0], dtype=torch.float64)
    atom = NormalMixture.from_samples(y)
    p = NormalMixture(*(torch.tensor(t, dtype=torch.float64) for t in ([0.5, 0.5], [0.0, 1.0], [1.0, 1e-6])))

    def gap(u: float) -> float:
        """Wasserstein's W1 is the integral of the distance between the quantile functions."""
        level = torch.tensor(u, dtype=torch.float64)
        return (p.icdf(level) - atom.icdf(level)).abs().item()

    cuts = [0.25, 0.5, 0.75, p.cdf(torch.tensor(1.0).double()).item(), 0.42, 0.92]
    wasserstein = scipy.integrate.quad(gap, 0, 1, points=cuts, limit=3000, epsabs=1e-9)[0]
    assert lp_distance(p, y, 1.0).item() == pytest.approx(wasserstein, abs=2e-8)


def test_lp_batches_and_gradients() -> None:
    w, m, s = (t.requires_grad_() for t in oracle.random_parameters(2, 3, seed=2))
    y = torch.randn(5, generator=torch.Generator().manual_seed(3), dtype=torch.float64).requires_grad_()
    q = oracle.random_mixture(3, seed=4)

    def to_mixture(w, m, s):
        return lp_distance(NormalMixture(w, m, s, validate_args=False), q, 1.0)

    def to_samples(m, s, y):
        return lp_distance(NormalMixture(w.detach(), m, s), NormalMixture.from_samples(y), 1.5)

    assert gradcheck(to_mixture, (w, m, s))
    assert gradcheck(to_samples, (m, s, y))
    each = [lp_distance(NormalMixture(w[i], m[i], s[i]), q, 1.0).item() for i in range(2)]
    assert to_mixture(w, m, s).tolist() == pytest.approx(each, rel=1e-12)


def test_lp_is_zero_on_itself() -> None:
    p = oracle.random_mixture(3, seed=5)
    means = p.means.clone().requires_grad_()
    distance = lp_distance(NormalMixture(p.weights, means, p.scales), p, 1.0)
    assert distance.item() == 0
    assert torch.autograd.grad(distance, means)[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("seed", range(3))
def test_density_l2_is_the_integral(seed: int) -> None:
    p, q = oracle.random_mixture(3, seed=seed), oracle.random_mixture(2, seed=seed + 30)

    def squared(x: float) -> float:
        at = torch.tensor(x, dtype=torch.float64)
        return (p.log_prob(at).exp() - q.log_prob(at).exp()).item() ** 2

    means = [*p.means.tolist(), *q.means.tolist()]
    integral = scipy.integrate.quad(squared, -80, 80, points=means, limit=2000, epsabs=1e-13)[0]
    assert density_l2_loss(p, q).item() == pytest.approx(integral, rel=1e-9)


def test_density_l2_gradients_batches_and_zero() -> None:
    w, m, s = (t.requires_grad_() for t in oracle.random_parameters(2, 3, seed=6))
    q = oracle.random_mixture(4, seed=7)

    def of(w, m, s):
        return density_l2_squared(NormalMixture(w, m, s, validate_args=False), q)

    assert gradcheck(of, (w, m, s))
    assert gradgradcheck(of, (w, m, s))
    assert density_l2_loss(q, q).item() == 0
    assert density_l2_loss(NormalMixture(w, m, s), q, reduction="none").shape == (2,)


def spread_mixture(kind: str, k: int, dim: int, seed: int) -> MultivariateNormalMixture:
    g = torch.Generator().manual_seed(seed)
    weights = torch.randn(k, generator=g, dtype=torch.float64).softmax(-1)
    means = torch.randn(k, dim, generator=g, dtype=torch.float64)
    roots = torch.randn(k, dim, dim + 2, generator=g, dtype=torch.float64)
    full = roots @ roots.mT / dim
    variances = full.diagonal(dim1=-2, dim2=-1)
    kinds = {
        "full": lambda: Full(full),
        "tied": lambda: Tied(full[0]),
        "diagonal": lambda: Diagonal(variances),
        "spherical": lambda: Spherical(variances[:, 0]),
        "factor": lambda: Factor(roots.mT),
    }
    return MultivariateNormalMixture(weights, means, kinds[kind]())


KINDS = ["full", "tied", "diagonal", "spherical", "factor"]


@pytest.mark.parametrize(("a", "b"), [*zip(KINDS, KINDS, strict=True), ("full", "diagonal"), ("spherical", "diagonal")])
def test_density_l2_of_any_kind_in_the_plane_is_the_integral(a: str, b: str) -> None:
    p, q = spread_mixture(a, 3, 2, seed=0), spread_mixture(b, 2, 2, seed=1)
    axis = torch.linspace(-20, 20, 801, dtype=torch.float64)  # for entire functions a trapezoid rule is as good as any
    grid = torch.cartesian_prod(axis, axis)
    integral = (p.log_prob(grid).exp() - q.log_prob(grid).exp()).square().sum().item() * 0.05**2
    assert density_l2_squared(p, q).item() == pytest.approx(integral, rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_density_l2_of_any_kind_is_that_of_its_matrices(kind: str) -> None:
    """All kinds agree with scipy's normal densities at the differences of the means, pair by pair."""
    p, q = spread_mixture(kind, 3, 4, seed=2), spread_mixture(kind, 2, 4, seed=3)

    def overlap(a: MultivariateNormalMixture, b: MultivariateNormalMixture) -> float:
        normal = scipy.stats.multivariate_normal
        return sum(
            (u * v).item() * normal.pdf(m.numpy(), n.numpy(), (s + t).numpy())
            for u, m, s in zip(a.weights, a.means, a.covariances, strict=True)
            for v, n, t in zip(b.weights, b.means, b.covariances, strict=True)
        )

    expected = overlap(p, p) + overlap(q, q) - 2 * overlap(p, q)
    assert density_l2_loss(p, q).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_density_l2_in_many_dimensions_gradients(kind: str) -> None:
    p, q = spread_mixture(kind, 2, 3, seed=4), spread_mixture("full", 2, 3, seed=5)
    values = p.covariance_kind.values.clone().requires_grad_()
    w, m = p.weights.clone().requires_grad_(), p.means.clone().requires_grad_()

    def of(w, m, v):
        v = 0.5 * (v + v.mT) if kind in ("full", "tied") else v
        return density_l2_squared(MultivariateNormalMixture(w, m, p.covariance_kind.like(v), validate_args=False), q)

    assert gradcheck(of, (w, m, values))


def test_density_l2_gradient_in_a_weight_of_zero() -> None:
    """A component that is not there yet says what it would do."""
    weights = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    p, q = oracle.random_mixture(2, seed=8), oracle.random_mixture(2, seed=9)
    assert gradcheck(lambda w: density_l2_squared(NormalMixture(w, p.means, p.scales, validate_args=False), q), weights)


def test_density_l2_out_of_range() -> None:
    """In 128 dimensions densities overflow or vanish long before logarithms do."""
    m = torch.zeros(1, 128, dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)

    def at(place: float, variance: float) -> MultivariateNormalMixture:
        return MultivariateNormalMixture(one, m + place, Spherical(one * variance))

    for variance in (1e-3, 1.0, 10.0):
        with mpmath.workdps(30):
            v = mpmath.mpf(variance)
            unit = (4 * mpmath.pi * v) ** -64
            expected = float(2 * unit * (1 - mpmath.exp(-128 * v * mpmath.mpf("0.01") / (4 * v))))
        shift = 0.1 * variance**0.5
        assert density_l2_squared(at(0, variance), at(shift, variance)).item() == pytest.approx(
            expected, rel=1e-10, abs=0
        )
    assert density_l2_squared(at(0, 1e-9), at(0.1, 1e-9)).item() == float("inf")
    assert density_l2_squared(at(0, 1e-9), at(0, 1e-9)).item() == 0
    # A component that is not there, however narrow, changes nothing.
    empty = MultivariateNormalMixture(
        torch.tensor([1.0, 0.0]).double(), m.expand(2, 128), Spherical(torch.tensor([1.0, 1e-20]).double())
    )
    assert density_l2_squared(empty, at(0.1, 1)).item() == pytest.approx(
        density_l2_squared(at(0, 1), at(0.1, 1)).item(), rel=1e-12, abs=0
    )


def test_density_l2_dtypes_and_batches() -> None:
    p, q = spread_mixture("full", 3, 2, seed=6), spread_mixture("tied", 2, 2, seed=7)
    single = MultivariateNormalMixture(p.weights.float(), p.means.float(), Full(p.covariance_kind.values.float()))
    other = MultivariateNormalMixture(q.weights.float(), q.means.float(), Tied(q.covariance_kind.values.float()))
    loss = density_l2_squared(single, other)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(density_l2_squared(p, q).item(), rel=1e-5)
    many = MultivariateNormalMixture(
        p.weights, p.means + torch.arange(4.0).view(4, 1, 1, 1).double(), p.covariance_kind
    )
    moved = MultivariateNormalMixture(p.weights, p.means + 2, p.covariance_kind)
    assert density_l2_squared(many, q.expand((5,))).shape == (4, 5)
    assert density_l2_squared(many, q)[2, 0].item() == pytest.approx(density_l2_squared(moved, q).item(), rel=1e-12)


def test_density_l2_bad_input() -> None:
    p, line = spread_mixture("full", 2, 2, seed=8), oracle.random_mixture(2, seed=9)
    with pytest.raises(ValueError, match=r"p and q must have one event shape; got \(2,\) and \(\)"):
        density_l2_squared(p, line)
    with pytest.raises(ValueError, match=r"p and q must have one event shape; got \(2,\) and \(3,\)"):
        density_l2_squared(p, spread_mixture("full", 2, 3, seed=8))
    with pytest.raises(ValueError, match="q must be a mixture; got Tensor"):
        density_l2_squared(p, p.means)
    with pytest.raises(ValueError, match=r"covariances must be positive definite .*; got a variance of 0"):
        density_l2_squared(p, MultivariateNormalMixture.from_samples(p.means))
    flat = MultivariateNormalMixture(p.weights, p.means, torch.zeros(2, 2, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match="covariances must be positive definite here; got"):
        density_l2_squared(flat, p)
