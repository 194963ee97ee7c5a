"""`cramix predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from cramix.cli import formats, measures, models, sources, tables, writers
from cramix.cli.options import Columns, DataFile, Delimiter, Json, ModelFile, Quiet, SkipBad
from cramix.cli.refusal import Refusal, refusing
from cramix.cli.report import Fact, counted, print_lines, show, working
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

    Folders, patterns, Arrow files and files of 256 MB or more need not fit into memory: results are written as rows are
    read, and a file appears when it is complete. Rows are numbered over all files, in the order of their names.
    """
    if not 0 < outliers < 1:
        raise Refusal(f"--outliers must be a fraction between 0 and 1; got {outliers:g}.")
    writers.check_rows_output(out, as_json=json)
    source = models.read(model)
    mixture = source.in_coordinates
    if not measures.has_density(mixture):
        raise Refusal(f"{model} has no density, because a covariance is singular.")
    choice = tables.Choice(tables.split_names(columns), skip_bad=skip_bad, delimiter=delimiter)
    reader = sources if sources.in_parts(data, delimiter) else tables
    table = reader.read(data, choice, like=source.columns)
    if len(table.names) != mixture.dim:
        raise Refusal(f"--columns must name the {mixture.dim} columns of {model}; got {len(table.names)}.")
    print_lines("note", table.notes)
    about = formats.input_name(data) if table.n_rows is None else counted(table.n_rows, "row")
    with working(f"Assigning {about}", quiet=quiet) as update, refusing(), writers.writing(out) as add:
        threshold = measures.density_threshold(mixture, outliers)
        tally = _Tally(mixture.n_components)
        for some in table.in_order():
            log_densities = log_density(mixture, some.rows).numpy()
            probabilities = mixture.responsibilities(some.rows).numpy()
            labels, flags = probabilities.argmax(1), log_densities < threshold
            add(
                {
                    "row": some.numbers.numpy(),
                    "label": labels,
                    **{f"probability_{i}": column for i, column in enumerate(probabilities.T)},
                    "log_density": log_densities,
                    "outlier": flags.astype(np.int64),
                }
            )
            tally.add(labels, log_densities, flags)
            update(f"{tally.n_rows:,} rows")
    if out == formats.STANDARD:
        return
    counts = tally.by_label.tolist()
    facts = [
        Fact("model", "model", model),
        Fact("data", "data", formats.input_name(data)),
        Fact("n_rows", "rows", tally.n_rows),
        Fact("skipped", "rows skipped" if table.skipped else None, table.skipped),
        Fact("rows_by_label", "rows by label", counts, ", ".join(f"{i}: {count}" for i, count in enumerate(counts))),
        Fact("mean_log_likelihood", "mean log likelihood", tally.log_likelihood / tally.n_rows),
        Fact(
            "outliers",
            "outliers",
            tally.outliers,
            f"{tally.outliers} ({tally.outliers / tally.n_rows:.1%}; expected {100 * outliers:.3g}%)",
        ),
        Fact("threshold", "log density of outliers", threshold, f"below {threshold:.6g}"),
        Fact("out", "result", out),
    ]
    show(facts, as_json=json, quiet=quiet)


class _Tally:
    """What is reported of all rows, added up over those that are written at a time."""

    def __init__(self, n_components: int) -> None:
        self.by_label = np.zeros(n_components, np.int64)
        self.n_rows = self.outliers = 0
        self.log_likelihood = 0.0

    def add(self, labels: np.ndarray, log_densities: np.ndarray, flags: np.ndarray) -> None:
        """Add some rows."""
        self.by_label += np.bincount(labels, minlength=len(self.by_label))
        self.n_rows += len(labels)
        self.outliers += int(flags.sum())
        self.log_likelihood += float(log_densities.sum())
