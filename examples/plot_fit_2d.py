"""
Does my fit depend on its start?
================================

EM climbs to the optimum next to its start, so the model you get depends on the seed. ``CramerMixture`` starts with too
many components and merges them, which leads to the same optimum again and again. Here both fit a ring, a line and a
square with ten components, from 20 seeds each.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from cramix import CramerMixture, MultivariateNormalMixture
from cramix.data import ring_line_square
from cramix.plot.figure import COLOURS
from cramix.plot.plane import draw_components

plt.rc("axes", titlelocation="left")
plt.rc("axes.spines", top=False, right=False)
ORANGE, BLUE, GREEN = COLOURS[:3]
warnings.simplefilter("ignore", ConvergenceWarning)  # of EM, which often needs more than 100 iterations here

# %%
# The data are 850 points, like those of the paper. No mixture of ten Gaussians is exactly right.

x = ring_line_square().numpy()
seeds = range(20)

# %%
# ``CramerMixture`` has the arguments and methods of scikit-learn's class, so the three lines differ only in the name.

models = {
    "EM, one start": [GaussianMixture(10, random_state=seed).fit(x) for seed in seeds],
    "EM, best of ten starts": [GaussianMixture(10, n_init=10, random_state=seed).fit(x) for seed in seeds],
    "cramix": [CramerMixture(10, random_state=seed).fit(x) for seed in seeds],
}
scores = {name: np.array([model.score(x) for model in fits]) for name, fits in models.items()}
best = max(values.max() for values in scores.values())
for name, values in scores.items():
    print(
        f"{name}: mean log likelihood {values.min():.3f} to {values.max():.3f}, "
        f"{(values > best - 0.001).sum()} of {len(values)} within 0.001 of the best"
    )

# %%
# Each dot is a fit. The two pictures show the worst of the 20 seeds.

colours = {"EM, one start": "0.5", "EM, best of ten starts": ORANGE, "cramix": BLUE}
figure = plt.figure(figsize=(9, 4.6), layout="constrained")
grid = figure.subfigures(1, 2, width_ratios=[1.25, 1])
axes = grid[0].subplots()
rng = np.random.default_rng(0)
for row, (name, values) in enumerate(scores.items()):
    axes.scatter(values, -row + rng.uniform(-0.13, 0.13, len(values)), s=30, color=colours[name], alpha=0.7, lw=0)
    axes.text(best + 0.002, -row + 0.22, name, color=colours[name], ha="right")
axes.axvline(best, color="0.8", lw=1, zorder=0)
axes.set(yticks=[], ylim=(-2.5, 0.6), xlabel="mean log likelihood (nats per point); right is better")
axes.spines["left"].set_visible(False)
hits = int((scores["cramix"] > best - 0.001).sum())
axes.set_title(f"{hits} of {len(seeds)} seeds of cramix end at the best optimum")

worst = {name: models[name][int(values.argmin())] for name, values in scores.items() if name != "EM, one start"}
for axes, (name, model) in zip(grid[1].subplots(2, 1), worst.items(), strict=True):
    p = model.mixture_ if name == "cramix" else MultivariateNormalMixture.from_sklearn(model)
    axes.scatter(*x.T, s=3, color="0.75", lw=0)
    draw_components(axes, p)
    axes.set(aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.set_title(f"{name}: worst seed, {scores[name].min():.3f}", fontsize=10, color=colours[name])
plt.show()
