"""Derivatives of the scores of a mixture with respect to what trees predict: logits, means and logarithms of scales.

Gradients are exact. The curvature comes from the metric of the score, its expected second derivative for a prediction
that is right: `2 integral dF dF^T dx` for the CRPS. Trees take one number per output, so the metric M is replaced by a
diagonal matrix that is at least as large, `H_i = sum_j |M_ij|`. The diagonal of M alone is not: where k components
agree, steps would be k times too long.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

_SQRT2 = math.sqrt(2)
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
# Added to the curvature of logits, relative to what it is for components far apart: it is 0 where components agree.
_DAMPING = 0.1


class Derivatives(NamedTuple):
    """Scores `(n,)`, their gradient and curvature `(n, 3 k)`, of logits, means and log scales, and shares `(n, k)`.

    A share is how much a row says about a component: its weight for the CRPS, its responsibility for the likelihood.
    """

    value: Tensor
    gradient: Tensor
    curvature: Tensor
    shares: Tensor


def crps_derivatives(logits: Tensor, means: Tensor, log_scales: Tensor, y: Tensor) -> Derivatives:
    """Return the derivatives of the CRPS of targets `(n,)` for parameters `(n, k)`.

    With `A(m, s) = E|m + s Z|` the CRPS is `sum_i w_i A(y - mu_i, s_i) - 1/2 sum_ij w_i w_j A(mu_i - mu_j, s_ij)`.
    """
    w, variances = logits.softmax(-1), (2 * log_scales).exp()
    target = _mean_distance(y.unsqueeze(-1) - means, variances)
    pairs = _mean_distance(means.unsqueeze(-1) - means.unsqueeze(-2), variances.unsqueeze(-1) + variances.unsqueeze(-2))
    v = w.unsqueeze(-2)  # weights of the second component of a pair
    within = (v * pairs.value).sum(-1)
    spread = (w * within).sum(-1, keepdim=True)
    excess = target.value - within
    gradient = (
        w * (excess - (w * excess).sum(-1, keepdim=True)),
        -w * (target.by_mean + (v * pairs.by_mean).sum(-1)),
        w * variances * (target.by_variance - (v * pairs.by_variance).sum(-1)),
    )
    # 2 integral (F_i - F)^2 dx; by Cauchy and Schwarz the products of its roots bound the metric of the logits.
    root = w * (2 * within - spread - pairs.value.diagonal(dim1=-2, dim2=-1)).clamp(min=0).sqrt()
    curvature = (
        root * root.sum(-1, keepdim=True) + _DAMPING * w * spread,
        w * (v * pairs.by_variance).sum(-1),
        w * variances * (v * variances.unsqueeze(-2) * pairs.by_variances.abs()).sum(-1),
    )
    value = (w * target.value).sum(-1) - 0.5 * spread.squeeze(-1)
    return Derivatives(value, torch.cat(gradient, -1), torch.cat(curvature, -1), w)


def nll_derivatives(logits: Tensor, means: Tensor, log_scales: Tensor, y: Tensor) -> Derivatives:
    """Return the derivatives of the negative log likelihood of targets `(n,)` for parameters `(n, k)`.

    The curvature is that of EM's bound: each component as a normal of its own, weighted by its responsibility.
    """
    log_w = logits.log_softmax(-1)
    w, scales = log_w.exp(), log_scales.exp()
    z = (y.unsqueeze(-1) - means) / scales
    joint = log_w - log_scales - 0.5 * z.square()
    r = joint.softmax(-1)
    gradient = w - r, -r * z / scales, r * (1 - z.square())
    curvature = w * (1 - w) + w * (w - w.square()).sum(-1, keepdim=True) + _DAMPING * w, r / scales.square(), 2 * r
    value = 0.5 * math.log(2 * math.pi) - joint.logsumexp(-1)
    return Derivatives(value, torch.cat(gradient, -1), torch.cat(curvature, -1), r)


def crps_metric(logits: Tensor, means: Tensor, log_scales: Tensor) -> Tensor:
    """Return the metric of the CRPS, `2 integral dF dF^T dx`, for parameters `(n, k)`: `(n, 3 k, 3 k)`.

    Example:
        >>> zero = torch.zeros(1, 1)
        >>> crps_metric(zero, zero, zero)[0, 1:, 1:] * math.sqrt(math.pi)  # one normal: 1 and 1/2
        tensor([[1.0000, 0.0000],
                [0.0000, 0.5000]])
    """
    w, variances = logits.softmax(-1), (2 * log_scales).exp()
    pairs = _mean_distance(means.unsqueeze(-1) - means.unsqueeze(-2), variances.unsqueeze(-1) + variances.unsqueeze(-2))
    ww = w.unsqueeze(-1) * w.unsqueeze(-2)
    # -d^2 A for each pair; the rows belong to the first component, the columns to the second.
    rows, columns = variances.unsqueeze(-1), variances.unsqueeze(-2)
    of_means = ww * pairs.by_variance
    of_scales = -ww * rows * columns * pairs.by_variances
    mean_scale = -ww * columns * pairs.by_mean_and_variance
    # A weight moves a share from all components to one: centre the energies by the weights.
    centred = torch.eye(w.shape[-1], dtype=w.dtype, device=w.device) - w.unsqueeze(
        -2
    )  # d w_j / d logit_i = w_i centred_ij
    lower = w.unsqueeze(-1) * centred
    of_logits = -lower @ pairs.value @ lower.mT
    logit_mean = lower @ (w.unsqueeze(-2) * pairs.by_mean)
    logit_scale = -lower @ (w.unsqueeze(-2) * columns * pairs.by_variance)
    return torch.cat(
        (
            torch.cat((of_logits, logit_mean, logit_scale), -1),
            torch.cat((logit_mean.mT, of_means, mean_scale), -1),
            torch.cat((logit_scale.mT, mean_scale.mT, of_scales), -1),
        ),
        -2,
    )


class _MeanDistance(NamedTuple):
    """`A(m, s) = E|m + s Z|` and its derivatives by the mean m and by the variance s^2, the latter doubled.

    Twice the derivative by the variance is the second derivative by the mean: A solves the heat equation.
    """

    value: Tensor
    by_mean: Tensor
    by_variance: Tensor  # 2 dA/d(s^2) = d^2A/dm^2
    by_mean_and_variance: Tensor  # 2 d^2A/(dm d(s^2))
    by_variances: Tensor  # 4 d^2A/d(s^2)^2


def _mean_distance(m: Tensor, variance: Tensor) -> _MeanDistance:
    s = variance.sqrt()
    z2 = m.square() / variance
    slope = torch.erf(m / (_SQRT2 * s))
    bell = _SQRT_2_OVER_PI * torch.exp(-0.5 * z2)
    heat = bell / s
    return _MeanDistance(m * slope + s * bell, slope, heat, -heat * m / variance, heat * (z2 - 1) / variance)
