"""The regressor of boosted trees: correct distributions, weights, missing values, categories, stopping, extremes."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy import stats

from cramix import MixtureBoostingRegressor, NormalMixture, cramer_distance, crps
from cramix.estimators.pooling import pool_weights
from tests.refusals import refuses

SMALL = {"n_estimators": 3, "n_jobs": 1, "random_state": 0}


def branches(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, n)
    return x[:, None], rng.choice([-1, 1], n) * x + rng.normal(0, 0.1, n)


def truth(x: torch.Tensor) -> NormalMixture:
    means = torch.stack([x, -x], -1)
    return NormalMixture(torch.full_like(means, 0.5), means, torch.full_like(means, 0.1))


@pytest.mark.parametrize("loss", ["cramer", "nll", "blend"])
def test_a_mixture_finds_both_branches_where_one_normal_cannot(loss: str) -> None:
    X, y = branches(1500)
    grid = torch.linspace(-0.9, 0.9, 50, dtype=torch.float64)
    p, one = (
        MixtureBoostingRegressor(k, loss=loss, **SMALL).fit(X, y).predict_dist(grid.unsqueeze(-1)) for k in (3, 1)
    )
    distance, of_one = (cramer_distance(q, truth(grid)).mean() for q in (p, one))
    assert (p.n_components, one.n_components) == (9, 3)
    assert distance < 0.13
    assert distance < 0.75 * of_one


def test_noise_that_grows_is_learned() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (2000, 1))
    y = 100 + X[:, 0] + (0.1 + X[:, 0]) * rng.normal(size=2000)
    model = MixtureBoostingRegressor(2, **SMALL).fit(X, y)
    got = model.predict_quantile([[0.1], [0.9]], [0.1, 0.9])
    np.testing.assert_allclose(got, stats.norm.ppf([0.1, 0.9], [[100.1], [100.9]], [[0.2], [1.0]]), atol=0.25)


def test_intervals_cover_new_rows_though_means_fit_noise() -> None:
    """Scales learned from the rows that the means were fitted to would be too small: 76 % here, by the first stage."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (1600, 8))
    mean = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3]
    y = mean + (0.3 + X[:, 4]) * rng.normal(size=1600)
    model = MixtureBoostingRegressor(**{**SMALL, "n_estimators": 5}).fit(X[:600], y[:600])
    low, high = model.predict_interval(X[600:]).T
    assert abs(((low <= y[600:]) & (y[600:] <= high)).mean() - 0.9) < 0.04
    model._boosted.residual = []
    low, high = model.predict_interval(X[600:]).T
    assert ((low <= y[600:]) & (y[600:] <= high)).mean() < 0.86


