"""What a sketch is given: directions, batches of rows, and sketches to compare it with, read and checked."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cramix import directions as schemes
from cramix.arrays import as_tensor
from cramix.checks import check_finite, check_nonnegative
from cramix.distance.slices import checked_directions, unit_vectors

if TYPE_CHECKING:
    from cramix.distance.sketch.sketch import SliceSketch

# The squares of larger numbers overflow.
_LARGEST = 1e150


def read_directions(directions: Any, dim: int, seed: int) -> Tensor:
    """Return unit vectors `(t, d)` in float64 on the CPU."""
    if isinstance(directions, Integral) and not isinstance(directions, bool) and int(directions) >= 1:
        return schemes.reproducible(int(directions) if dim > 1 else 1, dim, seed=seed, dtype=torch.float64)
    if isinstance(directions, str | int | float | None):
        raise ValueError(f"directions must be a number >= 1 or a tensor (t, {dim}); got {directions!r}.")
    vectors = checked_directions(directions, torch.empty(0, dim, dtype=torch.float64))
    return unit_vectors(vectors.detach()) if dim > 1 else torch.ones(1, 1, dtype=torch.float64)


def read_batch(batch: Any, sample_weight: Any, dim: int) -> tuple[Tensor, Tensor | None]:
    """Return rows `(n, d)`, and their weights `(n,)` or None; values are not checked."""
    x = as_tensor("batch", batch).detach()
    if x.ndim == 1 and dim == 1:
        x = x.unsqueeze(-1)
    if x.ndim != 2 or x.shape[1] != dim:
        raise ValueError(f"batch must have shape (n, {dim}); got {tuple(x.shape)}.")
    weights = None if sample_weight is None else as_tensor("sample_weight", sample_weight, x).detach()
    if weights is not None and weights.shape != x.shape[:1]:
        raise ValueError(f"sample_weight must have shape ({len(x)},); got {tuple(weights.shape)}.")
    return x, weights


def check_values(x: Tensor, weights: Tensor | None) -> None:
    """Raise a ValueError for rows or weights that cannot be added."""
    if x.numel():
        least, most = torch.stack(x.aminmax()).tolist()
        if not -_LARGEST <= least <= most <= _LARGEST:
            check_finite(batch=x)
            raise ValueError(f"batch must be at most {_LARGEST:g} in size; got {max(-least, most):.3g}. Rescale it.")
    if weights is not None:
        check_nonnegative(sample_weight=weights)


def check_alike(p: SliceSketch, q: SliceSketch, both: str) -> None:
    """Raise a ValueError unless two sketches have the same columns, directions and bins."""
    if p.dim != q.dim:
        raise ValueError(f"{both} must have as many columns; got {p.dim} and {q.dim}.")
    a, b = p.directions, q.directions
    # Rounding may differ between machines.
    if a.shape != b.shape or not torch.allclose(a, b, rtol=0, atol=1e-9):
        got = f"{len(a)} and {len(b)}" if len(a) != len(b) else "others"
        raise ValueError(f"{both} must have the same directions; got {got}. Make both with the same arguments.")
    if p.bins != q.bins:
        raise ValueError(
            f"{both} must have as many bins; got {p.bins} and {q.bins}. Make both with the same arguments."
        )
