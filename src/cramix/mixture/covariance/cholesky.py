"""Cholesky factors of covariances, and which covariances count as singular."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.torch_internals import readable


def cholesky(matrices: Tensor) -> Tensor:
    """Return the lower Cholesky factors of matrices `(*, d, d)`; a ValueError where one is singular up to rounding."""
    lower, info = torch.linalg.cholesky_ex(matrices)
    if readable(matrices):
        with torch.no_grad():
            check_regular((info > 0) | ~(least_unexplained(lower) > rounding(matrices)))
    return lower


def fitted_factors(matrices: Tensor) -> Tensor:
    """Return the lower Cholesky factors of covariances in a fit; where one is not positive definite a `LinAlgError`.

    On a GPU these factors are NaN instead: the host would have to wait for an error.
    """
    if not matrices.is_cuda:
        return torch.linalg.cholesky(matrices)
    lower, info = torch.linalg.cholesky_ex(matrices)
    return torch.where((info > 0)[..., None, None], torch.nan, lower)


def least_unexplained(lower: Tensor) -> Tensor:
    """Return the smallest fraction of a coordinate's variance that the others do not explain, `(*)`.

    It is one over the largest diagonal entry of the inverse correlation matrix, from lower factors `(*, d, d)`.
    Rounding may leave a singular matrix with small positive pivots, whose density has no correct digit. This number
    shows it, whatever the units and the order of the coordinates.
    """
    scales = torch.linalg.vector_norm(lower, dim=-1)
    inverse = torch.linalg.solve_triangular(lower, torch.diag_embed(scales), upper=False)
    return 1 / inverse.square().sum(-2).amax(-1)


def check_regular(singular: Tensor) -> None:
    """Raise a ValueError if any covariance is singular."""
    if singular.any():
        raise ValueError(
            f"covariances must be positive definite here; got {int(singular.sum())} singular ones. "
            "Add a small multiple of the identity."
        )


def rounding(x: Tensor) -> float:
    """Return the fraction of a variance below which it counts as 0."""
    # Random singular matrices keep fractions of at most 2 sqrt(d) eps or so.
    return 4 * x.shape[-1] ** 0.5 * torch.finfo(x.dtype).eps
