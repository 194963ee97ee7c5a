"""Free tensors to valid ones and back: each map with its inverse."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus


class Map(NamedTuple):
    """A smooth map from all of R^n onto the valid values, and its inverse.

    Example:
        >>> POSITIVE.valid(POSITIVE.free(torch.tensor([0.5, 2.0])))
        tensor([0.5000, 2.0000])
    """

    valid: Callable[[Tensor], Tensor]
    free: Callable[[Tensor], Tensor]


def _centred_log(weights: Tensor) -> Tensor:
    log = weights.log()
    return log - log.mean(-1, keepdim=True)


def _inverse_softplus(scales: Tensor) -> Tensor:
    # log(exp(s) - 1), written so that neither a large nor a small s loses digits.
    return scales + torch.log(-torch.expm1(-scales))


WEIGHTS = Map(valid=lambda free: free.softmax(-1), free=_centred_log)
"""Softmax, along the last axis; its inverse is the logarithm with mean 0."""

POSITIVE = Map(valid=softplus, free=_inverse_softplus)
"""Softplus, which is linear far out: steps are in units of the scale."""

LOG_POSITIVE = Map(valid=torch.exp, free=torch.log)
"""The exponential: steps are relative to the scale."""


def _lower_with_positive_diagonal(free: Tensor) -> Tensor:
    return free.tril(-1) + torch.diag_embed(free.diagonal(dim1=-2, dim2=-1).exp())


def _log_diagonal(lower: Tensor) -> Tensor:
    return lower.tril(-1) + torch.diag_embed(lower.diagonal(dim1=-2, dim2=-1).log())


GRAM = Map(valid=lambda factor: factor.mT @ factor, free=lambda covariance: torch.linalg.cholesky(covariance).mT)
"""The paper's `S^T S` of a free matrix S; of the many S the inverse takes the transposed Cholesky factor."""

CHOLESKY = Map(valid=_lower_with_positive_diagonal, free=_log_diagonal)
"""Lower triangular factors L with a positive diagonal, the exponential of the free one; covariances are `L L^T`."""
