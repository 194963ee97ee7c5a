"""EM over data of any size: each step is one pass over a source, which all fits share."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.data.local import LocalSource
from cramix.data.source import Batch, Source
from cramix.data.survey import Rows, Sample, Survey, Surveying
from cramix.fitting.checkpoint import Checkpoint
from cramix.fitting.corrected import refining_of
from cramix.fitting.em import Outcome
from cramix.fitting.features import Data, without_empty
from cramix.fitting.outliers import Bounds
from cramix.fitting.problem import Units
from cramix.fitting.stepwise import Stepwise
from cramix.mixture.covariance import Family, Prior

# Rows whose features are formed at a time: these stay in the cache of a core.
_ROWS = 1 << 14
# Seconds between two reports of a pass.
_OFTEN = 0.2


class Expected(NamedTuple):
    """The sums of features of some fits over some rows, `(B, k, F)` each, their log likelihoods `(B,)`, and the weight.

    All are totals, not means, so that those of several parts add up.
    """

    sums: tuple[Tensor, ...]
    log_likelihoods: tuple[Tensor, ...]
    weight: float

    def __add__(self, other: Expected) -> Expected:  # type: ignore[override]
        return Expected(
            tuple(a + b for a, b in zip(self.sums, other.sums, strict=True)),
            tuple(a + b for a, b in zip(self.log_likelihoods, other.log_likelihoods, strict=True)),
            self.weight + other.weight,
        )


@dataclass(frozen=True)
class Expectation:
    """The function of a pass: the expectation step of several fits over the batches of a part.

    Args:
        family: the kind of covariances of all fits.
        units: to compute in.
        coefficients: of the log densities of each fit, `(B, k, F)`.
        dtype: to compute the sums of a batch in.
        bounds: of rows that are not left out as outliers; None without.
    """

    family: Family
    units: Units
    coefficients: tuple[Tensor, ...]
    dtype: torch.dtype
    bounds: Bounds | None = None

    def __call__(self, batches: Iterator[Batch]) -> Expected:
        """Return the sums over a part."""
        total = Expected(
            tuple(torch.zeros_like(c) for c in self.coefficients),
            tuple(c.new_zeros(len(c)) for c in self.coefficients),
            0.0,
        )
        for batch in batches:
            rows, weights = batch.rows, batch.weights
            if self.bounds is not None and not bool((within := self.bounds.hold(rows)).all()):
                rows, weights = rows[within], None if weights is None else weights[within]
            weights = rows.new_ones(len(rows), dtype=torch.float64) if weights is None else weights.double()
            for some, masses in zip(rows.split(_ROWS), weights.split(_ROWS), strict=True):
                weight = masses.sum().item()
                if weight > 0:
                    total += self._of(some, masses, weight)
        return total

    def _of(self, rows: Tensor, weights: Tensor, weight: float) -> Expected:
        data = Data(self.family, self.units.of_in(rows, self.dtype), weights, dtype=self.dtype)
        found = [data.expect(c) for c in self.coefficients]
        return Expected(tuple(weight * sums for sums, _ in found), tuple(weight * mean for _, mean in found), weight)


class Passes:
    """The passes over a source, which are counted, reported, and kept in a checkpoint if there is one.

    Args:
        source: of the rows.
        most: the largest number of passes.
        report: called with a line about the running pass a few times a second.
        checkpoint: where the results of finished passes are kept; those that it has already are not computed again.
    """

    def __init__(
        self,
        source: Source,
        most: int,
        report: Callable[[str], None] | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.source, self.most, self.count = source, most, 0
        self._n_rows, self._report, self._checkpoint = source.n_rows, report, checkpoint

    def survey(self, size: int, seed: int) -> Survey:
        """Count the rows, and draw a sample of some size: the first pass."""
        self.count = 1
        survey = self._checkpoint.survey if self._checkpoint else None
        if survey is None:
            with torch.no_grad():
                survey = self.source.sum(Surveying(size, seed, self.source.count()), self._progress())
            if self._checkpoint:
                self._checkpoint.keep_survey(survey)
        self._n_rows = survey.n_rows + survey.n_bad
        return survey

    def survey_and_fit(
        self, size: int, seed: int, search: Callable[[Survey], dict[int, Stepwise]]
    ) -> tuple[Survey, dict[int, Stepwise]]:
        """Do the same with a source that is read once, and continue fits to the first rows with all others on the way.

        Args:
            size: of the sample.
            seed: of the sample.
            search: returns fits to the first rows, when there are as many as in the sample.
        """
        assert isinstance(self.source, LocalSource)
        self.count, progress = 1, self._progress()
        survey, fits, begun = Survey(Sample(size, seed)), dict[int, Stepwise](), False
        with torch.no_grad():
            for batch in _cut(self.source.batches(), size):
                survey = survey.with_batch(batch)
                weights = Rows.of(batch).weights
                if bool((weights > 0).any()):
                    fits = {k: fit.updated(batch.rows, weights)[0] for k, fit in fits.items()}
                if not begun and survey.n_rows >= size:
                    fits, begun = search(survey), True
                if progress is not None:
                    progress(len(batch.rows))
        if not survey.n_rows:
            raise ValueError(f"X must have rows; {self.source.name} has none that can be used.")
        return survey, fits

    def expect(self, expectation: Expectation) -> Expected:
        """Take the expectation step of several fits: one pass."""
        self.count += 1
        expected = self._checkpoint.expected(self.count) if self._checkpoint else None
        if expected is None:
            with torch.no_grad():
                sums, likelihoods, weight = self.source.sum(expectation, self._progress())
            expected = Expected(tuple(x / weight for x in sums), tuple(x / weight for x in likelihoods), weight)
            if self._checkpoint:
                self._checkpoint.keep_expected(self.count, *expected)
        return Expected(*expected)

    @property
    def left(self) -> int:
        """The number of passes that are left."""
        return self.most - self.count if self.source.repeatable else 0

    def _progress(self) -> Callable[[int], None] | None:
        """Return a function that reports rows as they are done."""
        if self._report is None:
            return None
        report, began, done, last = self._report, time.perf_counter(), 0, 0.0

        def progress(rows: int) -> None:
            nonlocal done, last
            done += rows
            spent = time.perf_counter() - began
            if spent - last < _OFTEN:
                return
            last, speed = spent, done / spent
            text = f"pass {self.count} of at most {self.most}: {done:,} rows, {speed:,.0f} rows/s"
            if self._n_rows:
                text += f", {max(self._n_rows - done, 0) / speed:.0f} s left"
            report(text)

        return progress


def _cut(batches: Iterator[Batch], rows: int) -> Iterator[Batch]:
    """Yield batches, the one in which so many rows end in two pieces."""
    for batch in batches:
        n, weights = len(batch.rows), batch.weights
        if 0 < rows < n:
            head, tail = (None, None) if weights is None else (weights[:rows], weights[rows:])
            yield Batch(batch.rows[:rows], head, batch.position, batch.place, batch.bad)
            yield Batch(batch.rows[rows:], tail, batch.position + rows, batch.place.after(rows))
        else:
            yield batch
        rows -= n


class Start(NamedTuple):
    """A fit to continue over all rows.

    Args:
        sample: of the rows, in the units of the fit.
        sums: `(1, k, F)`.
        tol: gain of the mean log likelihood of a pass at which to stop.
        prior: pseudo-samples, with moments.
        watch: called with the mean log likelihood before each step.
    """

    sample: Data
    sums: Tensor
    tol: float
    prior: Prior | None
    watch: Callable[[float], None]


def refine(
    passes: Passes, starts: Sequence[Start], units: Units, dtype: torch.dtype, bounds: Bounds | None
) -> list[Outcome]:
    """Continue fits with EM steps over all rows until each can gain less than its tolerance, in shared passes.

    Args:
        passes: over the source, of which at least one is left.
        starts: the fits, of one family.
        units: in which they are.
        dtype: to compute the sums of a batch in.
        bounds: of rows that are not left out.
    """
    fits = {
        i: refining_of(start.sample, start.sums, passes.left, start.tol, start.watch, start.prior)
        for i, start in enumerate(starts)
    }
    outcomes = dict[int, Outcome]()
    points = {i: next(fit) for i, fit in fits.items()}
    while points:
        coefficients = dict[int, Tensor]()
        for i in list(points):
            _set_coefficients(i, starts[i], fits[i], points, coefficients, outcomes)
        if not coefficients:
            break
        family = starts[0].sample.family
        found = passes.expect(Expectation(family, units, tuple(coefficients.values()), dtype, bounds))
        for i, sums, likelihood in zip(coefficients, found.sums, found.log_likelihoods, strict=True):
            try:
                points[i] = fits[i].send((without_empty(sums, points[i]), likelihood))
            except StopIteration as end:
                outcomes[i] = end.value
                del points[i]
    return [outcomes[i] for i in range(len(starts))]


def _set_coefficients(
    i: int,
    start: Start,
    fit: Generator[Tensor, tuple[Tensor, Tensor], Outcome],
    points: dict[int, Tensor],
    coefficients: dict[int, Tensor],
    outcomes: dict[int, Outcome],
) -> None:
    """Set the coefficients of a fit at its next point that is a valid mixture; a leap may end where none is."""
    while i in points:
        try:
            family = start.sample.family
            coefficients[i] = family.coefficients(*family.parameters(points[i], start.prior))
            return
        except torch.linalg.LinAlgError as error:
            try:
                points[i] = fit.throw(error)
            except StopIteration as end:
                outcomes[i] = end.value
                del points[i]
