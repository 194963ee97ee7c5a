"""Panels: they cover every component, keep atoms on edges, and integrate to rounding."""

from __future__ import annotations

import mpmath
import pytest
import torch

from cramix.quadrature import REACH, gauss_legendre, panel_edges
from tests import oracle


@pytest.mark.parametrize("scales", [[1.0, 1.0, 1.0], [1e-6, 1.0, 1e3], [0.0, 2.0, 1e-3]])
def test_edges_reach_all_components_and_hold_the_atoms(scales: list[float]) -> None:
    m = torch.tensor([[-5.0, 0.0, 1e4]], dtype=torch.float64)
    s = torch.tensor([scales], dtype=torch.float64)
    edges = panel_edges(m, s)
    assert (edges.diff(dim=-1) >= 0).all()
    assert edges[0, 0].item() == pytest.approx((m - REACH * s).min().item(), rel=1e-12)
    assert edges[0, -1].item() == pytest.approx((m + REACH * s).max().item(), rel=1e-12)
    for atom in m[s == 0]:
        assert (edges == atom).any()


def test_gauss_legendre_is_exact_for_polynomials() -> None:
    edges = torch.tensor([[-1.0, 0.5, 0.5, 2.0]], dtype=torch.float64)
    x, w = gauss_legendre(edges)
    for power in range(24):
        truth = (2.0 ** (power + 1) - (-1.0) ** (power + 1)) / (power + 1)
        assert (w * x**power).sum().item() == pytest.approx(truth, rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("seed", range(5))
def test_densities_of_all_widths_integrate_to_one(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    p = oracle.random_mixture(3, 6, seed=seed, spread=100.0)
    scales = torch.exp(2 * torch.randn(3, 6, generator=g, dtype=torch.float64))  # from 0.005 to 200
    x, w = gauss_legendre(panel_edges(p.means, scales))
    z = (x.unsqueeze(-1) - p.means.unsqueeze(1)) / scales.unsqueeze(1)
    density = torch.exp(-0.5 * z.square()) / (scales.unsqueeze(1) * (2 * torch.pi) ** 0.5)
    torch.testing.assert_close((w.unsqueeze(-1) * density).sum(1), torch.ones_like(scales), rtol=1e-11, atol=0)


def test_a_gap_is_one_panel() -> None:
    m, s = torch.tensor([[0.0, 1e9]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    assert panel_edges(m, s).shape[1] < 30


def test_the_panels_resolve_the_square_of_a_normal_distribution_function() -> None:
    x, w = gauss_legendre(panel_edges(torch.zeros(1, 1).double(), torch.ones(1, 1).double()))
    with mpmath.workdps(30):
        truth = mpmath.quad(lambda t: (mpmath.ncdf(t) - mpmath.ncdf(t, 0, 2)) ** 2, [-8.5, 0, 8.5])
    difference = torch.special.ndtr(x) - torch.special.ndtr(x / 2)
    assert (w * difference**2).sum().item() == pytest.approx(float(truth), rel=1e-12)
