"""Statistics over runs and tasks against loops, scipy and a bootstrap in a loop."""

import numpy as np
import pytest
from scipy import stats

from experiments.statistics import (
    aggregate_iqm,
    performance_profile,
    probability_of_improvement,
    stratified_interval,
)


@pytest.fixture
def scores():
    random = np.random.default_rng(0)
    return random.normal(size=(10, 4)).round(1), random.normal(0.4, 1, size=(8, 4)).round(1)


def test_iqm_is_the_mean_of_the_middle_half(scores):
    flat = np.sort(scores[0].ravel())
    assert aggregate_iqm(scores[0]) == pytest.approx(flat[10:30].mean())
    assert aggregate_iqm(np.stack([scores[0], 2 * scores[0]])) == pytest.approx(
        [flat[10:30].mean(), 2 * flat[10:30].mean()]
    )


def test_probability_of_improvement_is_that_of_mann_and_whitney(scores):
    one, other = scores
    each = [stats.mannwhitneyu(one[:, i], other[:, i]).statistic / (len(one) * len(other)) for i in range(4)]
    assert probability_of_improvement(one, other) == pytest.approx(np.mean(each))
    assert probability_of_improvement(other, one) == pytest.approx(1 - np.mean(each))


def test_intervals_are_those_of_a_bootstrap_in_a_loop(scores):
    random = np.random.default_rng(5)
    drawn = []
    for _ in range(4000):
        columns = [random.choice(scores[0][:, task], 10) for task in range(4)]
        drawn.append(stats.trim_mean(np.concatenate(columns), 0.25))
    value, low, high = stratified_interval(aggregate_iqm, scores[0])
    assert value == pytest.approx(stats.trim_mean(scores[0].ravel(), 0.25))
    assert (low, high) == pytest.approx(tuple(np.quantile(drawn, (0.025, 0.975))), abs=0.03)
    assert low < value < high


def test_intervals_of_two_sets_of_runs(scores):
    value, low, high = stratified_interval(probability_of_improvement, *scores)
    assert value == pytest.approx(probability_of_improvement(*scores))
    assert 0 < low < value < high < 1


def test_profile_falls_from_one_to_zero(scores):
    found = performance_profile(scores[0], np.array([-9.0, 0.0, 9.0]))
    assert [x.value for x in found] == [1.0, pytest.approx((scores[0] > 0).mean()), 0.0]
    assert found[1].low < found[1].value < found[1].high
