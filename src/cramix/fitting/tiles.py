"""Sizes of the tiles of a fused EM step, by the size of the problem and of the device."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from cramix.accelerator import next_power_of_2
from cramix.mixture.covariance import Family

# The largest numbers of components and of dimensions for which there are tiles.
MOST_COMPONENTS, MOST_DIMENSIONS = 512, 256
# Coordinates that are computed with at a time, at most.
_PART = 64
# Numbers in a tile of responsibilities, and in one of whitened samples for all components, in float32.
_NUMBERS, _WHITENED = 1 << 14, 1 << 13
# The most samples of a block in float32: if components are whitened one at a time, and otherwise.
_ROWS, _FEW_ROWS = 128, 64
# Columns of whitened samples, in float32, up to which all components are whitened in one product.
_COLUMNS = 512
# Numbers of sums that stay in registers.
_REGISTERS = 6000
# Programs for each multiprocessor, and numbers in the sums of all programs, at most.
_PROGRAMS, _PARTIAL = 4, 1 << 27
# Shared memory of a program, in bytes, below which tiles are halved.
_SHARED = 200_000


class Tiles(NamedTuple):
    """Sizes of the tiles of a step.

    Args:
        rows: samples of a block.
        components: of a fit, padded to a power of two.
        dims: coordinates of a whitened sample, padded to a power of two.
        width: coordinates of a sample, padded to 16 at least.
        part: coordinates that are computed with at a time.
        together: whether all components are whitened, and all pairs of coordinates multiplied, in one product.
        products: of coordinates, padded.
        warps: of a program.
        stages: blocks of memory that are loaded ahead.
    """

    rows: int
    components: int
    dims: int
    width: int
    part: int
    together: bool
    products: int
    warps: int
    stages: int = 2

    @classmethod
    def of(cls, family: Family, k: int, dtype: torch.dtype, device: torch.device) -> Tiles:
        """Return the sizes for k components of a family, a dtype and a device."""
        floats = dtype.itemsize // 4
        components, dims, width = _padded(k, 16), _padded(family.dim, 4), _padded(family.dim, 16)
        aligned = family.kind.axis_aligned
        together = not aligned and dims <= 16 and components * dims * floats <= _COLUMNS
        dims = dims if together else width
        products = width if aligned else dims**2
        columns = max(components * dims, products) if together else max(components, min(width, _PART))
        numbers = (_WHITENED if together else _NUMBERS) // (2 if _has_small_memory(device) else 1)
        most = _FEW_ROWS if aligned or together else _ROWS
        rows = min(max(numbers // columns, 16 * floats), most) // floats
        warps = 8 if rows * columns * floats > _WHITENED or (width + products) * components > _REGISTERS // 2 else 4
        return cls(rows, components, dims, width, min(width, _PART), together, products, warps)

    @property
    def slots(self) -> int:
        """The number of rows of sums."""
        return self.width + self.products + 1

    @property
    def in_registers(self) -> bool:
        """Whether the sums stay in registers."""
        small = (self.width + self.products) * self.components <= _REGISTERS
        return small and self.width == self.part and (self.together or self.products == self.width)


@lru_cache(maxsize=256)
def programs_for(tiles: Tiles, batch: int, device: torch.device) -> int:
    """Return the number of programs for each fit of a batch: whole waves, and not too many sums."""
    if device.type != "cuda":
        return 1
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    numbers = batch * tiles.slots * tiles.components
    waves = min(max(_PARTIAL // (numbers * processors), 1), _PROGRAMS)
    return max(1, min(waves * processors // batch, _PARTIAL // numbers))


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
    return max(next_power_of_2(size), least)
