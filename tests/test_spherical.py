"""The closed form for spherical mixtures against slices and mpmath, and the general distance against it."""

from __future__ import annotations

import math
import statistics

import mpmath
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from cramix import MultivariateNormalMixture, NormalMixture, Spherical, sliced_cramer_loss
from cramix.directions import equispaced, orthogonal
from cramix.distance.cramer.distance import cramer_squared
from tests.spherical_oracle import MeanLength, spherical_cramer_squared


def parameters(*shape: int, dim: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    weights, means, variances = (
        torch.randn(*s, generator=g, dtype=torch.float64) for s in (shape, (*shape, dim), shape)
    )
    return weights.softmax(-1), 2 * means, variances.exp()


def mixture(weights: Tensor, means: Tensor, variances: Tensor) -> MultivariateNormalMixture:
    return MultivariateNormalMixture(weights, means, Spherical(variances), validate_args=False)


def rotation(dim: int) -> Tensor:
    return orthogonal(dim, dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(("dim", "squared", "variance"), [(1, 4.0, 1.5), (2, 0.3, 2.0), (3, 9.0, 1e-8), (64, 1e3, 3.0)])
def test_mean_length(dim: int, squared: float, variance: float) -> None:
    """E|delta + s Z| as one integral over the length, of Rice's density in d dimensions."""
    x, v = (torch.tensor(t, dtype=torch.float64) for t in (squared, variance))
    with mpmath.workdps(30):
        r, v2, order = mpmath.sqrt(squared), mpmath.mpf(variance), mpmath.mpf(dim) / 2 - 1

        def density(y):
            z = y * r / v2
            scaled = mpmath.besseli(order, z) * mpmath.exp(-z)
            return y ** (order + 1) * r**-order / v2 * mpmath.exp(-((y - r) ** 2) / (2 * v2)) * scaled

        centre, width = mpmath.sqrt(squared + dim * v2), mpmath.sqrt(v2)
        cuts = [max(0, centre + i * width) for i in range(-12, 15, 3)]
        cuts = [0, *sorted({c for c in cuts if c > 0})]
        mean = mpmath.quad(lambda y: y * density(y), cuts)
        c_d = mpmath.gamma(mpmath.mpf(dim) / 2) / (mpmath.sqrt(mpmath.pi) * mpmath.gamma(mpmath.mpf(dim + 1) / 2))
    assert MeanLength.apply(x, v, dim).item() == pytest.approx(float(c_d * mean), rel=1e-12)


def test_in_the_plane_it_is_the_mean_of_slices() -> None:
    p, q = mixture(*parameters(3, dim=2, seed=0)), mixture(*parameters(4, dim=2, seed=1))
    directions = equispaced(64, dtype=torch.float64)
    slices = cramer_squared(p.project(directions), q.project(directions)).mean().item()
    assert spherical_cramer_squared(p, q).item() == pytest.approx(slices, rel=1e-11)


def test_in_one_dimension_it_is_the_cramer_distance() -> None:
    p, y = parameters(3, dim=1, seed=2), torch.randn(5, 1, generator=torch.Generator().manual_seed(3)).double()
    line = NormalMixture(p[0], p[1].squeeze(-1), p[2].sqrt())
    assert spherical_cramer_squared(mixture(*p), y).item() == pytest.approx(
        cramer_squared(line, y.squeeze(-1)).item(), rel=1e-12
    )


@pytest.mark.parametrize("dim", [3, 20])
def test_in_more_dimensions_within_five_standard_errors_of_slices(dim: int) -> None:
    p = mixture(*parameters(3, dim=dim, seed=4))
    y = torch.randn(6, dim, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    q = MultivariateNormalMixture.from_samples(y)
    each = []
    for seed in range(60):
        directions = orthogonal(dim * 4, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        each.append(cramer_squared(p.project(directions), q.project(directions)).mean().item())
    error = statistics.stdev(each) / math.sqrt(len(each))
    exact = spherical_cramer_squared(p, y).item()
    assert abs(statistics.mean(each) - exact) < 5 * error
    assert error < 0.02 * exact


def test_points_are_an_energy_distance() -> None:
    g = torch.Generator().manual_seed(6)
    x, y = torch.randn(7, 5, generator=g, dtype=torch.float64), torch.randn(4, 5, generator=g, dtype=torch.float64)
    c_d = math.gamma(2.5) / (math.sqrt(math.pi) * math.gamma(3))
    energy = torch.cdist(x, y).mean() - 0.5 * torch.cdist(x, x).mean() - 0.5 * torch.cdist(y, y).mean()
    assert spherical_cramer_squared(x, y).item() == pytest.approx(c_d * energy.item(), rel=1e-13)
    assert spherical_cramer_squared(x.float(), y.float()).dtype == torch.float32
    assert spherical_cramer_squared(x.float(), y.float()).item() == pytest.approx(c_d * energy.item(), rel=1e-6)
    assert spherical_cramer_squared(x.half(), y.half()).dtype == torch.float32


def test_laws() -> None:
    p, q = mixture(*parameters(3, dim=4, seed=7)), mixture(*parameters(2, dim=4, seed=8))
    distance = spherical_cramer_squared(p, q).item()
    assert distance > 0.01
    assert spherical_cramer_squared(q, p).item() == pytest.approx(distance, rel=1e-13)
    assert spherical_cramer_squared(p, p).item() == 0
    turn = rotation(4)
    turned = [mixture(m.weights, m.means @ turn + 3, m.covariance_kind.values) for m in (p, q)]
    assert spherical_cramer_squared(*turned).item() == pytest.approx(distance, rel=1e-12)
    scaled = [mixture(m.weights, 5 * m.means, 25 * m.covariance_kind.values) for m in (p, q)]
    assert spherical_cramer_squared(*scaled).item() == pytest.approx(5 * distance, rel=1e-12)


def test_batches_broadcast() -> None:
    w, m, v = parameters(2, 1, 3, dim=4, seed=9)
    q = mixture(*parameters(5, 2, dim=4, seed=10))
    losses = spherical_cramer_squared(mixture(w, m, v), q)
    assert losses.shape == (2, 5)
    alone = mixture(q.weights[3], q.means[3], q.covariance_kind.values[3])
    one = spherical_cramer_squared(mixture(w[1, 0], m[1, 0], v[1, 0]), alone)
    assert losses[1, 3].item() == pytest.approx(one.item(), rel=1e-13)
    tied = MultivariateNormalMixture(w, m, Spherical(v[0, 0, :1]))  # one variance for all
    assert spherical_cramer_squared(tied, q).shape == (2, 5)


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_gradients(dim: int) -> None:
    w, m, v = (t.requires_grad_() for t in parameters(2, dim=dim, seed=11))
    y = torch.randn(3, dim, generator=torch.Generator().manual_seed(12), dtype=torch.float64).requires_grad_()

    def of(w: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
        return spherical_cramer_squared(mixture(w, m, v), y)

    assert gradcheck(of, (w, m, v, y))
    assert gradgradcheck(of, (w, m, v, y))


def test_gradients_at_equal_means_and_near_points() -> None:
    cases = [(0.0, 2.0), (1e-300, 2.0), (3.0, 1e-9), (3.0, 1e-16), (3.0, 1e-17), (3.0, 0.0), (1e4, 1e-3)]
    squared, variance = (t.requires_grad_() for t in torch.tensor(cases, dtype=torch.float64).unbind(-1))
    for dim in (1, 2, 3, 50):
        c_d = math.gamma(dim / 2) / (math.sqrt(math.pi) * math.gamma((dim + 1) / 2))
        length = MeanLength.apply(squared, variance, dim).sum()
        for i, found in enumerate(torch.stack(torch.autograd.grad(length, (squared, variance)), -1).tolist()):
            with mpmath.workdps(40):
                b, s, t = mpmath.mpf(dim) / 2, mpmath.mpf(cases[i][0]), mpmath.mpf(cases[i][1])
                if t == 0:
                    true = (c_d / (2 * mpmath.sqrt(s)), (dim - 1) * c_d / (2 * mpmath.sqrt(s)))
                else:
                    density = 1 / mpmath.sqrt(2 * mpmath.pi * t)
                    true = (
                        density * mpmath.hyp1f1(0.5, b + 1, -s / (2 * t)) / dim,
                        density * mpmath.hyp1f1(0.5, b, -s / (2 * t)),
                    )
            assert found == pytest.approx([float(x) for x in true], rel=1e-12, abs=1e-300)


def test_weights_count_by_their_shares() -> None:
    """Rounding keeps weights from summing to one; in an energy distance the excess would not cancel."""
    w, m, v = parameters(3, dim=4, seed=14)
    near = mixture(w, m + 1e-4, v)
    expected = spherical_cramer_squared(mixture(w, m, v), near).item()
    excess = spherical_cramer_squared(mixture(w * (1 + 1e-5), m, v), near).item()
    assert excess == pytest.approx(expected, rel=1e-5, abs=0)


def test_gradients_stay_finite_where_points_meet() -> None:
    means = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    variances = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    weights = torch.full((3,), 1 / 3, dtype=torch.float64)
    gradients = torch.autograd.grad(
        spherical_cramer_squared(mixture(weights, means, variances), y), (means, variances, y)
    )
    assert all(g.isfinite().all() for g in gradients)
    # By symmetry the two components that coincide move alike.
    assert torch.equal(gradients[0][0], gradients[0][1])
    assert gradients[0][2].abs().max() > 0.01


@pytest.mark.parametrize("dim", [2, 3, 20, 200])
def test_the_general_distance_of_spherical_mixtures(dim: int) -> None:
    p, q = mixture(*parameters(3, dim=dim, seed=13)), mixture(*parameters(4, dim=dim, seed=14))
    y = torch.randn(6, dim, generator=torch.Generator().manual_seed(15), dtype=torch.float64)
    for other in (q, y):
        truth = spherical_cramer_squared(p, other).item()
        found = sliced_cramer_loss(p, other, tolerance=1e-11).item()
        assert found == pytest.approx(truth, abs=1e-9)
        assert 1.01 * found != pytest.approx(truth, abs=1e-9)
