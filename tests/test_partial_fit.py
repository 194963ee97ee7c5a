"""`CramerMixture` batch by batch, from sources, and in files."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch

import cramix
from cramix import CramerMixture
from cramix.fitting.stepwise import Stepwise

K, DIM = 3, 2
MEANS = np.array([[0.0, 0.0], [4.0, 1.0], [-3.0, 4.0]])


def draw(n: int, seed: int = 0, shift: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return MEANS[rng.choice(K, n, p=[0.5, 0.3, 0.2])] + shift + rng.normal(size=(n, DIM))


def batches(n: int, size: int, seed: int = 0) -> list[np.ndarray]:
    return list(draw(n, seed).reshape(-1, size, DIM))


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_stepwise_fits_are_as_good_as_fits_to_all_rows(covariance_type):
    model = CramerMixture(K, covariance_type=covariance_type, random_state=0)
    for x in batches(60_000, 2000):
        model.partial_fit(x)
    whole = CramerMixture(K, covariance_type=covariance_type, random_state=0).fit(draw(60_000))
    new = draw(50_000, seed=1)
    assert model.result_.n_samples == 60_000
    assert model.score(new) > whole.score(new) - 1e-4


def test_the_first_batches_are_searched_as_a_whole():
    """A first batch of ten rows would be a start that later batches do not mend."""
    x = draw(2560)
    model = CramerMixture(K, random_state=0)
    for end in (10, 20, 40, 80, 160, 320, 640, 1280, 2560):
        model.partial_fit(x[end // 2 if end > 10 else 0 : end])
    whole = CramerMixture(K, random_state=0).fit(x)
    np.testing.assert_allclose(model.means_, whole.means_, atol=1e-8)


def test_one_batch_is_one_step_of_em():
    """By hand: responsibilities under the fitted mixture, added to what the fit says of its 500 rows."""
    x, more = draw(500), draw(300, seed=3)
    model = CramerMixture(K, covariance_type="spherical", random_state=0).fit(x)
    weights, means, variances = model.weights_, model.means_, model.covariances_ - 1e-6 * x.var(0).mean()
    shares = model.predict_proba(more)
    counts = 500 * weights + shares.sum(0)
    first = 500 * weights[:, None] * means + shares.T @ more
    second = 500 * weights * (DIM * variances + (means**2).sum(1)) + shares.T @ (more**2).sum(1)
    model.partial_fit(more)
    np.testing.assert_allclose(model.weights_, counts / 800, rtol=1e-9)
    np.testing.assert_allclose(model.means_, first / counts[:, None], rtol=1e-7)
    expected = (second / counts - ((first / counts[:, None]) ** 2).sum(1)) / DIM
    np.testing.assert_allclose(model.covariances_, expected, rtol=1e-5)


def test_a_weight_is_a_repetition():
    x, more = draw(400), draw(200, seed=2)
    counts = np.random.default_rng(0).integers(1, 4, 200)
    weighted = CramerMixture(K, random_state=0).fit(x).partial_fit(more, sample_weight=counts)
    repeated = CramerMixture(K, random_state=0).fit(x).partial_fit(np.repeat(more, counts, 0))
    np.testing.assert_allclose(weighted.means_, repeated.means_, rtol=1e-10)


def test_forgetting_follows_data_that_move():
    stays, follows = (CramerMixture(K, random_state=0, forgetting=rate) for rate in (0.0, 1e-3))
    for model in (stays, follows):
        model.fit(draw(5000))
        for i in range(60):
            model.partial_fit(draw(500, seed=i, shift=1.0))
    new = draw(20_000, seed=99, shift=1.0)
    best = CramerMixture(K, random_state=0).fit(draw(30_000, seed=7, shift=1.0)).score(new)
    assert follows.score(new) > best - 0.01
    assert stays.score(new) < best - 0.01


def test_forgetting_does_not_depend_on_the_size_of_batches():
    x = draw(4000, seed=4)
    mixture = cramix.fit(draw(2000), K, generator=torch.Generator().manual_seed(0)).mixture
    one = Stepwise.after(mixture, "full", 2000.0).updated(torch.from_numpy(x), torch.ones(4000).double(), 1e-3)[0]
    two = Stepwise.after(mixture, "full", 2000.0)
    for part in torch.from_numpy(x).split(1000):
        two, _ = two.updated(part, torch.ones(1000).double(), 1e-3)
    # Within a batch nothing is forgotten, so only the weight of what was there before is the same.
    assert one.weight == 2000 * (1 - 1e-3) ** 4000 + 4000
    assert 1000 < two.weight < one.weight


def test_the_score_of_a_batch_is_that_before_it_was_learned_from():
    model = CramerMixture(K, random_state=0).fit(draw(1000))
    batch = draw(500, seed=5)
    before = model.score(batch)
    model.partial_fit(batch)
    assert model.lower_bound_ == pytest.approx(before, rel=1e-12)
    assert model.lower_bounds_ == [model.lower_bound_]


@pytest.mark.parametrize("n", [1, 5, 21])
def test_a_saved_model_goes_on_to_the_bit(n, tmp_path):
    """While rows are kept, after a search, and by steps alone."""
    model = CramerMixture(K, random_state=0, forgetting=1e-5)
    parts = batches(24_000, 1000)
    for x in parts[:n]:
        model.partial_fit(x)
    model.save(tmp_path / "model.safetensors")
    copies = [
        CramerMixture.load(tmp_path / "model.safetensors"),
        pickle.loads(pickle.dumps(model)),
        copy.deepcopy(model),
    ]
    for other in copies:
        assert other.get_params() == model.get_params()
        np.testing.assert_array_equal(other.predict_proba(parts[-1]), model.predict_proba(parts[-1]))
        assert other.result_.warnings == model.result_.warnings
        assert other.history_ == model.history_
    for x in parts[n:]:
        for each in (model, *copies):
            each.partial_fit(x)
    for other in copies:
        np.testing.assert_array_equal(other.means_, model.means_)
        np.testing.assert_array_equal(other.covariances_, model.covariances_)
        assert other.result_.n_samples == model.result_.n_samples == 24_000


def test_a_fitted_model_in_a_file(tmp_path):
    frame = pd.DataFrame(draw(500).astype(np.float32), columns=["a", "b"])
    model = CramerMixture(K, means_init=MEANS, covariance_type="diag").fit(frame)
    model.save(tmp_path / "m")
    loaded = CramerMixture.load(tmp_path / "m")
    assert list(loaded.feature_names_in_) == ["a", "b"]
    assert loaded.means_.dtype == np.float32
    np.testing.assert_array_equal(loaded.means_init, MEANS)
    np.testing.assert_array_equal(loaded.score_samples(frame), model.score_samples(frame))
    assert loaded.bic(frame) == model.bic(frame)
    np.testing.assert_array_equal(loaded.partial_fit(frame).means_, model.partial_fit(frame).means_)


def test_files_that_are_no_models(tmp_path):
    model = CramerMixture(K, random_state=np.random.RandomState(0)).fit(draw(100))
    with pytest.raises(ValueError, match="random_state must be a number, a name or an array to save a model"):
        model.save(tmp_path / "m")
    assert not list(tmp_path.iterdir())
    cramix.save(cramix.fit(draw(100), 2).mixture, tmp_path / "mixture")
    with pytest.raises(ValueError, match=r"must hold a 'model 1'; got '2'\. For mixtures see cramix\.load"):
        CramerMixture.load(tmp_path / "mixture")
    (tmp_path / "broken").write_bytes(b"not a model")
    with pytest.raises(ValueError, match="must be a whole safetensors file"):
        CramerMixture.load(tmp_path / "broken")
    with pytest.raises(ValueError, match="not fitted"):
        CramerMixture().save(tmp_path / "m")


def test_bad_batches():
    model = CramerMixture(K).fit(draw(100))
    with pytest.raises(ValueError, match="2 features"):
        model.partial_fit(draw(10)[:, :1])
    with pytest.raises(ValueError, match="NaN"):
        model.partial_fit(np.full((3, DIM), np.nan))
    with pytest.raises(ValueError, match="n_components = 3, n_samples = 2"):
        CramerMixture(K).partial_fit(draw(2))
    for forgetting in (-0.1, 1.0, "a"):
        with pytest.raises(ValueError, match="forgetting must be"):
            CramerMixture(K, forgetting=forgetting).partial_fit(draw(10))


def test_a_fit_starts_anew():
    model = CramerMixture(K, random_state=0).partial_fit(draw(1000, shift=9.0)).fit(draw(1000))
    np.testing.assert_array_equal(model.means_, CramerMixture(K, random_state=0).fit(draw(1000)).means_)


def test_sources_are_fitted_scored_and_predicted(tmp_path):
    x = draw(3000)
    frame = pd.DataFrame(x, columns=["a", "b"])
    frame.assign(w=np.arange(3000) % 3).to_parquet(tmp_path / "x.parquet", row_group_size=500)
    rows = cramix.source(tmp_path / "x.parquet", columns=["a", "b"])
    model, expected = CramerMixture(K, random_state=0).fit(rows), CramerMixture(K, random_state=0).fit(frame)
    np.testing.assert_array_equal(model.means_, expected.means_)
    assert list(model.feature_names_in_) == ["a", "b"]
    assert model.result_.passes == 1
    np.testing.assert_array_equal(model.predict(rows), expected.predict(frame))
    np.testing.assert_allclose(model.predict_proba(rows), expected.predict_proba(frame))
    np.testing.assert_allclose(model.score_samples(rows), expected.score_samples(frame))
    assert model.score(rows) == pytest.approx(expected.score(frame), rel=1e-12)
    weighted = expected.score(frame, sample_weight=np.arange(3000) % 3)
    assert model.score(tmp_path / "x.parquet", sample_weight="w") == pytest.approx(weighted, rel=1e-12)
    assert model.bic(rows) == pytest.approx(expected.bic(frame), rel=1e-12)
    with pytest.raises(ValueError, match="X must have the columns of the fit, a, b; got a, b, w"):
        model.predict(tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="X must have the columns of the fit, a, b; got b, a"):
        model.predict(cramix.source(tmp_path / "x.parquet", columns=["b", "a"]))


@pytest.mark.slow
def test_more_rows_than_the_sample_are_read_in_passes(tmp_path):
    x = draw(1_200_000).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    model = CramerMixture(K, random_state=0).fit(tmp_path / "x.npy")
    expected = CramerMixture(K, random_state=0).fit(x)
    assert model.result_.passes > 2
    assert model.means_.dtype == np.float32
    assert model.result_.n_samples == 1_200_000
    assert model.lower_bound_ == pytest.approx(expected.lower_bound_, abs=1e-5)
    assert model.score(tmp_path / "x.npy") == pytest.approx(expected.score(x), abs=1e-4)
    assert model.partial_fit(x[:1000]).result_.n_samples == 1_201_000


def test_an_outlier_in_a_later_batch_is_left_out():
    x = draw(30_000)
    expected = CramerMixture(K, random_state=0).fit(x[:25_000])
    model = CramerMixture(K, random_state=0).fit(x[:25_000])
    batch = x[25_000:25_500].copy()
    expected.partial_fit(np.delete(batch, 7, 0))
    batch[7] = 1e12
    with pytest.warns(
        cramix.ConvergenceWarning, match=r"1 of 500 samples of the batch lie up to .*, and were left out"
    ):
        model.partial_fit(batch)
    np.testing.assert_allclose(model.means_, expected.means_, rtol=1e-10)


def test_a_group_far_out_is_no_outlier():
    model = CramerMixture(2, random_state=0).fit(draw(2000))
    model.partial_fit(draw(500, shift=1e4))
    assert np.abs(model.means_).max() > 100
