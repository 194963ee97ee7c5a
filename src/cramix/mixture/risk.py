"""Expectiles and the conditional value at risk of a mixture, from partial moments (docs/math.md, eq. 20 and 21)."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.mixture import components
from cramix.mixture.quantile import quantile
from cramix.mixture.roots import differentiable_root, solve_increasing


def expectile(tau: Tensor, weights: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """Return e with `(1 - tau) E(e - X)+ = tau E(X - e)+`."""
    tau = tau.expand(torch.broadcast_shapes(tau.shape, means.shape[:-1]))
    with torch.no_grad():
        fixed = [t.detach().double() for t in (tau, weights, means, scales)]
        x = _solve_expectile(*fixed).to(tau.dtype)
    return differentiable_root(_imbalance, x, tau, weights, means, scales)


def lower_cvar(alpha: Tensor, weights: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """Return the mean of the worst (smallest) fraction `alpha` of outcomes, `q - E(q - X)+ / alpha`.

    The derivative in the quantile q vanishes, except at an atom, where q moves with it: so q keeps its gradient.
    """
    # At alpha = 1 it is the mean, and q may be infinite.
    q = quantile(alpha.clamp_max(1 - torch.finfo(alpha.dtype).eps), weights, means, scales)
    shortfall = (weights * components.mean_below(q.unsqueeze(-1), means, scales)).sum(-1)
    return torch.where(alpha == 1, (weights * means).sum(-1), q - shortfall / alpha)


def _imbalance(x: Tensor, tau: Tensor, weights: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """Return `(1 - tau) E(x - X)+ - tau E(X - x)+`, which increases in x."""
    y, tau = x.unsqueeze(-1), tau.unsqueeze(-1)
    below = components.mean_below(y, means, scales)
    above = components.mean_below(-y, -means, scales)
    return (weights * ((1 - tau) * below - tau * above)).sum(-1)


def _solve_expectile(tau: Tensor, weights: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    # An expectile of the mixture lies between those of its components, which lie within 40 scales for any tau in use.
    reach = 40 * scales
    low, high = (means - reach).amin(-1).expand_as(tau), (means + reach).amax(-1).expand_as(tau)
    # An atom is a kink, on either side of which the balance is straight: Newton's last step must not cross one.
    unit = scales.amin(-1).expand_as(tau)

    def newton(x: Tensor) -> tuple[Tensor, Tensor]:
        imbalance = _imbalance(x, tau, weights, means, scales)
        mass = (weights * components.cdf(x.unsqueeze(-1), means, scales)).sum(-1)
        return imbalance >= 0, x - imbalance / (tau + (1 - 2 * tau) * mass)

    return solve_increasing(newton, low, high, unit)
