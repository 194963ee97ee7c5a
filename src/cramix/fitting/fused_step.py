"""EM steps on a GPU by Triton kernels: three launches, no array of features or responsibilities, no synchronisation.

A log density comes from a whitened sample `z = x W - b`, not from products of features as in `Data.expect`. In float32
the error of z is some 1e-7 of the distance from the origin in standard deviations of the component. With products of
features, the error of the log density itself is 1e-7 of the square of that distance. Sums over a block of samples are
in the dtype of the step, sums of blocks in float64.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import lru_cache

import torch
import triton.language as tl
from torch import Tensor

from cramix.accelerator import cdiv
from cramix.fitting.features import LEAST_WEIGHT
from cramix.fitting.tiles import Tiles, dot_precision, programs_for
from cramix.fitting.triton_densities import aligned_densities, dense_densities
from cramix.fitting.triton_sums import collect, expect
from cramix.mixture.covariance import Family, Prior, Spherical, Tied
from cramix.mixture.covariance.cholesky import fitted_factors

# Up to this many dimensions a kernel inverts Cholesky factors, beyond it torch does.
_SMALL_MATRIX = 64
# Blocks whose sums are added in the dtype before they are added in float64.
_GROUP = 16
# Sums of programs that are added at a time, and as how many columns.
_PART, _COLUMNS = 32, 128
_TYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


class FusedStep:
    """EM steps for samples, with one kind of covariances.

    Args:
        family: the kind.
        x: samples `(n, d)`.
        dtype: of everything but parameters and the sums of blocks.
        precision: of products of matrices in float32: "tf32x3", on tensor cores, or "ieee". None for what is faster.
        tiles: their sizes; None for those that suit the problem and the device.
        programs: their number; None for as many as fill the device.
    """

    def __init__(
        self,
        family: Family,
        x: Tensor,
        dtype: torch.dtype,
        precision: str | None = None,
        tiles: Tiles | None = None,
        programs: int | None = None,
    ) -> None:
        self.family, self.dtype, self._tiles, self._programs = family, dtype, tiles, programs
        self.x = x.to(dtype).contiguous()  # read twice in each step
        self._precision = precision or dot_precision(x.device, dtype)
        self._floor = x.new_ones(family.dim, dtype=torch.float64) * family.floor

    def __call__(self, sums: Tensor, weights: Tensor, prior: Prior | None = None) -> tuple[Tensor, Tensor]:
        """Return the sums `(B, k, F)` after one EM step, and the mean log likelihood before it, `(B,)`.

        Args:
            sums: of the fits, `(B, k, F)`.
            weights: of the samples, `(n,)` or `(B, n)`, which sum to one.
            prior: pseudo-samples that every component has in addition to its data.
        """
        with torch.cuda.device_of(self.x) if self.x.is_cuda else nullcontext():
            sums = sums.contiguous()
            tiles = self._tiles or Tiles.of(self.family, sums.shape[1], self.dtype, self.x.device)
            large = not self.family.kind.axis_aligned and self.family.dim > _SMALL_MATRIX
            densities = self._large_densities if large else self._densities
            return self._summed(sums, weights, tiles, *densities(sums, prior, tiles))

    def _densities(self, sums: Tensor, prior: Prior | None, tiles: Tiles) -> tuple[Tensor, Tensor, Tensor]:
        """Return whitening matrices or inverse scales, offsets or means, and log densities at the means, `(B, k)`."""
        family, (batch, k, count) = self.family, sums.shape
        shape = (batch, tiles.dims, tiles.components)
        strengths, moments = sums, sums  # any memory will do without a prior
        if prior is not None:
            strengths = prior.weight.contiguous()
            moments = sums if prior.moments is None else prior.moments.contiguous()
        common = {
            "PRIOR": prior is not None,
            "POOLED": prior is not None and prior.moments is None,
            "DTYPE": _TYPES[self.dtype],
            "K": tiles.components,
            "D": tiles.dims,
        }
        strides = int(len(strengths) > 1), moments.shape[-1] if moments.ndim == 3 and len(moments) > 1 else 0
        numbers = k, family.dim, count, *strides
        constants = sums.new_empty(batch, k)
        if family.kind.axis_aligned:
            scales, means = sums.new_empty(2, *shape, dtype=self.dtype)
            aligned_densities[(batch * k,)](
                *(sums, strengths, moments, self._floor, scales, means, constants, *numbers),
                SPHERICAL=family.kind is Spherical,
                **common,
                num_warps=1,
            )
            return scales, means, constants
        whitening = sums.new_empty(batch, k, tiles.dims, tiles.dims, dtype=self.dtype)
        offsets = sums.new_empty(batch, k, tiles.dims, dtype=self.dtype)
        dense_densities[(batch * k,)](
            *(sums, strengths, moments, self._floor, whitening, offsets, constants, *numbers),
            family.rounding,
            TIED=family.kind is Tied,
            **common,
            num_warps=1 if tiles.dims <= 16 else 4,
        )
        return whitening, offsets, constants

    def _large_densities(self, sums: Tensor, prior: Prior | None, tiles: Tiles) -> tuple[Tensor, Tensor, Tensor]:
        """Do what `_densities` does for large matrices, by torch."""
        d, (batch, k, _) = self.family.dim, sums.shape
        weights, means, values = self.family.parameters(sums, prior)
        lower = fitted_factors(self.family.kind(values).compact().expand(batch, k, d, d))
        identity = torch.eye(d, dtype=sums.dtype, device=sums.device)
        inverse = torch.linalg.solve_triangular(lower, identity, upper=False)
        whitening = sums.new_zeros(batch, k, tiles.dims, tiles.dims, dtype=self.dtype)
        whitening[..., :d, :d] = inverse.mT
        offsets = sums.new_zeros(batch, k, tiles.dims, dtype=self.dtype)
        offsets[..., :d] = (inverse @ means.unsqueeze(-1)).squeeze(-1)
        volume = lower.diagonal(dim1=-2, dim2=-1).log().sum(-1) + 0.5 * d * math.log(2 * math.pi)
        return whitening, offsets, (weights.log() - volume).contiguous()

    def _summed(
        self, old: Tensor, weights: Tensor, tiles: Tiles, whitening: Tensor, offsets: Tensor, constants: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the sums over all samples, and the mean log likelihood."""
        (n, d), (batch, k, count) = self.x.shape, old.shape
        blocks = cdiv(n, tiles.rows)
        each = cdiv(blocks, self._programs or programs_for(tiles, batch, self.x.device))
        programs = cdiv(blocks, each)  # none is without a block
        weights = weights if weights.stride(-1) == 1 else weights.contiguous()
        partial = old.new_empty(programs, batch, tiles.slots, tiles.components)
        likelihoods = old.new_empty(programs, batch)
        recent = partial if tiles.in_registers else torch.empty_like(partial, dtype=self.dtype)
        expect[(programs, batch)](
            *(self.x, weights, whitening, offsets, constants),
            *(recent, partial, likelihoods, n, d, k, tiles.slots, blocks, each),
            weights.stride(0) if weights.ndim == 2 and len(weights) > 1 else 0,
            ALIGNED=self.family.kind.axis_aligned,
            TOGETHER=tiles.together,
            IN_REGISTERS=tiles.in_registers,
            PRECISION=self._precision,
            DTYPE=_TYPES[self.dtype],
            ROWS=tiles.rows,
            K=tiles.components,
            D=tiles.dims,
            WIDTH=tiles.width,
            PART=tiles.part,
            GROUP=_GROUP,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )
        sums, likelihood = torch.empty_like(old), old.new_empty(batch)
        rows = _rows(self.family.kind.axis_aligned, d, tiles, self.x.device)
        collect[(cdiv(count * tiles.components, _COLUMNS), batch)](
            *(partial, likelihoods, rows, old, sums, likelihood, programs, n, k, count, tiles.slots),
            LEAST=LEAST_WEIGHT,
            K=tiles.components,
            COLUMNS=_COLUMNS,
            PART=_PART,
            num_warps=4,
        )
        return sums, likelihood


@lru_cache(maxsize=64)
def _rows(aligned: bool, d: int, tiles: Tiles, device: torch.device) -> Tensor:
    """Return the row of the kernel's sums that holds each feature, `(F,)`."""
    one = torch.tensor([d if d < tiles.width else tiles.slots - 1])
    row, column = torch.triu_indices(d, d)
    products = torch.arange(d) if aligned else tiles.dims * row + column
    return torch.cat((one, torch.arange(d), tiles.width + products)).to(device, torch.int32)
