"""`cramix compress`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import torch

import cramix
from cramix.cli import measures, models
from cramix.cli.options import Components, Json, ModelFile, ModelOut
from cramix.cli.refusal import Refusal, check_output, refusing
from cramix.cli.report import Fact, show, working
from cramix.mixture.coordinates import in_coordinates


def compress(model: ModelFile, k: Components, out: Annotated[Path, ModelOut], json: Json = False) -> None:
    """Make a model with fewer components that stays as close to the original as it can, without sampling."""
    check_output(out, [models.SUFFIX])
    source = models.read(model)
    if k > source.mixture.n_components:
        raise Refusal(f"-k must be at most the {source.mixture.n_components} components of {model}; got {k}.")
    began = time.perf_counter()
    with working(f"Compressing {source.mixture.n_components} components to {k}"), refusing():
        small = cramix.compress(source.mixture, k)
        seconds = time.perf_counter() - began
        p, q = (in_coordinates(mixture, torch.float64) for mixture in (small, source.mixture))
        distance, squared_error = measures.cramer(p, q), measures.squared_error(p, q)
    cramix.save(small, out, names=source.names)
    facts = [
        Fact("original", "original", model),
        Fact("original_k", "its components", source.mixture.n_components),
        Fact("k", "components", small.n_components),
        Fact("d", "columns", q.dim),
        Fact("c2", "Cramér distance C2", distance.value),
        Fact("ise", "squared L2 distance of densities (ISE)", squared_error),
        Fact("seconds", "seconds", round(seconds, 3)),
        Fact("model", "model", out),
    ]
    show(facts, as_json=json, model=(p, source.columns))
