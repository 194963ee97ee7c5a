"""Directions to slice along: unit vectors `(t, d)`, random or spread evenly.

A direction and its opposite give the same distance, so the schemes cover the sphere up to sign.
"""

from __future__ import annotations

import math
from numbers import Integral

import numpy as np
import torch
from torch import Tensor
from torch.quasirandom import SobolEngine


def random(
    count: int,
    dim: int,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Draw directions independently and uniformly from the sphere.

    Example:
        >>> nu = random(3, 2)  # unit vectors (count, dim)
        >>> nu.shape, bool((nu.norm(dim=-1) - 1).abs().max() < 1e-6)
        (torch.Size([3, 2]), True)
    """
    _check(count, dim)
    return _unit(torch.randn(count, dim, generator=generator, dtype=dtype, device=device))


def orthogonal(
    count: int,
    dim: int,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Draw directions in blocks of `dim` orthogonal ones, each block with a random rotation.

    Each direction is uniform on the sphere, so that averages stay unbiased. Within a block directions are far from each
    other, which reduces the variance.

    Example:
        >>> nu = orthogonal(2, 2, dtype=torch.float64)  # unit vectors (count, dim)
        >>> bool((nu @ nu.mT - torch.eye(2)).abs().max() < 1e-12)
        True
    """
    _check(count, dim)
    blocks = -(-count // dim)
    gaussian = torch.randn(blocks, dim, dim, generator=generator, dtype=dtype, device=device)
    return _orthogonalized(gaussian)[:count]


def reproducible(
    count: int,
    dim: int,
    *,
    seed: int = 0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Draw directions as `orthogonal` does, the same ones on every machine and with every version, up to rounding.

    Example:
        >>> reproducible(2, 2, dtype=torch.float64)
        tensor([[ 0.8744,  0.4852],
                [-0.4852,  0.8744]], dtype=torch.float64)
    """
    _check(count, dim)
    # NumPy keeps the numbers of its old generator the same for good.
    old = np.random.RandomState(seed)
    gaussian = torch.from_numpy(old.standard_normal((-(-count // dim), dim, dim)))
    dtype = torch.get_default_dtype() if dtype is None else dtype
    return _orthogonalized(gaussian)[:count].to(device=device, dtype=dtype)


def sobol(
    count: int,
    dim: int,
    *,
    seed: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Draw quasi-random directions: scrambled Sobol points through the normal quantile, normalised.

    Example:
        >>> sobol(8, 3).shape  # unit vectors (count, dim)
        torch.Size([8, 3])
    """
    _check(count, dim)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    uniform = SobolEngine(dim, scramble=True, seed=seed).draw(count, dtype=torch.float64)
    # Scrambled points are at least 2^-31 from the ends but for 0 itself, whose quantile is not finite.
    gaussian = torch.special.ndtri(uniform.clamp(2**-32, 1 - 2**-32))
    return _unit(gaussian).to(device=device, dtype=dtype)


def equispaced(
    count: int, *, offset: float = 0.0, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Tensor:
    """Return directions in the plane at equal angles over the half circle, from the angle `offset` on.

    For smooth pairs the average over them converges geometrically in their number. Up to sign, 7 of them are the
    corners of the paper's heptagon.

    Example:
        >>> equispaced(2)
        tensor([[1., 0.],
                [0., 1.]])
    """
    _check(count, 2)
    angle = offset + math.pi / count * torch.arange(count, dtype=torch.float64)
    directions = torch.stack((angle.cos(), angle.sin()), -1)
    directions = torch.where(directions.abs() < 1e-15, 0, directions)
    return directions.to(device=device, dtype=torch.get_default_dtype() if dtype is None else dtype)


def _orthogonalized(gaussian: Tensor) -> Tensor:
    """Return directions `(b * d, d)`, orthogonal in each block, for normally distributed matrices `(b, d, d)`."""
    basis, upper = torch.linalg.qr(gaussian)
    # QR fixes the sign of each column by a convention; the sign of R's diagonal makes the rotation uniform.
    basis = basis * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return basis.mT.reshape(-1, gaussian.shape[-1])


def _unit(vectors: Tensor) -> Tensor:
    return vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)


def _check(count: int, dim: int) -> None:
    for name, value in (("count", count), ("dim", dim)):
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} must be an integer >= 1; got {value!r}.")
