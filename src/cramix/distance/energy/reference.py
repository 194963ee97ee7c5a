"""The energy distance as the formula reads: all pairs at all quadrature nodes at once, with gradients by autograd.

It is slow and needs much memory. The other implementations are tested against it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cramix.distance.energy.flat_mixtures import Side
from cramix.distance.energy.signature import Evaluation, KnownEnergy, Problem
from cramix.distance.kernels import normalized

# Step and range of the trapezoid rule in log u, for lengths of about 1. At its end `1 + 2 t A` has digits left.
_STEP, _START, _END = 0.14, -38.0, 16.0


def evaluate(problem: Problem) -> Evaluation:
    """Evaluate by autograd; see `signature.Problem`. The tolerance and the block size have no effect."""
    p, q, _, known_q, *_ = problem
    rows = max(len(p.weights), len(q.weights))
    with torch.inference_mode(False), torch.enable_grad():
        p_leaves, q_leaves = _leaves(p, rows), _leaves(q, rows)
        a, b = _normals(*p_leaves), _normals(*q_leaves)
        size = _size(a, b)
        cross, within_p = _mean_distance(a, b, size), 0.5 * _mean_distance(a, a, size)
        within_q = 0.5 * _mean_distance(b, b, size) if known_q is None else _known(known_q, b, size)
        distances = cross - within_p - within_q
        gradients = torch.autograd.grad(distances.sum(), [*p_leaves, *q_leaves], materialize_grads=True)
    at_p, at_q = gradients[: len(p_leaves)], gradients[len(p_leaves) :]
    return Evaluation(distances.detach(), at_p if problem.grad_p else (), at_q if problem.grad_q else ())


def _leaves(side: Side, rows: int) -> list[Tensor]:
    tensors = [x.clone().detach().double() for x in side if x is not None]
    return [x.expand(rows, *x.shape[1:]).clone().requires_grad_() for x in tensors]


def _normals(weights: Tensor, means: Tensor, covariances: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return normalised weights `(B, k)`, means `(B, k, d)` and covariance matrices `(B, k, d, d)`."""
    dim = means.shape[-1]
    if covariances is None:
        matrices = means.new_zeros(len(means), 1, dim, dim)
    elif covariances.ndim == 4:
        matrices = 0.5 * (covariances + covariances.mT)
    else:
        matrices = torch.diag_embed(covariances.expand(*covariances.shape[:2], dim))
    return normalized(weights)[0], means, matrices.expand(*means.shape, dim)


def _size(p: tuple[Tensor, ...], q: tuple[Tensor, ...]) -> Tensor:
    """Return the root mean square distance of X and Y, `(B, 1, 1)`, or 1 if that is 0."""
    p_mean, q_mean = ((weights.unsqueeze(-1) * means).sum(-2, keepdim=True) for weights, means, _ in (p, q))
    total = (p_mean - q_mean).square().sum((-1, -2))
    for (weights, means, matrices), centre in ((p, p_mean), (q, q_mean)):
        squares = (means - centre).square().sum(-1) + matrices.diagonal(dim1=-2, dim2=-1).sum(-1)
        total = total + (weights * squares).sum(-1)
    return torch.where(total > 0, total, 1).sqrt().detach()[:, None, None]


def _mean_distance(p: tuple[Tensor, ...], q: tuple[Tensor, ...], size: Tensor) -> Tensor:
    """Return `E|X - Y|`, `(B,)`."""
    weights = p[0].unsqueeze(-1) * q[0].unsqueeze(-2)  # (B, k, l)
    offsets = (p[1].unsqueeze(-2) - q[1].unsqueeze(-3)) / size.unsqueeze(-1)
    matrices = (p[2].unsqueeze(-3) + q[2].unsqueeze(-4)) / size[..., None, None].square()
    return (weights * mean_length(offsets, matrices) * size).sum((-1, -2))


def mean_length(offsets: Tensor, matrices: Tensor) -> Tensor:
    """Return `E|Z|` of normal vectors with means `(*, d)` and covariances `(*, d, d)`, of lengths around 1.

    It is `1 / sqrt(pi)` times the integral of `(1 - L(u^2)) / u^2` over u > 0, with the Laplace transform
    `L(t) = det(I + 2 t A)^(-1/2) exp(-t delta^T (I + 2 t A)^(-1) delta)` of `|Z|^2` (docs/math.md, eq. 25). Beyond the
    last node L is taken as constant.
    """
    u = torch.arange(_START, _END, _STEP, dtype=offsets.dtype, device=offsets.device).exp()
    t = u.square()[:, None, None]
    grown = torch.eye(offsets.shape[-1]).to(offsets) + 2 * t * matrices.unsqueeze(-3)  # (*, Q, d, d)
    lower = torch.linalg.cholesky(grown)
    whitened = torch.linalg.solve_triangular(lower, offsets[..., None, :, None], upper=False)
    log_l = -lower.diagonal(dim1=-2, dim2=-1).log().sum(-1) - (t * whitened.square()).sum((-1, -2))
    rises = -torch.expm1(log_l) / u
    return (rises.sum(-1) + rises[..., -1] / math.expm1(_STEP)) * (_STEP / math.sqrt(math.pi))


def _known(known: KnownEnergy, side: tuple[Tensor, ...], size: Tensor) -> Tensor:
    """Return a self energy that is known as numbers; of another one all pairs, without gradient."""
    if isinstance(known.energy, Tensor):
        return known.energy if known.rows is None else known.energy[known.rows]
    return 0.5 * _mean_distance(side, side, size).detach()
