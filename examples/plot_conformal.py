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
# 400 rows of ten features, of which one matters, and a model that overfits on purpose: it trains on all rows, without
# early stopping.


def draw(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return features (n, 10) and targets (n,)."""
    X = rng.uniform(0, 1, (n, 10))
    return X, 3 * np.sin(6 * X[:, 0]) + (0.3 + X[:, 0]) * rng.standard_t(5, n)


overfitted = MixtureRegressor(n_components=1, n_estimators=2, max_iter=30, early_stopping=False, random_state=0)
conformal = ConformalRegressor(overfitted, calibration_fraction=0.3, random_state=0)

# %%
# Eight data sets, and 5,000 new rows for each: which fraction of them lies in the 90 % intervals?

coverage = {"model": [], "conformal": []}
intervals = {}
for seed in range(8):
    rng = np.random.default_rng(seed)
    X, y = draw(400, rng)
    X_new, y_new = draw(5000, rng)
    for name, regressor in (("model", overfitted), ("conformal", conformal)):
        intervals[name] = regressor.fit(X, y).predict_interval(X_new, coverage=0.9)
        low, high = intervals[name].T
        coverage[name].append(np.mean((low <= y_new) & (y_new <= high)))
means = {name: np.mean(values) for name, values in coverage.items()}
for name, values in coverage.items():
    error = np.std(values, ddof=1) / len(values) ** 0.5
    print(f"{name}: {means[name]:.1%} ± {error:.1%} on average, {min(values):.0%} to {max(values):.0%}")

# %%
# On the left, the intervals of 60 new rows of the last data set. Single data sets vary, as the right side shows; the
# promise is about their mean.

figure = plt.figure(figsize=(10, 4.6), layout="constrained")
parts = figure.subfigures(1, 2, width_ratios=[1.5, 1])
labels = {"model": "model alone", "conformal": "conformal"}
shown = np.argsort(X_new[:60, 0])
rows = parts[0].subplots(2, 1, sharex=True, sharey=True)
for axes, name, colour in zip(rows, intervals, (ORANGE, BLUE), strict=True):
    low, high = intervals[name][shown].T
    missed = (y_new[shown] < low) | (y_new[shown] > high)
    axes.vlines(range(60), low, high, color=colour, alpha=0.4, lw=4)
    axes.scatter(range(60), y_new[shown], s=np.where(missed, 26, 9), color=np.where(missed, "black", "0.45"), zorder=3)
    axes.set_title(f"{labels[name]}: misses {missed.sum()} of 60", color=colour, fontsize=11)
    axes.set_ylabel("target")
axes.set(xlabel="new rows, in the order of the feature that matters", xticks=[])
axes = parts[1].subplots()
for row, (name, colour) in enumerate((("model", ORANGE), ("conformal", BLUE))):
    axes.scatter(coverage[name], [-row] * 8, s=60, color=colour, alpha=0.45, lw=0)
    axes.plot([means[name]] * 2, [-row - 0.15, -row + 0.15], color=colour, lw=3)
    axes.text(means[name], -row + 0.22, f"{labels[name]}: {means[name]:.0%}", color=colour, ha="center")
axes.axvline(0.9, color="0.3", lw=1, ls=":")
axes.text(0.905, -1.55, "promised", color="0.3")
axes.set(yticks=[], ylim=(-1.7, 0.6), xlabel="new rows inside, for eight data sets", xlim=(None, 1.03))
axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
axes.spines["left"].set_visible(False)
axes.set_title(f"Promised 90 %, kept {means['conformal']:.0%} instead of {means['model']:.0%}", fontsize=11)
plt.show()
