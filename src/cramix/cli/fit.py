"""`cramix fit`."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer
from rich.table import Table

import cramix
from cramix import io
from cramix import plot as pictures
from cramix.atomic import replacing
from cramix.cli import formats, models, tables
from cramix.cli.components import component_tables
from cramix.cli.options import Columns, DataFile, Delimiter, DropMissing, Exclude, Json, ModelOut, Quiet, Seed
from cramix.cli.refusal import Refusal, check_output, refusing
from cramix.cli.report import Fact, console, print_lines, show, working
from cramix.fitting import METHODS, FitResult, Step
from cramix.mixture.coordinates import in_coordinates
from cramix.mixture.covariance import FAMILIES

_METHOD = signature(cramix.fit).parameters["method"].default
_MOST_COMPONENTS = 10


class _Fitted(NamedTuple):
    """A fit, the fits it was chosen from by their number of components, none without a choice, and the time for all."""

    result: FitResult
    considered: Mapping[int, FitResult]
    seconds: float


class _Problem(NamedTuple):
    """What to fit, and how."""

    table: tables.Table
    covariance_type: str
    method: str
    reg_covar: float | None
    seed: int

    def fit(self, n_components: int, progress: Callable[[Step], None]) -> FitResult:
        return cramix.fit(
            self.table.rows,
            n_components,
            method=self.method,
            generator=self._generator,
            progress=progress,
            **self._words,
        )

    def select(self, n_components: range, progress: Callable[[Step], None]) -> Mapping[int, FitResult]:
        generator = self._generator
        choice = cramix.select(
            self.table.rows, n_components, folds=0, generator=generator, progress=progress, **self._words
        )
        return choice.results

    @property
    def _words(self) -> dict:
        """The arguments of the library that `fit` and `select` share."""
        return {
            "covariance_type": self.covariance_type,
            "sample_weight": self.table.weights,
            "reg_covar": self.reg_covar,
        }

    @property
    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)


def fit(
    data: DataFile,
    k: Annotated[
        str | None,
        typer.Option(
            "-k",
            "--components",
            metavar="K",
            help="Number of components, such as 3, or a range to choose from by BIC, such as 2-6; default: 1-10.",
        ),
    ] = None,
    out: Annotated[Path | None, ModelOut] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the data and the fit: png, pdf or svg.")
    ] = None,
    columns: Columns = None,
    exclude: Exclude = None,
    sample_weight: Annotated[
        str | None, typer.Option("--sample-weight", metavar="COLUMN", help="Column that holds the weights of the rows.")
    ] = None,
    covariance_type: Annotated[
        str,
        typer.Option("--covariance-type", metavar="TYPE", help=f"{', '.join(FAMILIES)}."),
    ] = "full",
    reg_covar: Annotated[
        float | None,
        typer.Option(
            "--reg-covar",
            metavar="VALUE",
            help="Added to all variances, against collapse; default: 1e-6 of each column's variance.",
        ),
    ] = None,
    method: Annotated[
        str, typer.Option("--method", metavar="NAME", help=f"Algorithm: {', '.join(METHODS)}.")
    ] = _METHOD,
    seed: Seed = 0,
    drop_missing: DropMissing = False,
    delimiter: Delimiter = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit a Gaussian mixture to a table of numbers.

    Without -k the number of components is chosen by the Bayesian information criterion (BIC). Components are numbered
    from 0, the heaviest first.
    """
    if out is not None:
        check_output(out, [formats.MODEL])
        io.require_safetensors()  # fail before the fit, not after it
    if plot is not None:
        check_output(plot, formats.PICTURES)
        pictures.require_matplotlib()
    _check_choice("--method", method, METHODS)
    _check_choice("--covariance-type", covariance_type, FAMILIES)
    wanted = parse_components(k)
    if method != _METHOD and not isinstance(wanted, int):
        raise Refusal(f"--method {method} needs one number of components. Add -k, such as -k 3.")
    choice = tables.Choice(
        tables.split_names(columns),
        tables.split_names(exclude),
        sample_weight,
        drop_missing,
        delimiter,
    )
    table = tables.read(data, choice)
    print_lines("note", table.notes)
    fitted = _fitted(_Problem(table, covariance_type, method, reg_covar, seed), wanted, formats.input_name(data), quiet)
    result = fitted.result
    mixture = in_coordinates(result.mixture.sort("weights", descending=True))
    if out is not None:
        cramix.save(mixture.marginal(0) if mixture.dim == 1 else mixture, out, names=table.names)
    if plot is not None:
        figure = pictures.mixture_and_points(mixture, table.rows, weights=table.weights, names=table.names)
        with replacing(plot) as file:
            figure.savefig(file, format=plot.suffix[1:].lower(), dpi=150)
    n, d = table.rows.shape
    facts = [
        Fact("data", "data", formats.input_name(data)),
        Fact("n_rows", "rows", n),
        Fact("dropped", "rows dropped" if table.dropped else None, table.dropped),
        Fact("n_columns", "columns", d, f"{d} ({', '.join(table.names)})" if d <= 8 else None),
        Fact("n_components", "components", mixture.n_components, _why(fitted)),
        Fact("covariance_type", "covariance type", covariance_type),
        Fact("method", "method", method),
        Fact("seed", "seed", seed),
        Fact("mean_log_likelihood", "mean log likelihood", result.log_likelihood),
        Fact("bic", "BIC", result.bic),
        Fact("aic", "AIC", result.aic),
        Fact("converged", None, result.converged),
        Fact("stopped", "stopped", result.reason),
        Fact("collapsed", "collapsed components" if result.collapsed else None, result.collapsed),
        Fact("seconds", "seconds", round(fitted.seconds, 3)),
        Fact("selection", None, [_considered(k, r) for k, r in fitted.considered.items()] or None),
        Fact("notes", None, list(table.notes)),
        Fact("model", "model", out),
        Fact("plot", "picture", plot),
        Fact("mixture", None, models.as_json(mixture, table.names)),
    ]
    blocks = component_tables(mixture, table.names, console().width)
    show(facts, as_json=json, quiet=quiet, tables=[*_bic_table(fitted), *blocks])


