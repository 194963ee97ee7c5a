"""
My sample is not my population. Does it matter?
===============================================

Surveys ask some people more often than others, and know by how much. scikit-learn's ``GaussianMixture`` has no
``sample_weight``, so its density is that of the people who were asked. With weights, ``fit`` estimates the density of
all people.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import cramix
from cramix.plot.figure import COLOURS

plt.rc("axes", titlelocation="left")
plt.rc("axes.spines", top=False, right=False)
ORANGE, BLUE, GREEN = COLOURS[:3]

# %%
# A made-up country: 80 % of workers live in the city and 20 % in the country, who travel longer to work. The survey
# asked as many of each, 750.

rng = np.random.default_rng(0)
city, country = rng.normal(25, 8, 750), rng.normal(60, 12, 750)
minutes = np.concatenate([city, country])
weight = np.repeat([0.8 / 750, 0.2 / 750], 750)  # people for each person who was asked; any positive unit

population = cramix.NormalMixture([0.8, 0.2], [25.0, 60.0], [8.0, 12.0]).to(torch.float64)

# %%
# The same call with and without weights.

plain = cramix.fit(minutes, 2, generator=torch.Generator().manual_seed(0)).mixture
weighted = cramix.fit(minutes, 2, sample_weight=weight, generator=torch.Generator().manual_seed(0)).mixture
for name, p in (("plain", plain), ("weighted", weighted), ("population", population)):
    distance = cramix.cramer_distance(p, population).item()
    print(f"{name}: mean {p.mean:.1f} min, {1 - p.cdf(45.0):.0%} above 45 min, {distance:.3f} from the population")

# %%
# What the sample looks like, and what the population looks like.

grid = torch.linspace(0, 100, 500, dtype=torch.float64)
over = {name: 1 - p.cdf(45.0).item() for name, p in (("plain", plain), ("weighted", weighted))}
figure, axes = plt.subplots(figsize=(7.5, 4.4), layout="constrained")
axes.hist(minutes, 60, range=(0, 100), density=True, color="0.9")
axes.plot(grid, population.log_prob(grid).exp(), color="0.35", lw=4, alpha=0.4)
axes.plot(grid, plain.log_prob(grid).exp(), color=ORANGE, lw=2)
axes.plot(grid, weighted.log_prob(grid).exp(), color=BLUE, lw=2)
axes.text(64, 0.0185, f"fit without weights:\n{over['plain']:.0%} travel more than 45 min", color=ORANGE)
axes.text(33, 0.034, f"fit with weights:\n{over['weighted']:.0%} travel more than 45 min", color=BLUE)
axes.text(33, 0.030, f"population: {1 - population.cdf(45.0):.0%}", color="0.45")
axes.text(52, 0.0095, "answers of the survey", color="0.5")
axes.axvline(45, color="0.6", lw=1, ls=":")
axes.set(xlabel="time to work (minutes)", ylabel="density (per minute)", xlim=(0, 100), ylim=(0, None))
axes.set_title("Weights turn the density of the sample into that of the population")
plt.show()
