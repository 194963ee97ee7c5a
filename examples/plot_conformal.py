"""
Can I promise that 90 % intervals hold 90 %?
============================================

Intervals of a model are as good as the model. ``ConformalRegressor`` sets rows aside, looks how the model does on them,
and corrects its intervals. Their coverage is then guaranteed on average, for any model and any number of rows, as long
as new rows are like the old ones.
"""

import matplotlib.pyplot as plt
import numpy as np

from cramix import ConformalRegressor, MixtureRegressor
from cramix.plot.figure import COLOURS

plt.rc("axes", titlelocation="left")
plt.rc("axes.spines", top=False, right=False)
ORANGE, BLUE, GREEN = COLOURS[:3]

# %%
# 200 rows, noise that grows with x, and a model that overfits on purpose: no early stopping, no held-out rows.


def draw(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs (n, 1) and targets (n,)."""
    x = rng.uniform(0, 10, n)
    return x[:, None], 3 * np.sin(x) + (0.3 + 0.15 * x) * rng.standard_t(4, n)


overfitted = MixtureRegressor(n_components=2, n_estimators=2, max_iter=120, early_stopping=False, random_state=0)
conformal = ConformalRegressor(overfitted, calibration_fraction=0.3, random_state=0)

# %%
# Twelve data sets, and 5,000 new rows for each: which fraction of them lies in the 90 % intervals?

coverage = {"model": [], "conformal": []}
for seed in range(12):
    rng = np.random.default_rng(seed)
    X, y = draw(200, rng)
    X_new, y_new = draw(5000, rng)
    for name, regressor in (("model", overfitted), ("conformal", conformal)):
        low, high = regressor.fit(X, y).predict_interval(X_new, coverage=0.9).T
        coverage[name].append(np.mean((low <= y_new) & (y_new <= high)))
means = {name: np.mean(values) for name, values in coverage.items()}
print({name: f"{mean:.1%}" for name, mean in means.items()})

# %%
# The intervals of the last data set, and the coverage of all of them. Single data sets vary; the promise is about their
# mean.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained", width_ratios=[1.5, 1])
grid = np.linspace(0, 10, 400)[:, None]
left.scatter(X_new[:1000, 0], y_new[:1000], s=3, color="0.7", lw=0)
for regressor, colour in ((conformal, BLUE), (overfitted, ORANGE)):
    low, high = regressor.predict_interval(grid, coverage=0.9).T
    left.fill_between(grid[:, 0], low, high, color=colour, alpha=0.25, lw=0)
    left.plot(grid[:, 0], low, color=colour, lw=1)
    left.plot(grid[:, 0], high, color=colour, lw=1)
left.set(xlabel="x", ylabel="y", xlim=(0, 10), ylim=(-11, 11))
left.set_title("90 % intervals, and new rows")
for row, (name, colour, label) in enumerate((("model", ORANGE, "model alone"), ("conformal", BLUE, "conformal"))):
    right.scatter(coverage[name], [-row] * 12, s=50, color=colour, alpha=0.5, lw=0)
    right.plot([means[name]] * 2, [-row - 0.18, -row + 0.18], color=colour, lw=3)
    right.text(means[name], -row + 0.25, f"{label}: {means[name]:.0%} on average", color=colour, ha="center")
right.axvline(0.9, color="0.3", lw=1, ls=":")
right.text(0.905, -1.55, "promised", color="0.3")
right.set(yticks=[], ylim=(-1.7, 0.6), xlim=(0.4, 1.02), xlabel="new rows in the interval, for twelve data sets")
right.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
right.spines["left"].set_visible(False)
right.set_title(f"Promised 90 %, kept {means['conformal']:.0%}")
plt.show()
