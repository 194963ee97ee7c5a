"""`CramerMixture` against scikit-learn's `GaussianMixture`: what it promises, and what it has more."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
import warnings
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import cramix
from cramix import CramerMixture, MultivariateNormalMixture, NormalMixture
from cramix.estimators.inputs import read_samples
from cramix.estimators.methods import chosen_method
from cramix.fitting import ExpectationMaximization, GradientDescent, MergeDown, Step
from cramix.fitting.samples import read_target
from tests.estimator_oracle import FITTED, data, every_type, nearest, peer

# What scikit-learn's has


@every_type
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_all_that_follows_from_the_parameters_is_as_in_scikit_learn(kind: str, dtype: type) -> None:
    x, new = data().astype(dtype), data(50, seed=1).astype(dtype)
    model = CramerMixture(3, covariance_type=kind, random_state=0).fit(x)
    theirs = peer(model)
    rtol = 1e-10 if dtype is np.float64 else 2e-4
    for method in ("predict_proba", "score_samples"):
        ours = getattr(model, method)(new)
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours, getattr(theirs, method)(new), rtol=rtol, atol=rtol)
    np.testing.assert_array_equal(model.predict(new), theirs.predict(new))
    for method in ("score", "bic", "aic"):
        assert getattr(model, method)(new) == pytest.approx(getattr(theirs, method)(new), rel=rtol)


@every_type
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_attributes_have_the_shapes_dtypes_and_meanings_of_scikit_learn(kind: str, dtype: type) -> None:
    x = data().astype(dtype)
    model = CramerMixture(3, covariance_type=kind, shrinkage=0, random_state=0).fit(x)
    theirs = GaussianMixture(3, covariance_type=kind, random_state=0, tol=1e-7, n_init=5, max_iter=500).fit(x)
    order = nearest(model.means_, theirs.means_)
    rtol = 1e-2 if dtype is np.float64 else 2e-2
    for name in FITTED:
        a, b = getattr(model, name), getattr(theirs, name)
        assert isinstance(a, np.ndarray)
        assert (a.shape, a.dtype) == (b.shape, dtype)
        if kind != "tied" or name in FITTED[:2]:
            b = b[order]
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max())
    assert model.lower_bound_ == pytest.approx(model.score(x), rel=1e-5)
    assert model.lower_bound_ >= theirs.score(x) - 1e-4
    assert model.lower_bounds_[-1] == pytest.approx(model.lower_bound_, abs=1e-5)
    assert model.n_features_in_ == 3
    assert (model.converged_, model.n_iter_ >= 1) == (True, True)
    assert all(isinstance(step, Step) for step in model.history_)
    assert isinstance(model.mixture_, MultivariateNormalMixture)
    assert model.mixture_.means.dtype == torch.from_numpy(x).dtype
    np.testing.assert_array_equal(model.mixture_.means.numpy(), model.means_)


@every_type
@pytest.mark.parametrize("parts", ["means", "all"])
def test_from_the_same_start_expectation_maximisation_ends_where_theirs_does(kind: str, parts: str) -> None:
    """Where a start is bad too: two of three means in one group."""
    x = data()
    start: dict[str, Any] = {"means_init": x[[0, 3, 1]]}
    if parts == "all":
        precisions = {"full": np.tile(np.eye(3), (3, 1, 1)), "tied": np.eye(3), "diag": np.ones((3, 3))}
        start |= {"weights_init": [0.2, 0.3, 0.5], "precisions_init": precisions.get(kind, np.ones(3))}
    else:
        start["means_init"] = np.stack([x[i::3].mean(0) for i in range(3)])
    model = CramerMixture(3, covariance_type=kind, method="em", tol=1e-10, max_iter=3000, reg_covar=1e-9, **start)
    theirs = GaussianMixture(3, covariance_type=kind, random_state=0, tol=1e-10, max_iter=3000, reg_covar=1e-9, **start)
    model.fit(x)
    theirs.fit(x)
    np.testing.assert_allclose(model.means_, theirs.means_, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(model.covariances_, theirs.covariances_, rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(model.weights_, theirs.weights_, rtol=1e-3)


@every_type
def test_samples_have_the_moments_of_the_components_they_are_said_to_come_from(kind: str) -> None:
    model = CramerMixture(3, covariance_type=kind, random_state=0).fit(data())
    x, labels = model.sample(60_000)
    assert (x.shape, labels.shape, labels.dtype) == ((60_000, 3), (60_000,), np.int64)
    assert (np.diff(labels) >= 0).all()
    covariances = model.mixture_.covariances.numpy()
    for i in range(3):
        own = x[labels == i]
        assert len(own) / 60_000 == pytest.approx(model.weights_[i], abs=0.01)
        error = np.sqrt(np.diagonal(covariances[i]) / len(own))
        assert (np.abs(own.mean(0) - model.means_[i]) < 5 * error).all()
        np.testing.assert_allclose(np.cov(own.T), covariances[i], atol=0.05 * np.abs(covariances[i]).max())
    again, _ = model.sample(60_000)
    np.testing.assert_array_equal(x, again)
    assert model.sample()[0].shape == (1, 3)


def test_in_a_pipeline_a_grid_search_and_cross_validation() -> None:
    x = data()
    search = GridSearchCV(
        make_pipeline(StandardScaler(), CramerMixture(random_state=0)), {"cramermixture__n_components": [1, 2, 3]}, cv=3
    )
    assert search.fit(x).best_params_ == {"cramermixture__n_components": 3}
    scores = cross_val_score(CramerMixture(3, random_state=0), x, cv=3)
    theirs = cross_val_score(GaussianMixture(3, random_state=0, n_init=5), x, cv=3)
    np.testing.assert_allclose(scores, theirs, atol=0.05)


def test_the_least_bic_is_at_the_true_number() -> None:
    x = data(600)
    scores = [CramerMixture(k, method="em", random_state=0).fit(x).bic(x) for k in (1, 2, 3, 4)]
    assert np.argmin(scores) == 2


def test_clones_pickles_and_joblib_files_are_equal(tmp_path: Any) -> None:
    x = data()
    model = CramerMixture(3, random_state=0, method=ExpectationMaximization(n_init=2)).fit(x)
    joblib.dump(model, tmp_path / "model")
    for copy in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model"), clone(model).fit(x)):
        assert copy.get_params() == model.get_params()
        np.testing.assert_array_equal(copy.predict_proba(x), model.predict_proba(x))
        np.testing.assert_array_equal(copy.sample(5)[0], model.sample(5)[0])
    assert not hasattr(clone(model), "weights_")


def test_the_random_state_decides() -> None:
    x = data()
    a, b, c = (CramerMixture(5, random_state=s, method="em", init_params="random", max_iter=3) for s in (1, 1, 2))
    with pytest.warns(ConvergenceWarning):
        a.fit(x), b.fit(x), c.fit(x)
    np.testing.assert_array_equal(a.means_, b.means_)
    assert not np.allclose(a.means_, c.means_)
    state = np.random.RandomState(0)
    model = CramerMixture(2, random_state=state).fit(x)
    assert not np.allclose(model.sample(3)[0], model.sample(3)[0])


@every_type
def test_given_parts_of_a_start_replace_those_of_init_params(kind: str) -> None:
    """Without an iteration the fit is the start."""
    x = data()
    plain = CramerMixture(3, covariance_type=kind, random_state=0, max_iter=0).fit(x)
    assert (plain.n_iter_, plain.converged_, plain.lower_bounds_) == (0, False, [])
    weights, means = np.array([0.2, 0.3, 0.5]), x[[0, 1, 2]]
    shapes = {"full": np.tile(np.eye(3), (3, 1, 1)), "tied": np.eye(3), "diag": np.ones((3, 3))}
    precisions = 7 * shapes.get(kind, np.ones(3))
    given = {"weights_init": weights, "means_init": means, "precisions_init": precisions}
    for names in itertools.chain.from_iterable(itertools.combinations(given, n) for n in (1, 2, 3)):
        some = {name: given[name] for name in names}
        model = CramerMixture(3, covariance_type=kind, random_state=0, max_iter=0, **some).fit(x)
        for name in ("weights", "means", "precisions"):
            if f"{name}_init" in some:
                np.testing.assert_allclose(getattr(model, f"{name}_"), given[f"{name}_init"], rtol=1e-6, atol=1e-9)
            elif "means_init" not in some:
                np.testing.assert_allclose(getattr(model, f"{name}_"), getattr(plain, f"{name}_"), rtol=1e-6, atol=1e-9)
        full = CramerMixture(3, covariance_type=kind, random_state=0, **some).fit(x)
        assert {step.name for step in full.history_} == {"expectation maximisation"}
        assert full.lower_bound_ > model.lower_bound_


def test_a_warm_start_by_single_iterations_converges() -> None:
    x = data()
    model = CramerMixture(3, warm_start=True, max_iter=1, init_params="random", method="em", random_state=0, tol=1e-6)
    bounds = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=ConvergenceWarning)
        for _ in range(500):
            bounds.append(model.fit(x).lower_bound_)
            if model.converged_:
                break
    assert model.converged_
    assert model.n_iter_ == 1
    assert (np.diff(bounds) > -1e-12).all()
    assert bounds[-1] - bounds[-2] < 1e-6 < bounds[-2] - bounds[-3]


@every_type
def test_repeated_samples_may_have_several_components(kind: str) -> None:
    """scikit-learn counts samples, not distinct ones."""
    x = np.repeat(np.eye(2, 3), 5, 0)
    with pytest.warns(ConvergenceWarning, match="have collapsed"):
        model = CramerMixture(4, covariance_type=kind, random_state=0).fit(x)
    assert np.isfinite(model.score(x))
    with pytest.raises(ValueError, match="ill-defined empirical covariance"):
        CramerMixture(4, covariance_type=kind, random_state=0, reg_covar=0).fit(x)


# What it has more


def test_weights_are_repetitions_and_the_order_does_not_matter() -> None:
    x, rng = data(), np.random.default_rng(2)
    repeats = rng.integers(0, 4, 240)
    for settings in ({}, {"method": "em", "init_params": "k-means++"}):
        weighted = CramerMixture(3, random_state=0, **settings).fit(x, sample_weight=repeats)
        repeated = CramerMixture(3, random_state=0, **settings).fit(rng.permutation(x.repeat(repeats, 0)))
        np.testing.assert_array_equal(weighted.means_, repeated.means_)
        np.testing.assert_array_equal(weighted.covariances_, repeated.covariances_)
        for method in ("score", "bic", "aic"):
            theirs = getattr(repeated, method)(x.repeat(repeats, 0))
            assert getattr(weighted, method)(x, sample_weight=repeats) == pytest.approx(theirs, rel=1e-12)
    labels = CramerMixture(3, random_state=0).fit_predict(x, sample_weight=repeats)
    np.testing.assert_array_equal(labels, CramerMixture(3, random_state=0).fit(x, sample_weight=repeats).predict(x))


def test_weights_of_any_size() -> None:
    x = data()
    plain = CramerMixture(3, random_state=0).fit(x)
    for size in (1e-300, 1e307):
        model = CramerMixture(3, random_state=0).fit(x, sample_weight=np.full(240, size))
        np.testing.assert_allclose(model.score_samples(x), plain.score_samples(x), rtol=1e-9)
        assert model.score(x, sample_weight=np.full(240, size)) == pytest.approx(plain.score(x), rel=1e-9)
    ignored = np.r_[np.ones(240), 0.0]
    assert plain.score(np.r_[x, np.full((1, 3), 1e200)], sample_weight=ignored) == pytest.approx(plain.score(x))
    ratio = np.where(np.arange(240) < 120, 1.0, 1e-200)
    model = CramerMixture(3, shrinkage=0, random_state=0)
    half = model.fit(x[:120]).lower_bound_
    np.testing.assert_allclose(model.fit(x, sample_weight=ratio).lower_bound_, half, atol=1e-2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no such device here")
def test_tensors_stay_on_their_device() -> None:
    x = torch.from_numpy(data(30_000)).cuda()
    for start in ("kmeans", "k-means++", "random", "random_from_data"):
        model = CramerMixture(3, init_params=start, random_state=0).fit(x, sample_weight=torch.ones(30_000))
        outcomes = [getattr(model, method)(x) for method in ("predict", "predict_proba", "score_samples")]
        for found in (*outcomes, *model.sample(5), *(getattr(model, name) for name in FITTED), model.mixture_.means):
            assert found.is_cuda
        assert not model.predict(x.cpu()).is_cuda


@every_type
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_tensors_in_tensors_out(kind: str, dtype: torch.dtype) -> None:
    x = torch.from_numpy(data()).to(dtype).requires_grad_()
    model = CramerMixture(3, covariance_type=kind, random_state=0).fit(x, sample_weight=torch.ones(240))
    numpy = CramerMixture(3, covariance_type=kind, random_state=0).fit(x.detach().numpy())
    for name in FITTED:
        ours = getattr(model, name)
        assert isinstance(ours, torch.Tensor)
        assert (ours.dtype, ours.requires_grad) == (dtype, False)
        np.testing.assert_array_equal(ours.numpy(), getattr(numpy, name))
    for method in ("predict", "predict_proba", "score_samples"):
        ours, theirs = getattr(model, method)(x), getattr(numpy, method)(x.detach().numpy())
        assert isinstance(ours, torch.Tensor)
        assert ours.dtype == (torch.int64 if method == "predict" else dtype)
        np.testing.assert_array_equal(ours.numpy(), theirs)
        # What comes back is of the kind that goes in.
        assert isinstance(getattr(model, method)(x.detach().numpy()), np.ndarray)
        assert isinstance(getattr(numpy, method)(x), torch.Tensor)
    assert isinstance(model.score(x), float)
    drawn, labels = model.sample(10)
    assert (drawn.dtype, labels.dtype) == (dtype, torch.int64)
    np.testing.assert_array_equal(drawn.numpy(), numpy.sample(10)[0])
    assert torch.equal(pickle.loads(pickle.dumps(model)).predict_proba(x), model.predict_proba(x))


def test_tables_give_their_columns_names() -> None:
    table = pd.DataFrame(data(), columns=["length", "width", "height"])
    model = CramerMixture(3, random_state=0).fit(table, sample_weight=pd.Series(np.ones(240)))
    assert list(model.feature_names_in_) == ["length", "width", "height"]
    np.testing.assert_array_equal(model.means_, CramerMixture(3, random_state=0).fit(table.to_numpy()).means_)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(table[["width", "length", "height"]])
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(table.to_numpy())


@pytest.mark.parametrize("start", ["kmeans", "k-means++", "random", "random_from_data"])
def test_every_start_leads_there(start: str) -> None:
    x, best = data(), CramerMixture(3, random_state=0).fit(data()).lower_bound_
    assert CramerMixture(3, init_params=start, random_state=0).fit(x).lower_bound_ == pytest.approx(best, abs=1e-3)
    model = CramerMixture(3, init_params=start, random_state=0, method="em", n_init=20).fit(x)
    assert model.lower_bound_ == pytest.approx(best, abs=0.02)


def test_starts_from_what_is_there() -> None:
    x = data()
    best = CramerMixture(3, random_state=0).fit(x)
    theirs = GaussianMixture(3, random_state=0).fit(x)
    for start in (best, best.mixture_, best.mixture_.to(torch.float32), theirs):
        model = CramerMixture(3, init_params=start).fit(x)
        assert {step.name for step in model.history_} == {"expectation maximisation"}
        # Nothing is drawn, so components keep their places.
        means = start.means_ if hasattr(start, "means_") else start.means
        np.testing.assert_allclose(model.means_, means, atol=0.1)
    line = NormalMixture(torch.ones(2) / 2, torch.tensor([0.0, 5.0]), torch.ones(2))
    assert CramerMixture(2, init_params=line).fit(line.sample((99,)).unsqueeze(-1)).means_.argmax() == 1
    with pytest.raises(ValueError, match=r"init_params must be a mixture of 2 components .* got one of 3"):
        CramerMixture(2, init_params=best).fit(x)
    with pytest.raises(ValueError, match=r"init_params must be one of .* got GaussianMixture"):
        CramerMixture(3, init_params=clone(theirs)).fit(x)


def test_a_warm_start_goes_on() -> None:
    x = data()
    model = CramerMixture(3, method="em", init_params="random", max_iter=5, tol=0, warm_start=True, random_state=0)
    bounds = []
    for _ in range(4):
        with pytest.warns(ConvergenceWarning, match="did not converge.*stopped after 5 iterations"):
            bounds.append(model.fit(x).lower_bound_)
    with pytest.warns(ConvergenceWarning, match="did not converge.*stopped after 20 iterations"):
        whole = clone(model).set_params(max_iter=20).fit(x)
    assert bounds == sorted(bounds)
    assert bounds[-1] == pytest.approx(whole.lower_bound_, abs=1e-5)
    default = CramerMixture(3, warm_start=True, random_state=0).fit(x)
    assert {step.name for step in default.fit(x).history_} == {"expectation maximisation"}
    with pytest.raises(ValueError, match=r"warm_start continues a fit with n_components = 3 to 3 features; got 4 and"):
        default.set_params(n_components=4).fit(x)
    default.set_params(n_components=3, warm_start=False).fit(x)
    assert len({step.name for step in default.history_}) > 1


def test_settings_reach_the_method() -> None:
    x = data()
    model = CramerMixture(3, tol=1e-2, max_iter=7, n_init=2)
    assert chosen_method(model, None) == (MergeDown(n_init=2, tol=1e-2, max_iter=7), 1)
    model.set_params(method="em")
    assert chosen_method(model, None) == (ExpectationMaximization(n_init=2, tol=1e-2, max_iter=7), 1)
    model.set_params(method=MergeDown(n_init=1), tol=None, max_iter=None)
    assert chosen_method(model, None) == (MergeDown(n_init=1), 2)
    # Run twice by us, the best of both.
    best = model.set_params(random_state=3).fit(x).lower_bound_
    assert best >= model.set_params(n_init=1).fit(x).lower_bound_


def test_progress_is_printed(capsys: pytest.CaptureFixture) -> None:
    x = data()
    CramerMixture(2, random_state=0).fit(x)
    assert capsys.readouterr().out == ""
    CramerMixture(2, random_state=0, verbose=True, verbose_interval=2).fit(x)
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[-1]) == ("Initialization 0", "Initialization converged.")
    assert lines[1:3] == ["  Iteration 2", "  Iteration 4"]
    model = CramerMixture(2, random_state=0, verbose=2, verbose_interval=1).fit(x)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(model.history_) + 2
    assert "polishing, 2 components, loss" in lines[-2]


# Gradient descent


@every_type
def test_gradient_descent_on_the_likelihood_ends_where_the_default_does(kind: str) -> None:
    x = data()
    best = CramerMixture(3, covariance_type=kind, shrinkage=0, random_state=0).fit(x).lower_bound_
    for optimizer in ("lbfgs", "adam", "lion") if kind == "diag" else ("lbfgs",):
        settings = {"optimizer": optimizer, "init_params": "k-means++", "random_state": 0}
        model = CramerMixture(3, covariance_type=kind, **settings).fit(x)
        assert model.lower_bound_ == pytest.approx(best, abs=1e-5 if optimizer == "lbfgs" else 0.02)
        assert model.lower_bounds_[-1] == pytest.approx(model.lower_bound_, abs=1e-4)
        assert model.lower_bounds_[0] < best - 0.1
    again = CramerMixture(3, covariance_type=kind, optimizer="lbfgs", init_params=model).fit(x)
    np.testing.assert_allclose(again.means_, model.means_, atol=0.01)
    assert again.n_iter_ < 20


@pytest.mark.parametrize("optimizer", ["lbfgs", "adam"])
def test_the_cramer_objective_is_made_smaller_than_by_the_likelihood(optimizer: str) -> None:
    x = data(d=1)
    likely = CramerMixture(2, random_state=0).fit(x)
    model = CramerMixture(2, objective="cramer", optimizer=optimizer, random_state=0).fit(x)
    ours, theirs = (cramix.cramer_loss(m.mixture_.marginal(0), torch.from_numpy(x[:, 0])) for m in (model, likely))
    assert ours < 0.9 * theirs
    assert model.score(x) == pytest.approx(likely.score(x), abs=0.1)


def test_settings_reach_gradient_descent() -> None:
    rates = {"means": 0.05}
    model = CramerMixture(3, optimizer="adam", tol=1e-3, max_iter=7, n_init=2, batch_size=9, learning_rate=rates)
    wanted = GradientDescent("likelihood", "adam", tol=1e-3, max_iter=7, batch_size=9, learning_rate=rates)
    assert chosen_method(model, None) == (wanted, 2)
    assert chosen_method(CramerMixture(objective="cramer"), None) == (GradientDescent("cramer"), 1)
    assert chosen_method(CramerMixture(optimizer="rmsprop"), None) == (GradientDescent("likelihood", "rmsprop"), 1)
    assert chosen_method(CramerMixture(method="descent"), None) == (GradientDescent(), 1)
    named = CramerMixture(method="descent", optimizer="adam", batch_size=9)
    assert chosen_method(named, None) == (GradientDescent("cramer", "adam", batch_size=9), 1)
    with pytest.raises(ValueError, match="batch_size"):
        CramerMixture(optimizer="lbfgs", batch_size=9).fit(data())


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"batch_size": 9}, 'batch_size has no effect with objective="likelihood", optimizer=None; got 9'),
        ({"learning_rate": np.full(3, 0.1)}, "learning_rate has no effect with"),
        ({"method": "em", "optimizer": "adam"}, 'optimizer has no effect with method="em"'),
        ({"method": "kmeans", "tol": 1e-3}, 'tol has no effect with method="kmeans"'),
        ({"method": "sc2", "optimizer": "adam"}, 'optimizer has no effect with method="sc2"'),
        ({"method": "em", "objective": "cramer"}, "objective must be left out if there is a method"),
        ({"method": GradientDescent(), "objective": "cramer"}, "objective must be left out if there is a method"),
        ({"method": GradientDescent(), "max_iter": 5}, "max_iter has no effect with a method with settings"),
    ],
)
def test_settings_without_effect_are_refused(settings: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        CramerMixture(2, **settings).fit(data())


def test_the_result_counts_samples_and_not_places() -> None:
    x = np.repeat(data(), 2, 0)
    model = CramerMixture(3, random_state=0).fit(x)
    assert model.result_.n_samples == len(x)
    assert model.result_.bic == pytest.approx(model.bic(x), rel=1e-9)


def test_batches_take_large_weights() -> None:
    x = data(300).astype(np.float32)
    settings = {"optimizer": "adam", "batch_size": 50, "max_iter": 3, "tol": 0, "random_state": 0}
    large, plain = (
        CramerMixture(3, **settings).fit(x, sample_weight=w * np.arange(1.0, 301.0)).means_ for w in (1e300, 1.0)
    )
    np.testing.assert_allclose(large, plain, rtol=1e-3, atol=1e-3)


def test_batches_are_read_where_the_data_lie(tmp_path: Any) -> None:
    x = data(3000).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    lying = np.load(tmp_path / "x.npy", mmap_mode="r")
    settings = {"optimizer": "adam", "batch_size": 256, "random_state": 0}
    model = CramerMixture(3, **settings)
    tensor, _ = read_samples(model, lying, reset=True)
    assert read_target(tensor).mixture.means.data_ptr() == lying.ctypes.data
    model.fit(lying)
    assert model.means_.dtype == np.float32
    assert model.lower_bound_ == pytest.approx(CramerMixture(3, random_state=0).fit(x).lower_bound_, abs=0.05)
    weights = np.arange(3000) % 3 > 0
    two = CramerMixture(2, **settings).fit(lying, sample_weight=weights)
    assert two.score(lying, sample_weight=weights) == pytest.approx(
        CramerMixture(2, random_state=0).fit(x[weights]).lower_bound_, abs=0.05
    )


# The package around it


def run(code: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd="/", env=os.environ | environment
    ).stdout


def test_it_is_loaded_when_asked_for() -> None:
    assert "CramerMixture" in dir(cramix)
    assert "CramerMixture" in cramix.__all__
    seen = "import sys, cramix; print('sklearn' in sys.modules); cramix.CramerMixture; print('sklearn' in sys.modules)"
    assert run(seen).split() == ["False", "True"]


def test_a_missing_scikit_learn_names_the_pip_command() -> None:
    code = """
import sys
sys.modules["sklearn"] = None
from cramix import *
import cramix
try: cramix.CramerMixture
except ImportError as error: print(error)
try: cramix.nothing
except AttributeError as error: print(error)
"""
    said = run(code)
    assert "pip install 'cramix[sklearn]'" in said
    assert "has no attribute 'nothing'" in said


def test_array_api_dispatch_changes_nothing() -> None:
    """scikit-learn's checks leave it out where a setting is not there when scipy is loaded."""
    code = """
import numpy, sklearn, torch
from cramix import CramerMixture
x = numpy.random.default_rng(0).normal(size=(50, 2))
plain = CramerMixture(2, random_state=0).fit(x)
with sklearn.config_context(array_api_dispatch=True):
    for y in (x, torch.from_numpy(x)):
        model = CramerMixture(2, random_state=0).fit(y)
        print(type(model.means_).__name__, (numpy.asarray(model.predict_proba(y)) == plain.predict_proba(x)).all())
"""
    assert run(code, SCIPY_ARRAY_API="1").split() == ["ndarray", "True", "Tensor", "True"]
