"""Fits to sources: the same as to arrays where a sample holds all rows, and in passes over all rows where not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import cramix
from cramix.data import Source
from cramix.data.memory import MemorySource
from cramix.fitting import ExpectationMaximization, MergeDown
from cramix.fitting.reading import Sampled, read
from cramix.fitting.solve import Options
from tests.source_fits import K, draw, in_passes, parameters, seeded


def parquet(x: np.ndarray, path: Path, files: int, **more: np.ndarray) -> Path:
    path.mkdir()
    columns = {"a": x[:, 0], "b": x[:, 1], **more}
    for i, rows in enumerate(np.array_split(np.arange(len(x)), files)):
        pq.write_table(pa.table({name: c[rows] for name, c in columns.items()}), path / f"{i:03}.parquet")
    return path


SOURCES = {
    "memmap": lambda x, folder: _memmap(x, folder),
    "Parquet, 1 file": lambda x, folder: parquet(x, folder / "p", 1),
    "Parquet, 7 files": lambda x, folder: parquet(x, folder / "p", 7),
    "Parquet, 100 files": lambda x, folder: parquet(x, folder / "p", 100),
    "Arrow stream": lambda x, folder: pa.table({"a": x[:, 0], "b": x[:, 1]}).to_reader(max_chunksize=333),
    "batches": lambda x, folder: [x[:100], x[100:1100], x[1100:]],
    "generator": lambda x, folder: (part for part in np.array_split(x, 11)),
}


def _memmap(x: np.ndarray, folder: Path) -> np.memmap:
    np.save(folder / "x.npy", x)
    return np.load(folder / "x.npy", mmap_mode="r")


@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_in_the_sample_is_fitted_as_an_array(kind, tmp_path):
    x = draw(3000)
    expected = cramix.fit(x, K, generator=seeded())
    found = cramix.fit(SOURCES[kind](x, tmp_path), K, generator=seeded())
    torch.testing.assert_close(parameters(found.mixture), parameters(expected.mixture), rtol=1e-6, atol=1e-6)
    assert (found.passes, expected.passes, found.n_samples) == (1, None, 3000)


@pytest.mark.parametrize("kind", [name for name in SOURCES if name not in ("Arrow stream", "generator")])
def test_passes_do_not_depend_on_the_kind_of_source(kind, tmp_path):
    x = draw(12_000)
    expected = in_passes(cramix.source(x), sample=2000)
    found = in_passes(SOURCES[kind](x, tmp_path), sample=2000)
    assert expected.passes > 2
    assert found.passes == expected.passes
    torch.testing.assert_close(parameters(found.mixture), parameters(expected.mixture), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_passes_end_at_the_optimum_of_all_rows(covariance_type):
    x = draw(20_000)
    whole = cramix.fit(x, K, covariance_type=covariance_type, generator=seeded())
    found = in_passes(cramix.source(x), sample=2000, options=Options(covariance_type))
    sample = in_passes(cramix.source(x), sample=2000, options=Options(covariance_type), max_passes=1)
    error = whole.n_parameters / (2 * len(x))
    assert found.converged
    assert abs(found.log_likelihood - whole.log_likelihood) < error
    reached = torch.from_numpy(x)
    assert whole.log_likelihood - found.mixture.log_prob(reached).mean() < error
    assert whole.log_likelihood - sample.mixture.log_prob(reached).mean() > 2 * error  # so the passes mattered


@pytest.mark.parametrize("form", [np.asarray, torch.from_numpy, lambda x: pd.DataFrame(x, columns=["a", "b"])])
@pytest.mark.parametrize("weighted", [False, True])
def test_an_array_of_more_rows_than_the_sample_takes_the_same_passes(form, weighted):
    x = draw(12_000)
    weights = np.arange(12_000) % 3 + 1.0 if weighted else None
    expected = in_passes(cramix.source(x, sample_weight=weights), sample=2000)
    found = in_passes(form(x), sample=2000, options=Options(sample_weight=weights))
    assert found.passes == expected.passes >= 2
    torch.testing.assert_close(parameters(found.mixture), parameters(expected.mixture), rtol=0, atol=0)
    alone = in_passes(form(x), sample=2000, options=Options(sample_weight=weights), max_passes=1)
    assert alone.passes == 1


@pytest.mark.parametrize("settings", [{"max_iter": 3}, {"max_iter": 0}])
def test_an_array_takes_no_more_steps_than_asked_for(settings):
    found = in_passes(draw(3000), sample=2000, method=MergeDown(**settings))
    assert found.passes is None
    assert found.n_iter <= settings["max_iter"]


def test_a_sample_alone_warns_of_what_it_loses():
    x = draw(50_000)
    found = in_passes(cramix.source(x), sample=1000, max_passes=1)
    (warning,) = found.warnings
    assert found.passes == 1
    assert "1,000 of 50,000 rows" in warning
    expected = found.n_parameters / 2 * (1 / 1000 - 1 / 50_000)
    assert f"{expected:.2g}" in warning
    whole = cramix.fit(x, K, generator=seeded())
    lost = [
        whole.log_likelihood - in_passes(cramix.source(x[i:]), 1000, max_passes=1).mixture.log_prob(x).mean()
        for i in range(6)  # another first row is another sample
    ]
    assert 0.4 * expected < np.mean(lost) < 2.5 * expected


def test_running_out_of_passes_is_a_warning():
    found = in_passes(cramix.source(draw(20_000)), sample=500, max_passes=2)
    assert (found.passes, found.converged) == (2, False)
    assert "2 passes" in found.warnings[0]


def test_em_with_a_given_start_goes_over_all_rows():
    x = draw(10_000)
    start = cramix.fit(x[:300], K, generator=seeded()).mixture
    found = in_passes(cramix.source(x), 1000, method=ExpectationMaximization(), options=Options(init_params=start))
    assert abs(found.log_likelihood - cramix.fit(x, K, generator=seeded()).log_likelihood) < 1e-3


@pytest.mark.parametrize("size", [1e3, 1e10])
def test_outliers_outside_the_sample_are_left_out(size):
    x = draw(20_000)
    expected = in_passes(cramix.source(x), sample=2000)
    spoiled = np.insert(x, [7, 15_000], [[size, 0.0], [0.0, -size]], axis=0)
    found = in_passes(cramix.source(spoiled), sample=2000)
    assert found.outliers == (7, 15_001)
    assert found.n_samples == 20_000
    assert "rows 7, 15001" in found.warnings[0]
    assert abs(found.log_likelihood - expected.log_likelihood) < 1e-3


def test_a_weight_is_as_many_rows():
    x, counts = draw(6000), np.random.default_rng(1).integers(0, 4, 6000).astype(float)
    repeated = in_passes(cramix.source(np.repeat(x, counts.astype(int), 0)), sample=1500)
    weighted = in_passes(cramix.source(x, sample_weight=counts), sample=1500)
    assert abs(weighted.log_likelihood - repeated.log_likelihood) < 1e-4
    distance = cramix.sliced_cramer_distance(weighted.mixture, repeated.mixture)
    assert distance < 0.01


def test_select_shares_its_passes():
    x = draw(8000)
    reading = read(cramix.source(x), MergeDown(), Options(generator=seeded()), [4, 3, 2], sample=2000)
    assert isinstance(reading, Sampled)
    choice = cramix.select(cramix.source(x), [2, 3, 4], generator=seeded())
    assert (choice.by_bic, choice.results[3].passes) == (3, 1)
    problems = [reading.prepare(k) for k in (4, 3, 2)]
    with torch.no_grad():
        results = reading.conclude(problems, [MergeDown().run(problem) for problem in problems])
    assert len({result.passes for result in results}) == 1
    assert min(results, key=lambda result: result.bic).mixture.n_components == 3
    for k, result in zip((4, 3, 2), results, strict=True):
        assert abs(result.log_likelihood - cramix.fit(x, k, generator=seeded()).log_likelihood) < 2e-3


def test_columns_weights_and_bad_rows(tmp_path):
    x = draw(4000)
    x[17, 1], x[3000, 0] = np.nan, np.inf
    folder = parquet(x, tmp_path / "p", 3, w=np.ones(4000))
    with pytest.raises(ValueError, match=r"000\.parquet, row group 0, row 18 has a missing number in column 'b'"):
        cramix.fit(folder, K, sample_weight="w")
    rows = cramix.source(folder, columns=["a", "b"], sample_weight="w", skip_bad=True)
    found = cramix.fit(rows, K, generator=seeded())
    assert (found.n_bad, found.n_samples) == (2, 3998)
    expected = cramix.fit(x[np.isfinite(x).all(1)], K, generator=seeded())
    assert abs(found.log_likelihood - expected.log_likelihood) < 1e-6


def test_one_column_by_name_is_univariate(tmp_path):
    folder = parquet(draw(500), tmp_path / "p", 2)
    found = cramix.fit(cramix.source(folder, columns="a"), 2, generator=seeded())
    assert isinstance(found.mixture, cramix.NormalMixture)


class Failing(MemorySource):
    """Counts its passes, and fails in the middle of some."""

    fails_in: int | None = None
    n_sums = 0

    def sum(self, function, progress=None):
        self.n_sums += 1
        if self.n_sums == self.fails_in:
            raise KeyboardInterrupt
        return super().sum(function, progress)


def failing(x: np.ndarray, fails_in: int | None = None) -> Failing:
    from cramix.data.columns import Options as Columns

    source = Failing(x, Columns())
    source.fails_in = fails_in
    return source


@pytest.mark.parametrize("fails_in", [2, 3, 4])
def test_a_checkpoint_goes_on_where_a_fit_was_stopped(fails_in, tmp_path):
    x, path = draw(20_000), tmp_path / "passes.safetensors"
    whole = failing(x)
    expected = in_passes(whole, sample=1000)
    assert whole.n_sums == expected.passes > 3
    with pytest.raises(KeyboardInterrupt):
        in_passes(failing(x, fails_in), sample=1000, checkpoint=path)
    rest = failing(x)
    found = in_passes(rest, sample=1000, checkpoint=path)
    assert rest.n_sums == expected.passes - fails_in + 1
    assert torch.equal(parameters(found.mixture), parameters(expected.mixture))
    assert (found.log_likelihood, found.passes) == (expected.log_likelihood, expected.passes)
    assert not path.exists()


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    x, path = draw(20_000), tmp_path / "passes.safetensors"
    with pytest.raises(KeyboardInterrupt):
        in_passes(failing(x, 3), sample=1000, checkpoint=path)
    others = {"options": Options("diag")}, {"k": 2}, {"method": ExpectationMaximization()}, {"task": "select, folds 5"}
    for settings in others:
        with pytest.raises(ValueError, match="checkpoint must belong to the same data, settings and seed"):
            in_passes(failing(x), sample=1000, checkpoint=path, **settings)
    with pytest.raises(ValueError, match="checkpoint must belong to the same data"):
        in_passes(failing(x + 1), sample=1000, checkpoint=path)
    path.write_bytes(b"half a file")
    with pytest.raises(ValueError, match="checkpoint must be a whole file"):
        in_passes(failing(x), sample=1000, checkpoint=path)


def test_what_is_for_sources_only():
    x = draw(100)
    with pytest.raises(ValueError, match="max_passes is for data that are read in passes"):
        cramix.fit(x, K, max_passes=3)
    with pytest.raises(ValueError, match="checkpoint is for data that are read in passes"):
        cramix.select(x, [1, 2], checkpoint="file")
    with pytest.raises(ValueError, match="max_passes must be an integer >= 1"):
        cramix.fit(cramix.source(x), K, max_passes=0)
    with pytest.raises(ValueError, match=r'method="kmeans" fits up to 50 rows; got 100\. Use "merge" or "em"'):
        in_passes(cramix.source(x), 50, method=cramix.fitting.HardAssignment())


def stream(x: np.ndarray) -> object:
    return cramix.source((part for part in np.array_split(x, 60)), batch_rows=700)


def test_a_stream_is_fitted_on_the_way():
    x, new = draw(60_000), draw(50_000, seed=9)
    best = cramix.fit(x, K, generator=seeded()).mixture.log_prob(new).mean()
    sample = in_passes(cramix.source(x), 1000, max_passes=1).mixture.log_prob(new).mean()
    found = in_passes(stream(x), 1000)
    assert (found.passes, found.warnings) == (1, ())
    assert found.mixture.log_prob(new).mean() > best - 0.25 * (best - sample)


def test_a_stream_in_order_ends_at_the_sample():
    x = draw(60_000)
    found = in_passes(stream(x[np.argsort(x[:, 0])]), 1000)
    new = draw(50_000, seed=9)
    best = cramix.fit(x, K, generator=seeded()).mixture.log_prob(new).mean()
    assert "sample of 1,000 of 60,000 rows" in found.warnings[0]
    assert found.mixture.log_prob(new).mean() > best - 0.05


def test_progress_tells_rows_and_passes():
    lines = []
    in_passes(
        cramix.source(draw(200_000), batch_rows=500), 1000, options=Options(progress=lambda s: lines.append(s.name))
    )
    reports = [line for line in lines if "rows/s" in line]
    assert all(line.startswith("pass ") and "of at most 10" in line for line in reports)
    assert "pass over all rows" in lines


def test_sources_are_sources():
    assert isinstance(cramix.source(draw(10)), Source)


def test_a_list_of_pairs_has_weights():
    x = draw(400)
    weights = np.arange(400.0) % 3
    pairs = [(x[:150], weights[:150]), (x[150:], weights[150:])]
    found = cramix.fit(cramix.source(pairs, sample_weight=True), K, generator=seeded())
    expected = cramix.fit(x, K, sample_weight=weights, generator=seeded())
    torch.testing.assert_close(parameters(found.mixture), parameters(expected.mixture), rtol=1e-6, atol=1e-6)


def test_the_name_of_a_column_is_for_sources():
    with pytest.raises(ValueError, match=r"sample_weight must be numbers for data in memory; got 'w'\. For the name"):
        cramix.fit(draw(50), 2, sample_weight="w")
    with pytest.raises(ValueError, match="sample_weight must be None for a source"):
        cramix.fit(cramix.source(draw(50)), 2, sample_weight=np.ones(50))
