"""Inverse kinematics: which angles bring the hand of an arm to a point? Most points have two solutions; learn both.

    python examples/arm.py [arm.png]

The arm has two joints and two links. Random angles give positions of the hand; the network learns the inverse, a
mixture over the two angles. A network with a single answer learns the mean of both solutions, which is neither.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cramix import EnergyScore, MixtureHead, MultivariateNormalMixture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UPPER, LOWER = 1.0, 0.8


def elbow_and_hand(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of elbow and hand, `(*, 2)` each, for angles at shoulder and elbow, `(*, 2)`."""
    shoulder, bend = angles.unbind(-1)
    elbow = UPPER * torch.stack([shoulder.cos(), shoulder.sin()], -1)
    return elbow, elbow + LOWER * torch.stack([(shoulder + bend).cos(), (shoulder + bend).sin()], -1)


def draw(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return positions of the hand and the angles that reach them, `(n, 2)` each; the arm reaches to the right."""
    shoulder = math.pi * (torch.rand(n, generator=generator) - 0.5)
    sign = torch.where(torch.rand(n, generator=generator) < 0.5, -1, 1)
    bend = sign * (0.6 + 2 * torch.rand(n, generator=generator))
    angles = torch.stack([shoulder, bend], -1)
    return elbow_and_hand(angles)[1], angles


def learn(steps: int = 1000, n_components: int = 4, seed: int = 0) -> nn.Module:
    """Train a network from positions of the hand to mixtures over the angles."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    _, angles = draw(2000, generator)
    body = nn.Sequential(nn.Linear(2, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU())
    network = nn.Sequential(body, MixtureHead(96, n_components, event_dim=2, covariance_type="full", targets=angles))
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    loss = EnergyScore(tolerance=1e-4)
    for _ in range(steps):
        hand, angles = draw(256, generator)
        optimizer.zero_grad()
        loss(network(hand), angles).backward()
        optimizer.step()
        schedule.step()
    return network


def hand_error(network: nn.Module, n: int = 1000, seed: int = 1) -> tuple[float, float]:
    """Return the median distance of the hand from its target: for sampled angles, and for the mean of the mixture."""
    generator = torch.Generator().manual_seed(seed)
    hand, _ = draw(n, generator)
    with torch.no_grad():
        p = network(hand)
        samples = p.sample((20,), generator=generator)
        drawn = (elbow_and_hand(samples)[1] - hand).norm(dim=-1)
        mean = (elbow_and_hand(p.mean)[1] - hand).norm(dim=-1)
    return drawn.median().item(), mean.median().item()


def picture(network: nn.Module, targets: Tensor) -> Figure:
    """Draw the arm at many sampled angles, for some targets of the hand, `(m, 2)`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(targets), 3.8), layout="constrained")
    with torch.no_grad():
        p: MultivariateNormalMixture = network(targets)
        samples = p.sample((40,), generator=torch.Generator().manual_seed(0))
        mean = p.mean
    for i, axes in enumerate(figure.subplots(1, len(targets))):
        for angles in samples[:, i]:
            elbow, hand = elbow_and_hand(angles)
            axes.plot(*torch.stack([torch.zeros(2), elbow, hand]).T.numpy(), color="#0072B2", alpha=0.18, lw=1.5)
        elbow, hand = elbow_and_hand(mean[i])
        axes.plot(
            *torch.stack([torch.zeros(2), elbow, hand]).T.numpy(),
            color="#D55E00",
            lw=2,
            ls="--",
            label="mean of the mixture",
        )
        axes.plot([], [], color="#0072B2", lw=1.5, label="40 samples of the mixture")
        axes.plot(*targets[i].numpy(), "o", color="black", ms=7, label="target of the hand")
        axes.set(aspect="equal", xlim=(-0.7, 1.9), ylim=(-1.5, 1.5), xticks=[], yticks=[])
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def main() -> None:
    """Train, print the error of the hand, and draw."""
    network = learn()
    drawn, mean = hand_error(network)
    print(
        f"Median error of the hand: {drawn:.3f} for samples of the mixture, {mean:.3f} for its mean. "
        f"The arm is {UPPER + LOWER} long."
    )
    targets = torch.tensor([[1.2, 0.6], [0.7, -0.5], [1.0, 0.0]])
    picture(network, targets).savefig(sys.argv[1] if len(sys.argv) > 1 else "arm.png", dpi=120)


if __name__ == "__main__":
    main()
