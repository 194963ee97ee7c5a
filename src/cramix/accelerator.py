"""Whether the Triton kernels can run: on a GPU, or anywhere under Triton's interpreter.

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
