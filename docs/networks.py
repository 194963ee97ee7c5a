"""Draws the figures of docs/networks.md: gradient norms by target and by scale, and predictions of a network.

python docs/networks.py
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from cramix import CramerLoss, MixtureHead, MixtureNLLLoss, NormalMixture
from cramix.metrics import Calibration
from cramix.plot import mixture_over_input
from cramix.plot.figure import COLOURS

HERE = Path(__file__).parent / "networks"
LOSSES = {"Cramér": CramerLoss(), "likelihood": MixtureNLLLoss()}


def gradient_norms() -> Figure:
    """Draw the norm of a network's gradient for distant targets, and for equal targets as scales shrink."""
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    far, narrow = figure.subplots(1, 2)
    x = torch.linspace(-1, 1, 200).unsqueeze(-1)
    y = x[:, 0]
    targets_at, scales = torch.logspace(0, 6, 25), torch.logspace(0, -6, 25)
    for (name, loss), colour in zip(LOSSES.items(), COLOURS, strict=False):
        far.loglog(
            targets_at, [norm(loss, x, y, torch.full_like(y, t)) for t in targets_at.tolist()], color=colour, label=name
        )
        narrow.loglog(scales, [at_scale(loss, s) for s in scales.tolist()], color=colour, label=name)
    far.set(xlabel="distance of the targets, in units of those seen before", ylabel="norm of the gradient")
    narrow.set(xlabel="scale of a component near equal targets", ylabel="norm of the gradient")
    narrow.invert_xaxis()
    for axes in (far, narrow):
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    return figure


def norm(loss: nn.Module, x: Tensor, seen: Tensor, targets: Tensor) -> float:
    """The gradient of a network that started from targets seen before."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), MixtureHead(32, 3, targets=seen))
    gradients = torch.autograd.grad(loss(network(x), targets), list(network.parameters()))
    return torch.cat([g.flatten() for g in gradients]).norm().item()


def at_scale(loss: nn.Module, scale: float) -> float:
    """The gradient in mean and scale of a component beside equal targets, half a scale away."""
    mean, width = (torch.tensor([value], dtype=torch.float64, requires_grad=True) for value in (0.5 * scale, scale))
    p = NormalMixture(torch.ones(1, dtype=torch.float64), mean, width)
    return torch.stack(torch.autograd.grad(loss(p, torch.zeros(20, dtype=torch.float64)), (mean, width))).norm().item()


def learned() -> tuple[Figure, Figure]:
    """Draw what a network has learned of two branches that cross, and its calibration."""
    g = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    x = 2 * torch.rand(1500, 1, generator=g) - 1
    y = torch.where(torch.rand(1500, generator=g) < 0.5, -1, 1) * x[:, 0] + 0.1 * torch.randn(1500, generator=g)
    seen, held = slice(0, 1000), slice(1000, None)
    network = nn.Sequential(
        nn.Linear(1, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), MixtureHead(64, 3, targets=y[seen])
    )
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
    for _ in range(300):
        optimizer.zero_grad()
        CramerLoss()(network(x[seen]), y[seen]).backward()
        optimizer.step()
        schedule.step()
    grid = torch.linspace(-1, 1, 200)
    metric = Calibration()
    metric.update(network(x[held]), y[held])
    with torch.no_grad():
        over = mixture_over_input(grid, network(grid.unsqueeze(-1)), (x[held, 0], y[held]))
    return over, metric.plot()[0]


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    gradient_norms().savefig(HERE / "gradients.png", dpi=110)
    over, calibration = learned()
    over.savefig(HERE / "branches.png", dpi=110)
    calibration.savefig(HERE / "calibration.png", dpi=110)
