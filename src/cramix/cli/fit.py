"""`cramix fit`."""

from __future__ import annotations

from enum import StrEnum
from inspect import signature
from pathlib import Path
from typing import Annotated

import torch
import typer

import cramix
from cramix import io
from cramix import plot as pictures
from cramix.atomic import replacing
from cramix.cli import models, tables
from cramix.cli.options import Columns, Components, DropMissing, Json, ModelOut, Seed
from cramix.cli.refusal import Refusal, check_output, refusing
from cramix.cli.report import Fact, show, working
from cramix.fitting import METHODS
from cramix.mixture.coordinates import in_coordinates

_PICTURES = (".png", ".pdf", ".svg")
_METHOD = signature(cramix.fit).parameters["method"].default


class Kind(StrEnum):
    """Kinds of covariances by their names in `cramix.fit`."""

    full = "full"
    tied = "tied"
    diag = "diag"
    spherical = "spherical"


def fit(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="csv, tsv, txt (white space), npy or parquet.")],
    k: Components,
    out: Annotated[Path | None, ModelOut] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw data and fit: png, pdf, svg.")
    ] = None,
    columns: Columns = None,
    covariance: Annotated[Kind, typer.Option("--covariance", help="The shape of components.")] = Kind.full,
    method: Annotated[
        str, typer.Option("--method", metavar="NAME", help=f"How to fit: {', '.join(METHODS)}.")
    ] = _METHOD,
    seed: Seed = 0,
    weights: Annotated[
        str | None, typer.Option("--weights", metavar="COLUMN", help="Column with the weights of the rows.")
    ] = None,
    reg_covar: Annotated[
        float | None,
        typer.Option("--reg-covar", help="Added to every variance. By default 1e-6 of the variance of each column."),
    ] = None,
    drop_missing: DropMissing = False,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but warnings and errors.")] = False,
) -> None:
    """Fit a Gaussian mixture to a table of numbers."""
    if out is not None:
        check_output(out, [models.SUFFIX])
        io.require_safetensors()  # now rather than after the fit
    if plot is not None:
        check_output(plot, _PICTURES)
        pictures.require_matplotlib()
    if method not in METHODS:
        raise Refusal(f"--method must be one of {', '.join(METHODS)}; got {method!r}.")
    table = tables.read(data, tables.split_names(columns), weights, drop_missing=drop_missing)
    n, d = table.rows.shape
    if k > n:
        raise Refusal(f"-k must be at most the {n} rows of {data}; got {k}.")
    with working(f"Fitting {k} components to {n} rows", quiet=quiet) as say, refusing():
        result = cramix.fit(
            table.rows,
            k,
            method=method,
            covariance_type=covariance.value,
            sample_weight=table.weights,
            reg_covar=reg_covar,
            generator=torch.Generator().manual_seed(seed),
            progress=lambda step: say(f"{step.name}, {step.n_components} components"),
        )
    if out is not None:
        cramix.save(result.mixture, out, names=table.names)
    if plot is not None:
        figure = pictures.mixture_and_points(result.mixture, table.rows, weights=table.weights, names=table.names)
        with replacing(plot) as file:
            figure.savefig(file, format=plot.suffix[1:].lower(), dpi=150)
    facts = [
        Fact("data", "data", data),
        Fact("k", "components", result.mixture.n_components),
        Fact("n", "rows", n),
        Fact("dropped", "rows dropped" if table.dropped else None, table.dropped),
        Fact("d", "columns", d, f"{d} ({', '.join(table.names)})" if d <= 8 else None),
        Fact("columns", None, list(table.names)),
        Fact("covariance", "covariance", covariance.value),
        Fact("method", "method", method),
        Fact("seed", "seed", seed),
        Fact("mean_log_likelihood", "mean log likelihood", result.log_likelihood),
        Fact("bic", "BIC", result.bic),
        Fact("aic", "AIC", result.aic),
        Fact("converged", None, result.converged),
        Fact("stopped", "stopped", result.reason),
        Fact("collapsed", "collapsed components" if result.collapsed else None, result.collapsed),
        Fact("seconds", "seconds", round(result.seconds, 3)),
        Fact("model", "model", out),
        Fact("plot", "picture", plot),
    ]
    show(facts, as_json=json, quiet=quiet, model=(in_coordinates(result.mixture), table.names))
