"""`CramerMixture` on data that are not nice: a valid fit, with a warning where it is poor, or a clear refusal."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning, NotFittedError

import cramix
from cramix import CramerMixture, MultivariateNormalMixture
from tests.estimator_oracle import FITTED, data, every_type, nearest, peer
from tests.refusals import refuses


@every_type
@pytest.mark.parametrize("method", ["merge", "em"])
def test_scales_do_not_matter(kind: str, method: str) -> None:
    x = data()
    plain = CramerMixture(3, covariance_type=kind, method=method, random_state=0).fit(x)
    scales = [np.full(3, 1e-8), np.full(3, 1e8)]
    scales += [] if kind == "spherical" else [np.array([1e-8, 1.0, 1e8])]
    for scale in scales:
        model = CramerMixture(3, covariance_type=kind, method=method, random_state=0).fit(x * scale)
        order = nearest(plain.means_, model.means_ / scale)
        np.testing.assert_allclose((model.means_ / scale)[order], plain.means_, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(model.predict_proba(x * scale)[:, order], plain.predict_proba(x), atol=1e-3)
        np.testing.assert_allclose(model.lower_bound_, plain.lower_bound_ - np.log(scale).sum(), atol=1e-3)
        np.testing.assert_allclose(peer(model).score(x * scale), model.lower_bound_, atol=1e-3)


@every_type
def test_float32_far_from_zero(kind: str) -> None:
    """At 1e6 a float32 has steps of 1/16: attributes have them, what is computed from the fit has not."""
    x = data().astype(np.float32)
    far = x + np.float32(1e6)
    model = CramerMixture(3, covariance_type=kind, random_state=0).fit(far)
    exact = CramerMixture(3, covariance_type=kind, random_state=0).fit(far.astype(np.float64) - 1e6)
    assert model.means_.dtype == np.float32
    assert model.score(far) == pytest.approx(exact.lower_bound_, abs=1e-4)
    order = nearest(exact.means_, model.means_ - np.float32(1e6))
    truth = exact.predict_proba(far.astype(np.float64) - 1e6)
    np.testing.assert_allclose(model.predict_proba(far)[:, order], truth, atol=1e-3)


@every_type
@pytest.mark.parametrize(
    "x",
    [
        pytest.param(np.repeat(data()[:6], 20, 0), id="six places"),
        pytest.param(np.c_[data(), np.full(240, 7.0)], id="a constant column"),
        pytest.param(np.c_[data(), np.full(240, 1e8)], id="a large constant column"),
        pytest.param(np.c_[data(), data()[:, 0]], id="a column twice"),
        pytest.param(np.random.default_rng(3).normal(size=(12, 30)), id="more columns than samples"),
        pytest.param(np.r_[data(), np.full((1, 3), 1e6)], id="an outlier"),
        pytest.param(np.r_[data(), 1e6 * np.random.default_rng(4).normal(size=(4, 3))], id="outliers"),
        pytest.param(np.random.default_rng(5).integers(0, 2, (100, 4)), id="yes or no"),
    ],
)
def test_a_poor_fit_is_valid_and_told(kind: str, x: np.ndarray) -> None:
    for settings in ({}, {"method": "em"}, {"optimizer": "lbfgs"}, {"objective": "cramer"}):
        model = CramerMixture(2, covariance_type=kind, max_iter=100, random_state=0, **settings)
        fit_and_listen(model, x)
        assert all(np.isfinite(getattr(model, name)).all() for name in FITTED)
        assert np.isfinite(model.score_samples(x)).all()
        np.testing.assert_allclose(model.predict_proba(x).sum(1), 1)
        assert np.isfinite(model.sample(5)[0]).all()
        assert np.isfinite(peer(model).score(x))


def fit_and_listen(model: CramerMixture, x: np.ndarray) -> None:
    """Fit; if components have collapsed, it is said how many."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x)
    collapsed = model.result_.collapsed
    told = [w for w in caught if f"{collapsed} of 2 components have collapsed" in str(w.message)]
    assert len(told) == (collapsed > 0)
    assert all(issubclass(w.category, ConvergenceWarning) for w in told)
    assert all(issubclass(w.category, cramix.ConvergenceWarning) for w in told)


def test_equal_rows_are_one_place() -> None:
    x = np.full((10, 3), 7.0)
    with pytest.warns(ConvergenceWarning, match="1 of 1 components have collapsed.* All samples are equal"):
        model = CramerMixture().fit(x)
    np.testing.assert_allclose(model.means_, x[:1])
    np.testing.assert_allclose(model.covariances_[0], 1e-6 * np.eye(3), atol=1e-12)


