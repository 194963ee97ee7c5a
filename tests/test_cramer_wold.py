"""The Cramér-Wold distance against numerical integration over lines and directions."""

from __future__ import annotations

import math

import pytest
import scipy.integrate
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from cramix import Full, MultivariateNormalMixture, NormalMixture, cramer_wold_loss
from cramix.directions import equispaced
from cramix.distance.cramer_wold import cramer_wold_squared, silverman
from cramix.distance.density import density_l2_squared
from tests.test_spherical import mixture, parameters, rotation


def smoothed(line: NormalMixture, bandwidth: float) -> NormalMixture:
    return NormalMixture(line.weights, line.means, (line.scales.square() + bandwidth).sqrt())


def test_it_is_the_mean_over_the_circle_of_integrals() -> None:
    p, q = mixture(*parameters(2, dim=2, seed=0)), mixture(*parameters(2, dim=2, seed=1))
    total = 0.0
    count = 24
    for direction in equispaced(count, dtype=torch.float64):
        f, g = (smoothed(side.project(direction.unsqueeze(0)), 0.3) for side in (p, q))

        def squared(x: float, f: NormalMixture = f, g: NormalMixture = g) -> float:
            at = torch.tensor([x], dtype=torch.float64)
            return (f.log_prob(at).exp() - g.log_prob(at).exp()).item() ** 2

        total += scipy.integrate.quad(squared, -25, 25, limit=200, epsabs=1e-12)[0] / count
    assert cramer_wold_squared(p, q, 0.3).item() == pytest.approx(total, rel=1e-8)


@pytest.mark.parametrize("dim", [2, 3, 8, 100])
def test_the_mean_over_a_sphere_of_any_dimension(dim: int) -> None:
    """Two points: the angle to their difference has the density sin^(d - 2), and nothing else matters."""
    x, y = torch.zeros(1, dim, dtype=torch.float64), torch.full((1, dim), 1.5, dtype=torch.float64)
    bandwidth = 0.2
    length = 1.5 * math.sqrt(dim)

    def normal(d: float) -> float:
        return math.exp(-(d**2) / (4 * bandwidth)) / math.sqrt(4 * math.pi * bandwidth)

    def over(f) -> float:
        return scipy.integrate.quad(lambda a: f(a) * math.sin(a) ** (dim - 2), 0, math.pi, points=[math.pi / 2])[0]

    expected = over(lambda a: 2 * normal(0) - 2 * normal(length * math.cos(a))) / over(lambda a: 1.0)
    assert cramer_wold_squared(x, y, bandwidth).item() == pytest.approx(expected, rel=1e-8)


def test_in_one_dimension_it_is_the_l2_distance_of_smoothed_densities() -> None:
    p, q = (parameters(3, dim=1, seed=s) for s in (2, 3))
    lines = [smoothed(NormalMixture(w, m.squeeze(-1), v.sqrt()), 0.5) for w, m, v in (p, q)]
    expected = density_l2_squared(*lines).item()
    assert cramer_wold_squared(mixture(*p), mixture(*q), 0.5).item() == pytest.approx(expected, rel=1e-11)


def test_laws() -> None:
    p, q = mixture(*parameters(3, dim=4, seed=4)), mixture(*parameters(2, dim=4, seed=5))
    distance = cramer_wold_squared(p, q, 0.5).item()
    assert distance > 1e-4
    assert cramer_wold_squared(q, p, 0.5).item() == pytest.approx(distance, rel=1e-12)
    assert cramer_wold_squared(p, p, 0.5).item() == 0
    turned = [mixture(m.weights, m.means @ rotation(4) + 3, m.covariance_kind.values) for m in (p, q)]
    assert cramer_wold_squared(*turned, 0.5).item() == pytest.approx(distance, rel=1e-11)
    scaled = [mixture(m.weights, 5 * m.means, 25 * m.covariance_kind.values) for m in (p, q)]
    assert cramer_wold_squared(*scaled, 12.5).item() == pytest.approx(distance / 5, rel=1e-11)
    wider = [mixture(m.weights, m.means, m.covariance_kind.values + 0.3) for m in (p, q)]
    assert cramer_wold_squared(*wider, 0.2).item() == pytest.approx(distance, rel=1e-12)