def test_scales_that_all_rows_want_smaller_are_learned() -> None:
    """No split helps then, and LightGBM adds no tree: scales once stopped at a quarter of the targets' scale."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (600, 2))
    y = np.where(X[:, 0] > 0, 10.0, -10.0) + 0.1 * rng.normal(size=600)
    model = MixtureBoostingRegressor(**SMALL).fit(X, y)
    scales = model._scale * model._boosted.base[0].predict(X).scales
    assert 0.08 < scales.median() < 0.12
    low, high = model.predict_interval(X).T
    assert np.median(high - low) == pytest.approx(2 * 1.645 * 0.1, rel=0.2)


def friedman(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (n, 6))
    mean = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    return X, mean + rng.normal(size=n)


@pytest.mark.slow
def test_a_mixture_is_not_worse_than_one_normal_where_one_is_right() -> None:
    X, observed = friedman(4000, 9)
    scores = {1: [], 4: []}
    for seed in range(4):
        for k, found in scores.items():
            p = MixtureBoostingRegressor(k, **SMALL).fit(*friedman(300, seed)).predict_dist(X)
            found.append(crps(p, torch.from_numpy(observed)).mean().item())
    assert np.mean(scores[4]) < 1.01 * np.mean(scores[1])
    assert max(a / b for a, b in zip(scores[4], scores[1], strict=True)) < 1.02


def test_quantiles_are_those_of_the_prediction() -> None:
    X, y = branches(300)
    model = MixtureBoostingRegressor(**SMALL).fit(X, y)
    q = model.predict_quantile(X[:7], [0.1, 0.9])
    p = model.predict_dist(X[:7])
    levels = torch.stack([p.cdf(torch.from_numpy(q[:, i])) for i in range(2)], -1)
    np.testing.assert_allclose(levels, np.tile([0.1, 0.9], (7, 1)), atol=1e-9)
    np.testing.assert_array_equal(model.predict_quantile(X[:7], 0.9), q[:, 1])
    np.testing.assert_allclose(model.predict_interval(X[:7], 0.8), q, rtol=1e-12)
    np.testing.assert_allclose(model.predict(X[:7]), p.mean)


def test_a_weight_is_how_often_a_row_is_there_in_any_order() -> None:
    X, y = branches(80)
    X[::7] = np.nan
    times = np.random.default_rng(1).integers(0, 4, 80)
    weighted = MixtureBoostingRegressor(max_iter=20, **SMALL).fit(X, y, sample_weight=times)
    order = np.random.default_rng(2).permutation(times.sum())
    repeated = MixtureBoostingRegressor(max_iter=20, **SMALL).fit(
        np.repeat(X, times, 0)[order], np.repeat(y, times)[order]
    )
    np.testing.assert_allclose(weighted.predict_quantile(X), repeated.predict_quantile(X), rtol=1e-9)
    plain = MixtureBoostingRegressor(max_iter=20, **SMALL).fit(X, y)
    assert np.abs(plain.predict_quantile(X) - weighted.predict_quantile(X)).max() > 1e-3


def test_missing_values_are_learned_from() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2))
    y = np.where(rng.random(600) < 0.5, 0.0, 5.0)
    X[y > 0, 0] = np.nan  # whether a value is missing says it all
    model = MixtureBoostingRegressor(**SMALL).fit(X, y + 0.1 * rng.normal(size=600))
    np.testing.assert_allclose(model.predict([[0.3, 0.0], [np.nan, 0.0]]), [0.0, 5.0], atol=0.3)
    with pytest.raises(ValueError, match="X contains infinity"):
        MixtureBoostingRegressor(**SMALL).fit(np.full((30, 1), np.inf), np.zeros(30))


@pytest.mark.parametrize("kind", ["text", "category", "polars"])
def test_categories_of_data_frames(kind: str) -> None:
    rng = np.random.default_rng(0)
    colours = rng.choice(["red", "green", "blue", "grey"], 600)
    y = pd.Series(colours).map({"red": 0.0, "green": 7.0, "blue": 1.0, "grey": 8.0}).to_numpy()
    table = pd.DataFrame({"x": rng.normal(size=600), "colour": colours})
    new = pd.DataFrame({"x": [0.0] * 4, "colour": ["red", "green", "blue", "grey"]})
    other = pd.DataFrame({"x": [0.0, 0.0], "colour": ["black", None]})
    if kind == "category":
        table["colour"] = table["colour"].astype("category")
        new["colour"] = new["colour"].astype(pd.CategoricalDtype(["grey", "blue", "green", "red"]))  # other codes
    if kind == "polars":
        table, new = (pl.DataFrame(t.to_dict("list")) for t in (table, new))
        other = pl.DataFrame({"x": [0.0, 0.0], "colour": ["black", None]})
    model = MixtureBoostingRegressor(**SMALL).fit(table, y + 0.1 * rng.normal(size=600))
    assert list(model.feature_names_in_) == ["x", "colour"]
    np.testing.assert_allclose(model.predict(new), [0.0, 7.0, 1.0, 8.0], atol=0.5)
    unseen, missing = model.predict(other)
    assert unseen == missing
    dates = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=30)})
    refuses(lambda: MixtureBoostingRegressor(**SMALL).fit(dates, np.zeros(30)), "X", "day")


def test_nullable_columns_of_pandas_have_missing_values() -> None:
    values = np.random.default_rng(0).normal(size=100)
    table = pd.DataFrame({"x": pd.array(values, dtype="Float64"), "flag": values > 0})
    table.loc[::5, "x"] = pd.NA
    array = np.c_[np.where(np.arange(100) % 5 == 0, np.nan, values), values > 0]
    expected = MixtureBoostingRegressor(max_iter=5, **SMALL).fit(array, values).predict(array)
    np.testing.assert_array_equal(
        MixtureBoostingRegressor(max_iter=5, **SMALL).fit(table, values).predict(table), expected
    )


def test_it_stops_when_it_gets_no_better() -> None:
    X = np.random.default_rng(0).normal(size=(200, 2))
    y = np.random.default_rng(1).normal(size=200)
    model = MixtureBoostingRegressor(n_iter_no_change=5, **SMALL).fit(X, y)
    assert model.n_iter_ < 100
    assert len(model.loss_curve_) == model.n_iter_
    assert all(trees.n_trees < 20 for trees in model._boosted.base)
    whole = MixtureBoostingRegressor(max_iter=7, early_stopping=False, **SMALL).fit(X, y)
    assert [trees.n_trees for trees in whole._boosted.base] == [7] * 3


@pytest.mark.parametrize(
    "y", [np.zeros(60), np.full(60, 1e6), 1e6 + np.arange(60.0), np.r_[np.zeros(59), 1e6], 1e-9 * np.arange(60.0)]
)
@pytest.mark.parametrize("settings", [{}, {"loss": "nll"}, {"loss": "blend"}, {"early_stopping": False}])
def test_extreme_targets_never_give_nan(y: np.ndarray, settings: dict) -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    model = MixtureBoostingRegressor(max_iter=15, **settings, **SMALL).fit(X, y)
    p = model.predict_dist(np.concatenate([X, 1e6 * X]))
    assert p.means.isfinite().all()
    assert (p.scales > 0).all()
    assert np.isfinite(model.predict_quantile(X)).all()
    if len(set(y)) == 60:
        assert crps(p, torch.from_numpy(np.r_[y, y]))[:60].mean() < np.abs(y - y.mean()).mean()
    if len(set(y)) == 1:
        np.testing.assert_allclose(model.predict(X), y, rtol=1e-3, atol=0.1)


@pytest.mark.parametrize("n", [1, 2, 19, 20, 23])
@pytest.mark.parametrize("members", [1, 3])
def test_few_rows(n: int, members: int) -> None:
    X, y = branches(n)
    model = MixtureBoostingRegressor(max_iter=5, n_jobs=1, n_estimators=members).fit(X, y)
    assert np.isfinite(model.predict_quantile(X)).all()


def test_the_same_seed_gives_the_same_and_pickles_predict_the_same() -> None:
    X, y = branches(100)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, second = (MixtureBoostingRegressor(max_iter=20, **SMALL).fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(first.predict(X), second.predict(X))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(first)).predict_quantile(X), first.predict_quantile(X))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
    other = MixtureBoostingRegressor(max_iter=20, **{**SMALL, "random_state": 1}).fit(X, y)
    assert np.abs(other.predict(X) - first.predict(X)).max() > 1e-6


def test_results_have_kind_and_dtype_of_the_features() -> None:
    X, y = branches(60)
    model = MixtureBoostingRegressor(max_iter=3, **SMALL).fit(torch.from_numpy(X), torch.from_numpy(y))
    assert model.predict(X.astype(np.float32)).dtype == np.float32
    assert model.predict_dist(X.astype(np.float32)).means.dtype == torch.float32
    assert isinstance(model.predict(torch.from_numpy(X)), torch.Tensor)
    np.testing.assert_array_equal(model.predict_quantile(torch.from_numpy(X)).numpy(), model.predict_quantile(X))


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = branches(60)
    MixtureBoostingRegressor(max_iter=3, verbose=2, **SMALL).fit(X, y)
    assert "round 3, 1 components, loss" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "got"),
    [
        ({"n_components": 0}, "0"),
        ({"loss": "mse"}, "mse"),
        ({"n_estimators": "many"}, "many"),
        ({"max_depth": 0}, "0"),
        ({"learning_rate": -1.0}, "-1.0"),
        ({"validation_fraction": 1.0}, "1.0"),
        ({"n_jobs": 0}, "0"),
    ],
)
def test_bad_settings_are_refused(settings: dict, got: str) -> None:
    X, y = branches(30)
    refuses(lambda: MixtureBoostingRegressor(**settings).fit(X, y), next(iter(settings)), got)


def test_bad_levels_are_refused() -> None:
    X, y = branches(30)
    model = MixtureBoostingRegressor(max_iter=1, **SMALL).fit(X, y)
    refuses(lambda: model.predict_quantile(X, 1.5), "quantiles", "1.5")
    refuses(lambda: model.predict_interval(X, 90), "coverage", "90")


def test_pooled_weights_have_the_least_crps() -> None:
    """Against a search over the simplex, and a prediction that says nothing gets no weight."""
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.normal(size=400))
    ones = torch.ones(400, 1, dtype=torch.float64)
    noise = [torch.from_numpy(rng.normal(size=(400, 1))) for _ in range(2)]
    predictions = [NormalMixture(ones, y.unsqueeze(-1) + e, s * ones) for e, s in zip(noise, (0.8, 0.5), strict=True)]
    predictions.append(NormalMixture(ones, 30 * ones, ones))
    found = pool_weights(predictions, y)
    scores = {}
    for a in np.arange(0, 1.001, 0.04):
        for b in np.arange(0, 1.001 - a, 0.04):
            w = torch.tensor([a, b, max(0.0, 1 - a - b)], dtype=torch.float64)
            scores[a, b] = crps(NormalMixture.mix(predictions, w.expand(400, -1)), y).mean().item()
    best = min(scores, key=scores.__getitem__)
    np.testing.assert_allclose(found[:2], best, atol=0.04)
    assert found[2] == 0
    own = crps(NormalMixture.mix(predictions, found.expand(400, -1)), y).mean().item()
    assert own <= min(scores.values()) + 1e-12


def test_without_lightgbm_the_pip_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    X, y = branches(30)
    with pytest.raises(ImportError, match=r"pip install 'cramix\[trees\]'"):
        MixtureBoostingRegressor().fit(X, y)
