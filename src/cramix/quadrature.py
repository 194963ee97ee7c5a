"""Gauss-Legendre panels that resolve every component of a mixture, whatever the spread of its scales.

A component is smooth on the length of its scale and constant up to rounding beyond `REACH` scales. So the line is cut
into panels that are a fixed number of scales of the narrowest local component wide. A gap between components, where
every distribution function is constant, is one panel, and atoms (scale 0) lie on the edges of panels only.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

# Beyond this many scales a normal distribution function is 0 or 1 up to a float64's rounding error.
REACH = 8.5
# A panel is at most this many scales wide and has this many nodes.
WIDTH = 2.0
ORDER = 12
# Where atoms cut the line into narrower panels fewer nodes suffice: order, and its range of widths in scales.
ORDERS = {3: (0, 0.01), 4: (0.01, 0.1), ORDER: (0.1, float("inf"))}
# Numbers in the largest temporary array.
BLOCK = 1 << 20


def panel_edges(means: Tensor, scales: Tensor) -> Tensor:
    """Return sorted edges of panels, `(B, e)`, that resolve the components `(B, k)`. Edges may repeat."""
    low, high = means - REACH * scales, means + REACH * scales
    ends = torch.cat((low, high), -1).sort(-1).values  # (B, 2k)
    finest = _finest_scale(0.5 * (ends[:, 1:] + ends[:, :-1]), low, high, scales)  # (B, 2k - 1), inf in a gap
    gap = finest.isinf()
    # Measure the line in units of the finest scale at hand, and cut it at equal steps of that measure.
    measure = torch.nn.functional.pad((ends.diff(dim=-1) / finest).cumsum(-1), (1, 0))  # (B, 2k)
    count = max(1, int(torch.ceil(measure[:, -1].amax() / WIDTH)))
    targets = measure[:, -1:] * torch.linspace(0, 1, count + 1, dtype=means.dtype, device=means.device)
    left = torch.searchsorted(measure, targets, right=True).sub_(1).clamp_(0, gap.shape[1] - 1)
    beyond = (targets - measure.gather(-1, left)) * finest.masked_fill(gap, 0).gather(-1, left)
    cuts = ends.gather(-1, left) + beyond
    beside_gap = torch.nn.functional.pad(gap, (1, 0)) | torch.nn.functional.pad(gap, (0, 1))
    last = ends[:, -1:]
    return torch.cat((cuts, _keep(ends, beside_gap, last), _keep(means, scales == 0, last)), -1).sort(-1).values


def gauss_legendre(edges: Tensor) -> tuple[Tensor, Tensor]:
    """Return nodes and weights, `(B, panels * ORDER)`, on the panels between consecutive edges `(B, panels + 1)`."""
    x, w = panel_nodes(edges[:, :-1], edges[:, 1:], ORDER)
    return x.flatten(1), w.flatten(1)


def panel_nodes(left: Tensor, right: Tensor, order: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of a Gauss-Legendre rule on panels, one more axis of length `order`."""
    x, w = _rule(order, left.dtype, left.device)
    half = 0.5 * (right - left).unsqueeze(-1)
    return 0.5 * (left + right).unsqueeze(-1) + half * x, half * w


def _finest_scale(x: Tensor, low: Tensor, high: Tensor, scales: Tensor) -> Tensor:
    """Return the smallest scale > 0 of the components that reach `x`, `(B, n)`; infinity where none does."""
    low, high, scales = low.unsqueeze(1), high.unsqueeze(1), scales.unsqueeze(1)
    parts = []
    for part in x.split(max(1, BLOCK // low.numel()), dim=1):
        reaches = (low <= part.unsqueeze(-1)) & (part.unsqueeze(-1) <= high) & (scales > 0)
        parts.append(torch.where(reaches, scales, torch.inf).amin(-1))
    return torch.cat(parts, 1)


def _keep(values: Tensor, mask: Tensor, fill: Tensor) -> Tensor:
    """Return the masked values of each row, as few columns as hold them, the rest filled."""
    count = int(mask.sum(-1).amax())
    return torch.minimum(torch.where(mask, values, torch.inf).sort(-1).values[:, :count], fill)


@lru_cache(maxsize=16)
def _rule(order: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    x, w = np.polynomial.legendre.leggauss(order)
    with torch.inference_mode(False):  # kept for later calls, which may want gradients
        return torch.as_tensor(x, dtype=dtype, device=device), torch.as_tensor(w, dtype=dtype, device=device)


def even_points(count: int, dim: int) -> Tensor:
    """Return points that fill the open unit cube evenly, `(count, d)`, in float64: on the line equally spaced ones.

    Else they are multiples, modulo 1, of powers of the generalised golden ratio (Roberts 2018).
    """
    number = torch.arange(count, dtype=torch.float64).unsqueeze(-1)
    if dim == 1:
        return (number + 0.5) / count
    ratio = 2.0
    for _ in range(60):  # to the root of ratio^(d + 1) = ratio + 1
        ratio = (1 + ratio) ** (1 / (dim + 1))
    steps = torch.tensor([ratio ** -(i + 1) for i in range(dim)], dtype=torch.float64)
    return (0.5 + number * steps) % 1
