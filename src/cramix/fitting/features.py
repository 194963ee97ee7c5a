"""Weighted data as features of a covariance family: what the likelihood needs of them, for many fits at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from cramix.mixture.covariance import Family, Prior

# Responsibilities that are computed at a time.
_BLOCK = 1 << 20
# Up to this many numbers the features of all samples are cached; otherwise they are recomputed for each block.
_CACHED = 1 << 24
# A component that loses all its samples keeps this weight, its mean and its covariance.
LEAST_WEIGHT = 1e-12
# Log responsibilities are clamped here: processors are slow on subnormal numbers.
_LEAST_LOG = -80.0


class Data:
    """Samples with weights that sum to one, as features of a family.

    If the target is a mixture, the features of a component are their expectations under it. The likelihood is then a
    lower bound: that of samples for which all samples of one component share their responsibilities.

    A log density is a sum of products of features, so its rounding error grows with the square of the distance to the
    origin in standard deviations of the narrowest component: pass standardised data.

    Args:
        family: the kind of covariances, which defines the features.
        x: samples `(n, d)`, or the means of components, in float64.
        weights: `(n,)`, with any positive sum.
        covariances: of components, `(n or 1, d, d)`; None for samples.
        dtype: of the sums over samples. Parameters are always computed in float64.
        block: responsibilities that are computed at a time.
    """

    def __init__(
        self,
        family: Family,
        x: Tensor,
        weights: Tensor,
        covariances: Tensor | None = None,
        dtype: torch.dtype = torch.float64,
        block: int = _BLOCK,
    ) -> None:
        self.family, self.x, self.covariances, self.dtype, self._block = family, x, covariances, dtype, block
        self.weights = weights / weights.sum()

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

    def resample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """Return the indices of n samples, drawn by their weights with stratification."""
        # One at random from each of n strata: at equal steps the draw could follow a period in the order of the data.
        within = torch.rand(n, generator=generator, dtype=self.x.dtype, device=self.x.device)
        levels = (torch.arange(n, dtype=self.x.dtype, device=self.x.device) + within) / n
        return torch.searchsorted(self.weights.cumsum(0), levels).clamp_max(len(self) - 1)

    @property
    def covariance(self) -> Tensor:
        """Return the covariance matrix of all data, `(d, d)`."""
        offset = self.x - (self.weights.unsqueeze(-1) * self.x).sum(0)
        between = (self.weights.unsqueeze(-1) * offset).T @ offset
        if self.covariances is None:
            return between
        return between + (self.weights[:, None, None] * self.covariances).sum(0)

    def sums(self, responsibilities: Tensor) -> Tensor:
        """Return the sums of features `(*, k, F)` for responsibilities `(*, k, n)`."""
        components = responsibilities[..., 0].numel()
        parts = responsibilities.to(self.dtype).split(self._rows(components), -1)
        pairs = zip(parts, self._parts(components), strict=True)
        return torch.stack([_products(part, weighted) for part, (_, weighted, _) in pairs]).sum(0).double()

    def step(self, sums: Tensor, prior: Prior | None = None) -> tuple[Tensor, Tensor]:
        """Return the sums `(B, k, F)` after one EM step, and the mean log likelihood before it, `(B,)`."""
        new, likelihood = self.expect(self.family.coefficients(*self.family.parameters(sums, prior)))
        empty = new[..., :1] < LEAST_WEIGHT
        return torch.where(empty, LEAST_WEIGHT / sums[..., :1] * sums, new), likelihood

    def expect(self, coefficients: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of features weighted by responsibilities, and the mean log likelihood, `(B,)`.

        These sums are also the derivative of the likelihood in the coefficients of the log densities, `(B, k, F)`.
        """
        new, likelihood = torch.zeros_like(coefficients), coefficients.new_zeros(len(coefficients))
        coefficients = coefficients.to(self.dtype)
        for features, weighted, weights in self._parts(coefficients[..., 0].numel()):
            joint = coefficients @ features  # (B, k, n)
            top = joint.amax(-2, keepdim=True)
            shares = joint.sub_(top).clamp_min_(_LEAST_LOG).exp_()
            total = shares.sum(-2, keepdim=True)
            likelihood += (top.add_(total.log()).squeeze(-2) @ weights).double()
            new += _products(shares.div_(total), weighted).double()
        return new, likelihood

    def _rows(self, components: int) -> int:
        """Return the number of samples in a block."""
        return max(1, self._block // components)

    def _parts(self, components: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield features `(F, n)`, features times weights, and weights `(n,)`, in blocks."""
        rows = self._rows(components)
        for start in range(0, len(self), rows):
            part = slice(start, start + rows)
            if self.family.count * len(self) <= _CACHED:
                features, weighted, weights = self._all
                yield features[:, part], weighted[:, part], weights[part]
            else:
                yield self._features(part)

    @cached_property
    def _all(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._features(slice(None))

    def _features(self, part: slice) -> tuple[Tensor, Tensor, Tensor]:
        shared = self.covariances is None or len(self.covariances) == 1
        covariances = self.covariances if shared else self.covariances[part]  # type: ignore[index]
        features, weights = self.family.features(self.x[part], covariances).T.contiguous(), self.weights[part]
        return features.to(self.dtype), (features * weights).to(self.dtype), weights.to(self.dtype)


def _products(shares: Tensor, features: Tensor) -> Tensor:
    """Return `shares @ features^T`, `(*, k, F)`; with few features the product is faster in this order."""
    return (features @ shares.flatten(0, -2).T).T.view(*shares.shape[:-1], len(features))
