"""Optimal transport between two smooth mixtures on the line: `W2^2`, by quadrature (docs/others.md, eq. O20 and O21).

Optimal transport pairs the quantiles x and y of one level. The levels are cut wherever x or y enters a new panel of its
own mixture, so that between cuts each stays within one panel. There the integral runs over x or over y, whichever log
density changes more, since the other one is then a smooth function of it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import pad

from cramix.distance.derivatives import constant_gradient
from cramix.distance.kernels import block_size
from cramix.mixture import components
from cramix.mixture.quantile import quantile
from cramix.quadrature import ORDER, panel_edges, panel_nodes


class Level(NamedTuple):
    """The probability of the smaller tail, and its side: 1 for the lower, -1 for the upper one."""

    tail: Tensor
    side: Tensor


class Line(NamedTuple):
    """Weights of sum one, means and scales > 0, `(B, k)`, in float64."""

    weights: Tensor
    means: Tensor
    scales: Tensor

    def cdf(self, x: Tensor) -> Tensor:
        """Return F at `(B, n)`."""
        each = components.cdf(x.unsqueeze(-1), self.means.unsqueeze(-2), self.scales.unsqueeze(-2))
        return (each @ self.weights.unsqueeze(-1)).squeeze(-1)

    def log_density(self, x: Tensor) -> Tensor:
        """Return log f at `(B, n)`."""
        each = components.log_density(x.unsqueeze(-1), self.means.unsqueeze(-2), self.scales.unsqueeze(-2))
        return (components.log_weights(self.weights).unsqueeze(-2) + each).logsumexp(-1)

    def level(self, x: Tensor) -> Level:
        """Return the levels of points `(B, n)`."""
        lower, upper = self.cdf(x), self._replace(means=-self.means).cdf(-x)
        return Level(torch.minimum(lower, upper), torch.where(lower <= upper, 1.0, -1.0).to(x.dtype))

    def quantile(self, level: Level) -> Tensor:
        """Return quantiles at `(B, n)`; those of upper tails by mirroring, since 1 - tail would lose digits."""
        side = level.side.unsqueeze(-1)
        tail = level.tail.clamp_min(torch.finfo(level.tail.dtype).tiny)
        mirrored = quantile(
            tail, self.weights.unsqueeze(-2), side * self.means.unsqueeze(-2), self.scales.unsqueeze(-2)
        )
        return level.side * mirrored


def squared_transport(p: Line, q: Line, block: int | None = None) -> Tensor:
    """Return `W2^2`, `(B,)`, with first derivatives in weights, means and scales."""
    # Centred, so that a large common mean costs no digits.
    centre = (p.weights * p.means).sum(-1, keepdim=True).detach()
    p, q = p._replace(means=p.means - centre), q._replace(means=q.means - centre)
    # A component has about 10 panels, each cut in two, with nodes in each half.
    nodes = 20 * ORDER * (p.means.shape[-1] + q.means.shape[-1])
    rows = max(1, block_size(p.means.device, block) // (nodes * max(p.means.shape[-1], q.means.shape[-1])))
    sides = zip(*(t.split(rows) for t in (*p, *q)), strict=True)
    return torch.cat([_SquaredTransport.apply(*part) for part in sides])


class _SquaredTransport(Function):
    """A change dF of F moves the quantile x by -dF / f: `W2^2` grows by the integral of `-2 (x - y) dF dx` (O21)."""

    @staticmethod
    def forward(ctx, *parameters):
        x, y, mass, along_x, along_y = _plan(Line(*parameters[:3]), Line(*parameters[3:]))
        apart = x - y
        ctx.save_for_backward(*parameters, x, y, -2 * along_x * apart, 2 * along_y * apart)
        return (mass * apart.square()).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        *parameters, x, y, pull_x, pull_y = ctx.saved_tensors
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in parameters]
            moved = (pull_x * Line(*leaves[:3]).cdf(x)).sum(-1) + (pull_y * Line(*leaves[3:]).cdf(y)).sum(-1)
            gradients = torch.autograd.grad(moved, leaves, grad.detach())
        return tuple(constant_gradient(gradient, grad, *parameters) for gradient in gradients)


def _plan(p: Line, q: Line) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return nodes x and y of equal level, and the mass, the length of x and the length of y that each stands for."""
    x_edges, y_edges = (_halved(panel_edges(side.means, side.scales)) for side in (p, q))
    # Both partners grow with the level, so that sorting keeps them together.
    x_cuts = torch.cat((x_edges, p.quantile(q.level(y_edges))), -1).sort(-1).values
    y_cuts = torch.cat((q.quantile(p.level(x_edges)), y_edges), -1).sort(-1).values
    over_x = p.log_density(x_cuts).diff(dim=-1).abs() >= q.log_density(y_cuts).diff(dim=-1).abs()
    over_x = over_x.unsqueeze(-1)  # (B, panels, 1)
    x, along_x = panel_nodes(x_cuts[:, :-1], x_cuts[:, 1:], ORDER)
    y, along_y = panel_nodes(y_cuts[:, :-1], y_cuts[:, 1:], ORDER)
    shape = x.shape
    x, y, there = x.flatten(1), y.flatten(1), over_x.expand(shape).flatten(1)
    level = Level(*(torch.where(there, a, b) for a, b in zip(p.level(x), q.level(y), strict=True)))
    x, y = torch.where(there, x, p.quantile(level)), torch.where(there, q.quantile(level), y)
    log_f, log_g = p.log_density(x).view(shape), q.log_density(y).view(shape)
    mass = torch.where(over_x, along_x * log_f.exp(), along_y * log_g.exp())
    # dy = f/g dx. In a gap of both f/g is noise; it is scaled so that the panel keeps its length.
    slope = log_f - log_g
    along_x, along_y = (
        torch.where(over_x, along_x, _softmax(along_y.log() - slope) * along_x.sum(-1, keepdim=True)),
        torch.where(over_x, _softmax(along_x.log() + slope) * along_y.sum(-1, keepdim=True), along_y),
    )
    return x, y, mass.flatten(1), along_x.flatten(1), along_y.flatten(1)


def _softmax(logs: Tensor) -> Tensor:
    """Return the softmax; equal parts on a panel of length 0."""
    return torch.where(logs == -torch.inf, -1e300, logs).softmax(-1)


def _halved(edges: Tensor) -> Tensor:
    middles = 0.5 * (edges[:, 1:] + edges[:, :-1])
    return torch.stack((edges, pad(middles, (0, 1), value=0.0)), -1).flatten(1)[:, :-1]
