"""`cramix fit`."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.table import Table

import cramix
from cramix import io
from cramix import plot as pictures
from cramix.checks import check_choice
from cramix.cli import formats, models, tables
from cramix.cli.options import Columns, DataFile, Delimiter, SkipBad, Exclude, Json, ModelOut, Quiet, Seed
from cramix.cli.refusal import Refusal, check_output, refusing
from cramix.cli.report import Fact, component_tables, console, print_lines, save_figure, show, working
from cramix.fitting import METHODS, FitResult
from cramix.mixture.coordinates import in_coordinates
from cramix.mixture.covariance import FAMILIES

_METHOD = signature(cramix.fit).parameters["method"].default
_MOST_COMPONENTS = 10


class _Fitted(NamedTuple):
    """A fit, the fits it was chosen from by their number of components, none without a choice, and the time for all."""

    result: FitResult
    considered: Mapping[int, FitResult]
    seconds: float


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
    shrinkage: Annotated[
        str,
        typer.Option(
            "--shrinkage",
            metavar="VALUE",
            help="How far covariances are shrunk to a common one: 0, inf or between; auto: chosen where rows are few.",
        ),
    ] = "auto",
    method: Annotated[
        str, typer.Option("--method", metavar="NAME", help=f"Algorithm: {', '.join(METHODS)}.")
    ] = _METHOD,
    seed: Seed = 0,
    skip_bad: SkipBad = False,
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
    with refusing():
        check_choice("--method", method, METHODS)
        check_choice("--covariance-type", covariance_type, FAMILIES)
    wanted = parse_components(k)
    if method != _METHOD and not isinstance(wanted, int):
        raise Refusal(f"--method {method} needs one number of components. Add -k, such as -k 3.")
    choice = tables.Choice(
        tables.split_names(columns),
        tables.split_names(exclude),
        sample_weight,
        skip_bad,
        delimiter,
    )
    table = tables.read(data, choice)
    print_lines("note", table.notes)
    n, d = table.rows.shape
    wanted = _numbers(wanted, n, d, formats.input_name(data))
    with working(f"Fitting {_in_words(wanted)} components to {n} rows", quiet=quiet) as update, refusing():
        fitted = _fitted(
            wanted,
            method,
            seed,
            X=table.rows,
            sample_weight=table.weights,
            covariance_type=covariance_type,
            reg_covar=reg_covar,
            shrinkage=_number_or_word(shrinkage),
            progress=lambda step: update(f"{step.name}, {step.n_components} components"),
        )
    result = fitted.result
    mixture = in_coordinates(result.mixture.sort("weights", descending=True))
    if out is not None:
        cramix.save(mixture.marginal(0) if mixture.dim == 1 else mixture, out, names=table.names)
    if plot is not None:
        figure = pictures.mixture_and_points(mixture, table.rows, weights=table.weights, names=table.names)
        save_figure(figure, plot)
    facts = [
        Fact("data", "data", formats.input_name(data)),
        Fact("n_rows", "rows", n),
        Fact("skipped", "rows skipped" if table.skipped else None, table.skipped),
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
        Fact("shrinkage", "shrinkage" if result.shrinkage else None, _finite_or_word(result.shrinkage)),
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


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _finite_or_word(number: float) -> float | str:
    """Return a number that JSON can represent, or infinity as the word that the option takes."""
    return number if math.isfinite(number) else str(number)


def _numbers(wanted: int | range | None, n: int, d: int, file: str) -> int | range:
    """Return the numbers of components to fit to n rows of d columns."""
    if n < 2:
        raise Refusal(f"{file} must have at least 2 rows; it has {n}.")
    most = wanted if isinstance(wanted, int) else wanted[-1] if wanted else 1
    if most > n:
        raise Refusal(f"-k must be at most the {n} rows of {file}; got {most}.")
    # By default with enough rows for a full covariance in each component.
    return wanted or range(1, max(1, min(_MOST_COMPONENTS, n // (d + 1))) + 1)


def _fitted(wanted: int | range, method: str, seed: int, **problem: Any) -> _Fitted:
    """Fit a number of components, or several and choose; the problem is what `fit` and `select` both take."""
    began, generator = time.perf_counter(), torch.Generator().manual_seed(seed)
    if isinstance(wanted, int):
        result = cramix.fit(n_components=wanted, method=method, generator=generator, **problem)
        return _Fitted(result, {}, time.perf_counter() - began)
    choice = cramix.select(n_components=wanted, folds=0, generator=generator, **problem)
    return _Fitted(choice.results[choice.by_bic], choice.results, time.perf_counter() - began)


def _in_words(numbers: int | range) -> str:
    return f"{numbers}" if isinstance(numbers, int) else f"{numbers[0]} to {numbers[-1]}"


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
        "shrinkage": _finite_or_word(result.shrinkage),
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