def test_kinds_of_arrays_do_not_matter() -> None:
    x = data()
    plain = CramerMixture(2, random_state=0).fit(x)
    wide = np.zeros((240, 6))
    wide[:, ::2] = x
    frozen = x.copy()
    frozen.flags.writeable = False
    kinds = [np.asfortranarray(x), wide[:, ::2], x[::-1], x.tolist(), x.astype(object), x.astype(">f8"), frozen]
    for other in kinds:
        np.testing.assert_array_equal(CramerMixture(2, random_state=0).fit(other).means_, plain.means_)
    whole = np.round(10 * x).astype(np.int32)
    for other in (whole, torch.from_numpy(whole)):
        model = CramerMixture(2, random_state=0).fit(other)
        np.testing.assert_array_equal(model.means_, CramerMixture(2, random_state=0).fit(whole.astype(float)).means_)


def test_one_column() -> None:
    x = np.r_[np.random.default_rng(6).normal(0, 1, 200), np.random.default_rng(7).normal(9, 2, 100)]
    for kind in ("full", "diag", "spherical"):
        model = CramerMixture(2, covariance_type=kind, random_state=0).fit(x[:, None])
        order = model.means_[:, 0].argsort()
        np.testing.assert_allclose(model.weights_[order], [2 / 3, 1 / 3], atol=0.03)
        np.testing.assert_allclose(np.sqrt(model.covariances_.ravel()[order]), [1, 2], atol=0.3)
    for wrong in (x, torch.from_numpy(x)):
        with pytest.raises(ValueError, match=r"Expected 2D array, got[\s\S]*Reshape your data"):
            CramerMixture(2).fit(wrong)


def test_many_rows_stay_in_memory() -> None:
    """Predictions go in blocks, so that no array has more than a few million numbers."""
    x = np.random.default_rng(8).normal(size=(300_000, 8)).astype(np.float32)
    model = CramerMixture(4, method="em", init_params="random_from_data", tol=1e-1, random_state=0).fit(x[:1000])
    rows = []

    def density(mixture: MultivariateNormalMixture, part: torch.Tensor) -> torch.Tensor:
        rows.append(len(part))
        return mixture.log_prob(part)

    whole = model._each(x, density)
    assert max(rows) * model.means_.size <= 1 << 22 < len(x) * model.means_.size
    np.testing.assert_allclose(whole, model.score_samples(x), rtol=1e-5)
    np.testing.assert_allclose(whole[::1000], model.score_samples(x[::1000]), rtol=1e-5)


# What is refused


