"""
How sure is the forecast of the next solar cycle?
=================================================

Sunspots rise and fall in cycles of about eleven years, no two of them alike. A forecast should say how high the next
one might get, and be right about it as often as it claims. ``MixtureRegressor`` predicts whole distributions; the last
58 years check them.
"""

import matplotlib.pyplot as plt
import numpy as np
import statsmodels.api as sm
import torch

from cramix import MixtureRegressor, NormalMixture, crps
from cramix.plot import fan_chart, reliability

# %%
# The yearly numbers of sunspots since 1700 come with statsmodels. A row is a year from which we look ahead: the last 22
# years, and by how many years we look ahead, 1 to 11. Strong cycles follow strong ones, so that numbers are relative to
# the mean of the 22 years.

data = sm.datasets.sunspots.load_pandas().data
year, spots = data["YEAR"].to_numpy(int), data["SUNACTIVITY"].to_numpy()
WINDOW, HORIZON, SPLIT = 22, 11, 1950


def features(last: int) -> tuple[np.ndarray, float]:
    """Return features (11, 23) for all horizons from the year with this index, and the mean of the window."""
    window = spots[last - WINDOW + 1 : last + 1]
    relative = np.sqrt(window / window.mean())
    return np.column_stack([np.tile(relative, (HORIZON, 1)), np.arange(1, HORIZON + 1)]), window.mean()


def table(first: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features, targets and means of windows, for all windows from ``first`` on with targets up to ``end``."""
    lasts = [i for i in range(WINDOW - 1, len(spots) - HORIZON) if year[i] >= first and year[i] + HORIZON <= end]
    X, means = zip(*(features(i) for i in lasts), strict=True)
    y = [spots[i + 1 : i + 1 + HORIZON] for i in lasts]
    return np.concatenate(X), np.concatenate(y), np.repeat(means, HORIZON)


X, y, unit = table(1700, SPLIT)
X_new, y_new, unit_new = table(SPLIT, 2008)
print(f"{len(X)} rows up to {SPLIT}, {len(X_new)} later ones")

# %%
# An ensemble of small networks, trained by the CRPS. Rows that overlap cannot be held out from each other, so there is
# no early stopping but a small number of epochs.

model = MixtureRegressor(
    n_components=3, n_estimators=5, hidden_layer_sizes=(32, 32), max_iter=10, early_stopping=False, random_state=0
).fit(X, y / unit)

# %%
# ``affine`` brings the predictions back to sunspots. We compare their CRPS with that of all earlier years as one
# forecast, and count how many of the later numbers are in the 80 % intervals.

p = model.predict_dist(X_new).affine(0.0, torch.tensor(unit_new))
observed = torch.tensor(y_new)
score, past = (crps(q, observed).mean().item() for q in (p, NormalMixture.from_samples(spots[year <= SPLIT])))
pit = p.cdf(observed)
inside = ((pit > 0.1) & (pit < 0.9)).double().mean().item()
print(f"CRPS {score:.1f}, of the past {past:.1f}; {inside:.0%} in the 80 % intervals")

# %%
# The forecast of a whole cycle, made in 1997, and what came.

last = int(np.flatnonzero(year == 1997)[0])
rows, mean = features(last)
ahead = year[last + 1 : last + 1 + HORIZON]
shown = slice(last - 33, last + 1 + HORIZON)
figure = fan_chart(
    ahead,
    model.predict_dist(rows).affine(0.0, mean),
    (year[shown], spots[shown]),
    names=("year", "sunspots"),
)
axes = figure.axes[0]
axes.plot(year[shown], spots[shown], color="0.5", lw=1, zorder=0)
axes.set_ylim(0, None)
axes.axvline(1997.5, color="0.7", lw=1, ls=":")
axes.set_title(f"Since {SPLIT}: CRPS {score:.1f} up to a cycle ahead, {past:.1f} without a model", loc="left")
plt.figure(figure)  # pyplot shows it

# %%
# Calibration: of all forecasts since 1950, how many observations are in the central intervals? Above the diagonal,
# intervals are wider than necessary. Windows overlap, so that fewer numbers are independent than the grey region
# assumes.

figure = reliability(pit)
figure.axes[0].set_title(f"{inside:.0%} are in the 80 % intervals: a little too careful", loc="left", fontsize=11)
plt.figure(figure)
plt.show()