def test_gradients() -> None:
    w, m, v = (t.requires_grad_() for t in parameters(2, dim=3, seed=6))
    y = torch.randn(3, 3, generator=torch.Generator().manual_seed(7), dtype=torch.float64).requires_grad_()

    def of(w: Tensor, m: Tensor, v: Tensor, y: Tensor) -> Tensor:
        return cramer_wold_squared(mixture(w, m, v), y, 0.1)

    assert gradcheck(of, (w, m, v, y))
    assert gradgradcheck(of, (w, m, v, y))
    still = torch.autograd.grad(of(w, m.detach(), torch.zeros_like(v), m[:1]), m)[0]
    assert still.isfinite().all()


def test_silverman() -> None:
    x = torch.randn(2, 50, 3, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    y = 3 * torch.randn(20, 3, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    prior = mixture(*parameters(2, dim=3, seed=10))
    rule = (4 / 150) ** 0.4
    own = x.var(1, correction=0).mean(-1)
    of = MultivariateNormalMixture.from_samples
    torch.testing.assert_close(silverman(of(x), prior), rule * own)
    torch.testing.assert_close(silverman(prior, of(x)), rule * own)
    torch.testing.assert_close(silverman(of(y), of(x)), rule * (own + y.var(0, correction=0).mean()) / 2)
    for i in range(2):
        expected = cramer_wold_squared(x[i], prior, silverman(of(x[i]), prior).item())
        assert cramer_wold_squared(of(x), prior)[i].item() == pytest.approx(expected.item(), rel=1e-12)
    x.requires_grad_()
    fixed = silverman(of(x[0]), of(y)).item()
    (default,) = torch.autograd.grad(cramer_wold_squared(x[0], y), x)
    (given,) = torch.autograd.grad(cramer_wold_squared(x[0], y, fixed), x)
    torch.testing.assert_close(default, given)


def test_batches_dtypes_and_reductions() -> None:
    p = mixture(*parameters(2, 1, 3, dim=4, seed=11))
    y = torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(12), dtype=torch.float64)
    of = MultivariateNormalMixture.from_samples
    losses = cramer_wold_squared(p, of(y), 0.5)
    assert losses.shape == (2, 5)
    one = cramer_wold_loss(p[:, 0], of(y[4]), bandwidth=0.5, reduction="none")
    torch.testing.assert_close(one, losses[:, 4])
    assert cramer_wold_loss(p[:, 0], of(y[4]), bandwidth=0.5).item() == pytest.approx(one.mean().item())
    widths = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5], dtype=torch.float64)
    torch.testing.assert_close(cramer_wold_squared(p, of(y), widths)[:, 4], losses[:, 4])
    single = cramer_wold_squared(of(y.float()), of(2 * y.float()), 0.5)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), cramer_wold_squared(of(y), of(2 * y), 0.5), rtol=1e-5, atol=0)
    assert cramer_wold_squared(of(y.bfloat16()), of(y.bfloat16()), 0.5).dtype == torch.float32


def test_bad_input() -> None:
    w, m, v = parameters(2, dim=3, seed=13)
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=rf"bandwidth must be > 0; got {bad:.3g}"):
            cramer_wold_squared(m, 2 * m, bad)
    with pytest.raises(ValueError, match="bandwidth must be > 0; got 0"):
        cramer_wold_squared(torch.zeros(4, 3), torch.ones(4, 3))
    with pytest.raises(ValueError, match="bandwidth must be given for two mixtures; got None"):
        cramer_wold_squared(mixture(w, m, v), mixture(w, m, v))
    full = MultivariateNormalMixture(w, m, Full(torch.eye(3, dtype=torch.float64).expand(2, 3, 3)))
    with pytest.raises(ValueError, match=r"p must have spherical.*; got full"):
        cramer_wold_squared(full, m, 1.0)
