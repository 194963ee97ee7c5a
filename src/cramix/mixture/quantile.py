"""Quantiles and reparameterised samples of a mixture, differentiable by the implicit function theorem.

Shapes: `u` and `x` are `(*shape)`, components `(*shape or broadcastable, k)`. See docs/math.md, eq. 17 to 19.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.mixture import components
from cramix.mixture.roots import differentiable_root, solve_increasing
from cramix.torch_internals import in_transform


def quantile(u: Tensor, weights: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """Return the smallest x with `F(x) >= u`."""
    shape = torch.broadcast_shapes(u.shape, means.shape[:-1])
    with torch.no_grad():
        # A level and the sums of weights are known to the rounding of their dtype; j / n is the j-th of n samples.
        slack = 2 * torch.finfo(u.dtype).eps + means.shape[-1] * torch.finfo(torch.float64).eps
        level, w, m, s = (t.detach().double() for t in (u, weights, means, scales))
        x = _solve(level.expand(shape), w, m, s, slack).to(u.dtype)
    return _attach(x, u, weights, means, scales)


def reparameterized(x: Tensor, weights: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """Return the sample `x` with the gradients of a sample: as the parameters move, its level F(x) stays."""
    with torch.no_grad():
        level = (weights * components.cdf(x.unsqueeze(-1), means, scales)).sum(-1)
    return _attach(x, level, weights, means, scales)


def _attach(x: Tensor, u: Tensor, weights: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    if not (torch.is_grad_enabled() and any(t.requires_grad or in_transform(t) for t in (u, weights, means, scales))):
        return x
    on_atom = (scales == 0) & (means == x.unsqueeze(-1)) & (weights > 0)
    at_root = ~on_atom.any(-1) & x.isfinite()
    # Elements without a density at x take no part: there the root is replaced by one of a fixed, harmless residual.
    mask = at_root.to(x.dtype)
    smooth = differentiable_root(_residual, torch.where(at_root, x, 0), u.expand_as(x), weights, means, scales, mask)
    share = on_atom * weights
    atom = (share.detach() * means).sum(-1) / share.detach().sum(-1).clamp_min(torch.finfo(x.dtype).tiny)
    return torch.where(at_root, smooth, torch.where(x.isfinite(), atom, x))


def _residual(x: Tensor, u: Tensor, weights: Tensor, means: Tensor, scales: Tensor, mask: Tensor) -> Tensor:
    """Return `F(x) - u`, from the tail that is nearer so that neither loses digits; just x where the mask is 0."""
    y = x.unsqueeze(-1)
    lower = (weights * (components.cdf(y, means, scales) - u.unsqueeze(-1))).sum(-1)
    upper = (weights * ((1 - u).unsqueeze(-1) - components.survival(y, means, scales))).sum(-1)
    return torch.where(mask > 0, torch.where(u < 0.5, lower, upper), x)


def _solve(u: Tensor, weights: Tensor, means: Tensor, scales: Tensor, slack: float) -> Tensor:
    present, atom = weights > 0, scales == 0
    only_atoms = ~(present & ~atom).any(-1)
    if only_atoms.all():
        return _atom_quantile(u * (1 - slack), weights, means)
    # The mixture's quantile lies between the smallest and the largest quantile of its components.
    own = means + torch.where(atom, 0, scales * torch.special.ndtri(u).unsqueeze(-1))
    low = torch.where(present, own, torch.inf).amin(-1)
    high = torch.where(present, own, -torch.inf).amax(-1)
    unit = torch.where(present & ~atom, scales, torch.inf).amin(-1)
    left = u < 0.5
    level = torch.where(left, u, 1 - u).log()

    def newton(x: Tensor) -> tuple[Tensor, Tensor]:
        """Newton's method for the logarithm of the nearer tail, which is close to a parabola far out."""
        y = x.unsqueeze(-1)
        below = (weights * components.cdf(y, means, scales)).sum(-1)
        tail = torch.where(left, below, (weights * components.survival(y, means, scales)).sum(-1))
        log_density = torch.where(atom, -torch.inf, components.log_density(y, means, torch.where(atom, 1, scales)))
        density = (weights * log_density.exp()).sum(-1)
        step = (tail.log() - level) * tail / density
        root_is_below = torch.where(left, tail >= u, tail <= 1 - u)
        return root_is_below, torch.where(left, x - step, x + step)

    inner = low.isfinite() & high.isfinite()
    x = solve_increasing(newton, torch.where(inner, low, 0), torch.where(inner, high, 0), unit)
    x = torch.where(inner, x, torch.where(u < 0.5, low, high))
    x = torch.where(inner, _snap(x, u, weights, means, scales), x) if atom.any() else x
    return torch.where(only_atoms, _atom_quantile(u * (1 - slack), weights, means), x) if only_atoms.any() else x


def _snap(x: Tensor, u: Tensor, weights: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """Put quantiles that fall into the jump of an atom exactly on it."""
    each = components.cdf(means.unsqueeze(-1), means.unsqueeze(-2), scales.unsqueeze(-2))  # (..., k, k)
    after = (weights.unsqueeze(-2) * each).sum(-1)
    here = (means.unsqueeze(-1) == means.unsqueeze(-2)) & (scales == 0).unsqueeze(-2)
    before = after - (weights.unsqueeze(-2) * here).sum(-1)
    u = u.unsqueeze(-1)
    hit = (scales == 0) & (weights > 0) & (before < u) & (u <= after)
    return torch.where(hit.any(-1), torch.where(hit, means, torch.inf).amin(-1), x)


def _atom_quantile(u: Tensor, weights: Tensor, means: Tensor) -> Tensor:
    """Return the quantile of atoms alone, by sorting."""
    means, order = means.sort(-1)
    weights = weights.gather(-1, order)
    mass = weights.cumsum(-1)
    batch = torch.broadcast_shapes(u.shape, means.shape[:-1])
    k = means.shape[-1]
    flat_mass, flat_u = mass.expand(*batch, k).reshape(-1, k), u.expand(batch).reshape(-1, 1)
    # Only atoms that are there: at level 0 the first of them, at rounding above the total mass the last.
    first, last = (weights > 0).int().argmax(-1), k - 1 - (weights > 0).int().flip(-1).argmax(-1)
    index = torch.searchsorted(flat_mass.contiguous(), flat_u.contiguous()).reshape(batch)
    index = torch.minimum(torch.maximum(index, first), last)
    return means.expand(*batch, k).gather(-1, index.unsqueeze(-1)).squeeze(-1)
