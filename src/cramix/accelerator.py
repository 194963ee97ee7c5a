"""Whether the Triton kernels can run: on a GPU, or anywhere under Triton's interpreter. And sizes of their blocks.

Triton comes with torch's builds for CUDA and ROCm. It is imported only where a kernel is used.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

from torch import Tensor

# Looked up here, because torch's compiler cannot trace the search for a module.
_HAS_TRITON = find_spec("triton") is not None


def has_triton() -> bool:
    """Return whether Triton is installed."""
    return _HAS_TRITON


def runs_triton(x: Tensor) -> bool:
    """Return whether kernels written in Triton are the fastest way to compute with a tensor: it is on a GPU."""
    return x.is_cuda and has_triton()


def is_interpreted() -> bool:
    """Return whether Triton interprets its kernels in Python, on any device, which is slow and for tests only."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def cdiv(count: int, size: int) -> int:
    """Return how many blocks of a size hold so many elements; Triton's own function takes a microsecond a call."""
    return -(-count // size)


def next_power_of_2(size: int) -> int:
    """Return the power of two that is not below a positive number."""
    return 1 << (size - 1).bit_length()
