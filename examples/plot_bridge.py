"""
When do the mean and the CVaR choose different actions?
=======================================================

Home is an hour away by road. The bridge is faster, but one crossing in ten ends in the river. An agent that knows only
expected returns takes the bridge. An agent that knows whole distributions can be told how much risk to bear.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from cramix import NormalMixture
from cramix.plot.figure import COLOURS
from cramix.rl import parse_risk

plt.rc("axes", titlelocation="left")
plt.rc("axes.spines", top=False, right=False)
ORANGE, BLUE, GREEN = COLOURS[:3]

# %%
# Returns are minus the minutes it takes to get home. They are Gaussian mixtures, which the Bellman equation maps to
# Gaussian mixtures: a step adds its reward (``affine``), and chance mixes what follows (``mix``). So the distributions
# at the fork are known exactly.

bank = NormalMixture([1.0], [-15.0], [3.0])  # from the far bank it is a walk of 15 ± 3 minutes
crossed, fell_in = bank.affine(-25.0, 1.0), bank.affine(-115.0, 2.0)
bridge = NormalMixture.mix([crossed, fell_in], [0.9, 0.1])
road = NormalMixture([1.0], [-60.0], [6.0])

# %%
# The same words name a risk measure everywhere: here, in ``GMDQN(..., risk="cvar:0.1")``, which learns such
# distributions from experience, and in ``cramix play --risk cvar:0.1``. CVaR is the mean of the worst outcomes, here of
# the worst tenth.

for risk in ("mean", "cvar:0.5", "cvar:0.1"):
    measure = parse_risk(risk)
    values = {"road": measure(road).item(), "bridge": measure(bridge).item()}
    print(f"{risk:8} road {values['road']:.0f}, bridge {values['bridge']:.0f}: take the {max(values, key=values.get)}")

# %%
# Are the closed forms right? 200,000 simulated trips over the bridge, and the mean of the worst tenth:

rng = np.random.default_rng(0)
falls = rng.random(200_000) < 0.1
trips = np.where(falls, -115 + 2 * rng.normal(-15, 3, len(falls)), -25 + rng.normal(-15, 3, len(falls)))
worst = np.sort(trips)[: len(trips) // 10]
print(f"bridge, simulated: mean {trips.mean():.1f}, CVaR {worst.mean():.1f}")
print(f"bridge, exact:     mean {bridge.mean:.1f}, CVaR {bridge.cvar(0.1):.1f}")

# %%
# On the right, the CVaR of both actions for every level. At 1 it is the mean. Where the curves cross, the choice
# changes.

levels = torch.linspace(0.01, 1, 200)
cvars = {"road": road.cvar(levels), "bridge": bridge.cvar(levels)}
crossing = levels[(cvars["bridge"] > cvars["road"]).int().argmax()].item()
print(f"the bridge is better from level {crossing:.2f} on")

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
grid = torch.linspace(-175, -20, 800)
for base, (name, p, colour) in enumerate((("bridge", bridge, ORANGE), ("road", road, BLUE))):
    density = p.log_prob(grid).exp()
    density = 0.8 * density / density.max()
    left.fill_between(-grid, base, base + density, color=colour, alpha=0.35, lw=0)
    left.plot(-grid, base + density, color=colour, lw=1.5)
    left.plot([-p.mean.item()] * 2, [base, base + 0.5], color="0.15", lw=2)
    left.plot([-p.cvar(0.1).item()] * 2, [base, base + 0.5], color="0.15", lw=2, ls=":")
    left.text(172, base + 0.55, name, color=colour, fontsize=12, ha="right")
left.text(-bridge.mean.item() + 2, 0.42, "mean", color="0.15")
left.text(-bridge.cvar(0.1).item() - 2, 0.42, "worst tenth", color="0.15", ha="right")
left.set(xlabel="minutes to get home", yticks=[], xlim=(20, 175), ylim=(0, 2))
left.spines["left"].set_visible(False)
left.set_title("Better on average, worse when it goes wrong")

for values, colour in zip(cvars.values(), (BLUE, ORANGE), strict=True):
    right.plot(levels, -values, color=colour, lw=2)
right.text(0.12, 60, "road", color=BLUE)
right.text(0.16, 122, "bridge", color=ORANGE)
right.axvline(crossing, color="0.7", lw=1, ls=":")
right.text(crossing - 0.02, 140, "take the road", ha="right", color="0.35")
right.text(crossing + 0.02, 140, "take the bridge", color="0.35")
right.set(
    xlabel="fraction of trips that count, the worst ones", ylabel="their mean (minutes)", xlim=(0, 1), ylim=(0, 160)
)
right.set_title(f"Who looks only at the worst {crossing:.0%} takes the road")
plt.show()
