"""The directions of slices, as people give them: "exact", a number, or vectors of any length."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from cramix.arrays import as_tensor, check_one_device
from cramix.checks import check_finite
from cramix.torch_internals import readable


def unit_vectors(directions: Tensor) -> Tensor:
    """Return directions of length one."""
    directions = directions / directions.abs().amax(-1, keepdim=True)  # the squares of very long or short ones overflow
    return directions / torch.linalg.vector_norm(directions, dim=-1, keepdim=True)


def checked_directions(directions: Any, means: Tensor) -> Any:
    """Return "exact", a number >= 1, or a tensor of vectors `(t, d)` other than 0, in the dtype of the means."""
    dim = means.shape[-1]
    if isinstance(directions, str) and directions == "exact":
        return directions
    if isinstance(directions, Integral) and not isinstance(directions, bool) and int(directions) >= 1:
        return int(directions)
    if isinstance(directions, str | int | float | None):
        raise ValueError(
            f'directions must be "exact", a number >= 1 or a tensor (t, {dim}); got {directions!r}. '
            "See cramix.directions."
        )
    directions = as_tensor("directions", directions, means)
    check_one_device(directions=directions, means=means)
    if directions.ndim != 2 or directions.shape[1] != dim or len(directions) == 0:
        raise ValueError(
            f"directions must be (t, {dim}) with t >= 1 in {dim} dimensions; got {tuple(directions.shape)}."
        )
    if readable(directions):
        check_finite(directions=directions)
        if (empty := directions.abs().amax(-1) == 0).any():
            raise ValueError(f"directions must have a length > 0; got {int(empty.sum())} of length 0.")
    return directions.to(means.dtype)
