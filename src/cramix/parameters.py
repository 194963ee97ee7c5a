"""Maps from unconstrained tensors to valid parameters, each with its inverse."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus


class Map(NamedTuple):
    """A smooth map from all of R^n onto the valid values, and its inverse.

    Example:
        >>> POSITIVE.constrain(POSITIVE.unconstrain(torch.tensor([0.5, 2.0])))
        tensor([0.5000, 2.0000])
    """

    constrain: Callable[[Tensor], Tensor]
    unconstrain: Callable[[Tensor], Tensor]


def _centred_log(weights: Tensor) -> Tensor:
    log = weights.log()
    return log - log.mean(-1, keepdim=True)


def _inverse_softplus(scales: Tensor) -> Tensor:
    # log(exp(s) - 1), written so that neither a large nor a small s loses digits.
    return scales + torch.log(-torch.expm1(-scales))


WEIGHTS = Map(constrain=lambda x: x.softmax(-1), unconstrain=_centred_log)
"""Softmax, along the last axis; its inverse is the logarithm with mean 0."""

POSITIVE = Map(constrain=softplus, unconstrain=_inverse_softplus)
"""Softplus, which is linear for large values: steps are absolute there."""

LOG_POSITIVE = Map(constrain=torch.exp, unconstrain=torch.log)
"""The exponential: steps are relative to the value."""


def _lower_with_positive_diagonal(x: Tensor) -> Tensor:
    return x.tril(-1) + torch.diag_embed(x.diagonal(dim1=-2, dim2=-1).exp())


def _log_diagonal(lower: Tensor) -> Tensor:
    return lower.tril(-1) + torch.diag_embed(lower.diagonal(dim1=-2, dim2=-1).log())


GRAM = Map(
    constrain=lambda factor: factor.mT @ factor, unconstrain=lambda covariance: torch.linalg.cholesky(covariance).mT
)
"""The paper's `S^T S` of any matrix S; of the many S the inverse returns the transposed Cholesky factor."""

CHOLESKY = Map(constrain=_lower_with_positive_diagonal, unconstrain=_log_diagonal)
"""Lower triangular factors L whose diagonal is an exponential; covariances are `L L^T`."""
