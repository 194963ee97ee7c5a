"""The regressor: correct distributions, weights, several targets, early stopping, dtypes, devices and scorers."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cramix import MixtureRegressor, MultivariateNormalMixture, NormalMixture, cramer_distance, crps
from cramix.estimators import crps_scorer, log_likelihood_scorer
from cramix.estimators.recalibration import Recalibration
from cramix.estimators.training import _one_cycle
from tests.refusals import refuses

SMALL = {"n_estimators": 2, "hidden_layer_sizes": (32,), "learning_rate": 0.01, "random_state": 0}


def branches(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, n)
    return x[:, None], rng.choice([-1, 1], n) * x + rng.normal(0, 0.1, n)


def truth(x: torch.Tensor) -> NormalMixture:
    means = torch.stack([x, -x], -1)
    return NormalMixture(torch.full_like(means, 0.5), means, torch.full_like(means, 0.1))


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["cramer", "nll", "blend"])
def test_both_branches_are_found(loss: str) -> None:
    X, y = branches(1500)
    model = MixtureRegressor(3, loss=loss, max_iter=60, **SMALL).fit(X, y)
    grid = np.linspace(-0.9, 0.9, 50)
    p = model.predict_dist(grid[:, None])
    assert isinstance(p, NormalMixture)
    assert p.batch_shape == (50,)
    assert p.n_components in (6, 7)  # of two networks, and perhaps a wide one
    assert cramer_distance(p, truth(torch.from_numpy(grid))).mean() < 0.09
    np.testing.assert_allclose(model.predict(grid[:, None]), p.mean)
    # The best of one answer for all is far away.
    alike = NormalMixture.from_samples(torch.from_numpy(y)).expand((50,))
    assert cramer_distance(alike, truth(torch.from_numpy(grid))).mean() > 0.15


def test_quantiles_are_those_of_the_prediction() -> None:
    X, y = branches(300)
    model = MixtureRegressor(max_iter=5, **SMALL).fit(X, y)
    q = model.predict_quantile(X[:7], [0.1, 0.9])
    assert q.shape == (7, 2)
    levels = torch.stack([model.predict_dist(X[:7]).cdf(torch.from_numpy(q[:, i])) for i in range(2)], -1)
    np.testing.assert_allclose(levels, np.tile([0.1, 0.9], (7, 1)), atol=1e-9)
    np.testing.assert_array_equal(model.predict_quantile(X[:7], 0.9), q[:, 1])


@pytest.mark.slow
def test_noise_that_grows_is_told_from_noise_that_does_not() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (2000, 1))
    y = 100 + X[:, 0] + (0.1 + X[:, 0]) * rng.normal(size=2000)
    model = MixtureRegressor(2, max_iter=60, **SMALL).fit(X, y)
    got = model.predict_quantile([[0.1], [0.9]], [0.1, 0.9])
    np.testing.assert_allclose(got, stats.norm.ppf([0.1, 0.9], [[100.1], [100.9]], [[0.2], [1.0]]), atol=0.25)


def test_a_weight_is_how_often_a_row_is_there() -> None:
    X, y = branches(80)
    times = np.random.default_rng(1).integers(0, 4, 80)
    weighted = MixtureRegressor(max_iter=8, **SMALL).fit(X, y, sample_weight=times)
    order = np.random.default_rng(2).permutation(times.sum())
    repeated = MixtureRegressor(max_iter=8, **SMALL).fit(np.repeat(X, times, 0)[order], np.repeat(y, times)[order])
    np.testing.assert_allclose(weighted.predict_quantile(X), repeated.predict_quantile(X), rtol=1e-6)
    plain = MixtureRegressor(max_iter=8, **SMALL).fit(X, y)
    assert np.abs(plain.predict_quantile(X) - weighted.predict_quantile(X)).max() > 1e-3


def test_heavy_rows_win() -> None:
    X, y = np.random.default_rng(0).normal(size=(400, 1)), np.tile([0.0, 10.0], 200)
    model = MixtureRegressor(2, max_iter=30, **SMALL).fit(X, y, sample_weight=np.tile([9, 1], 200))
    assert abs(model.predict([[0.0]])[0] - 1) < 0.5


def test_several_targets_at_once() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (600, 2))
    sign = rng.choice([-1, 1], 600)
    Y = np.stack([sign * X[:, 0], 50 * sign + X[:, 1]], 1) + rng.normal(0, [0.1, 2.0], (600, 2))
    model = MixtureRegressor(2, max_iter=12, **SMALL).fit(X, Y)
    p = model.predict_dist(X[:9])
    assert isinstance(p, MultivariateNormalMixture)
    assert (p.batch_shape, p.dim) == ((9,), 2)
    assert model.predict(X[:9]).shape == (9, 2)
    assert model.predict_quantile(X[:9]).shape == (9, 2, 3)
    assert model.predict_quantile(X[:9], 0.5).shape == (9, 2)
    # The two go together: given that the second is near 50, the first is near x.
    given = model.predict_dist([[0.8, 0.0]]).condition([1], torch.tensor([[50.0]], dtype=torch.float64))
    assert abs(given.mean.item() - 0.8) < 0.25


def test_it_stops_when_it_gets_no_better() -> None:
    X, y = branches(100)
    model = MixtureRegressor(max_iter=300, n_iter_no_change=5, **SMALL).fit(
        X, np.random.default_rng(0).normal(size=100)
    )
    assert model.n_iter_ < 150
    assert len(model.loss_curve_) == model.n_iter_
    assert MixtureRegressor(max_iter=7, early_stopping=False, **SMALL).fit(X, y).n_iter_ == 7


def test_the_learning_rate_rises_and_falls_once() -> None:
    factors = np.array(list(_one_cycle(200)))
    assert len(factors) == 200
    peak = factors.argmax()
    assert factors[peak] == 1
    assert peak == 20
    assert (np.diff(factors[: peak + 1]) > 0).all()
    assert (np.diff(factors[peak:]) < 0).all()
    assert factors[-1] < 1e-3
    assert list(_one_cycle(1)) == [0.1]


def test_more_rows_need_fewer_epochs_and_larger_batches() -> None:
    model = MixtureRegressor()
    assert [model._epochs_and_patience(n)[0] for n in (100, 1000, 10_000, 10**6)] == [400, 400, 110, 11]
    assert [model._batch_size_and_rate(n)[0] for n in (100, 6400, 10**6)] == [32, 100, 256]
    assert MixtureRegressor(max_iter=7, n_iter_no_change=3, batch_size=5)._epochs_and_patience(100) == (7, 3)


@pytest.mark.parametrize(
    "y", [np.zeros(60), np.full(60, 1e6), 1e6 + np.arange(60.0), np.r_[np.zeros(59), 1e6], 1e-9 * np.arange(60.0)]
)
@pytest.mark.parametrize("loss", ["cramer", "nll", "blend"])
def test_extreme_targets_never_give_nan(y: np.ndarray, loss: str) -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    model = MixtureRegressor(loss=loss, max_iter=15, **SMALL).fit(X, y)
    p = model.predict_dist(np.concatenate([X, 1e6 * X]))
    assert p.means.isfinite().all()
    assert (p.scales > 0).all()
    assert np.isfinite(model.predict_quantile(X)).all()
    if len(set(y)) == 60:
        assert crps(p.expand((120,)), torch.from_numpy(np.r_[y, y]))[:60].mean() < np.abs(y - y.mean()).mean()


def test_a_feature_that_says_nothing_counts_for_nothing() -> None:
    X, y = branches(60)
    model = MixtureRegressor(max_iter=4, **SMALL).fit(np.c_[X, np.full(60, 7.0)], y)
    one, other = (model.predict([[0.3, value]]) for value in (7.0, -1e5))
    np.testing.assert_array_equal(one, other)


def test_the_same_seed_gives_the_same_and_no_global_state_changes() -> None:
    X, y = branches(60)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, second = (MixtureRegressor(max_iter=4, **SMALL).fit(X, y).predict(X) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
    other = MixtureRegressor(max_iter=4, **{**SMALL, "random_state": 1}).fit(X, y)
    assert np.abs(other.predict(X) - first).max() > 1e-6


def test_it_works_in_pipelines_searches_and_pickles() -> None:
    X, y = branches(60)
    pipeline = make_pipeline(StandardScaler(), MixtureRegressor(max_iter=3, **SMALL))
    search = GridSearchCV(pipeline, {"mixtureregressor__n_components": [1, 2]}, cv=2).fit(X, y)
    model = search.best_estimator_[-1]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = branches(60)
    MixtureRegressor(max_iter=3, verbose=2, **SMALL).fit(X, y)
    shown = capsys.readouterr().out
    assert "epoch 3, 10 components, loss" in shown


@pytest.mark.parametrize(
    ("settings", "got"),
    [
        ({"n_components": 0}, "0"),
        ({"loss": "mse"}, "mse"),
        ({"hidden_layer_sizes": (16, 0)}, "0"),
        ({"n_estimators": 1.5}, "1.5"),
        ({"learning_rate": -1.0}, "-1.0"),
        ({"validation_fraction": 1.0}, "1.0"),
        ({"min_scale": 0.0}, "0.0"),
        ({"batch_size": "large"}, "large"),
    ],
)
def test_bad_settings_are_refused(settings: dict, got: str) -> None:
    X, y = branches(30)
    refuses(lambda: MixtureRegressor(**settings).fit(X, y), next(iter(settings)), got)


def test_bad_quantiles_are_refused() -> None:
    X, y = branches(30)
    model = MixtureRegressor(max_iter=1, **SMALL).fit(X, y)
    refuses(lambda: model.predict_quantile(X, [[0.5]]), "quantiles", "(1, 1)")
    refuses(lambda: model.predict_quantile(X, 1.5), "quantiles", "1.5")


@pytest.mark.parametrize("coverage", [0, 1, 90, "0.9", True])
def test_bad_coverages_are_refused(coverage: object) -> None:
    X, y = branches(30)
    model = MixtureRegressor(max_iter=1, **SMALL).fit(X, y)
    refuses(lambda: model.predict_interval(X, coverage), "coverage", repr(coverage))


def test_intervals_are_central_and_cover() -> None:
    X, y = branches(1500)
    model = MixtureRegressor(3, max_iter=60, **SMALL).fit(X, y)
    intervals = model.predict_interval(X[:9], 0.8)
    assert intervals.shape == (9, 2)
    np.testing.assert_allclose(intervals, model.predict_quantile(X[:9], [0.1, 0.9]))
    np.testing.assert_allclose(model.predict_interval(X[:9]), model.predict_quantile(X[:9], [0.05, 0.95]))
    fresh_X, fresh_y = branches(4000, seed=1)
    for coverage in (0.5, 0.9):
        low, high = model.predict_interval(fresh_X, coverage).T
        assert abs(((low <= fresh_y) & (fresh_y <= high)).mean() - coverage) < 0.04
    Y = np.stack([y, 10 * y], 1)
    both = MixtureRegressor(2, max_iter=3, **SMALL).fit(X[:100], Y[:100]).predict_interval(X[:9])
    assert both.shape == (9, 2, 2)
    assert (both[..., 0] < both[..., 1]).all()


@pytest.mark.parametrize("several", [False, True])
def test_results_have_kind_and_dtype_of_the_features(several: bool) -> None:
    X, y = branches(60)
    y = np.stack([y, y**2], 1) if several else y
    model = MixtureRegressor(max_iter=3, **SMALL).fit(X, y)
    for dtype in (np.float32, np.float64, np.int64):
        x = X.astype(dtype)
        expected = np.float32 if dtype == np.float32 else np.float64
        p = model.predict_dist(x)
        assert p.means.dtype == {np.float32: torch.float32, np.float64: torch.float64}[expected]
        assert p.log_prob(torch.from_numpy(y.astype(expected))).isfinite().all()
        if not several:
            assert crps(p, torch.from_numpy(y.astype(expected))).isfinite().all()
        for result in (model.predict(x), model.predict_quantile(x), model.predict_interval(x)):
            assert isinstance(result, np.ndarray)
            assert result.dtype == expected
        given = torch.from_numpy(x).to(p.means.dtype)
        for method in ("predict", "predict_quantile", "predict_interval"):
            result = getattr(model, method)(given)
            assert isinstance(result, torch.Tensor)
            np.testing.assert_array_equal(result.numpy(), getattr(model, method)(x))
    tensors = MixtureRegressor(max_iter=3, **SMALL).fit(torch.from_numpy(X), torch.from_numpy(y))
    np.testing.assert_array_equal(tensors.predict(X), model.predict(X))


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
def test_a_device_can_be_given(device: object) -> None:
    X, y = branches(40)
    model = MixtureRegressor(max_iter=2, device=device, **SMALL).fit(X, y)
    assert model.to("cpu") is model
    assert np.isfinite(pickle.loads(pickle.dumps(model)).predict(X)).all()


def test_the_default_device_may_be_another() -> None:
    X, y = branches(40)
    expected = MixtureRegressor(max_iter=2, **SMALL).fit(X, y)
    with torch.device("meta"):
        model = MixtureRegressor(max_iter=2, device="cpu", **SMALL).fit(X, y)
        np.testing.assert_array_equal(model.predict(X), expected.predict(X))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("several", [False, True])
def test_a_gpu_gives_what_the_cpu_does(several: bool) -> None:
    X, y = branches(400)
    y = np.stack([y, y**2], 1) if several else y
    here, there = (MixtureRegressor(max_iter=3, device=device, **SMALL).fit(X, y) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(there.predict_quantile(X), here.predict_quantile(X), rtol=0.02, atol=0.02)
    assert there.predict_dist(X).means.device.type == "cpu"
    on_gpu = torch.from_numpy(X).cuda()
    assert there.predict_dist(on_gpu).means.is_cuda
    assert there.predict(on_gpu).is_cuda
    loaded = pickle.loads(pickle.dumps(there))
    assert loaded._ensemble.device.type == "cpu"
    np.testing.assert_allclose(loaded.predict(X), there.predict(X), rtol=1e-9)
    np.testing.assert_allclose(there.to("cpu").predict(X), loaded.predict(X), rtol=1e-12)


def test_pickles_of_a_gpu_hold_cpu_tensors() -> None:
    """The state is copied to the CPU, and the fitted model stays where it is."""
    X, y = branches(40)
    model = MixtureRegressor(max_iter=2, **SMALL).fit(X, y)
    model._ensemble.to("meta")
    with pytest.raises(NotImplementedError, match="meta"):  # the copy out of the device is attempted
        pickle.dumps(model)


@pytest.mark.parametrize("scorer", [crps_scorer, log_likelihood_scorer])
def test_scorers_rank_models_in_searches(scorer) -> None:
    X, y = branches(400)
    model = MixtureRegressor(max_iter=40, **SMALL)
    search = GridSearchCV(model, {"n_components": [1, 3]}, scoring=scorer, cv=2).fit(X, y)
    assert search.best_params_ == {"n_components": 3}
    best = search.best_estimator_
    p, t = best.predict_dist(X), torch.from_numpy(y)
    values = -crps(p, t).numpy() if scorer is crps_scorer else p.log_prob(t).numpy()
    assert scorer(best, X, y) == pytest.approx(values.mean())
    assert scorer(search, X, y) == pytest.approx(values.mean())
    weights = np.arange(400.0)
    assert scorer(best, X, y, weights) == pytest.approx(np.average(values, weights=weights))


def test_scorers_work_in_pipelines_and_with_several_targets() -> None:
    X, y = branches(60)
    pipeline = make_pipeline(StandardScaler(), MixtureRegressor(max_iter=3, **SMALL)).fit(X, y)
    transformed = pipeline[:-1].transform(X)
    assert crps_scorer(pipeline, X, y) == pytest.approx(crps_scorer(pipeline[-1], transformed, y))
    Y = np.stack([y, y**2], 1)
    model = MixtureRegressor(max_iter=3, **SMALL).fit(X, Y)
    samples = model.predict_dist(X).sample((4000,), generator=torch.Generator().manual_seed(0)).numpy()
    score = (
        np.linalg.norm(samples - Y, axis=-1).mean() - 0.5 * np.linalg.norm(samples[1:] - samples[:-1], axis=-1).mean()
    )
    assert crps_scorer(model, X, Y) == pytest.approx(-score, rel=0.02)
    refuses(lambda: crps_scorer(model, X, y), "y", "(60,)")
    with pytest.raises(TypeError, match="StandardScaler has none"):
        crps_scorer(StandardScaler().fit(X), X, y)


def test_outliers_are_covered_by_a_wide_component() -> None:
    """A few targets far away cost the likelihood of held-out rows; the mean of the predictions stays."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1200, 2))
    y = X[:, 0] + 0.3 * rng.standard_t(2, 1200)
    model = MixtureRegressor(2, max_iter=40, **{**SMALL, "n_estimators": 4}).fit(X[:800], y[:800])
    assert model._recalibration.tail_weight > 0
    p, t = model.predict_dist(X[800:]), torch.from_numpy(y[800:])
    model._recalibration = Recalibration()
    plain = model.predict_dist(X[800:])
    torch.testing.assert_close(p.mean, plain.mean)
    assert p.log_prob(t).mean() > plain.log_prob(t).mean() + 0.02
    assert crps(p, t).mean() < 1.002 * crps(plain, t).mean()


def test_predictions_that_are_calibrated_stay() -> None:
    X, y = branches(30)
    model = MixtureRegressor(max_iter=2, early_stopping=False, **SMALL).fit(X, y)
    assert model._recalibration == Recalibration()


def test_without_scikit_learn_the_pip_command_is_named() -> None:
    code = (
        "import sys; sys.modules['sklearn.base'] = None\nimport cramix\n"
        "try: cramix.MixtureRegressor\nexcept ImportError as e: print(e)"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "pip install 'cramix[sklearn]'" in out
