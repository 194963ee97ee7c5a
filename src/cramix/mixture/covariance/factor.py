"""Covariances as products `S^T S` of factors, the paper's parametrisation."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from cramix.checks import check_finite
from cramix.mixture.components import safe_root
from cramix.mixture.covariance.base import Covariance
from cramix.mixture.covariance.cholesky import check_regular, least_unexplained, rounding
from cramix.mixture.covariance.full import Dense, Full
from cramix.mixture.covariance.head import HeadCovariance
from cramix.parameters import POSITIVE
from cramix.torch_internals import readable


class Factor(Dense):
    """A factor S for each component, `(*batch, k, r, d)`, with covariance `S^T S`.

    Any S is valid, r may be smaller than d, and gradients in S are bounded. For lower factors see `from_scale_tril`.

    Example:
        >>> Factor(torch.tensor([[[1.0, 1.0]]])).matrices(2)  # k = 1, r = 1, d = 2: all variance along one line
        tensor([[[1., 1.],
                 [1., 1.]]])
    """

    name = "factor"
    _value_axes = 2

    @classmethod
    def from_scale_tril(cls, scale_tril: Tensor) -> Self:
        """Build from lower Cholesky factors `(*batch, k, d, d)`, with covariance `L L^T`."""
        return cls(scale_tril.tril().mT)

    def check_shape(self, dim: int) -> None:
        if self.values.ndim < 3 or self.values.shape[-1] != dim:
            raise ValueError(
                f"factors must be (*batch, k, r, {dim}) for means in {dim} dimensions; got {tuple(self.values.shape)}. "
                "Covariances are S^T S."
            )

    def check(self) -> None:
        check_finite(factors=self.values)

    def surely_valid(self) -> Tensor:
        return self.values.isfinite().all()

    def _n_each(self, dim: int) -> int:
        rank = min(self.values.shape[-2], dim)
        # Rotating S changes nothing.
        return rank * dim - rank * (rank - 1) // 2

    def scale(self, factor: Tensor) -> Self:
        trailing = self.values.ndim - (len(self.shape) - 1)
        return self.like(factor.reshape(*factor.shape, *(1,) * trailing) * self.values)

    def compact(self) -> Tensor:
        return self.values.mT @ self.values

    def lower(self) -> Tensor:
        # From S rather than from S^T S, which has lost half of the digits.
        if self.values.shape[-2] < self.values.shape[-1]:
            check_regular(torch.ones(self.shape, dtype=torch.bool))
        upper = torch.linalg.qr(self.values).R
        lower = (upper * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-1)).mT
        if readable(self.values):
            with torch.no_grad():
                check_regular(~(least_unexplained(lower) > rounding(lower) ** 2))
        return lower

    def scales_along(self, directions: Tensor) -> Tensor:
        return safe_root((self.values @ directions.mT).square().sum(-2))

    def roots(self, dim: int) -> Tensor:
        missing = max(0, dim - self.values.shape[-2])
        root = pad(self.values, (0, 0, 0, missing)).mT  # (d, r) with r >= d
        return root if root.shape[-1] == dim else torch.linalg.qr(root.mT, mode="r").R.mT

    def transform(self, matrix: Tensor) -> Covariance:
        return Factor(self.values @ matrix.unsqueeze(-3).mT)

    def marginal(self, dims: list[int]) -> Dense:
        return Factor(self.values[..., dims])


class FullHead(HeadCovariance):
    """Lower triangular factors, `L L^T`."""

    name = "full"

    @property
    def n_outputs(self) -> int:
        return self.dim * (self.dim + 1) // 2

    def outputs(self, scales: Tensor) -> Tensor:
        return torch.cat((POSITIVE.unconstrain(scales), scales.new_zeros(self.n_outputs - self.dim)))

    def covariances(self, outputs: Tensor, least: Tensor, unit: Tensor) -> Covariance:
        below = outputs[..., self.dim :].split(list(range(1, self.dim)), -1)  # one for each row
        rows = [pad(row, (0, self.dim - row.shape[-1])) for row in (outputs[..., :0], *below)]
        lower = torch.stack(rows, -2) + torch.diag_embed(least + softplus(outputs[..., : self.dim]))
        return Factor.from_scale_tril(unit.unsqueeze(-1) * lower)


class LowRankHead(HeadCovariance):
    """A scale for each coordinate, and a few directions of additional variance: covariances `D + V V^T`."""

    name = "low_rank"

    @property
    def n_outputs(self) -> int:
        return self.dim * (1 + self.rank)

    def outputs(self, scales: Tensor) -> Tensor:
        # The directions start small, but not at 0, where all of them would have the same gradient.
        signs = scales.new_ones(self.rank, self.dim)
        signs.view(-1)[1::2] = -1
        return torch.cat((POSITIVE.unconstrain(scales), (0.1 * scales * signs).flatten()))

    def covariances(self, outputs: Tensor, least: Tensor, unit: Tensor) -> Covariance:
        diagonal = torch.diag_embed(least + softplus(outputs[..., : self.dim]))
        vectors = outputs[..., self.dim :].unflatten(-1, (self.rank, self.dim))
        return Factor(unit * torch.cat((diagonal, vectors), -2))


Full.head, Factor.head = FullHead, LowRankHead
