"""Conformal intervals: their coverage over many draws, by the exact binomial distribution, and around any regressor."""

from __future__ import annotations

import math
import pickle
from typing import Any, Self

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cramix import ConformalRegressor, MixtureRegressor, MultivariateNormalMixture, NormalMixture
from cramix.estimators import crps_scorer
from tests.refusals import refuses

SMALL = {"n_estimators": 2, "hidden_layer_sizes": (16,), "max_iter": 5, "random_state": 0}


class Wrong(RegressorMixin, BaseEstimator):
    """A regressor that is sure of something wrong: one normal at the mean of the targets plus x, a tenth too narrow."""

    def fit(self, X: np.ndarray, y: np.ndarray, sample_weight: Any = None) -> Self:
        self.mean_, self.scale_ = np.average(y, axis=0, weights=sample_weight), 0.1 * np.std(y, axis=0)
        self.n_features_in_ = X.shape[1]
        return self

    def predict_dist(self, X: np.ndarray) -> NormalMixture:
        means = torch.as_tensor(self.mean_ + X[:, :1])
        return NormalMixture(torch.ones_like(means), means, torch.full_like(means, self.scale_))


def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    X = rng.normal(size=(n, 1))
    return X, 3 * X[:, 0] + rng.standard_t(2, n) * (1 + np.abs(X[:, 0]))


def hits(repeats: int, n: int, coverage: float, **settings: Any) -> int:
    """Count the draws of n rows in which the interval of one further row contains its target."""
    rng, count = np.random.default_rng(0), 0
    for seed in range(repeats):
        X, y = draw(rng, n + 1)
        model = ConformalRegressor(Wrong(), random_state=seed, **settings).fit(X[:n], y[:n])
        ((low, high),) = model.predict_interval(X[n:], coverage)
        count += low <= y[n] <= high
    return count


@pytest.mark.parametrize(("n", "coverage"), [(50, 0.8), (95, 0.9)])
def test_a_split_has_exactly_the_coverage_of_its_ranks(n: int, coverage: float) -> None:
    """For continuous targets it is `ceil(coverage (m + 1)) / (m + 1)`; this fails for one draw of seeds in 10^4."""
    m = math.ceil(0.2 * n)
    truth = math.ceil(coverage * (m + 1)) / (m + 1)
    assert coverage <= truth <= coverage + 1 / (m + 1)
    assert stats.binomtest(hits(600, n, coverage), 600, truth).pvalue > 1e-4
    # The model itself is far from it.
    X, y = draw(np.random.default_rng(1), 2000)
    p, t = Wrong().fit(X, y).predict_dist(X), torch.from_numpy(y)
    assert ((p.cdf(t) - 0.5).abs() < coverage / 2).double().mean() < 0.5


def test_folds_keep_their_bound() -> None:
    """CV+ promises `1 - 2 alpha - min(2 (1 - 1/K) / (n/K + 1), (1 - K/n) / (K + 1))`, and mostly reaches 1 - alpha."""
    n, folds, alpha, repeats = 40, 4, 0.2, 100
    bound = 1 - 2 * alpha - min(2 * (1 - 1 / folds) / (n / folds + 1), (1 - folds / n) / (folds + 1))
    found = hits(repeats, n, 1 - alpha, cv=folds)
    assert stats.binomtest(found, repeats, bound, "less").pvalue > 1e-4
    assert stats.binomtest(found, repeats, 1 - alpha, "less").pvalue > 1e-4
    assert found < 0.95 * repeats


def test_ends_with_folds_are_ranked_quantiles() -> None:
    """A brute-force list of all ends of all rows, as Barber et al. define CV+."""
    rng = np.random.default_rng(3)
    (X, y), (new, _) = draw(rng, 30), draw(rng, 6)
    model = ConformalRegressor(Wrong(), cv=3, random_state=0).fit(X, y)
    lows, highs = [], []
    for estimator, scores in zip(model.estimators_, model._scores, strict=True):
        p = estimator.predict_dist(new)
        for level in scores[:, 0].tolist():
            lows.append(p.icdf(torch.tensor(level, dtype=torch.float64)).numpy())
            highs.append(2 * p.mean.numpy() - lows[-1])
    rank = math.floor(0.2 * 31)
    expected = np.stack([np.sort(lows, 0)[rank - 1], np.sort(highs, 0)[30 - rank]], -1)
    np.testing.assert_allclose(model.predict_interval(new, 0.8), expected, rtol=1e-6)


def test_too_few_rows_for_a_coverage_give_infinite_intervals() -> None:
    X, y = draw(np.random.default_rng(0), 45)  # 9 of them are scored
    model = ConformalRegressor(Wrong(), random_state=0).fit(X, y)
    assert np.isfinite(model.predict_interval(X, 0.9)).all()
    np.testing.assert_array_equal(model.predict_interval(X, 0.91), np.tile([-np.inf, np.inf], (45, 1)))


