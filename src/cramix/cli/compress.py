"""`cramix compress`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import torch
import typer

import cramix
from cramix.cli import formats, measures, models
from cramix.cli.options import Json, ModelFile, ModelOut
from cramix.cli.refusal import Refusal, check_output, refusing
from cramix.cli.report import Fact, component_tables, console, show, working
from cramix.mixture.coordinates import in_coordinates


def compress(
    model: ModelFile,
    k: Annotated[int, typer.Option("-k", "--components", min=1, help="Number of components.")],
    out: Annotated[Path, ModelOut],
    json: Json = False,
) -> None:
    """Approximate a model by one with fewer components, without sampling.

    Distances are in standard deviations of the original, column by column.
    """
    check_output(out, [formats.MODEL])
    source = models.read(model)
    if k > source.mixture.n_components:
        raise Refusal(f"-k must be at most the {source.mixture.n_components} components of {model}; got {k}.")
    began = time.perf_counter()
    with working(f"Compressing {source.mixture.n_components} components to {k}"), refusing():
        small = cramix.compress(source.mixture, k)
        seconds = time.perf_counter() - began
        p, q = in_coordinates(small, torch.float64), source.in_coordinates
        scales = q.variance.sqrt()
        scales = scales.where(scales > 0, 1.0)
        scaled = measures.rescaled(p, scales), measures.rescaled(q, scales)
        distance, squared_error = measures.cramer(*scaled), measures.squared_error(*scaled)
    cramix.save(small, out, names=source.names)
    facts = [
        Fact("original", "original", model),
        Fact("original_n_components", "its components", source.mixture.n_components),
        Fact("n_components", "components", small.n_components),
        Fact("n_columns", "columns", q.dim),
        Fact(
            "unit", "unit", "standard deviations of the original", "standard deviation of each column in the original"
        ),
        Fact("c2", "Cramér distance C2", distance.value),
        Fact("ise", "squared L2 distance of densities (ISE)", squared_error),
        Fact("seconds", "seconds", round(seconds, 3)),
        Fact("model", "model", out),
        Fact("mixture", None, models.as_json(p, source.columns)),
    ]
    show(facts, as_json=json, tables=component_tables(p, source.columns, console().width))
