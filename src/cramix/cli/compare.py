"""`cramix compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer

from cramix.cli import formats, measures, models, tables
from cramix.cli.options import DATA_FORMATS, Columns, Delimiter, Exclude, Json, SkipBad
from cramix.cli.refusal import Refusal, refusing
from cramix.cli.report import Fact, counted, print_lines, show, working
from cramix.mixture import MultivariateNormalMixture

_EITHER = f"Model ({formats.MODEL}) or data ({DATA_FORMATS})."


class _Side(NamedTuple):
    """A model, or data as a mixture of points."""

    path: Path
    is_model: bool
    mixture: MultivariateNormalMixture
    names: tuple[str, ...] | None
    skipped: int = 0

    @property
    def name(self) -> str:
        return formats.input_name(self.path)

    def fact(self, key: str) -> Fact:
        size = self.mixture.n_components
        if self.is_model:
            about = {"path": self.name, "kind": "model", "n_components": size}
            return Fact(key, key.upper(), about, f"{self.name}, a model with {counted(size, 'component')}")
        about = {"path": self.name, "kind": "data", "n_rows": size, "skipped": self.skipped}
        skipped = f" ({self.skipped} skipped)" if self.skipped else ""
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
    """
    choice = tables.Choice(
        tables.split_names(columns),
        tables.split_names(exclude),
        skip_bad=skip_bad,
        delimiter=delimiter,
    )
    p, q = _sides(a, b, choice)
    if p.mixture.dim != q.mixture.dim:
        cure = "" if p.is_model and q.is_model else " Choose columns with --columns."
        raise Refusal(f"{p.name} has {p.mixture.dim} columns and {q.name} has {q.mixture.dim}; they must match.{cure}")
    with working("Comparing"), refusing():
        likelihood = _likelihood(p, q)
        if not raw:
            p, q = _in_deviations_of_first(p, q)
        distance = measures.cramer(p.mixture, q.mixture)
        over = "" if distance.directions is None else f" over {distance.directions} directions"
        unit = "raw" if raw else "standard deviations of a"
        facts = [
            p.fact("a"),
            q.fact("b"),
            Fact("n_columns", "columns", p.mixture.dim),
            Fact("unit", "unit", unit, "that of each column" if raw else "standard deviation of each column in A"),
            Fact("c2", f"Cramér distance C2{over}", distance.value),
            Fact("directions", None, distance.directions),
            *_divergences(p, q),
            *likelihood,
        ]
    show(facts, as_json=json)


def _in_deviations_of_first(p: _Side, q: _Side) -> tuple[_Side, _Side]:
    scales = p.mixture.variance.sqrt()
    rounding = 16 * torch.finfo(scales.dtype).eps * p.mixture.means.abs().amax(0)
    if bool((scales <= rounding).any()):
        names = p.names or formats.default_names(p.mixture.dim)
        constant = [name for name, flat in zip(names, (scales <= rounding).tolist(), strict=True) if flat]
        raise Refusal(
            f"{p.name}: columns must vary to be a unit of distance; these are constant: {', '.join(constant)}. "
            f"Leave them out with {tables.exclude_option(constant)}, or add --raw."
        )
    return tuple(side._replace(mixture=measures.rescaled(side.mixture, scales)) for side in (p, q))  # type: ignore[return-value]


def _likelihood(p: _Side, q: _Side) -> list[Fact]:
    """The likelihood of a model for data, in the units of the columns, as `fit` reports it."""
    if p.is_model == q.is_model:
        return []
    model, data = (p, q) if p.is_model else (q, p)
    if not measures.has_density(model.mixture):
        return [_no_density(model)]
    value = measures.mean_log_likelihood(model.mixture, data.mixture.means)
    return [Fact("mean_log_likelihood", "mean log likelihood (raw units)", value)]


def _divergences(p: _Side, q: _Side) -> list[Fact]:
    if not (p.is_model and q.is_model):
        return []
    for side in (p, q):
        if not measures.has_density(side.mixture):
            return [_no_density(side)]
    return [
        Fact("ise", "squared L2 distance of densities (ISE)", measures.squared_error(p.mixture, q.mixture)),
        Fact("kl_a_b", "KL(A‖B) by Monte Carlo", measures.kullback_leibler(p.mixture, q.mixture)),
        Fact("kl_b_a", "KL(B‖A) by Monte Carlo", measures.kullback_leibler(q.mixture, p.mixture)),
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
    return _Side(path, True, mixture, names)


def _data(path: Path, choice: tables.Choice, other: _Side | None) -> _Side:
    if not formats.is_text(path):
        choice = choice._replace(delimiter=None)
    like = None
    if other is not None:
        like = other.names or (formats.default_names(other.mixture.dim) if other.is_model else None)
        if choice.columns is not None and sorted(choice.columns) == sorted(like or ()):
            choice = choice._replace(columns=None)
    table = tables.read(path, choice, like=like, strict=other is not None and other.is_model)
    print_lines("note", table.notes)
    return _Side(path, False, MultivariateNormalMixture.from_samples(table.rows), table.names, table.skipped)
