"""What one pass over a source tells: counts, the rows farthest out, and a uniform sample of the rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from cramix.data.source import Batch

# Rows at either end of each column that are kept: one more than can be outliers.
EXTREMES = 11
_LARGEST_KEY = (1 << 63) - 1
# Larger weights are no counts: in floating point all large numbers are whole.
_LARGEST_COUNT = 2.0**32


@dataclass(frozen=True)
class Rows:
    """Some rows of a source.

    Args:
        rows: `(n, d)`.
        weights: `(n,)` in float64.
        positions: `(n,)`, see `Batch.position`.
    """

    rows: Tensor
    weights: Tensor
    positions: Tensor

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """Return the rows of a batch."""
        n = len(batch.rows)
        weights = batch.rows.new_ones(n, dtype=torch.float64) if batch.weights is None else batch.weights.double()
        return cls(batch.rows, weights, batch.position + torch.arange(n))

    @classmethod
    def cat(cls, parts: list[Self]) -> Self:
        """Return the rows of several."""
        if len(parts) == 1:
            return parts[0]
        fields = zip(*((part.rows, part.weights, part.positions) for part in parts), strict=True)
        return cls(*(torch.cat(tensors) for tensors in fields))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Tensor) -> Self:
        return type(self)(self.rows[index], self.weights[index], self.positions[index])

    def in_order(self) -> Self:
        """Return the rows in the order of the source, each once."""
        if bool((self.positions[1:] > self.positions[:-1]).all()):  # as parts are added in order: no copy
            return self
        ordered = self[self.positions.argsort()]
        first = torch.ones_like(ordered.positions, dtype=torch.bool)
        first[1:] = ordered.positions[1:] > ordered.positions[:-1]
        return ordered if bool(first.all()) else ordered[first]


@dataclass(frozen=True)
class Sample:
    """Those rows whose keys are the smallest; a key is a hash of the position, hence the sample is uniform.

    It does not depend on how the rows are divided into parts, nor on the order in which these are read, as long as
    positions do not. The rows of all parts are concatenated now and then, not at every sum.

    Args:
        size: the largest number of rows.
        seed: of the keys.
        bound: the largest key that may be in the sample.
        parts: rows and their keys; more than `size` rows until they are compacted.
    """

    size: int
    seed: int
    bound: int = _LARGEST_KEY
    parts: tuple[tuple[Rows, Tensor], ...] = ()

    def with_rows(self, rows: Rows) -> Sample:
        """Return the sample with rows added."""
        keys = _keys(rows.positions, self.seed)
        if self.bound < _LARGEST_KEY:
            below = keys <= self.bound
            rows, keys = rows[below], keys[below]
        return self._with(((rows, keys),)) if len(keys) else self

    def __add__(self, other: Sample) -> Sample:
        return replace(self, bound=min(self.bound, other.bound))._with(other.parts)

    def _with(self, parts: tuple[tuple[Rows, Tensor], ...]) -> Sample:
        found = replace(self, parts=self.parts + parts)
        return found.compacted() if sum(len(keys) for _, keys in found.parts) > 2 * self.size else found

    def compacted(self) -> Sample:
        """Return the sample with the rows in one part, without those that are too many."""
        if not self.parts:
            return self
        rows, keys = Rows.cat([rows for rows, _ in self.parts]), torch.cat([keys for _, keys in self.parts])
        bound = self.bound
        if len(keys) > self.size:
            bound = min(bound, int(keys.kthvalue(self.size).values))
        below = keys <= bound
        if not bool(below.all()):
            rows, keys = rows[below], keys[below]
        return replace(self, bound=bound, parts=((rows, keys),))

    @property
    def rows(self) -> Rows:
        """The rows in the order of the source."""
        return self.compacted().parts[0][0].in_order()


@dataclass(frozen=True)
class Extremes:
    """The rows with the smallest and the largest numbers in each column; rows without weight do not count.

    Args:
        rows: at most 2 `EXTREMES` d of them; None before the first.
        low: a row with a number below this in some column, `(d,)`, is one of them.
        high: the same above it.
    """

    rows: Rows | None = None
    low: Tensor | None = None
    high: Tensor | None = None

    def with_rows(self, rows: Rows) -> Extremes:
        """Return the extremes with rows added."""
        rows = rows if bool((rows.weights > 0).all()) else rows[rows.weights > 0]
        if self.low is not None and self.high is not None:
            if not len(rows) or not bool(((rows.rows.amin(0) < self.low) | (rows.rows.amax(0) > self.high)).any()):
                return self
            rows = rows[((rows.rows < self.low) | (rows.rows > self.high)).any(-1)]
        return self._with(rows) if len(rows) else self

    def __add__(self, other: Extremes) -> Extremes:
        return self if other.rows is None else self._with(other.rows)

    def _with(self, more: Rows) -> Extremes:
        rows = more if self.rows is None else Rows.cat([self.rows, more])
        if len(rows) <= EXTREMES:
            return Extremes(rows)
        by_column = rows.rows.T.contiguous()  # some ten times as fast
        ends = [by_column.topk(EXTREMES, largest=largest) for largest in (False, True)]
        kept = torch.cat([index.flatten() for _, index in ends]).unique()
        low, high = (values[:, -1] for values, _ in ends)
        return Extremes(rows[kept], low, high)


@dataclass(frozen=True)
class Survey:
    """What one pass over a source tells, as a sum over its parts.

    Args:
        sample: a uniform sample of the rows.
        extremes: rows at the ends of the columns.
        n_rows: the number of good rows.
        n_present: the number of those with a weight > 0.
        n_bad: the number of rows that were left out.
        weight: the sum of the weights.
        squared_weight: the sum of their squares.
        whole: whether all weights are whole numbers, that is counts.
    """

    sample: Sample
    extremes: Extremes = field(default_factory=Extremes)
    n_rows: int = 0
    n_present: int = 0
    n_bad: int = 0
    weight: float = 0.0
    squared_weight: float = 0.0
    whole: bool = True

    def with_batch(self, batch: Batch) -> Survey:
        """Return the survey with the rows of a batch added."""
        if not len(batch.rows):
            return replace(self, n_bad=self.n_bad + batch.bad)
        rows, n = Rows.of(batch), len(batch.rows)
        weights = rows.weights
        weighted = batch.weights is not None
        whole = not weighted or bool((weights.max() < _LARGEST_COUNT) & (weights == weights.round()).all())
        return Survey(
            self.sample.with_rows(rows),
            self.extremes.with_rows(rows),
            self.n_rows + n,
            self.n_present + (int(weights.count_nonzero()) if weighted else n),
            self.n_bad + batch.bad,
            self.weight + (weights.sum().item() if weighted else n),
            self.squared_weight + (weights.square().sum().item() if weighted else n),
            self.whole and whole,
        )

    def __add__(self, other: Survey) -> Survey:
        return Survey(
            self.sample + other.sample,
            self.extremes + other.extremes,
            self.n_rows + other.n_rows,
            self.n_present + other.n_present,
            self.n_bad + other.n_bad,
            self.weight + other.weight,
            self.squared_weight + other.squared_weight,
            self.whole and other.whole,
        )

    @property
    def n_samples(self) -> float:
        """The number of samples that the weights stand for: their sum if they are counts, else Kish's number."""
        return self.weight if self.whole else self.weight**2 / self.squared_weight

    @property
    def sampled(self) -> bool:
        """Whether the sample lacks some of the rows."""
        return self.n_rows > self.sample.size


