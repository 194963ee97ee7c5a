"""Data of any size compared by sketches, in one pass: with other data part by part, or with a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

import torch
from rich.table import Table
from torch import Tensor

from cramix.cli import measures, tables
from cramix.cli.report import Fact
from cramix.cli.sources import Streamed
from cramix.distance.drift import Drift, drift
from cramix.distance.likelihood import log_density
from cramix.distance.sketch import SliceSketch
from cramix.distance.sliced import sliced_cramer_distance
from cramix.mixture import MultivariateNormalMixture

Data = tables.Table | Streamed
Update = Callable[[str], None]

# Of a sketch, which takes some megabytes.
_DIRECTIONS, _BINS = 64, 512
# Parts of data, at most and an even number, and rows of a part of a single file, at least.
_MOST_PARTS, _FEWEST_ROWS = 64, 64
# Drift with a larger p-value may be chance.
_LEVEL = 0.05
# Cosine of the angle between directions that show the same.
_CLOSE = 0.9
# Shown to people; JSON has all of them.
_MOST_COLUMNS, _MOST_DIRECTIONS, _MOST_TERMS = 20, 3, 4


class Parts:
    """Sketches of the parts of data: of files, or of equal numbers of rows if there is only one file.

    Where there are too many parts, neighbours are merged. So there are as many for data of any size.

    Args:
        dim: number of columns.
        rows: of a part at first; None if files are parts.
    """

    def __init__(self, dim: int, rows: int | None = None) -> None:
        self.sketches: list[SliceSketch] = []
        self._dim, self._rows, self._merged, self._seen, self._files = dim, rows, 1, 0, dict[str, int]()

    def add(self, x: Tensor, file: str) -> None:
        """Add rows `(n, d)` that follow those before."""
        if self._rows is None:
            self._sketch(self._files.setdefault(file, len(self._files))).update(x)
            return
        while len(x):
            sketch = self._sketch(self._seen // self._rows)
            size = self._rows * self._merged
            some = x[: size - self._seen % size]
            sketch.update(some)
            x, self._seen = x[len(some) :], self._seen + len(some)

    def _sketch(self, unit: int) -> SliceSketch:
        """Return the sketch of a file or a number of rows; these come in order."""
        if unit // self._merged == _MOST_PARTS:
            pairs = zip(self.sketches[::2], self.sketches[1::2], strict=True)
            self.sketches = [first.merge(second) for first, second in pairs]
            self._merged *= 2
        if unit // self._merged == len(self.sketches):
            self.sketches.append(SliceSketch(self._dim, _DIRECTIONS, _BINS))
        return self.sketches[unit // self._merged]


def sketches(data: Data, scales: Tensor, update: Update, *, of_files: bool) -> list[SliceSketch]:
    """Return sketches of the parts of data, whose columns are divided by numbers `(d,)`: one pass."""
    parts = Parts(len(data.names), None if of_files else _FEWEST_ROWS)
    for some in _watched(data, update):
        parts.add(some.rows / scales, some.file)
    return parts.sketches


class Between(NamedTuple):
    """The drift between two data sets, and their numbers of rows."""

    drift: Drift
    n_rows: tuple[int, int]


def between(first: Data, second: Data, update: Update) -> Between:
    """Return how the second data differ from the first, and whether that is more than chance.

    If either has several files, files are the parts of both: rows of a file may well depend on each other.
    """
    scales, of_files = _scales(first), max(first.n_files, second.n_files) > 1
    parts = [sketches(data, scales, update, of_files=of_files) for data in (first, second)]
    before, after = (sum(part.n_samples for part in side) for side in parts)
    return Between(drift(*parts), (before, after))


class FromModel(NamedTuple):
    """How far data are from a model.

    Attributes:
        distance: C2 over directions.
        log_likelihood: the mean, in the units of the columns; None if the model has no density.
        n_rows: of the data.
    """

    distance: measures.Distance
    log_likelihood: float | None
    n_rows: int


def from_model(model: MultivariateNormalMixture, data: Data, scales: Tensor, update: Update) -> FromModel:
    """Return how far data are from a model in units `(d,)` of the columns: one pass."""
    sketch = SliceSketch(model.dim, _DIRECTIONS, _BINS)
    total = 0.0 if measures.has_density(model) else None
    for some in _watched(data, update):
        sketch.update(some.rows / scales)
        if total is not None:
            total += log_density(model, some.rows).sum().item()
    value = sliced_cramer_distance(measures.rescaled(model, scales), sketch).item()
    distance = measures.Distance(value, len(sketch.directions))
    return FromModel(distance, None if total is None else total / sketch.n_samples, sketch.n_samples)


def facts(found: Drift, names: tuple[str, ...]) -> list[Fact]:
    """Return what to report of a drift."""
    columns = [
        {"name": name, "distance": distance, "p_value": p_value, "mean_shift": shift}
        for name, distance, p_value, shift in zip(
            names, found.columns.tolist(), found.column_p_values.tolist(), found.mean_shifts.tolist(), strict=True
        )
    ]
    directions = [
        {"distance": distance, "direction": vector}
        for distance, vector in zip(found.direction_distances.tolist(), found.directions.tolist(), strict=True)
    ]
    return [
        Fact("distance", "distance", found.distance),
        Fact("p_value", "p-value", found.p_value, _chance(found)),
        Fact("smallest_p_value", "smallest p-value", found.smallest_p_value, _smallest(found)),
        Fact("columns", None, columns),
        Fact("directions", None, directions if len(names) > 1 else None),
    ]


def as_tables(found: Drift, names: tuple[str, ...]) -> list[Table | str]:
    """Return tables of the columns and the directions that moved most."""
    order = found.columns.argsort(descending=True).tolist()
    columns = Table("column", "distance", "p-value", "shift of mean", title="Columns", title_justify="left")
    for j in order[:_MOST_COLUMNS]:
        numbers = found.columns[j].item(), found.column_p_values[j].item()
        columns.add_row(names[j], *(f"{x:.3g}" for x in numbers), f"{found.mean_shifts[j].item():+.3g}")
    result: list[Table | str] = [columns]
    if len(names) > _MOST_COLUMNS:
        result.append(f"and {len(names) - _MOST_COLUMNS} more that moved less; --json shows all")
    if len(names) > 1:
        directions = Table("direction", "distance", title="Directions", title_justify="left")
        shown = _distinct(found.directions)
        for i in shown:
            directions.add_row(_formula(found.directions[i], names), f"{found.direction_distances[i].item():.3g}")
        result.append(directions)
        if len(found.directions) > len(shown):
            result.append(
                f"and {len(found.directions) - len(shown)} more that moved less or are close; --json shows all"
            )
    return result


def _watched(data: Data, update: Update) -> Iterator[tables.Rows]:
    """Yield all rows in order, and report how many were read."""
    count = 0
    for some in data.in_order():
        yield some
        count += len(some.rows)
        update(f"{count:,} rows of {data.name}")


def _scales(data: Data) -> Tensor:
    """Return about the standard deviation of each column, `(d,)`, from the first rows.

    They only keep columns of large numbers from dominating the directions: `drift` measures in standard deviations. As
    they are powers of two, division is exact.
    """
    with closing(data.in_order()) as batches:  # type: ignore[type-var]
        rows = next(batches).rows
    spread = rows.std(0, correction=0)
    spread = torch.where(spread > 0, spread, rows.abs().amax(0))
    return torch.where(spread > 0, spread, 1.0).log2().round().clamp(-1000, 1000).exp2()


def _chance(found: Drift) -> str:
    number = f"{found.p_value:.3g}"
    if found.p_value <= _LEVEL:
        return f"{number}: more than chance"
    return f"{number}: too few parts to tell" if found.smallest_p_value > _LEVEL else f"{number}: may be chance"


def _smallest(found: Drift) -> str:
    first, second = found.n_parts
    return f"{found.smallest_p_value:.3g} with {first} and {second} parts"


def _distinct(directions: Tensor) -> list[int]:
    """Return the first few directions that are not close to one before."""
    found = list[int]()
    for i, vector in enumerate(directions):
        if all((vector @ directions[j]).abs() < _CLOSE for j in found):
            found.append(i)
    return found[:_MOST_DIRECTIONS]


def _formula(vector: Tensor, names: tuple[str, ...]) -> str:
    """Return the largest terms of a direction, such as 0.8 a - 0.6 b, in about standard deviations of the columns."""
    order = vector.abs().argsort(descending=True)[:_MOST_TERMS].tolist()
    vector = vector * vector[order[0]].sign()  # the opposite direction is the same
    terms = [f"{'-' if vector[j] < 0 else '+'} {vector[j].abs().item():.2f} {names[j]}" for j in order]
    more = " + ..." if len(names) > _MOST_TERMS else ""
    return " ".join(terms).removeprefix("+ ") + more
