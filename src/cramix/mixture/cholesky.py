"""Cholesky factors of covariances, and which of those count as singular."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.torch_internals import readable


def cholesky(matrices: Tensor) -> Tensor:
    """Return the lower Cholesky factors of matrices `(*, d, d)`; a ValueError where one is singular up to rounding."""
    lower, info = torch.linalg.cholesky_ex(matrices)
    if readable(matrices):
        with torch.no_grad():
            refuse_singular((info > 0) | ~(least_share(lower) > rounding(matrices)))
    return lower


def least_share(lower: Tensor) -> Tensor:
    """Return the least share of a coordinate's variance that the others do not explain, `(*)`, of factors `(*, d, d)`.

    It is one over the diagonal of the inverse correlations. Rounding may leave a singular matrix with small positive
    pivots, and its density without a digit; this tells, whatever the units and the order of the coordinates.
    """
    scales = torch.linalg.vector_norm(lower, dim=-1)
    inverse = torch.linalg.solve_triangular(lower, torch.diag_embed(scales), upper=False)
    return 1 / inverse.square().sum(-2).amax(-1)


def refuse_singular(singular: Tensor) -> None:
    """Raise a ValueError if any is."""
    if singular.any():
        raise ValueError(
            f"covariances must be positive definite here; got {int(singular.sum())} singular ones. "
            "Add a small multiple of the identity."
        )


def rounding(x: Tensor) -> float:
    """Return the share of a variance that counts as none."""
    # Random singular matrices keep shares of at most 2 sqrt(d) eps or so.
    return 4 * x.shape[-1] ** 0.5 * torch.finfo(x.dtype).eps
