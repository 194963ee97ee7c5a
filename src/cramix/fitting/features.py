"""Weighted data as features of a covariance family: what the likelihood needs of them, for many fits at once."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from cramix.accelerator import runs_triton
from cramix.fitting.tiles import MOST_COMPONENTS, MOST_DIMENSIONS
from cramix.mixture.covariance import DenseFamily, Family, Prior

if TYPE_CHECKING:
    from cramix.fitting.fused_step import FusedStep

# Features of all samples up to which data are small: one thread and float64 then take hardly more time than two threads
# and float32.
_SMALL = 1 << 18
# Responsibilities, and numbers of the samples, that are computed with at a time.
_BLOCK = _NUMBERS = 1 << 20
# The same on a GPU, which is busy with large blocks only.
_GPU_BLOCK = 1 << 25
# Samples whose products are summed up at a time for their covariance.
_COVARIANCE_ROWS = 1 << 16
# Up to this many bytes the features of all samples are cached; otherwise they are recomputed for each block.
_CACHED = 1 << 25
# If features are not cached, products with the samples themselves are faster for up to this many components times the
# number of dimensions.
_FEW_COMPONENTS = 0.25
# How few components of all fits are few for a product with features, and in comparison with these.
_FEW, _FEW_OF_FEATURES = 16, 3
# In float64 steps are fused for up to this many features. Beyond, the matrix products of torch are faster.
_FUSED_DOUBLE = 128
# From this many features of all samples on, data are large for a GPU: steps in float32 are much faster.
_LARGE = 1 << 23
# A component that loses all its samples keeps this weight, its mean and its covariance.
LEAST_WEIGHT = 1e-12
# Log responsibilities are clamped here: processors are slow on subnormal numbers.
_LEAST_LOG = -80.0


def is_small(n: int, family: Family) -> bool:
    """Return whether a step over n samples takes mostly the time to start its operations."""
    return n * family.count <= _SMALL


def without_empty(new: Tensor, sums: Tensor) -> Tensor:
    """Return sums `(B, k, F)` after a step in which components that have lost all their samples keep their shape."""
    return torch.where(new[..., :1] < LEAST_WEIGHT, LEAST_WEIGHT / sums[..., :1] * sums, new)


class Data:
    """Samples with weights that sum to one, as features of a family.

    If the target is a mixture, the features of a component are their expectations under it. The likelihood is then a
    lower bound: that of samples for which all samples of one component share their responsibilities.

    A log density is a sum of products of features, so its rounding error grows with the square of the distance to the
    origin in standard deviations of the narrowest component: pass standardised data.

    Args:
        family: the kind of covariances, which defines the features.
        x: samples `(n, d)`, or the means of components, in float64.
        weights: `(n,)`, or one for each fit, `(B, n)`, with any positive sum.
        covariances: of components, `(n or 1, d, d)`; None for samples.
        dtype: of the sums over samples. Parameters are always computed in float64.
        block: responsibilities that are computed at a time; None for as many as suit the device.
    """

    def __init__(
        self,
        family: Family,
        x: Tensor,
        weights: Tensor,
        covariances: Tensor | None = None,
        dtype: torch.dtype = torch.float64,
        block: int | None = None,
    ) -> None:
        self.family, self.x, self.covariances, self.dtype = family, x, covariances, dtype
        self._block = block or (_GPU_BLOCK if x.is_cuda else _BLOCK)
        self.weights = weights / weights.sum(-1, keepdim=True)

    def __len__(self) -> int:
        return len(self.x)

    def like(self, rows: Tensor | None = None, dtype: torch.dtype = torch.float64) -> Data:
        """Return some of the samples with equal weights, or all samples as they are, with sums in a dtype."""
        # A variance below the rounding of features in this dtype would make log densities meaningless.
        floor = torch.as_tensor(self.family.floor, dtype=torch.float64).clamp_min(8 * torch.finfo(dtype).eps)
        family = type(self.family)(self.family.dim, floor if floor.ndim else floor.item(), dtype)
        if rows is None:
            return Data(family, self.x, self.weights, self.covariances, dtype)
        shared = self.covariances is None or len(self.covariances) == 1
        covariances = self.covariances if shared else self.covariances[rows]  # type: ignore[index]
        return Data(family, self.x[rows], torch.ones_like(self.weights[rows]), covariances, dtype)

    @property
    def is_large(self) -> bool:
        """Whether a step on a GPU takes longer than the host waits for its result."""
        return len(self) * self.family.count >= _LARGE

    @property
    def in_single(self) -> Data | None:
        """The same data with sums over blocks of samples in float32; None where steps would hardly be faster."""
        if self.dtype == torch.float32 or not self.is_large or not self.x.is_cuda:
            return None
        other = copy(self)
        other.dtype = torch.float32
        for cached in ("_all", "_fused"):
            other.__dict__.pop(cached, None)
        return None if other._fused is None else other

    def weighted(self, weights: Tensor) -> Data:
        """Return the same samples with other weights, `(n,)` or `(B, n)`."""
        if self._is_cached:
            _ = self._all  # the copy shares the features
        _ = self._fused
        other = copy(self)
        other.weights = weights / weights.sum(-1, keepdim=True)
        return other

    def resample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """Return the indices of n samples, drawn by their weights with stratification."""
        # One at random from each of n strata: at equal steps the draw could follow a period in the order of the data.
        within = torch.rand(n, generator=generator, dtype=self.x.dtype, device=self.x.device)
        levels = (torch.arange(n, dtype=self.x.dtype, device=self.x.device) + within) / n
        return torch.searchsorted(self.weights.cumsum(0), levels).clamp_max(len(self) - 1)

    @property
    def covariance(self) -> Tensor:
        """Return the covariance matrix of all data, `(d, d)`, or `(B, d, d)` if fits have weights of their own."""
        weights = self.weights.unsqueeze(-1)
        mean = self.weights.unsqueeze(-2) @ self.x  # (1, d) or (B, 1, d)
        between = torch.zeros_like(mean.mT @ mean)
        for w, x in zip(weights.split(_COVARIANCE_ROWS, -2), self.x.split(_COVARIANCE_ROWS), strict=True):
            offset = x - mean
            between += (w * offset).mT @ offset
        if self.covariances is None:
            return between
        return between + (weights.unsqueeze(-1) * self.covariances).sum(-3)

    def sums(self, responsibilities: Tensor) -> Tensor:
        """Return the sums of features `(B, k, F)` for responsibilities `(B, k, n)`."""
        batch, k, _ = responsibilities.shape
        shares = (responsibilities * self.weights.unsqueeze(-2)).to(self.dtype).flatten(0, 1)
        pairs = zip(shares.split(self._rows(batch * k), -1), self._parts(batch * k), strict=True)
        return sum(part.sums(share).double() for share, (part, _) in pairs).view(batch, k, -1)  # type: ignore[union-attr]

    def step(self, sums: Tensor, prior: Prior | None = None) -> tuple[Tensor, Tensor]:
        """Return the sums `(B, k, F)` after one EM step, and the mean log likelihood before it, `(B,)`."""
        if self._fused is not None and sums.shape[-2] <= MOST_COMPONENTS:
            return self._fused(sums, self.weights, prior)
        new, likelihood = self.expect(self.family.coefficients(*self.family.parameters(sums, prior)))
        return without_empty(new, sums), likelihood

    def expect(self, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of features weighted by responsibilities, and the mean log likelihood, `(B,)`.

        These sums are also the derivative of the likelihood in the coefficients of the log densities, `(B, k, F)`.
        """
        batch, k, count = coefficients.shape
        new, likelihood = coefficients.new_zeros(batch * k, count), coefficients.new_zeros(batch)
        for part, weights, shares, total, top in self._joint(coefficients):
            likelihood += ((top + total.log()).squeeze(-2).double() * weights).sum(-1)
            new += part.sums(shares.mul_(weights.to(self.dtype).unsqueeze(-2) / total).flatten(0, 1)).double()
        new = new.view(batch, k, count)
        if self.dtype != torch.float64:  # the likelihood of coefficients that are not rounded, by its derivative
            likelihood += (new * (coefficients - coefficients.to(self.dtype).double())).sum((-2, -1))
        return new, likelihood

    def log_densities(self, coefficients: Tensor) -> Tensor:
        """Return the log density of each fit at each sample, `(B, n)`."""
        parts = [(top + total.log()).squeeze(-2) for *_, total, top in self._joint(coefficients)]
        return torch.cat(parts, -1).double()

    def responsibilities(self, coefficients: Tensor) -> Tensor:
        """Return the responsibilities of the components for each sample, `(B, k, n)`."""
        return torch.cat([shares / total for _, _, shares, total, _ in self._joint(coefficients)], -1).double()

    def _joint(self, coefficients: Tensor) -> Iterator[tuple[_Part, Tensor, Tensor, Tensor, Tensor]]:
        """Yield blocks of samples and their weights with the joint densities, `(B, k, rows)`.

        Densities are relative to the largest of a sample; their totals and the log of the largest are `(B, 1, rows)`.
        """
        batch, k, _ = coefficients.shape
        each = coefficients.to(self.dtype).flatten(0, 1)
        for part, weights in self._parts(batch * k):
            joint = part.log_densities(each).view(batch, k, -1)
            top = joint.amax(-2, keepdim=True)
            shares = joint.sub_(top).clamp_min_(_LEAST_LOG).exp_()
            yield part, weights, shares, shares.sum(-2, keepdim=True), top

    def _rows(self, components: int) -> int:
        """Return the number of samples in a block."""
        rows = self._block // components
        if not self._is_cached:
            numbers = _GPU_BLOCK if self.x.is_cuda else _NUMBERS
            rows = min(rows, numbers // (self.family.dim if self._by_matrices(components) else self.family.count))
        return max(1, rows)

    def _parts(self, components: int) -> Iterator[tuple[_Part, Tensor]]:
        """Yield blocks of samples, and their weights `(rows,)` or `(B, rows)`."""
        rows = self._rows(components)
        for start in range(0, len(self), rows):
            some = slice(start, start + rows)
            if self._by_matrices(components):
                part: _Part = _Matrices(cast("DenseFamily", self.family), self.x[some].to(self.dtype))
            else:
                part = _Features(self._all[:, some] if self._is_cached else self._features(some))
            yield part, self.weights[..., some]

    def _by_matrices(self, components: int) -> bool:
        dense = self.covariances is None and not self.family.kind.axis_aligned
        return dense and not self._is_cached and components <= _FEW_COMPONENTS * self.family.dim

    @property
    def _is_cached(self) -> bool:
        return self.family.count * len(self) * self.dtype.itemsize <= _CACHED

    @cached_property
    def _all(self) -> Tensor:
        return self._features(slice(None))

    @cached_property
    def _fused(self) -> FusedStep | None:
        """Steps by kernels on a GPU; None elsewhere, for mixtures, and where products of large matrices are faster."""
        large = self.family.dim > MOST_DIMENSIONS or (self.dtype == torch.float64 and self.family.count > _FUSED_DOUBLE)
        if self.covariances is not None or large or not runs_triton(self.x):
            return None
        from cramix.fitting.fused_step import FusedStep

        return FusedStep(self.family, self.x, self.dtype)

    def _features(self, part: slice) -> Tensor:
        shared = self.covariances is None or len(self.covariances) == 1
        covariances = self.covariances if shared else self.covariances[part]  # type: ignore[index]
        return self.family.features(self.x[part].to(self.dtype), covariances)


class _Features(NamedTuple):
    """A block of samples as features `(F, rows)`."""

    features: Tensor

    def log_densities(self, coefficients: Tensor) -> Tensor:
        """Return `(m, rows)` for coefficients `(m, F)`."""
        return coefficients @ self.features

    def sums(self, shares: Tensor) -> Tensor:
        """Return the sums of features `(m, F)` for shares `(m, rows)`."""
        # Faster in this order if there are few components; otherwise in the other one.
        if len(shares) <= _FEW and _FEW_OF_FEATURES * len(shares) <= len(self.features):
            return shares @ self.features.T
        return (self.features @ shares.T).T


class _Matrices(NamedTuple):
    """A block of samples `(rows, d)`, whose products of coordinates are never formed."""

    family: DenseFamily
    x: Tensor

    def log_densities(self, coefficients: Tensor) -> Tensor:
        """Return `(m, rows)` for coefficients `(m, F)`."""
        constant, linear, quadratic = coefficients.split(
            (1, self.family.dim, coefficients.shape[1] - 1 - self.family.dim), 1
        )
        found = torch.addmm(constant, linear, self.x.T)
        for values, matrix in zip(found, self.family.forms(quadratic), strict=True):
            values += (self.x @ matrix).mul_(self.x).sum(-1)
        return found

    def sums(self, shares: Tensor) -> Tensor:
        """Return the sums of features `(m, F)` for shares `(m, rows)`."""
        products = torch.stack([self.x.T @ (share.unsqueeze(-1) * self.x) for share in shares])
        return torch.cat((shares.sum(-1, keepdim=True), shares @ self.x, self.family.of_matrices(products)), -1)


_Part = _Features | _Matrices