@dataclass(frozen=True)
class Surveying:
    """The function of a survey: sums up the batches of a part.

    Args:
        size: of the sample.
        seed: of the sample.
        n_rows: of the whole source; None if it is unknown. It spares most rows the sample.
    """

    size: int
    seed: int
    n_rows: int | None = None

    def __call__(self, batches: Iterator[Batch]) -> Survey:
        """Return the survey of a part."""
        sample = Sample(self.size, self.seed)
        if self.n_rows is not None and self.n_rows > 2 * self.size:
            # Keys below this are too few for a sample less than once in 10^15 times.
            expected = self.size + 8 * self.size**0.5 + 16
            sample = replace(sample, bound=min(_LARGEST_KEY, int(expected / self.n_rows * _LARGEST_KEY)))
        survey = Survey(sample)
        for batch in batches:
            survey = survey.with_batch(batch)
        return replace(survey, sample=survey.sample.compacted())


def _keys(positions: Tensor, seed: int) -> Tensor:
    """Return a hash of each position, `(n,)`, uniform over 0 to 2^63 - 1: the output function of SplitMix64."""
    with np.errstate(over="ignore"):
        z = positions.numpy().astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(_mixed(seed))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return torch.from_numpy(((z ^ (z >> np.uint64(31))) >> np.uint64(1)).astype(np.int64))


def _mixed(seed: int) -> int:
    """Return 64 bits that differ in half of their digits for seeds next to each other."""
    z = seed & 0xFFFFFFFFFFFFFFFF
    z = (z ^ (z >> 33)) * 0xFF51AFD7ED558CCD & 0xFFFFFFFFFFFFFFFF
    return z ^ (z >> 33)
