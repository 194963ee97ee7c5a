"""Normal components and their atoms: distribution functions, densities and partial moments, elementwise.

`x` broadcasts against `means` and `scales`, and every function is defined at scale 0, where the component is an atom;
`safe_scales` keeps a division by that 0 out of the values and out of the gradients.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_SQRT_HALF = math.sqrt(0.5)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def safe_scales(scales: Tensor) -> tuple[Tensor, Tensor]:
    """Return where a component is an atom, and scales with 1 there."""
    atom = scales == 0
    return atom, torch.where(atom, 1, scales)


def cdf(x: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """Return `P(X <= x)`, accurate in the left tail; the right-continuous step for an atom."""
    atom, scales = safe_scales(scales)
    smooth = 0.5 * torch.erfc((means - x) / scales * _SQRT_HALF)
    return torch.where(atom, (x >= means).to(smooth.dtype), smooth)


def survival(x: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """Return `P(X > x)`, accurate in the right tail."""
    atom, scales = safe_scales(scales)
    smooth = 0.5 * torch.erfc((x - means) / scales * _SQRT_HALF)
    return torch.where(atom, (x < means).to(smooth.dtype), smooth)


def log_cdf(x: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """Return `log P(X <= x)`."""
    atom, scales = safe_scales(scales)
    z = (x - means) / scales
    smooth = torch.special.log_ndtr(z.to(torch.promote_types(z.dtype, torch.float32))).to(z.dtype)
    return torch.where(atom, torch.where(x >= means, 0.0, -torch.inf), smooth)


def log_density(x: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """Return the log density for scales > 0."""
    return -0.5 * ((x - means) / scales).square() - scales.log() - _LOG_SQRT_2PI


def whitened_log_density(z: Tensor, log_diagonal: Tensor) -> Tensor:
    """Return the log density of vectors `(*, d)` from `z`, `L z` their offset, and the log of the diagonal of L."""
    return -0.5 * z.square().sum(-1) - log_diagonal.sum(-1) - z.shape[-1] * _LOG_SQRT_2PI


def mean_below(x: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """Return the partial moment `E(x - X)+`."""
    atom, scales = safe_scales(scales)
    z = (x - means) / scales
    density = torch.exp(-0.5 * z.square() - _LOG_SQRT_2PI)
    smooth = scales * (z * (0.5 * torch.erfc(-z * _SQRT_HALF)) + density)
    return torch.where(atom, (x - means).relu(), smooth)


def log_weights(weights: Tensor) -> Tensor:
    """Return the logarithm, with minus infinity and a zero gradient at weight 0: such a component is not there."""
    present = weights > 0
    return torch.where(present, torch.where(present, weights, 1).log(), -torch.inf)


def safe_root(variances: Tensor) -> Tensor:
    """Return the square root, with a zero gradient at 0, and 0 for what rounding has made negative."""
    positive = variances > 0
    return torch.where(positive, torch.where(positive, variances, 1).sqrt(), 0)
