"""Recalibration of any predictions by observations that the model has not seen."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from cramix import Diagonal, MultivariateNormalMixture, NormalMixture
from cramix.estimators.recalibration import Recalibration, recalibrate
from tests.refusals import refuses

D = torch.float64
# Quantiles at equidistant levels, in the place of a sample.
NORMAL = torch.from_numpy(stats.norm.ppf((torch.arange(400) + 0.5) / 400))


def normals(scale: float, d: int | None = None) -> NormalMixture | MultivariateNormalMixture:
    weights = torch.ones(400, 1, dtype=D)
    if d is None:
        return NormalMixture(weights, torch.zeros(400, 1, dtype=D), torch.full((400, 1), scale, dtype=D))
    variances = torch.full((400, 1, d), scale**2, dtype=D)
    return MultivariateNormalMixture(weights, torch.zeros(400, 1, d, dtype=D), Diagonal(variances))


@pytest.mark.parametrize(
    ("scale", "factor"), [(1.0, 1.0), (1 / 1.05, 1.05), (1 / 1.1, 1.1), (1 / 0.8, 0.8), (0.5, 1.4), (3.0, 0.4)]
)
def test_scales_are_corrected_within_limits(scale: float, factor: float) -> None:
    found = recalibrate(normals(scale), NORMAL)
    assert found.scale_factor == factor
    torch.testing.assert_close(
        found._replace(tail_weight=0.0).apply(normals(scale)).scales, normals(scale * factor).scales
    )


def test_it_does_not_depend_on_units() -> None:
    p = normals(0.95)
    assert recalibrate(p.affine(1e6, 1e3), 1e6 + 1e3 * NORMAL) == recalibrate(p, NORMAL)


def test_outliers_get_a_wide_component_with_the_mean_of_the_prediction() -> None:
    heavy = torch.from_numpy(stats.t.ppf((torch.arange(400) + 0.5) / 400, 2.5))
    found = recalibrate(normals(1.0), heavy)
    assert found.tail_weight > 0
    p = found.apply(normals(1.0))
    assert p.n_components == 2
    torch.testing.assert_close(p.mean, torch.zeros(400, dtype=D))
    assert p.log_prob(heavy).mean() > normals(1.0).log_prob(heavy).mean() + 0.1


def test_the_disagreement_of_members_is_corrected_apart_from_their_scales() -> None:
    # Two members whose means are off by 1 to either side; each is as narrow as the noise.
    means = torch.tensor([-1.0, 1.0], dtype=D).expand(400, 2)
    p = NormalMixture(torch.full((400, 2), 0.5, dtype=D), means, torch.ones(400, 2, dtype=D))
    found = recalibrate(p, NORMAL)
    assert found.spread_factor < 1
    q = found.apply(p)
    torch.testing.assert_close(q.means, found.spread_factor * means)
    torch.testing.assert_close(q.scales, found.scale_factor * p.scales)
    assert abs(q.variance[0].item() - 1) < 0.1 < p.variance[0].item() - 1


def test_branches_stay_where_they_are() -> None:
    y = torch.cat((NORMAL[::2] - 5, NORMAL[1::2] + 5))
    means = torch.tensor([-5.0, 5.0], dtype=D).expand(400, 2)
    p = NormalMixture(torch.full((400, 2), 0.5, dtype=D), means, torch.full((400, 2), 0.8, dtype=D))
    assert recalibrate(p, y)[:2] == (1.25, 1.0)


def test_few_observations_change_little() -> None:
    few = slice(None, None, 40)
    assert 0.4 < recalibrate(normals(2.0)[few], NORMAL[few]).scale_factor < 1


def test_weights_count_as_repetitions() -> None:
    heavy = torch.from_numpy(stats.t.ppf((torch.arange(400) + 0.5) / 400, 2.5))
    times = torch.where(heavy > 1, 3, torch.where(heavy > 0, 1, 0))
    rows = torch.arange(400).repeat_interleave(times)
    found = recalibrate(normals(1.5), heavy, times.to(D))
    assert found == recalibrate(normals(1.5)[torch.zeros_like(rows)], heavy[rows])
    assert found != recalibrate(normals(1.5), heavy)


def test_several_targets() -> None:
    y = torch.stack((NORMAL, NORMAL[torch.randperm(400, generator=torch.Generator().manual_seed(0))]), -1)
    assert recalibrate(normals(1 / 1.1, 2), y).scale_factor == 1.1
    full = MultivariateNormalMixture(torch.ones(1), torch.zeros(1, 2), torch.eye(2).unsqueeze(0))
    refuses(lambda: recalibrate(full, y), "p", "full")


def test_sorted_observations_give_what_shuffled_ones_give() -> None:
    """More observations than are used, in ascending order, as held-out rows may be: the first ones are the smallest."""
    n = 20_000
    y = torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).sort().values
    right = NormalMixture(torch.ones(n, 1), torch.zeros(n, 1, dtype=torch.float64), torch.ones(n, 1))
    assert recalibrate(right, y) == Recalibration()
    weights = (torch.arange(n) % 2).double()  # every second row counts
    assert recalibrate(right, torch.where(weights > 0, y, 100.0), weights) == Recalibration()
