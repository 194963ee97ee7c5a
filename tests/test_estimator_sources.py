"""`CramerMixture` with data that are read in passes: sources, and arrays of more than a million rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import cramix
from cramix import CramerMixture

N = 1_000_100


def two_groups(n: int, dtype: type = np.float64) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.where(rng.random(n) < 0.3, rng.normal(5, 1, n), rng.normal(0, 1, n)).astype(dtype).reshape(-1, 1)


def model(**settings: object) -> CramerMixture:
    return CramerMixture(2, covariance_type="spherical", random_state=0, **settings)


@pytest.mark.parametrize("form", [np.asarray, torch.from_numpy])
def test_a_large_array_is_fitted_in_passes(form):
    x = two_groups(N, np.float32)
    found = model().fit(form(x))
    expected = model().fit(cramix.source(x))
    assert found.result_.passes == expected.result_.passes >= 2
    assert type(found.means_) is type(form(x))
    assert found.means_.dtype == form(x).dtype
    np.testing.assert_array_equal(np.asarray(found.means_), expected.means_)
    np.testing.assert_allclose(np.sort(np.asarray(found.means_), 0), [[0], [5]], atol=0.01)


def test_max_passes_and_checkpoint_are_those_of_fit(tmp_path: Path):
    rows = cramix.source(two_groups(N))
    with pytest.warns(match="The fit is to a sample of 1,000,000 of 1,000,100 rows"):
        once = model(max_passes=1).fit(rows)
    assert once.result_.passes == 1
    path = tmp_path / "passes"
    path.write_bytes(b"half a file")
    with pytest.raises(ValueError, match="checkpoint must be a whole file"):
        model(checkpoint=path).fit(rows)
    path.unlink()
    kept = model(checkpoint=path).fit(rows)
    assert kept.result_.passes >= 2
    assert not path.exists()  # removed at the end
    kept.save(tmp_path / "model")
    assert CramerMixture.load(tmp_path / "model").checkpoint == str(path)


@pytest.mark.parametrize("settings", [{"max_passes": 3}, {"checkpoint": "file"}])
def test_they_are_refused_where_they_would_have_no_effect(settings):
    x = two_groups(100)
    with pytest.raises(ValueError, match="is for data that are read in passes"):
        model(**settings).fit(x)
    assert model(**settings).fit(cramix.source(x)).result_.passes == 1
    assert model(**settings).partial_fit(x).converged_
