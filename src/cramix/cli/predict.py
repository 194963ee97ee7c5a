"""`cramix predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from cramix.cli import formats, measures, models, tables, writers
from cramix.cli.options import Columns, DataFile, Delimiter, SkipBad, Json, ModelFile, Quiet
from cramix.cli.refusal import Refusal, refusing
from cramix.cli.report import Fact, print_lines, show, working
from cramix.distance.likelihood import log_density


def predict(
    model: ModelFile,
    data: DataFile,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Result: csv, tsv, npy or parquet; - prints csv.")
    ] = formats.STANDARD,
    outliers: Annotated[
        float,
        typer.Option(
            "--outliers", metavar="FRACTION", help="Fraction of the model's own samples that count as outliers."
        ),
    ] = 0.01,
    columns: Columns = None,
    skip_bad: SkipBad = False,
    delimiter: Delimiter = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Assign rows of data to the components of a model, and find outliers.

    Writes for each row its number in the data (from 1), the label of its most probable component (from 0), the
    probability of each component, the log density, and 1 for outliers: rows whose log density is lower than that of all
    but a fraction of samples from the model. The model's columns are found in the data by name.
    """
    if not 0 < outliers < 1:
        raise Refusal(f"--outliers must be a fraction between 0 and 1; got {outliers:g}.")
    writers.check_rows_output(out, as_json=json)
    source = models.read(model)
    mixture = source.in_coordinates
    if not measures.has_density(mixture):
        raise Refusal(f"{model} has no density, because a covariance is singular.")
    chosen = tables.split_names(columns)
    choice = tables.Choice(chosen, skip_bad=skip_bad, delimiter=delimiter)
    table = tables.read(data, choice, like=source.columns)
    if len(table.names) != mixture.dim:
        raise Refusal(f"--columns must name the {mixture.dim} columns of {model}; got {len(table.names)}.")
    print_lines("note", table.notes)
    with working(f"Assigning {len(table.rows)} rows", quiet=quiet), refusing():
        threshold = measures.density_threshold(mixture, outliers)
        log_densities = log_density(mixture, table.rows).numpy()
        probabilities = mixture.responsibilities(table.rows).numpy()
    labels, flags = probabilities.argmax(1), log_densities < threshold
    result = {
        "row": table.numbers.numpy(),
        "label": labels,
        **{f"probability_{i}": column for i, column in enumerate(probabilities.T)},
        "log_density": log_densities,
        "outlier": flags.astype(np.int64),
    }
    writers.write(result, out)
    if out == formats.STANDARD:
        return
    counts = np.bincount(labels, minlength=mixture.n_components).tolist()
    facts = [
        Fact("model", "model", model),
        Fact("data", "data", formats.input_name(data)),
        Fact("n_rows", "rows", len(labels)),
        Fact("skipped", "rows skipped" if table.skipped else None, table.skipped),
        Fact("rows_by_label", "rows by label", counts, ", ".join(f"{i}: {count}" for i, count in enumerate(counts))),
        Fact("mean_log_likelihood", "mean log likelihood", float(log_densities.mean())),
        Fact(
            "outliers",
            "outliers",
            int(flags.sum()),
            f"{flags.sum()} ({flags.mean():.1%}; expected {100 * outliers:.3g}%)",
        ),
        Fact("threshold", "log density of outliers", threshold, f"below {threshold:.6g}"),
        Fact("out", "result", out),
    ]
    show(facts, as_json=json, quiet=quiet)
