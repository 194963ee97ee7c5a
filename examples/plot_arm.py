"""
How does a network learn that there are two answers?
====================================================

Which angles bring the hand of a robot arm to a point? Most points can be reached with the elbow up or down. A network
with a single answer learns the mean of both, which misses. A network with a mixture on top learns both.
"""

import math

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from cramix import EnergyScoreLoss, MixtureHead
from cramix.plot.figure import COLOURS

plt.rc("axes", titlelocation="left")
ORANGE, BLUE, GREEN = COLOURS[:3]

# %%
# The arm has two links. Random angles at shoulder and elbow give positions of the hand; the network learns the inverse.

UPPER, LOWER = 1.0, 0.8
generator = torch.Generator().manual_seed(0)


def joints(angles: Tensor) -> Tensor:
    """Return the positions of shoulder, elbow and hand, (*, 3, 2), for angles at shoulder and elbow, (*, 2)."""
    shoulder, bend = angles.unbind(-1)
    elbow = UPPER * torch.stack([shoulder.cos(), shoulder.sin()], -1)
    hand = elbow + LOWER * torch.stack([(shoulder + bend).cos(), (shoulder + bend).sin()], -1)
    return torch.stack([torch.zeros_like(elbow), elbow, hand], -2)


def draw(n: int) -> tuple[Tensor, Tensor]:
    """Return positions of the hand and the angles that reach them, (n, 2) each."""
    shoulder = math.pi * (torch.rand(n, generator=generator) - 0.5)
    sign = torch.where(torch.rand(n, generator=generator) < 0.5, -1, 1)
    angles = torch.stack([shoulder, sign * (0.6 + 2 * torch.rand(n, generator=generator))], -1)
    return joints(angles)[:, 2], angles


# %%
# A ``MixtureHead`` turns features into mixtures over both angles. The energy score is the CRPS of vectors.

torch.manual_seed(0)
_, some = draw(2000)
network = nn.Sequential(
    nn.Linear(2, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(),
    MixtureHead(96, n_components=4, event_dim=2, covariance_type="full", targets=some),
)  # fmt: skip
steps = 500
loss = EnergyScoreLoss(tolerance=1e-4)
optimizer = torch.optim.Adam(network.parameters(), 3e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
for _ in range(steps):
    hand, angles = draw(128)
    optimizer.zero_grad()
    loss(network(hand), angles).backward()
    optimizer.step()
    schedule.step()

# %%
# By how much does the hand miss new targets? With angles sampled from the mixture, and with the mean of the mixture,
# which is what a network with one answer would learn:

hand, _ = draw(1000)
with torch.no_grad():
    p = network(hand)
    sampled = (joints(p.sample((20,), generator=generator))[..., 2, :] - hand).norm(dim=-1).median().item()
    mean = (joints(p.mean)[..., 2, :] - hand).norm(dim=-1).median().item()
print(f"median error {sampled:.3f} by samples, {mean:.3f} by the mean; the arm is {UPPER + LOWER} long")

# %%
# Each thin line is the arm at angles sampled from the mixture for one target.

targets = torch.tensor([[1.2, 0.6], [0.7, -0.5], [1.0, 0.0]])
with torch.no_grad():
    p = network(targets)
    arms, between = joints(p.sample((40,), generator=generator)), joints(p.mean)
figure, axes = plt.subplots(1, 3, figsize=(10, 4.3), layout="constrained", sharey=True)
for i, one in enumerate(axes):
    for arm in arms[:, i]:
        one.plot(*arm.T, color=BLUE, alpha=0.2, lw=1.5)
    one.plot(*between[i].T, color=ORANGE, lw=2.5, ls="--")
    one.plot(*targets[i], "o", color="black", ms=8)
    one.plot(0, 0, "s", color="0.5", ms=7)
    one.set(aspect="equal", xlim=(-0.35, 1.9), ylim=(-1.2, 1.2))
    one.set_axis_off()
figure.suptitle(
    f"Two ways to reach a point: samples miss by {sampled:.2f}, their mean by {mean:.2f}", x=0.02, ha="left"
)
axes[0].text(0.0, -0.16, "shoulder", color="0.4", ha="center")
axes[0].text(*(targets[0] + torch.tensor([0.1, -0.08])), "target")
axes[2].text(0.3, -1.05, "40 samples of the mixture", color=BLUE)
axes[2].text(0.3, -1.2, "mean of the mixture", color=ORANGE)
plt.show()
