"""`cramix fit`."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer

import cramix
from cramix import plot as pictures
from cramix.checks import check_choice
from cramix.cli import components, formats, models, sources, tables
from cramix.cli.options import Columns, DataFile, Delimiter, Exclude, Json, ModelOut, Quiet, Seed, SkipBad
from cramix.cli.passes import Passes, in_words
from cramix.cli.refusal import Refusal, check_output, refusing, with_options
from cramix.cli.report import Fact, component_tables, console, counted, print_lines, save_figure, show, working
from cramix.fitting import METHODS, FitResult
from cramix.html.report import write_report
from cramix.html.worst import WorstRows, has_density
from cramix.mixture import MultivariateNormalMixture
from cramix.mixture.coordinates import in_coordinates
from cramix.mixture.covariance import FAMILIES
from cramix.tensor_files import require_safetensors

_METHOD = signature(cramix.fit).parameters["method"].default


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
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Write a page to explore data and fit in a browser, .html; data in parts are read once more for it.",
        ),
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
    max_passes: Annotated[
        int | None,
        typer.Option(
            "--max-passes",
            metavar="N",
            min=1,
            help="Most passes over data that are read in parts; default: 10. With 1, a sample is fitted.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="FILE",
            help="Keep finished passes over the data in this file: the same command goes on from there.",
        ),
    ] = None,
    delimiter: Delimiter = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit a Gaussian mixture to a table of numbers, or to files of any size.

    Folders, patterns, Arrow files and files of 256 MB or more need not fit into memory. They are read in parts: once to
    draw a sample of up to a million rows, and if there are more, a few more times.

    Without -k the number of components is chosen by the Bayesian information criterion (BIC). Components are numbered
    from 0, the heaviest first.
    """
    if out is not None:
        check_output(out, [formats.MODEL])
        require_safetensors()  # fail before the fit, not after it
    if plot is not None:
        check_output(plot, formats.PICTURES)
        pictures.require_matplotlib()
    if html is not None:
        check_output(html, [".html"])
    passes = Passes(max_passes, checkpoint)
    passes.check(out)
    with refusing():
        check_choice("--method", method, METHODS)
        check_choice("--covariance-type", covariance_type, FAMILIES)
    wanted = components.parse(k)
    if method != _METHOD and not isinstance(wanted, int):
        raise Refusal(f"--method {method} needs one number of components. Add -k, such as -k 3.")
    choice = tables.Choice(
        tables.split_names(columns),
        tables.split_names(exclude),
        sample_weight,
        skip_bad,
        delimiter,
    )
    table = _read(data, choice, passes)
    notes = table.notes
    print_lines("note", notes)
    n, d = table.n_rows, len(table.names)
    wanted = components.numbers(wanted, n, d, formats.input_name(data))
    rows = formats.input_name(data) if n is None else counted(n, "row")
    with working(f"Fitting {components.in_words(wanted)} components to {rows}", quiet=quiet) as update, refusing():
        problem: dict[str, Any] = {
            "X": table.rows,
            "sample_weight": table.weights,
            "covariance_type": covariance_type,
            "reg_covar": reg_covar,
            "shrinkage": _number_or_word(shrinkage),
        }
        if isinstance(table, sources.Streamed):
            with passes.interruptible():
                problem |= passes.options | {"progress": passes.announcing(update, quiet=quiet)}
                fitted = components.fit(wanted, method, seed, **problem)
                table.rows.survey()  # where all passes came from the checkpoint
        else:
            fitted = components.fit(wanted, method, seed, progress=lambda step: update(in_words(step)), **problem)
    result = fitted.result
    mixture = in_coordinates(result.mixture.sort("weights", descending=True))
    if out is not None:
        cramix.save(mixture.marginal(0) if mixture.dim == 1 else mixture, out, names=table.names)
    if plot is not None:
        x, weights = table.shown()
        figure = pictures.mixture_and_points(mixture, x, weights=weights, names=table.names)
        save_figure(figure, plot)
    if html is not None:
        _write_report(html, table, fitted, mixture)
    print_lines("note", [note for note in table.notes if note not in notes])
    facts = [
        Fact("data", "data", formats.input_name(data)),
        Fact("n_rows", "rows", table.n_rows),
        Fact("skipped", "rows skipped" if table.skipped else None, table.skipped),
        Fact("n_columns", "columns", d, f"{d} ({', '.join(table.names)})" if d <= 8 else None),
        Fact("passes", "passes over the data", result.passes, passes.in_words(result.passes)),
        Fact("resumed_after", None, passes.kept or None),
        Fact("n_components", "components", mixture.n_components, fitted.why()),
        Fact("covariance_type", "covariance type", covariance_type),
        Fact("method", "method", method),
        Fact("seed", "seed", seed),
        Fact("mean_log_likelihood", "mean log likelihood", result.log_likelihood),
        Fact("bic", "BIC", result.bic),
        Fact("aic", "AIC", result.aic),
        Fact("converged", None, result.converged),
        Fact("stopped", "stopped", result.reason),
        Fact("shrinkage", "shrinkage" if result.shrinkage else None, components.finite_or_word(result.shrinkage)),
        Fact("collapsed", "collapsed components" if result.collapsed else None, result.collapsed),
        Fact("seconds", "seconds", round(fitted.seconds, 3)),
        Fact("selection", None, fitted.selection()),
        Fact("notes", None, list(table.notes)),
        Fact("model", "model", out),
        Fact("plot", "picture", plot),
        Fact("html", "page", html),
        Fact("mixture", None, models.as_json(mixture, table.names)),
    ]
    blocks = component_tables(mixture, table.names, console().width)
    show(facts, as_json=json, quiet=quiet, tables=[*fitted.bic_tables(), *blocks])


def _read(path: Path, choice: tables.Choice, passes: Passes) -> tables.Table | sources.Streamed:
    """Read data as a whole or open them to be read in parts; options for passes ask for that."""
    if sources.in_parts(path, choice.delimiter, asked=passes.asked is not None):
        streamed = sources.read(path, choice)
        with refusing():
            streamed.count_if_small()
        return streamed
    if passes.asked is not None:
        raise Refusal(
            f"{passes.asked} is for data that are read in passes: files other than xlsx, without --delimiter; got "
            f"{formats.input_name(path)}."
        )
    return tables.read(path, choice)


def _write_report(
    path: Path, table: tables.Table | sources.Streamed, fitted: components.Fitted, mixture: MultivariateNormalMixture
) -> None:
    """Write a page about a fit; the rows that fit worst are searched among all."""
    worst = WorstRows(mixture, counted_from=1) if has_density(mixture) else None
    if worst is not None:
        for rows, numbers, file in table.in_order():
            present = slice(None) if table.weights is None else table.weights > 0
            worst.add(rows[present], numbers[present], Path(file).name if table.n_files > 1 else "")

    def in_options(result: FitResult) -> FitResult:
        return replace(result, warnings=tuple(map(with_options, result.warnings)))

    x, weights = table.shown()
    write_report(
        path,
        in_options(fitted.result),
        x,
        names=table.names,
        sample_weight=weights,
        considered={k: in_options(result) for k, result in fitted.considered.items()},
        n_rows=table.n_rows,
        worst=worst,
        title=f"{Path(table.name).name}: {counted(mixture.n_components, 'component')}",
        notes=table.notes,
    )


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
