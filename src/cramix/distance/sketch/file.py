"""Sketches in files: safetensors, which hold numbers and words and never code."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from cramix.distance.sketch.grid import FEWEST_BINS
from cramix.tensor_files import read_tensors, write_tensors

_FORMAT = "1"


def write(path: str | os.PathLike, tensors: dict[str, Tensor]) -> None:
    """Write the tensors of a sketch; what was there before stays whole until the new file is."""
    write_tensors(path, tensors, {"cramix_sketch": _FORMAT})


def read(path: str | os.PathLike) -> dict[str, Tensor]:
    """Read the tensors of a sketch, and check that they can be one."""
    metadata, tensors = read_tensors(path)
    if (version := metadata.get("cramix_sketch", "none")) != _FORMAT:
        raise ValueError(f"{path} must hold a sketch of format {_FORMAT}; got {version}. Write it with save.")
    if (wrong := _first_wrong(tensors)) is not None:
        raise ValueError(f"{path} must hold a sketch that save has written; got {wrong}. Write it again with save.")
    return tensors


def _first_wrong(tensors: dict[str, Tensor]) -> str | None:
    """Return what makes tensors no sketch, in words; None if they are one."""
    directions, moments = tensors.get("directions"), tensors.get("moments")
    if directions is None or moments is None or directions.ndim != 2 or moments.ndim != 3:
        return "no directions and moments"
    (t, d), bins = directions.shape, moments.shape[-1]
    slices = d + t if d > 1 else 1
    shapes = {
        "directions": (t, d), "moments": (4, slices, bins), "low": (slices,), "high": (slices,),
        "count": (), "weight": (), "mean": (d,), "scatter": (d, d),
    }  # fmt: skip
    if set(tensors) != set(shapes):
        return f"the tensors {', '.join(sorted(tensors))}"
    for name, shape in shapes.items():
        dtype = torch.int64 if name == "count" else torch.float64
        if tensors[name].shape != shape or tensors[name].dtype != dtype:
            return f"{name} of shape {tuple(tensors[name].shape)} in {tensors[name].dtype}"
    if min(t, d) < 1 or bins < FEWEST_BINS:
        return f"{t} directions in {d} dimensions and {bins} bins"
    return _wrong_values(tensors)


def _wrong_values(tensors: dict[str, Tensor]) -> str | None:
    low, high, mass = tensors["low"], tensors["high"], tensors["moments"][0]
    ends = torch.stack((low, -high))
    empty = int(tensors["count"]) == 0
    finite = all(bool(tensors[name].isfinite().all()) for name in ("directions", "moments", "mean", "scatter"))
    sizes = 0 <= tensors["weight"].item() < torch.inf and int(tensors["count"]) >= 0 and bool((mass >= 0).all())
    in_order = bool((ends == torch.inf).all()) if empty else bool(ends.isfinite().all() and (low <= high).all())
    if not (finite and sizes and in_order):
        return "numbers that are not finite, negative masses or ranges that end before they begin"
    return None
