"""Held-out rows by splitters of scikit-learn: groups and time order do not leak into intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    LeaveOneGroupOut,
    PredefinedSplit,
    StratifiedKFold,
    TimeSeriesSplit,
)

from cramix import ConformalRegressor, MixtureBoostingRegressor, MixtureRegressor, MixtureStackingRegressor
from cramix.estimators import boosting
from cramix.estimators.splits import Nested, splits
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
    for cv, got in (
        ("GroupKFold", "GroupKFold"),
        (1.5, "1.5"),
        (True, "True"),
        ([], "[]"),
        ([(np.arange(5),)], "["),
        ([1, 2], "[1, 2]"),
        (KFold, "KFold"),
    ):
        refuses(lambda cv=cv: clone(_of(name, cv)).fit(X, y), "cv", got)
    refuses(lambda: clone(_of(name, [(np.arange(5), np.arange(25, 40))])).fit(X, y), "cv", "30", "the 30 rows")
    rows = np.arange(30)
    refuses(lambda: clone(_of(name, [(rows, [])])).fit(X, y), "cv", "30 and 0")
    refuses(lambda: clone(_of(name, [(rows, rows[:5])])).fit(X, y), "cv", "5 that are both")
    refuses(lambda: clone(REGRESSORS[name]).fit(X, y, groups=np.r_[np.nan, groups[1:]]), "groups", "missing", "known")
    mixed = np.array(["a", None] * 15, dtype=object)
    refuses(lambda: clone(REGRESSORS[name]).fit(X, y, groups=mixed), "groups", "both", "all text")
    refuses(lambda: clone(REGRESSORS[name]).fit(X, y, groups=groups[:-1]), "groups", "(29,)", "(30,)")
    refuses(lambda: clone(REGRESSORS[name]).fit(X, y, groups=np.zeros(30)), "groups", "1", "at least 2")


@pytest.mark.parametrize("cv", [5, GroupKFold(5)])
def test_a_number_of_folds_keeps_groups_together(cv: Any) -> None:
    _, _, groups = grouped(10, 24, seed=0)
    found = splits(cv, None, groups, np.ones(240), np.random.RandomState(0))
    assert found is not None
    assert len(found) == 5
    for seen, held_out in found:
        assert not set(groups[seen]) & set(groups[held_out])


@pytest.mark.parametrize("name", ["stacking", "conformal"])
@pytest.mark.parametrize(
    ("cv", "n_groups"),
    [(GroupKFold(5), 5), (PredefinedSplit(np.arange(240) // 60), 10), (LeaveOneGroupOut(), 4), (None, 3)],
)
def test_regressors_inside_can_split_what_is_left(name: str, cv: Any, n_groups: int) -> None:
    """Splitters that fit all rows need not fit those that a regressor inside learns from."""
    X, y, _ = grouped(240, 1, seed=0)
    groups = None if isinstance(cv, PredefinedSplit) else np.arange(240) % n_groups
    inside = MixtureRegressor(1, n_estimators=2, hidden_layer_sizes=(4,), max_iter=2)
    model = (
        MixtureStackingRegressor([inside, inside], cv=cv) if name == "stacking" else ConformalRegressor(inside, cv=cv)
    )
    low, high = model.fit(X, y, groups=groups).predict_interval(X, coverage=0.8).T
    assert (low < high).all()


@pytest.mark.parametrize("name", ["stacking", "conformal"])
def test_errors_of_regressors_inside_say_what_to_change(name: str) -> None:
    X, y, _ = grouped(240, 1, seed=0)
    model = clone(REGRESSORS[name])
    refuses(lambda: model.fit(X, y, groups=np.arange(240) % 2), "groups", "2", "at least 3")
    series = clone(model).set_params(cv=TimeSeriesSplit(5, test_size=24))
    refuses(lambda: series.fit(X[:150], y[:150]), "cv", "30", "again")


def test_restricted_splits_are_those_of_all_rows() -> None:
    cv = PredefinedSplit(np.arange(12) // 3)
    found = splits(cv, None, None, np.ones(12), np.random.RandomState(0))
    assert found is not None
    rows = np.r_[0:3, 6:12]
    model, _ = Nested(cv, found, None, np.ones(12)).prepare(MixtureRegressor(), rows)
    assert [[rows[side].tolist() for side in pair] for pair in model.cv] == [
        [[6, 7, 8, 9, 10, 11], [0, 1, 2]],
        [[0, 1, 2, 9, 10, 11], [6, 7, 8]],
        [[0, 1, 2, 6, 7, 8], [9, 10, 11]],
    ]
    own = MixtureRegressor(cv=3)
    assert Nested(cv, found, None, np.ones(12)).prepare(own, rows)[0].cv == 3


def test_splitters_see_features_and_targets() -> None:
    X, y, _ = grouped(30, 5, seed=0)
    classes = np.arange(150) % 3

    class ByColumn:
        def split(self, X: np.ndarray, y: np.ndarray, groups: Any = None) -> Any:
            yield np.flatnonzero(X[:, 3] < 0), np.flatnonzero(X[:, 3] >= 0)

    (pair,) = splits(ByColumn(), None, None, np.ones(150), np.random.RandomState(0), X, y) or []
    np.testing.assert_array_equal(pair[1], np.flatnonzero(X[:, 3] >= 0))
    for _, held_out in splits(StratifiedKFold(5), None, None, np.ones(150), np.random.RandomState(0), X, classes) or []:
        np.testing.assert_array_equal(np.bincount(classes[held_out]), [10, 10, 10])
    clone(TREES).set_params(cv=StratifiedKFold(3), max_iter=2).fit(X, classes)
    clone(NETWORKS).set_params(cv=StratifiedKFold(3), max_iter=2).fit(X, classes)


def test_fewer_networks_than_splits_learn_the_latest_rows() -> None:
    X, y = np.zeros((600, 1)), np.where(np.arange(600) < 300, 0.0, 10.0)
    y = y + 0.1 * np.random.default_rng(0).normal(size=600)
    model = MixtureRegressor(1, n_estimators=1, max_iter=60, cv=TimeSeriesSplit(5), random_state=0).fit(X, y)
    assert model.predict([[0.0]]) > 2.5  # of the first five sixths, two fifths are 10


@pytest.mark.parametrize(("n_estimators", "n_groups", "largest"), [(2, 100, 0.1), ("auto", 1500, 0.1), (1, 8, 0.125)])
def test_trees_hold_out_no_more_groups_than_they_say(
    n_estimators: int | str, n_groups: int, largest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[float] = []

    def look(rows: Any, folds: Any, *rest: Any) -> Any:
        held.extend(len(fold) / len(rows.x) for fold in folds)
        raise StopIteration

    monkeypatch.setattr(boosting, "boost", look)
    X = np.arange(3000.0)[:, None]
    model = MixtureBoostingRegressor(n_estimators=n_estimators)
    with pytest.raises(StopIteration):
        model.fit(X, X[:, 0], groups=np.arange(3000) % n_groups)
    assert len(held) == (10 if n_estimators == "auto" else n_estimators)
    assert max(held) < 1.1 * largest


def test_more_trees_than_groups_are_refused() -> None:
    X, y, groups = grouped(3, 20, seed=0)
    model = MixtureBoostingRegressor(n_estimators=10)
    refuses(lambda: model.fit(X, y, groups=groups), "n_estimators", "10", "3")
    assert len(clone(model).set_params(n_estimators="auto", max_iter=2).fit(X, y, groups=groups)._boosted.base) == 3


def _of(name: str, cv: Any) -> Any:
    return clone(REGRESSORS[name]).set_params(cv=cv)
