"""Directions given by a user: checked at the door, and brought to length one."""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor

from cramix.checks import check_finite, check_floating
from cramix.torch_internals import readable


def unit_vectors(directions: Tensor) -> Tensor:
    """Return directions of length one."""
    directions = directions / directions.abs().amax(-1, keepdim=True)  # the squares of very long or short ones overflow
    return directions / torch.linalg.vector_norm(directions, dim=-1, keepdim=True)


def check_directions(directions: str | int | Tensor, means: Tensor) -> None:
    """Require "exact", a number >= 1, or vectors `(t, d)` that have a direction."""
    dim = means.shape[-1]
    if not isinstance(directions, Tensor):
        number = isinstance(directions, Integral) and not isinstance(directions, bool) and directions >= 1
        if not number and not (isinstance(directions, str) and directions == "exact"):
            got = repr(directions) if isinstance(directions, str | int | float | None) else type(directions).__name__
            raise ValueError(
                f'directions must be "exact", a number >= 1 or a tensor (t, {dim}); got {got}. See cramix.directions.'
            )
        return
    check_floating(directions=directions, means=means)
    if directions.ndim != 2 or directions.shape[1] != dim or len(directions) == 0:
        raise ValueError(
            f"directions must be (t, {dim}) with t >= 1 in {dim} dimensions; got {tuple(directions.shape)}. "
            "See cramix.directions."
        )
    if readable(directions):
        check_finite(directions=directions)
        if (empty := directions.abs().amax(-1) == 0).any():
            raise ValueError(f"directions must have a length > 0; got {int(empty.sum())} of length 0. Drop them.")
