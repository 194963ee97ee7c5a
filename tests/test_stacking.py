"""The mixture of several regressors: weights of the least CRPS on held-out rows, kinds of input, invalid settings."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

from cramix import MixtureBoostingRegressor, MixtureRegressor, MixtureStackingRegressor, NormalMixture, crps
from cramix.estimators.pooling import pool_weights
from cramix.estimators.recalibration import Recalibration
from tests.refusals import refuses

TREES = MixtureBoostingRegressor(n_estimators=2, n_jobs=1)
NETWORKS = MixtureRegressor(n_estimators=2, hidden_layer_sizes=(32,), learning_rate=0.01, max_iter=60)


def table(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 3))
    return X, np.sin(3 * X[:, 0]) + 0.5 * (X[:, 1] > 0) + (0.1 + 0.2 * (X[:, 2] > 0)) * rng.normal(size=n)


def test_the_mixture_is_no_worse_than_its_parts() -> None:
    X, y = table(500, 0)
    fresh, observed = table(2000, 1)
    model = MixtureStackingRegressor([TREES, NETWORKS], random_state=0).fit(X, y)
    t = torch.from_numpy(observed)
    parts = [regressor.predict_dist(fresh) for regressor in model.estimators_]
    p = model.predict_dist(fresh)
    mean = sum(w * q.mean for w, q in zip(model.weights_, parts, strict=True))
    torch.testing.assert_close(p.mean, mean, rtol=1e-9, atol=1e-12)
    assert model.weights_.min() > 0
    assert crps(p, t).mean() < 1.005 * min(crps(q, t).mean() for q in parts)
    low, high = model.predict_interval(fresh).T
    assert abs(((low <= observed) & (observed <= high)).mean() - 0.9) < 0.06


def test_a_regressor_that_is_wrong_gets_no_weight() -> None:
    class Wrong(MixtureBoostingRegressor):
        def predict_dist(self, X: np.ndarray) -> NormalMixture:
            return super().predict_dist(X).affine(100.0, 1.0)

    X, y = table(200, 0)
    model = MixtureStackingRegressor([TREES, Wrong(n_estimators=2, n_jobs=1)], random_state=0).fit(X, y)
    np.testing.assert_array_equal(model.weights_, [1, 0])
    np.testing.assert_allclose(model.predict(X), model.estimators_[0].predict(X))


def test_a_mixture_of_predictions_that_are_too_wide_is_narrowed() -> None:
    class Wide(MixtureBoostingRegressor):
        def predict_dist(self, X: np.ndarray) -> NormalMixture:
            p = super().predict_dist(X)
            return p.affine(-0.5 * p.mean, 1.5)

    X, y = table(500, 0)
    fresh, observed = table(2000, 1)
    wide = Wide(n_estimators=2, n_jobs=1)
    model = MixtureStackingRegressor([wide, clone(wide).set_params(n_components=1)], random_state=0).fit(X, y)

    def coverage() -> float:
        low, high = model.predict_interval(fresh).T
        return ((low <= observed) & (observed <= high)).mean()

    narrowed = coverage()
    assert crps(model.predict_dist(fresh), torch.from_numpy(observed)).mean() < 0.99 * min(
        crps(part.predict_dist(fresh), torch.from_numpy(observed)).mean() for part in model.estimators_
    )
    model._recalibration = Recalibration()
    assert coverage() - 0.01 > narrowed > 0.88


def test_weights_are_near_the_best_and_not_farther_from_equal_ones_than_needed() -> None:
    """The best weights by a grid; half a standard error of the difference is allowed."""
    z = torch.randn(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.cat((z, -z)) + 0.02
    zero = torch.zeros(60, 1, dtype=torch.float64)
    normal = NormalMixture(zero + 1, zero, zero + 1)
    for shifts, limits in (((0.5, -0.5), (0.5, 0.5)), ((0.0, 3.0), (0.9, 1.0)), ((0.1, -0.8), (0.5, 1.0))):
        good, bad = (normal.affine(shift, 1.0) for shift in shifts)
        share = pool_weights([good, bad], y)[0].item()
        grid = torch.linspace(0, 1, 201, dtype=torch.float64)
        mixed = (NormalMixture.mix([good, bad], torch.stack((a, 1 - a)).expand(60, 2)) for a in grid)
        scores = torch.stack([crps(p, y) for p in mixed])
        best = scores.mean(1).argmin()
        behind = scores[round(200 * share)] - scores[best]
        assert behind.mean() <= 0.55 * behind.std() / 60**0.5 + 1e-12
        assert limits[0] <= share <= limits[1]
        assert abs(share - 0.5) <= abs(grid[best] - 0.5) + 0.005


@pytest.mark.slow
def test_data_frames_tensors_pickles_and_seeds() -> None:
    X, y = table(100, 0)
    model = MixtureStackingRegressor([TREES, NETWORKS], random_state=0)
    expected = model.fit(X, y).predict_quantile(X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_quantile(X), expected)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    np.testing.assert_allclose(model.fit(frame, pd.Series(y)).predict_quantile(frame), expected)
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    x = torch.from_numpy(X)
    np.testing.assert_allclose(model.fit(x, torch.from_numpy(y)).predict_quantile(x), expected)
    names = frame.assign(kind=np.where(y > 0, "high", "low"))
    both = [TREES, MixtureBoostingRegressor(1, n_estimators=2, n_jobs=1)]
    assert np.isfinite(MixtureStackingRegressor(both, random_state=0).fit(names, y).predict(names)).all()


def test_few_rows_have_equal_weights() -> None:
    X, y = table(12, 0)
    np.testing.assert_array_equal(MixtureStackingRegressor([TREES, NETWORKS]).fit(X, y).weights_, [0.5, 0.5])


@pytest.mark.parametrize(("settings", "got"), [({"estimators": []}, "none"), ({"validation_fraction": 1.0}, "1.0")])
def test_bad_settings_are_refused(settings: dict, got: str) -> None:
    X, y = table(30, 0)
    refuses(lambda: MixtureStackingRegressor(**settings).fit(X, y), next(iter(settings)), got)
