"""Held-out rows by splitters of scikit-learn: groups and time order do not leak into intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, KFold, TimeSeriesSplit

from cramix import ConformalRegressor, MixtureBoostingRegressor, MixtureRegressor, MixtureStackingRegressor
from tests.refusals import refuses

NETWORKS = MixtureRegressor(1, n_estimators=3, hidden_layer_sizes=(32,), max_iter=40, random_state=0)
TREES = MixtureBoostingRegressor(1, max_iter=100, n_estimators="auto", n_jobs=1, random_state=0)
REGRESSORS = {
    "networks": NETWORKS,
    "trees": TREES,
    "stacking": MixtureStackingRegressor([TREES, NETWORKS], random_state=0),
    "conformal": ConformalRegressor(clone(TREES).set_params(max_iter=50), random_state=0),
}


def grouped(n_groups: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of a group share an offset of the target, and features that tell the group: a new one's is not known."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_groups), size)
    traits, offsets = rng.normal(size=(n_groups, 3)), rng.normal(size=n_groups)
    X = np.column_stack((traits[groups] + 0.01 * rng.normal(size=(len(groups), 3)), rng.normal(size=len(groups))))
    return X, X[:, 3] + offsets[groups] + 0.1 * rng.normal(size=len(groups)), groups


def windows(n: int, seed: int, length: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """The level of a random walk, and how far it goes in the next steps: windows of neighbours overlap."""
    walk = np.random.default_rng(seed).normal(size=n + 2 * length).cumsum()
    start = np.arange(n) + length
    X = np.stack([walk[start], walk[start] - walk[start - length], walk[start] - walk[start - length // 4]], 1)
    return X, walk[start + length] - walk[start]


def coverage(model: Any, X: np.ndarray, y: np.ndarray) -> float:
    low, high = model.predict_interval(X, coverage=0.8).T
    return float(np.mean((low <= y) & (y <= high)))


SLOW = [name if name == "networks" else pytest.param(name, marks=pytest.mark.slow) for name in REGRESSORS]


@pytest.mark.parametrize("name", SLOW)
def test_intervals_hold_for_new_groups_if_groups_are_held_out(name: str) -> None:
    X, y, groups = grouped(60, 10, seed=0)
    X_new, y_new, _ = grouped(400, 2, seed=1)
    leaking = coverage(clone(REGRESSORS[name]).fit(X, y), X_new, y_new)
    kept = coverage(clone(REGRESSORS[name]).fit(X, y, groups=groups), X_new, y_new)
    split = coverage(clone(_of(name, GroupKFold(5))).fit(X, y, groups=groups), X_new, y_new)
    assert leaking < min(kept, split) - 0.05
    assert 0.65 < kept < 0.92
    assert 0.65 < split < 0.92


@pytest.mark.parametrize("name", SLOW)
def test_intervals_hold_after_the_last_row_if_blocks_of_time_are_held_out(name: str) -> None:
    X, y = windows(1000, seed=0)
    X_new, y_new = (np.concatenate(parts) for parts in zip(*(windows(200, seed=s) for s in range(1, 9)), strict=True))
    leaking = coverage(clone(REGRESSORS[name]).fit(X, y), X_new, y_new)
    blocks = coverage(clone(_of(name, KFold(5))).fit(X, y), X_new, y_new)
    ahead = coverage(clone(_of(name, TimeSeriesSplit(2, gap=40))).fit(X, y), X_new, y_new)
    assert leaking < min(blocks, ahead) - 0.03
    assert 0.6 < blocks < 0.95
    assert 0.6 < ahead < 0.95


@pytest.mark.parametrize("name", ["networks", "trees", "conformal"])
def test_a_list_of_splits_does_what_its_splitter_does(name: str) -> None:
    X, y, groups = grouped(30, 5, seed=0)
    pairs = list(GroupKFold(3).split(X, groups=groups))
    by_list = clone(_of(name, pairs)).fit(X, y)
    if name != "conformal":  # whose splitter is also used inside, where a list cannot be
        by_splitter = clone(_of(name, GroupKFold(3))).fit(X, y, groups=groups)
        np.testing.assert_array_equal(by_list.predict(X), by_splitter.predict(X))
    masks = [tuple(np.isin(np.arange(len(X)), side) for side in pair) for pair in pairs]
    np.testing.assert_array_equal(by_list.predict(X), clone(_of(name, masks)).fit(X, y).predict(X))


@pytest.mark.parametrize("name", ["networks", "trees", "conformal"])
def test_rows_of_weight_zero_are_in_no_split(name: str) -> None:
    X, y, _ = grouped(30, 5, seed=0)
    weights = (np.arange(len(X)) % 7 > 0).astype(float)
    kept = weights > 0
    model = _of(name, TimeSeriesSplit(2))
    weighted = clone(model).fit(X, y, weights)
    without = clone(model).fit(X[kept], y[kept])
    np.testing.assert_allclose(weighted.predict(X), without.predict(X))


@pytest.mark.parametrize("name", REGRESSORS)
def test_what_is_no_split_is_refused(name: str) -> None:
    X, y, groups = grouped(6, 5, seed=0)
    for cv, got in (("GroupKFold", "GroupKFold"), (1.5, "1.5"), (True, "True"), ([], "[]"), ([(np.arange(5),)], "[")):
        refuses(lambda cv=cv: clone(_of(name, cv)).fit(X, y), "cv", got)
    refuses(lambda: clone(_of(name, [(np.arange(5), np.arange(25, 40))])).fit(X, y), "cv", "30", "the 30 rows")
    refuses(lambda: clone(REGRESSORS[name]).fit(X, y, groups=groups[:-1]), "groups", "(29,)", "(30,)")
    refuses(lambda: clone(REGRESSORS[name]).fit(X, y, groups=np.zeros(30)), "groups", "1", "at least 2")


def _of(name: str, cv: Any) -> Any:
    return clone(REGRESSORS[name]).set_params(cv=cv)
