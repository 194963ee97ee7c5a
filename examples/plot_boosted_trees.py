"""
When will the parcel arrive?
============================

Tables have categories, holes, and noise that depends on the row. ``MixtureBoostingRegressor`` takes them as they are
and predicts a distribution for every row, trained by the exact CRPS: narrow on most rows, wide and skewed where a
parcel may have to wait.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from cramix import MixtureBoostingRegressor, NormalMixture, crps
from cramix.plot.figure import COLOURS

plt.rc("axes", titlelocation="left")
plt.rc("axes.spines", top=False, right=False)
ORANGE, BLUE, GREEN = COLOURS[:3]

# %%
# A made-up table of deliveries: the district is text, and a tenth of the distances are missing. Parcels to the harbour
# cross a drawbridge. Between 7 and 11 o'clock it opens for ships, and the wait is 15 minutes on average, sometimes much
# longer.

rng = np.random.default_rng(0)


def deliveries(n: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return features and minutes."""
    hour, distance = rng.uniform(5, 21, n), rng.uniform(2, 10, n)
    district = rng.choice(["centre", "harbour"], n)
    bridge = (district == "harbour") & (hour > 7) & (hour < 11)
    minutes = 8 + 3 * distance + 15 * bridge * rng.exponential(size=n) + (1 + 0.3 * distance) * rng.normal(size=n)
    distance[rng.random(n) < 0.1] = np.nan
    return pd.DataFrame({"hour": hour, "distance": distance, "district": district}), minutes


X, y = deliveries(4000)
X_new, y_new = deliveries(4000)

# %%
# No preparation of the columns is needed.

model = MixtureBoostingRegressor(n_estimators=5, n_jobs=1, random_state=0).fit(X, y)

# %%
# The CRPS of new rows, in minutes, against one distribution for all parcels, and the coverage of intervals.

p, observed = model.predict_dist(X_new), torch.tensor(y_new)
score, alone = (crps(q, observed).mean().item() for q in (p, NormalMixture.from_samples(y)))
low, high = model.predict_interval(X_new, coverage=0.9).T
inside = np.mean((low <= y_new) & (y_new <= high))
print(f"CRPS {score:.2f} min, {alone:.2f} min without features; {inside:.0%} in the 90 % intervals")

# %%
# Is it right about the rows that are hard? Not quite: on parcels that cross the bridge it is too sure. Where a
# distribution function has the value u at the observation, the central interval of probability ``|2 u - 1|`` ends
# there.

u = p.cdf(observed).numpy()
needed = np.abs(2 * u - 1)
bridge = ((X_new["district"] == "harbour") & X_new["hour"].between(7, 11)).to_numpy()
levels = np.linspace(0, 1, 101)
covered = {name: (needed[rows, None] <= levels).mean(0) for name, rows in (("other rows", ~bridge), ("bridge", bridge))}
for name, values in covered.items():
    print(f"{name}: {values[50]:.0%} in the 50 % intervals, {values[90]:.0%} in the 90 % intervals")

# %%
# The predicted density over the day, for a parcel to each district over six kilometres. Dots are new parcels over
# similar distances.

hours = np.linspace(5, 21, 160)
minutes = torch.linspace(8, 85, 250, dtype=torch.float64)
figure, axes = plt.subplots(1, 3, figsize=(12, 4), layout="constrained", width_ratios=[1, 1, 0.85])
near = (X_new["distance"] - 6).abs() < 1
for one, district, colour in zip(axes, ("centre", "harbour"), (BLUE, ORANGE), strict=False):
    day = model.predict_dist(pd.DataFrame({"hour": hours, "distance": 6.0, "district": district}))
    density = day.log_prob(minutes.unsqueeze(-1)).exp()  # (250, 160)
    one.pcolormesh(
        hours, minutes.numpy(), density.sqrt().numpy(), cmap="Greys", vmax=0.55, shading="nearest", rasterized=True
    )
    dots = near & (X_new["district"] == district)
    one.scatter(X_new["hour"][dots], y_new[dots], s=6, color=colour, alpha=0.5, lw=0)
    one.set(xlabel="hour of the day", ylabel="minutes to deliver", xlim=(5, 21), ylim=(8, 85))
    one.set_title(f"To the {district}", color=colour)
axes[1].text(11.4, 62, "drawbridge", color="0.35")
axes[2].plot([0, 1], [0, 1], color="0.7", lw=1)
for (name, values), colour, at in zip(covered.items(), (BLUE, ORANGE), ((0.12, 0.62), (0.6, 0.38)), strict=True):
    axes[2].plot(levels, values, color=colour, lw=2)
    axes[2].text(*at, name, color=colour)
axes[2].set(xlabel="probability of the interval", ylabel="new parcels inside", aspect="equal", xlim=(0, 1), ylim=(0, 1))
axes[2].set_title(f"90 % hold {inside:.0%}, at the bridge {covered['bridge'][90]:.0%}")
plt.show()
