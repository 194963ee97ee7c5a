"""Sizes of the tiles of a fused EM step, by the size of the problem and of the device."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from cramix.mixture.covariance import Family

# The largest numbers of components and of dimensions for which there are tiles.
MOST_COMPONENTS, MOST_DIMENSIONS = 512, 256
# Features of a tile at most.
FEATURES = 64
# Numbers in a tile of responsibilities, and in one of whitened samples for all components, in float32.
_NUMBERS, _WHITENED = 1 << 14, 1 << 13
# Columns of whitened samples, in float32, up to which all components are whitened in one product.
_COLUMNS = 512
# Numbers of sums that stay in registers.
_REGISTERS = 1 << 12
# Programs for each multiprocessor.
_PROGRAMS = 4
# Shared memory of a program, in bytes, below which tiles are halved.
_SHARED = 200_000


class Tiles(NamedTuple):
    """Sizes of the tiles of a step.

    Args:
        rows: samples of a block.
        components: of a fit, padded to a power of two.
        dims: coordinates, padded to a power of two.
        part: coordinates that are whitened at a time.
        together: whether all components are whitened in one product.
        features: of a tile.
        warps: of a program.
        stages: blocks of memory that are loaded ahead.
    """

    rows: int
    components: int
    dims: int
    part: int
    together: bool
    features: int
    warps: int
    stages: int = 2

    @classmethod
    def of(cls, family: Family, k: int, dtype: torch.dtype, device: torch.device) -> Tiles:
        """Return the sizes for k components of a family, a dtype and a device."""
        floats = dtype.itemsize // 4
        components, dims = _padded(k, 16), _padded(family.dim, 2)
        together = not family.kind.axis_aligned and dims <= 16 and components * dims * floats <= _COLUMNS
        if not together:
            dims = max(dims, 16)
        width = components * dims if together else max(components, min(dims, 64))
        numbers = (_WHITENED if together else _NUMBERS) // (2 if _has_small_memory(device) else 1)
        rows = min(max(numbers // floats // width, 16), 128)
        part = max(dims, 16) if together else min(dims, 64)
        features = min(_padded(family.count, 16), FEATURES)
        return cls(rows, components, dims, part, together, features, 8 if rows * width * floats > 1 << 13 else 4)

    def keeps_sums(self, count: int) -> bool:
        """Return whether the sums of so many features stay in registers."""
        return count <= self.features and self.features * self.components <= _REGISTERS


@lru_cache(maxsize=32)
def programs_of(device: torch.device) -> int:
    """Return the number of programs that fill a device."""
    if device.type != "cuda":
        return 1
    return _PROGRAMS * torch.cuda.get_device_properties(device).multi_processor_count


@lru_cache(maxsize=32)
def dot_precision(device: torch.device, dtype: torch.dtype) -> str:
    """Return the fastest precision of products of matrices that keeps the digits of a dtype."""
    if dtype != torch.float32 or device.type != "cuda" or torch.version.hip:
        return "ieee"
    return "tf32x3" if torch.cuda.get_device_capability(device) >= (8, 0) else "ieee"


@lru_cache(maxsize=32)
def _has_small_memory(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    return getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0) < _SHARED


def _padded(size: int, least: int) -> int:
    """Return the power of two that is not below a size and a least one."""
    return max(1 << (size - 1).bit_length(), least)
