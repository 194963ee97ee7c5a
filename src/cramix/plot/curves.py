"""Univariate mixtures beside each other: densities and distribution functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cramix.mixture import NormalMixture
from cramix.plot.figure import COLOURS, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def densities_and_cdfs(
    mixtures: Mapping[str, NormalMixture], x: Tensor | None = None, truth: NormalMixture | None = None
) -> Figure:
    """Draw unbatched mixtures beside each other: densities left (atoms have none), distribution functions right.

    Args:
        mixtures: curves by their labels.
        x: points `(n,)` to show as a histogram and as a step function.
        truth: a mixture to show in the background.
    """
    figure = require_matplotlib()(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    everything = [*mixtures.values(), *([truth] if truth is not None else [])]
    low = min(float((m.means - 4 * m.scales).min()) for m in everything)
    high = max(float((m.means + 4 * m.scales).max()) for m in everything)
    if x is not None:
        low, high = max(low, float(x.min()) - 0.5 * float(x.std())), min(high, float(x.max()) + 0.5 * float(x.std()))
        left.hist(x.numpy(), bins=120, density=True, color="0.85", label=f"sample of {len(x)}")
        right.plot(x.sort().values.numpy(), torch.linspace(0, 1, len(x)).numpy(), color="0.75", lw=4, label="sample")
    grid = torch.linspace(low, high, 1500, dtype=everything[0].means.dtype)
    # Each curve is thinner than the one before it, so that one that another covers still shows at its sides.
    curves = [
        (name, mixture, {"color": COLOURS[i % len(COLOURS)], "lw": 1.4 + 0.9 * (len(mixtures) - 1 - i)})
        for i, (name, mixture) in enumerate(mixtures.items())
    ]
    if truth is not None:
        curves.insert(0, ("truth", truth, {"color": "black", "lw": 1.2, "ls": (0, (4, 2))}))
    for name, mixture, style in curves:
        with torch.no_grad():
            if bool((mixture.scales > 0).all()):
                left.plot(grid.numpy(), mixture.log_prob(grid).exp().numpy(), label=name, **style)
            right.plot(grid.numpy(), mixture.cdf(grid).numpy(), label=name, **style)
    left.set(title="density", xlim=(low, high), xlabel="x")
    right.set(title="distribution function", xlim=(low, high), ylim=(-0.02, 1.02), xlabel="x")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9, loc="upper left")
    return figure
