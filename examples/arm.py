"""Inverse kinematics: which angles bring the hand of an arm to a place? Most places have two answers; both are learned.

    python examples/arm.py [arm.png]

The arm has two joints and two links. From random angles we know where the hand is; the network learns the way back, a
mixture over the two angles. A network with one answer learns the mean of both, which points elsewhere.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cramix import EnergyScoreLoss, MixtureHead, MultivariateNormalMixture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UPPER, LOWER = 1.0, 0.8


def elbow_and_hand(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Return the places of elbow and hand, `(*, 2)` each, for angles at shoulder and elbow, `(*, 2)`."""
    shoulder, bend = angles.unbind(-1)
    elbow = UPPER * torch.stack([shoulder.cos(), shoulder.sin()], -1)
    return elbow, elbow + LOWER * torch.stack([(shoulder + bend).cos(), (shoulder + bend).sin()], -1)


def draw(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return places of the hand and the angles that led there, `(n, 2)` each; the arm reaches to the right."""
    shoulder = math.pi * (torch.rand(n, generator=generator) - 0.5)
    sign = torch.where(torch.rand(n, generator=generator) < 0.5, -1, 1)
    bend = sign * (0.6 + 2 * torch.rand(n, generator=generator))
    angles = torch.stack([shoulder, bend], -1)
    return elbow_and_hand(angles)[1], angles


def learn(steps: int = 1000, k: int = 4, seed: int = 0) -> nn.Module:
    """Train a network from places of the hand to mixtures over the angles."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    _, angles = draw(2000, generator)
    body = nn.Sequential(nn.Linear(2, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU())
    network = nn.Sequential(body, MixtureHead(96, k, event_dim=2, covariance="full", targets=angles))
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    loss = EnergyScoreLoss(tolerance=1e-4)
    for _ in range(steps):
        hand, angles = draw(256, generator)
        optimizer.zero_grad()
        loss(network(hand), angles).backward()
        optimizer.step()
        schedule.step()
    return network


def miss(network: nn.Module, n: int = 1000, seed: int = 1) -> tuple[float, float]:
    """Return how far from the place the hand ends, the median over places: for drawn answers, and for their mean."""
    generator = torch.Generator().manual_seed(seed)
    hand, _ = draw(n, generator)
    with torch.no_grad():
        p = network(hand)
        answers = p.sample((20,), generator=generator)
        drawn = (elbow_and_hand(answers)[1] - hand).norm(dim=-1)
        mean = (elbow_and_hand(p.mean)[1] - hand).norm(dim=-1)
    return drawn.median().item(), mean.median().item()


def picture(network: nn.Module, places: Tensor) -> Figure:
    """Draw the arms of many answers for some places of the hand, `(m, 2)`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(places), 3.8), layout="constrained")
    with torch.no_grad():
        p: MultivariateNormalMixture = network(places)
        answers = p.sample((40,), generator=torch.Generator().manual_seed(0))
        mean = p.mean
    for i, axes in enumerate(figure.subplots(1, len(places))):
        for angles in answers[:, i]:
            elbow, hand = elbow_and_hand(angles)
            axes.plot(*torch.stack([torch.zeros(2), elbow, hand]).T.numpy(), color="#0072B2", alpha=0.18, lw=1.5)
        elbow, hand = elbow_and_hand(mean[i])
        axes.plot(
            *torch.stack([torch.zeros(2), elbow, hand]).T.numpy(), color="#D55E00", lw=2, ls="--", label="mean answer"
        )
        axes.plot([], [], color="#0072B2", lw=1.5, label="40 answers of the mixture")
        axes.plot(*places[i].numpy(), "o", color="black", ms=7, label="where the hand should be")
        axes.set(aspect="equal", xlim=(-0.7, 1.9), ylim=(-1.5, 1.5), xticks=[], yticks=[])
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def main() -> None:
    """Train, say how far the hand is off, and draw."""
    network = learn()
    drawn, mean = miss(network)
    print(f"The hand is off by {drawn:.3f} for answers of the mixture, by {mean:.3f} for the mean answer (arm: 1.8).")
    places = torch.tensor([[1.2, 0.6], [0.7, -0.5], [1.0, 0.0]])
    picture(network, places).savefig(sys.argv[1] if len(sys.argv) > 1 else "arm.png", dpi=120)


if __name__ == "__main__":
    main()