def test_a_row_that_was_scored_lies_in_its_interval_or_beyond_its_rank() -> None:
    """At the boundary itself rounding must not exclude a row: exactly rank - 1 scored rows lie outside."""
    X, y = draw(np.random.default_rng(0), 500)
    seen, scored = np.arange(250), np.arange(250, 500)
    model = ConformalRegressor(Wrong(), cv=[(seen, scored)], random_state=0).fit(X, y)
    low, high = model.predict_interval(X[scored], 0.9).T
    outside = (y[scored] < low) | (y[scored] > high)
    assert outside.sum() == math.floor(0.1 * 251) - 1


def test_weights_are_for_the_models_and_rows_of_weight_zero_are_left_out() -> None:
    X, y = draw(np.random.default_rng(0), 60)
    weights = np.r_[np.full(30, 5.0), np.ones(20), np.zeros(10)]
    weighted = ConformalRegressor(Wrong(), random_state=0).fit(X, y, weights)
    left_out = ConformalRegressor(Wrong(), random_state=0).fit(X[:50], y[:50], weights[:50])
    np.testing.assert_array_equal(weighted.predict_interval(X), left_out.predict_interval(X))
    plain = ConformalRegressor(Wrong(), random_state=0).fit(X[:50], y[:50])
    assert np.abs(plain.predict_interval(X) - weighted.predict_interval(X)).max() > 1e-3


@pytest.mark.parametrize("cv", [None, 2])
@pytest.mark.parametrize("several", [False, True])
def test_it_wraps_networks(cv: int | None, several: bool) -> None:
    X, y = draw(np.random.default_rng(0), 120)
    y = np.stack([y, y**2], 1) if several else y
    model = ConformalRegressor(MixtureRegressor(**SMALL), cv=cv, random_state=0).fit(X, y)
    assert len(model.estimators_) == (1 if cv is None else 2)
    shape = (120, 2) if several else (120,)
    intervals = model.predict_interval(X, 0.8)
    assert intervals.shape == (*shape, 2)
    assert (intervals[..., 0] < intervals[..., 1]).all()
    inside = (intervals[..., 0] <= y) & (y <= intervals[..., 1])
    assert (inside.mean(0) > 0.55).all()
    p = model.predict_dist(X)
    assert isinstance(p, MultivariateNormalMixture if several else NormalMixture)
    np.testing.assert_allclose(model.predict(X), p.mean)
    np.testing.assert_allclose(p.mean, np.mean([e.predict(X) for e in model.estimators_], 0))
    assert model.predict_quantile(X, 0.5).shape == shape
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_interval(X, 0.8), intervals)
    given = model.predict_interval(torch.from_numpy(X), 0.8)
    assert isinstance(given, torch.Tensor)
    np.testing.assert_allclose(given, intervals)
    assert model.predict_interval(X.astype(np.float32)).dtype == np.float32
    assert math.isfinite(crps_scorer(model, X, y))


@pytest.mark.parametrize("cv", [None, 2])
def test_it_wraps_boosted_trees_with_missing_values_and_categories(cv: int | None) -> None:
    pytest.importorskip("cramix.boosting", reason="needs the extra trees")
    from cramix import MixtureBoostingRegressor

    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=400), "c": pd.Categorical(rng.choice(list("xyz"), 400))})
    y = X["a"].to_numpy() + 2 * (X["c"] == "x").to_numpy() + rng.normal(0, 0.3, 400)
    X.loc[::7, "a"] = np.nan
    trees = MixtureBoostingRegressor(2, n_estimators=2, max_iter=20, n_jobs=1)
    model = ConformalRegressor(trees, cv=cv, random_state=0).fit(X[:300], y[:300])
    low, high = model.predict_interval(X[300:], 0.8).T
    assert ((low <= y[300:]) & (y[300:] <= high)).mean() > 0.65
    assert list(model.feature_names_in_) == ["a", "c"]


def test_it_clones_and_works_in_pipelines() -> None:
    X, y = draw(np.random.default_rng(0), 60)
    model = clone(ConformalRegressor(Wrong(), calibration_fraction=0.4, random_state=0))
    pipeline = make_pipeline(StandardScaler(), model).fit(X, y)
    assert pipeline[-1].predict_interval(StandardScaler().fit_transform(X)).shape == (60, 2)


@pytest.mark.parametrize(
    ("settings", "got"),
    [({"calibration_fraction": 0.0}, "0.0"), ({"calibration_fraction": 1.0}, "1.0"), ({"cv": 1}, "1")],
)
def test_bad_settings_are_refused(settings: dict, got: str) -> None:
    X, y = draw(np.random.default_rng(0), 20)
    refuses(lambda: ConformalRegressor(Wrong(), **settings).fit(X, y), next(iter(settings)), got)


def test_other_bad_input_is_refused() -> None:
    X, y = draw(np.random.default_rng(0), 20)
    with pytest.raises(TypeError, match="predict_dist; LinearRegression has none"):
        ConformalRegressor(LinearRegression()).fit(X, y)
    refuses(lambda: ConformalRegressor(Wrong()).fit(X, y).predict_interval(X, 90), "coverage", "90")
    with pytest.raises(ValueError, match="n_samples = 1"):
        ConformalRegressor(Wrong()).fit(X[:1], y[:1])
