"""What the kernels of this room share: the size of a block, scratch memory, normalised weights, a limit for exp."""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor

# Numbers that the temporary arrays of one block hold together: on the CPU they stay in cache, a GPU needs large blocks.
_BLOCK = {"cpu": 1 << 20, "gpu": 1 << 26}
_SCRATCH = 1 << 20

# Beyond this exp(-x) underflows, which takes up to 70 times as long; kernels treat it as 0 there.
LARGEST_EXPONENT = {torch.float32: 86.0, torch.float64: 707.0}

_local = threading.local()


def block_size(device: torch.device, block: int | None = None) -> int:
    """Return how many numbers the temporary arrays of one block may hold together; `block` if that is given.

    Every kernel divides by the number and the width of its arrays. A small `block` makes a kernel use many blocks,
    with the same result.
    """
    return _BLOCK["cpu" if device.type == "cpu" else "gpu"] if block is None else block


def normalized(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights `(*batch, k)` divided by their sum along the last axis, and that sum, `(*batch, 1)`.

    Rounding keeps float32 weights from summing to one, and in an energy distance the excess would not cancel.
    """
    total = weights.sum(-1, keepdim=True)
    return weights / total, total


class Scratch:
    """Uninitialised temporary arrays; the next `Scratch` of the same thread overwrites them.

    On the CPU, allocating fresh pages takes longer than the arithmetic on them, so each thread keeps some memory.
    CUDA's allocator keeps memory itself.
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._memory = _kept().view(like.dtype) if like.is_cpu else like.new_empty(0)
        self._capacity, self._used = self._memory.numel(), 0

    def empty(self, *shape: int) -> Tensor:
        """Return an array with arbitrary contents; a newly allocated one when the scratch memory is used up."""
        start, end = self._used, self._used + math.prod(shape)
        if end > self._capacity:
            return self._like.new_empty(shape)
        self._used = end
        return self._memory[start:end].view(shape)


def _kept() -> Tensor:
    kept = getattr(_local, "memory", None)
    if kept is None:
        with torch.inference_mode(False):  # an inference tensor could not be written to outside of that mode
            kept = _local.memory = torch.empty(_SCRATCH, dtype=torch.float64)
    return kept
