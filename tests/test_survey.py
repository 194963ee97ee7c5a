"""The first pass over a source: counts, extremes and a uniform sample, whatever the partition and the order."""

from __future__ import annotations

from functools import reduce

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cramix.data.source import Batch, Place
from cramix.data.survey import EXTREMES, Survey, Surveying


def batch(x: torch.Tensor, start: int, end: int, weights: torch.Tensor | None = None) -> Batch:
    return Batch(x[start:end], None if weights is None else weights[start:end], start, Place("x", start))


def survey(
    x: torch.Tensor, cuts: list[int], size: int, order: list[int], weights: torch.Tensor | None = None
) -> Survey:
    ends = [0, *sorted(cuts), len(x)]
    parts = [batch(x, *ends[i : i + 2], weights) for i in range(len(ends) - 1)]
    found = [Surveying(size, seed=3)(iter([part])) for part in parts]
    return reduce(lambda a, b: a + b, (found[i] for i in order if i < len(found)))


@given(st.lists(st.integers(0, 400), max_size=6), st.permutations(range(7)), st.integers(1, 500))
def test_partition_and_order_do_not_matter(cuts, order, size):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 2, generator=generator, dtype=torch.float64)
    weights = torch.rand(400, generator=generator, dtype=torch.float64)
    whole, parts = survey(x, [], size, [0], weights), survey(x, cuts, size, order, weights)
    assert torch.equal(whole.sample.rows.positions, parts.sample.rows.positions)
    assert torch.equal(whole.sample.rows.rows, parts.sample.rows.rows)
    assert torch.equal(whole.extremes.rows.positions.sort().values, parts.extremes.rows.positions.sort().values)
    assert (whole.n_rows, whole.n_present) == (parts.n_rows, parts.n_present) == (400, 400)
    np.testing.assert_allclose(
        [parts.weight, parts.squared_weight, parts.n_samples], [whole.weight, whole.squared_weight, whole.n_samples]
    )
    assert len(whole.sample.rows) == min(size, 400)


def test_the_sample_is_uniform():
    """Counts of 20,000 of 100,000 positions in 50 bins, for 20 seeds: fails once in 10^4 times if all is well."""
    x = torch.zeros(100_000, 1)
    values = []
    for seed in range(20):
        positions = Surveying(20_000, seed)(iter([batch(x, 0, 100_000)])).sample.rows.positions
        counts = np.bincount(positions.numpy() // 2000, minlength=50)
        # Draws without replacement vary less: the statistic is divided by the share that is left out.
        values.append(stats.chi2.sf(((counts - 400) ** 2 / 400).sum() / 0.8, 49))
    assert stats.kstest(values, "uniform").pvalue > 1e-4
    assert min(values) > 5e-6


def test_a_known_number_of_rows_gives_the_same_sample():
    x = torch.randn(50_000, 3, generator=torch.Generator().manual_seed(1))
    parts = [batch(x, i, i + 1000) for i in range(0, 50_000, 1000)]
    known, unknown = (
        reduce(lambda a, b: a + b, (Surveying(2000, 7, n_rows)(iter([part])) for part in parts))
        for n_rows in (50_000, None)
    )
    assert torch.equal(known.sample.rows.positions, unknown.sample.rows.positions)
    assert len(known.sample.rows) == 2000


def test_extremes_are_those_of_all_rows():
    x = torch.randn(5000, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = survey(x, list(range(100, 5000, 100)), 10, list(range(60))).extremes.rows
    for column, kept in zip(x.T, found.rows.T, strict=True):
        ordered = column.sort().values
        kept = kept.sort().values
        assert torch.equal(kept[:EXTREMES], ordered[:EXTREMES])
        assert torch.equal(kept[-EXTREMES:], ordered[-EXTREMES:])


def test_counts_are_weights_and_others_are_relative():
    x = torch.zeros(4, 1)
    counts = survey(x, [2], 10, [0, 1], torch.tensor([1.0, 2.0, 0.0, 3.0]))
    assert (counts.n_samples, counts.n_present) == (6.0, 3)
    relative = survey(x, [2], 10, [1, 0], torch.tensor([0.1, 0.1, 0.1, 0.1]))
    assert abs(relative.n_samples - 4) < 1e-6
