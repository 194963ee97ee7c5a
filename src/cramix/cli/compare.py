"""`cramix compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer
from rich.table import Table
from torch import Tensor

from cramix.cli import drift, formats, measures, models, sources, tables
from cramix.cli.options import DATA_FORMATS, Columns, Delimiter, Exclude, Json, SkipBad
from cramix.cli.refusal import Refusal, refusing
from cramix.cli.report import Fact, counted, print_lines, show, working
from cramix.mixture import MultivariateNormalMixture

_UNIT = {True: "raw", False: "standard deviations of a"}
_EITHER = f"Model ({formats.MODEL}) or data ({DATA_FORMATS})."


class _Side(NamedTuple):
    """A model, or data."""

    path: Path
    names: tuple[str, ...] | None
    model: MultivariateNormalMixture | None = None
    data: drift.Data | None = None

    @property
    def name(self) -> str:
        return formats.input_name(self.path)

    @property
    def is_model(self) -> bool:
        return self.model is not None

    @property
    def in_parts(self) -> bool:
        return isinstance(self.data, sources.Streamed)

    @property
    def dim(self) -> int:
        return self.model.dim if self.model is not None else len(self.names or ())

    def mixture(self) -> MultivariateNormalMixture:
        """Return the model, or the rows of a table as points."""
        if self.model is not None:
            return self.model
        assert isinstance(self.data, tables.Table)
        return MultivariateNormalMixture.from_samples(self.data.rows)

    def fact(self, key: str, n_rows: int | None = None) -> Fact:
        if self.model is not None:
            size = self.model.n_components
            about = {"path": self.name, "kind": "model", "n_components": size}
            return Fact(key, key.upper(), about, f"{self.name}, a model with {counted(size, 'component')}")
        assert self.data is not None
        size = n_rows or self.data.n_rows or 0
        about = {"path": self.name, "kind": "data", "n_rows": size, "skipped": self.data.skipped}
        skipped = f" ({self.data.skipped} skipped)" if self.data.skipped else ""
        return Fact(key, key.upper(), about, f"{self.name}, {counted(size, 'row')} of data{skipped}")


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help=_EITHER)],
    b: Annotated[Path, typer.Argument(metavar="B", help=_EITHER)],
    raw: Annotated[
        bool, typer.Option("--raw", help="Measure in the units of the columns, not in standard deviations of A.")
    ] = False,
    columns: Columns = None,
    exclude: Exclude = None,
    skip_bad: SkipBad = False,
    delimiter: Delimiter = None,
    json: Json = False,
) -> None:
    """Measure the distance between two models, two data sets, or a model and data.

    Distances are in standard deviations of A, column by column, so that no column dominates by its unit. Columns are
    matched by their names.

    Folders, patterns, Arrow files and files of 256 MB or more are read once, in parts, and compared by sketches.
    Between two data sets, this shows which columns and directions moved, and whether by more than the files of each, or
    the parts of two single files, differ among themselves.
    """
    choice = tables.Choice(
        tables.split_names(columns),
        tables.split_names(exclude),
        skip_bad=skip_bad,
        delimiter=delimiter,
    )
    with refusing():
        p, q = _sides(a, b, choice)
        if p.dim != q.dim:
            cure = "" if p.is_model and q.is_model else " Choose columns with --columns."
            raise Refusal(f"{p.name} has {p.dim} columns and {q.name} has {q.dim}; they must match.{cure}")
        if raw and (p.in_parts or q.in_parts) and not (p.is_model or q.is_model):
            raise Refusal("--raw is for models and for tables that are read as a whole; leave it out.")
    with working("Comparing") as update, refusing():
        blocks: list[Table | str] = []
        if not (p.in_parts or q.in_parts):
            facts = _exactly(p, q, raw)
        elif p.is_model or q.is_model:
            facts = _model_and_data(p, q, raw, update)
        else:
            facts, blocks = _drift(p, q, update)
    show(facts, as_json=json, tables=blocks)


def _exactly(p: _Side, q: _Side, raw: bool) -> list[Fact]:
    """Return the distances between models and tables."""
    x, y = p.mixture(), q.mixture()
    likelihood = _likelihood(p, q)
    if not raw:
        scales = _deviations(p)
        x, y = measures.rescaled(x, scales), measures.rescaled(y, scales)
    return [
        p.fact("a"),
        q.fact("b"),
        Fact("n_columns", "columns", p.dim),
        Fact("unit", "unit", _UNIT[raw], "that of each column" if raw else "standard deviation of each column in A"),
        *_distance(measures.cramer(x, y)),
        *_divergences(p, q, x, y),
        *likelihood,
    ]


def _model_and_data(p: _Side, q: _Side, raw: bool, update: drift.Update) -> list[Fact]:
    """Return the distance between a model and data that are read in parts, in deviations of the model."""
    model, data = (p, q) if p.is_model else (q, p)
    assert model.model is not None
    assert data.data is not None
    scales = torch.ones(model.dim, dtype=torch.float64) if raw else _deviations(model)
    found = drift.from_model(model.model, data.data, scales, update)
    words = "that of each column" if raw else "standard deviation of each column in the model"
    return [
        p.fact("a", found.n_rows),
        q.fact("b", found.n_rows),
        Fact("n_columns", "columns", p.dim),
        Fact("unit", "unit", "raw" if raw else "standard deviations of the model", words),
        *_distance(found.distance),
        _no_density(model) if found.log_likelihood is None else _mean_log_likelihood(found.log_likelihood),
    ]


def _drift(p: _Side, q: _Side, update: drift.Update) -> tuple[list[Fact], list[Table | str]]:
    """Return what moved between data of which some are read in parts."""
    assert p.data is not None
    assert q.data is not None
    found = drift.between(p.data, q.data, update)
    names = p.data.names
    facts = [
        p.fact("a", found.n_rows[0]),
        q.fact("b", found.n_rows[1]),
        Fact("n_columns", "columns", p.dim),
        Fact("unit", "unit", "standard deviations of both", "standard deviation of A and B together"),
        *drift.facts(found.drift, names),
    ]
    return facts, drift.as_tables(found.drift, names)


def _distance(distance: measures.Distance) -> list[Fact]:
    over = "" if distance.directions is None else f" over {distance.directions} directions"
    return [
        Fact("c2", f"Cramér distance C2{over}", distance.value),
        Fact("directions", None, distance.directions),
    ]


def _deviations(side: _Side) -> Tensor:
    """Return the standard deviations of all columns, `(d,)`, which must not be 0."""
    mixture = side.mixture()
    scales = mixture.variance.sqrt()
    rounding = 16 * torch.finfo(scales.dtype).eps * mixture.means.abs().amax(0)
    if bool((scales <= rounding).any()):
        names = side.names or formats.default_names(side.dim)
        constant = [name for name, flat in zip(names, (scales <= rounding).tolist(), strict=True) if flat]
        raise Refusal(
            f"{side.name}: columns must vary to be a unit of distance; these are constant: {', '.join(constant)}. "
            f"Leave them out with {tables.exclude_option(constant)}, or add --raw."
        )
    return scales


def _likelihood(p: _Side, q: _Side) -> list[Fact]:
    """The likelihood of a model for data, in the units of the columns, as `fit` reports it."""
    if p.is_model == q.is_model:
        return []
    model, data = (p, q) if p.is_model else (q, p)
    if not measures.has_density(model.mixture()):
        return [_no_density(model)]
    return [_mean_log_likelihood(measures.mean_log_likelihood(model.mixture(), data.mixture().means))]


def _mean_log_likelihood(value: float) -> Fact:
    return Fact("mean_log_likelihood", "mean log likelihood (raw units)", value)


def _divergences(p: _Side, q: _Side, x: MultivariateNormalMixture, y: MultivariateNormalMixture) -> list[Fact]:
    """The divergences between two models, which are x and y in the units of the comparison."""
    if not (p.is_model and q.is_model):
        return []
    for side in (p, q):
        if not measures.has_density(side.mixture()):
            return [_no_density(side)]
    return [
        Fact("ise", "squared L2 distance of densities (ISE)", measures.squared_error(x, y)),
        Fact("kl_a_b", "KL(A‖B) by Monte Carlo", measures.kullback_leibler(x, y)),
        Fact("kl_b_a", "KL(B‖A) by Monte Carlo", measures.kullback_leibler(y, x)),
    ]


def _no_density(side: _Side) -> Fact:
    return Fact("note", "note", f"{side.name} has no density: a covariance is singular")


def _sides(a: Path, b: Path, choice: tables.Choice) -> list[_Side]:
    """Read both, models first: data are read in the order of a model's columns."""
    if a == b == formats.STANDARD:
        raise Refusal("A and B cannot both be standard input.")
    if choice.delimiter is not None and not any(formats.is_text(path) for path in (a, b)):
        raise Refusal(f"--delimiter is for text files; neither {a} nor {b} is one.")
    sides = dict[Path, _Side]()
    first: _Side | None = None
    for path in sorted((a, b), key=lambda path: formats.suffix(path) != formats.MODEL):
        is_model = formats.suffix(path) == formats.MODEL
        side = _model(path, choice, first) if is_model else _data(path, choice, first)
        first = first or side
        sides[path] = side
    return [sides[a], sides[b]]


def _model(path: Path, choice: tables.Choice, other: _Side | None) -> _Side:
    """A model, or its marginal distribution of the columns chosen; in the order of the other's where names agree."""
    model = models.read(path)
    mixture, names = model.in_coordinates, model.names
    wanted = choice.columns if other is None else other.names
    if names and not wanted and choice.exclude:
        wanted = names
    wanted = [name for name in wanted or () if name not in (choice.exclude or ())]
    if names and wanted and set(wanted) <= set(names):
        mixture, names = mixture.marginal([names.index(name) for name in wanted]), tuple(wanted)
    return _Side(path, names, model=mixture)


def _data(path: Path, choice: tables.Choice, other: _Side | None) -> _Side:
    if not formats.is_text(path) and not path.is_dir():
        choice = choice._replace(delimiter=None)
    like = None
    if other is not None:
        like = other.names or (formats.default_names(other.dim) if other.is_model else None)
        if choice.columns is not None and sorted(choice.columns) == sorted(like or ()):
            choice = choice._replace(columns=None)
    reader = sources if sources.in_parts(path, choice.delimiter) else tables
    data = reader.read(path, choice, like=like, strict=other is not None and other.is_model)
    print_lines("note", data.notes)
    return _Side(path, data.names, data=data)