@pytest.mark.parametrize(
    ("settings", "name", "got"),
    [
        ({"n_components": 0}, "n_components", "0"),
        ({"n_components": 2.0}, "n_components", "2.0"),
        ({"covariance_type": "round"}, "covariance_type", "round"),
        ({"tol": -1.0}, "tol", "-1.0"),
        ({"tol": "small"}, "tol", "small"),
        ({"reg_covar": -1e-3}, "reg_covar", "-0.001"),
        ({"max_iter": -1}, "max_iter", "-1"),
        ({"verbose_interval": 0}, "verbose_interval", "0"),
        ({"n_init": 0}, "n_init", "0"),
        ({"batch_size": 0}, "batch_size", "0"),
        ({"verbose": -1}, "verbose", "-1"),
        ({"init_params": "best"}, "init_params", "best"),
        ({"objective": "nll"}, "objective", "nll"),
        ({"optimizer": "newton"}, "optimizer", "newton"),
        ({"method": "magic"}, "method", "magic"),
    ],
)
def test_bad_settings_are_refused_by_fit_and_not_before(settings: dict, name: str, got: str) -> None:
    model = CramerMixture(**settings)
    refuses(lambda: model.fit(data()), name, got)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"init_params": 3}, "init_params must be one of .* got 3"),
        ({"weights_init": [[1.0]]}, r"The parameter 'weights' should have the shape of \(1,\), but got \(1, 1\)"),
        ({"weights_init": [2.0]}, r"'weights' should be in the range \[0, 1\], but got max value 2.00000"),
        ({"weights_init": [0.5]}, r"'weights' should be normalized, but got sum\(weights\) = 0.50000"),
        ({"means_init": [[0.0]]}, r"The parameter 'means' should have the shape of \(1, 3\), but got \(1, 1\)"),
        ({"means_init": [[0.0, np.nan, 0.0]]}, "means_init must be finite; got nan"),
        (
            {"precisions_init": [np.eye(2)]},
            r"'full precision' should have the shape of \(1, 3, 3\), but got \(1, 2, 2\)",
        ),
        ({"precisions_init": [np.ones((3, 3))]}, "'full precision' should be symmetric, positive-definite"),
        ({"precisions_init": [np.eye(3) + np.eye(3, k=1) / 2]}, "'full precision' should be symmetric"),
        ({"precisions_init": [-1.0], "covariance_type": "spherical"}, "'spherical precision' should be positive"),
    ],
)
def test_bad_starts_are_refused_in_the_words_of_scikit_learn(settings: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        CramerMixture(**settings).fit(data())


@pytest.mark.parametrize(
    "bad", [["a", "b", "c"], ["1", "2", "3"], np.arange("2026-01", "2026-04", dtype="datetime64[M]")]
)
def test_dates_and_text_are_refused_with_their_column(bad: Any) -> None:
    table = pd.DataFrame({"length": [1.0, 2.0, 3.0], "when": bad})
    model = CramerMixture().fit(pd.DataFrame({"length": [1.0, 2.0, 4.0], "when": [3.0, 1.0, 2.0]}))
    for call in (CramerMixture().fit, model.predict):
        with pytest.raises(ValueError, match="X must hold numbers in every column; got 'when'"):
            call(table)
    if not isinstance(bad, np.ndarray):
        with pytest.raises(ValueError, match="X must hold numbers; got text in column 1"):
            CramerMixture().fit(np.array([[1.0, 2.0, 3.0], bad], dtype=object).T)
    with pytest.raises(ValueError, match="X must hold numbers; got"):
        CramerMixture().fit(np.array([bad, bad]).T)


@pytest.mark.parametrize(
    ("x", "match"),
    [
        (np.empty((0, 3)), "0 sample"),
        (np.empty((5, 0)), "0 feature"),
        (np.array([[0.0], [np.nan]]), "(?i)nan"),
        (np.array([[0.0], [np.inf]]), "(?i)inf"),
        (np.array([["a"], ["b"]]), "X must hold numbers; got text"),
        (np.array([[1j], [2j]]), "Complex"),
        (np.zeros((2, 2, 2)), "dim 3|2D"),
    ],
)
@pytest.mark.parametrize("form", [np.asarray, torch.as_tensor])
def test_bad_data_are_refused(x: np.ndarray, match: str, form: Any) -> None:
    if x.dtype.kind == "U" and form is torch.as_tensor:
        x, match = x.astype(object), "(?i)object"
        with pytest.raises(TypeError, match=match):
            form(x)
        return
    with pytest.raises(ValueError, match=match):
        CramerMixture().fit(form(x))


def test_sparse_data_are_refused() -> None:
    for x in (sparse.csr_array(np.eye(3)), torch.eye(3).to_sparse()):
        with pytest.raises(TypeError, match=r"(?i)sparse"):
            CramerMixture().fit(x)


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        (np.zeros(240), "sample_weight must have an entry > 0"),
        (-np.ones(240), "sample_weight must be >= 0; got min -1"),
        (np.full(240, np.nan), "(?i)sample_weight.*nan"),
        (np.ones(239), r"sample_weight must have one entry per sample, shape \(240,\); got shape \(239,\)"),
        (np.ones((240, 1)), "sample_weight must have one entry per sample"),
    ],
)
@pytest.mark.parametrize("form", [np.asarray, torch.as_tensor, np.ndarray.tolist])
def test_bad_weights_are_refused(weights: np.ndarray, match: str, form: Any) -> None:
    model = CramerMixture().fit(data())
    for call in (model.fit, model.score, model.bic, model.fit_predict):
        with pytest.raises(ValueError, match=match):
            call(data(), sample_weight=form(weights))


def test_numbers_beyond_the_dtype_are_refused() -> None:
    with pytest.raises(ValueError, match=r"X must have variances .* range of torch\.float32; got .* of \d\.\d+e-26"):
        CramerMixture().fit((1e-25 * np.random.default_rng(0).normal(size=(500, 2))).astype(np.float32))
    with pytest.raises(ValueError, match="must lie within"):
        CramerMixture().fit(1e200 * data())


def test_too_few_samples_and_other_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="Expected n_samples >= n_components but got n_components = 4, n_samples = 3"):
        CramerMixture(4).fit(data(3))
    with pytest.raises(ValueError, match="n_components = 2, n_samples = 1 with a sample_weight > 0"):
        CramerMixture(2).fit(data(), sample_weight=np.eye(240)[0])
    model = CramerMixture().fit(data())
    for x in (data(d=2), torch.from_numpy(data(d=2))):
        with pytest.raises(ValueError, match="X has 2 features, but CramerMixture is expecting 3"):
            model.predict(x)
    with pytest.raises(ValueError, match="Invalid value for 'n_samples': 0"):
        model.sample(0)
    with pytest.raises(NotFittedError):
        CramerMixture().predict(data())