def parse_components(text: str | None) -> int | range | None:
    """Return the number or the range of numbers that -k asks for."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high:
        raise Refusal(f"-k must be a number >= 1, such as 3, or a range, such as 1-10; got {text!r}.")
    return range(low, high + 1) if match and match[2] else low


def _fitted(problem: _Problem, wanted: int | range | None, file: str, quiet: bool) -> _Fitted:
    n, d = problem.table.rows.shape
    if n < 2:
        raise Refusal(f"{file} must have at least 2 rows; it has {n}.")
    most = wanted if isinstance(wanted, int) else wanted[-1] if wanted else 1
    if most > n:
        raise Refusal(f"-k must be at most the {n} rows of {file}; got {most}.")
    if wanted is None:  # with enough rows for a full covariance in each component
        wanted = range(1, max(1, min(_MOST_COMPONENTS, n // (d + 1))) + 1)
    numbers = f"{wanted}" if isinstance(wanted, int) else f"{wanted[0]} to {wanted[-1]}"
    began = time.perf_counter()
    with working(f"Fitting {numbers} components to {n} rows", quiet=quiet) as update, refusing():

        def progress(step: Step) -> None:
            update(f"{step.name}, {step.n_components} components")

        if isinstance(wanted, int):
            return _Fitted(problem.fit(wanted, progress), {}, time.perf_counter() - began)
        # The likelihood of a collapsed component has no upper bound. `fit` avoids such components where it can, and
        # what collapses even then is not chosen.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about fits that may not be chosen
            selected = problem.select(wanted, progress)
            considered = {k: problem.fit(k, progress) if r.collapsed else r for k, r in selected.items()}
        sound = {k: result for k, result in considered.items() if not result.collapsed} or considered
        best = considered[min(sound, key=lambda k: sound[k].bic)]
        for warning in best.warnings:
            warnings.warn(warning, cramix.ConvergenceWarning, stacklevel=1)
        return _Fitted(best, considered, time.perf_counter() - began)


def _why(fitted: _Fitted) -> str | None:
    if not fitted.considered:
        return None
    low, high = min(fitted.considered), max(fitted.considered)
    return f"{fitted.result.mixture.n_components}, chosen from {low} to {high} by BIC"


def _considered(n_components: int, result: FitResult) -> dict[str, object]:
    return {
        "n_components": n_components,
        "mean_log_likelihood": result.log_likelihood,
        "bic": result.bic,
        "collapsed": result.collapsed,
    }


def _bic_table(fitted: _Fitted) -> list[Table]:
    if len(fitted.considered) < 2:
        return []
    chosen = fitted.result.mixture.n_components
    table = Table("components", "mean log likelihood", "BIC", "difference", "")
    for column in table.columns[:4]:
        column.justify = "right"
    for k, result in fitted.considered.items():
        collapsed = f"{result.collapsed} collapsed" if result.collapsed else ""
        difference = result.bic - fitted.result.bic
        note = ", ".join(filter(None, ("chosen" if k == chosen else "", collapsed)))
        table.add_row(str(k), f"{result.log_likelihood:.4f}", f"{result.bic:.1f}", f"{difference:+.1f}", note)
    return [table]


def _check_choice(option: str, value: str, choices: object) -> None:
    names = list(choices)  # type: ignore[call-overload]
    if value not in names:
        raise Refusal(f"{option} must be one of {', '.join(names)}; got {value!r}.")
