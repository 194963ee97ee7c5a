"""Memory for temporary arrays that a thread keeps on the CPU.

Getting fresh memory from the system page by page takes longer than the arithmetic on it. CUDA's allocator keeps memory
by itself.
"""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor

_NUMBERS = 1 << 20  # in float64, eight megabytes

_local = threading.local()


class Scratch:
    """Arrays to be overwritten, all of them again by the next `Scratch` of the thread."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._memory = _kept().view(like.dtype) if like.is_cpu else like.new_empty(0)
        self._room, self._taken = self._memory.numel(), 0

    def empty(self, *shape: int) -> Tensor:
        """Return an array with any content; a fresh one where there is no room left."""
        start, end = self._taken, self._taken + math.prod(shape)
        if end > self._room:
            return self._like.new_empty(shape)
        self._taken = end
        return self._memory[start:end].view(shape)


def _kept() -> Tensor:
    kept = getattr(_local, "memory", None)
    if kept is None:
        with torch.inference_mode(False):  # an inference tensor could not be written to outside of that mode
            kept = _local.memory = torch.empty(_NUMBERS, dtype=torch.float64)
    return kept
