"""Samples of a multivariate mixture, and how they move with its parameters.

Rosenblatt's map sends X to independent uniform numbers: the distribution function of each coordinate given the ones
before it. It is the same function of sample and parameters whatever the component a sample came from. Keeping its value
fixed while the parameters move determines how the sample moves (docs/math.md, eq. 23).
"""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.mixture.components import log_weights
from cramix.mixture.covariance import Covariance, Points
from cramix.mixture.weights import draw
from cramix.quadrature import even_points

# Numbers in the roots of covariances gathered at once.
_BLOCK = 1 << 22


def normal_nodes(count: int, dim: int, like: Tensor) -> Tensor:
    """Return evenly spread points `(n, d)` with the first three moments of a standard normal distribution.

    There are at least 4 d of them, `count` rounded up to an even number: half as many and their mirror images.
    """
    pairs = max(-(-count // 2), 2 * dim)
    normal = torch.special.ndtri(even_points(pairs, dim)).to(like.device)
    lower = torch.linalg.cholesky(normal.T @ normal / pairs)
    normal = torch.linalg.solve_triangular(lower, normal.T, upper=False).T
    return torch.cat((normal, -normal)).to(like.dtype)


def drawn(
    weights: Tensor,
    means: Tensor,
    covariances: Covariance,
    shape: torch.Size,
    generator: torch.Generator | None,
    block: int = _BLOCK,
) -> Tensor:
    """Draw values of `shape`, `(*sample, *batch, d)`, from components `(*batch, k)`; those of points keep gradients."""
    index = _through_batch(draw(weights.detach(), shape[:-1], generator), weights)
    centres = means.reshape(-1, shape[-1])[index]
    if isinstance(covariances, Points):
        return centres.view(shape)
    with torch.no_grad():
        noise = torch.randn(shape, generator=generator, device=means.device, dtype=means.dtype).view(-1, shape[-1])
        roots = covariances.roots(shape[-1])
        own = roots.shape[-1:] if covariances.axis_aligned else roots.shape[-2:]
        roots = roots.expand(*weights.shape, *own).reshape(-1, *own)
        values = centres.detach()
        for part in torch.arange(len(index), device=index.device).split(max(1, block // own.numel())):
            root = roots[index[part]]
            if covariances.axis_aligned:
                values[part] += root * noise[part]
            else:
                values[part] += (root @ noise[part].unsqueeze(-1)).squeeze(-1)
        return values.view(shape)


def reparameterized(value: Tensor, weights: Tensor, means: Tensor, covariances: Covariance) -> Tensor:
    """Return samples `(*sample, *batch, d)` unchanged, but with gradients to weights, means and covariances."""
    point = value.detach().requires_grad_()
    fixed = rosenblatt(point, weights.detach(), means.detach(), covariances.map(Tensor.detach))
    rows = [torch.autograd.grad(u.sum(), point, retain_graph=True)[0] for u in fixed.unbind(-1)]
    jacobian = torch.stack(rows, -2)  # (*sample, *batch, d, d), lower triangular
    moving = rosenblatt(value, weights, means, covariances)
    step = torch.linalg.solve_triangular(jacobian, (moving - moving.detach()).unsqueeze(-1), upper=False)
    return value - step.squeeze(-1)


def rosenblatt(value: Tensor, weights: Tensor, means: Tensor, covariances: Covariance) -> Tensor:
    """Return `P(X_j <= x_j | X_1 = x_1, ..., X_{j-1} = x_{j-1})` for each coordinate j, `(*sample, *batch, d)`."""
    z, log_diagonal = covariances.whiten(value.unsqueeze(-2) - means)
    log_density = -0.5 * z.square() - log_diagonal
    before = log_density.cumsum(-1) - log_density
    posterior = (log_weights(weights).unsqueeze(-1) + before).softmax(-2)
    return (posterior * torch.special.ndtr(z)).sum(-2)


def _through_batch(index: Tensor, weights: Tensor) -> Tensor:
    """Number components `(*sample, *batch)` through the whole batch, flat."""
    batch, k = weights.shape[:-1].numel(), weights.shape[-1]
    rows = torch.arange(batch, device=index.device) * k
    return (index.reshape(-1, batch) + rows).flatten()
