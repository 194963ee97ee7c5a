"""Univariate mixtures as multivariate ones."""

from __future__ import annotations

import torch

from cramix import MultivariateNormalMixture, NormalMixture
from cramix.mixture.coordinates import in_coordinates
from tests import oracle
from tests.refusals import refuses


def test_a_univariate_mixture_has_one_coordinate_with_the_same_distribution() -> None:
    p = oracle.random_mixture(2, 3, seed=0)
    q = in_coordinates(p)
    assert (q.dim, q.batch_shape) == (1, (2,))
    x = torch.linspace(-3, 3, 7, dtype=torch.float64).unsqueeze(-1)
    torch.testing.assert_close(q.log_prob(x.unsqueeze(-1)), p.log_prob(x), rtol=1e-12, atol=0)
    torch.testing.assert_close(q.marginal(0).scales, p.scales, rtol=1e-15, atol=0)


def test_atoms_stay_points_and_multivariate_mixtures_what_they_are() -> None:
    points = in_coordinates(NormalMixture.from_samples(torch.tensor([1.0, 2.0])))
    assert points.is_empirical
    assert points.means.tolist() == [[1.0], [2.0]]
    assert in_coordinates(points) is points


def test_scales_are_squared_after_the_conversion() -> None:
    tiny = NormalMixture(torch.ones(1), torch.zeros(1), torch.full((1,), 1e-30))
    q = in_coordinates(tiny, torch.float64)
    assert q.means.dtype == torch.float64
    assert abs(q.covariances.item() / 1e-60 - 1) < 1e-6
    plane = MultivariateNormalMixture(torch.ones(1), torch.zeros(1, 2), torch.eye(2).unsqueeze(0))
    assert in_coordinates(plane, torch.float64).means.dtype == torch.float64


def test_an_atom_among_normals_has_no_density_in_coordinates_either() -> None:
    p = NormalMixture(torch.tensor([0.5, 0.5]), torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]))
    refuses(lambda: p.log_prob(torch.zeros(())), "scales", "0")
    refuses(lambda: in_coordinates(p).log_prob(torch.zeros(1)), "covariances", "a variance of 0")
