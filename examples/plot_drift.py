"""
Is this month's data different?
===============================

Two tables of sensor readings, one part a day. Neither means nor variances have changed, so a control chart stays quiet.
``drift`` compares whole distributions, says which column moved and whether that is more than chance, and needs only a
small sketch of each day.
"""

import matplotlib.pyplot as plt
import numpy as np

import cramix
from cramix.plot.figure import COLOURS

plt.rc("axes", titlelocation="left")
plt.rc("axes.spines", top=False, right=False)
ORANGE, BLUE, GREEN = COLOURS[:3]

# %%
# Thirty days in June and thirty in July, 500 readings each. Days differ: each has its own offset, so that rows of one
# day are not independent. In July one sensor sometimes sticks: its readings fall into two groups, with the same mean
# and the same variance as before.

columns = ["temperature", "pressure", "flow", "vibration", "current"]
rng = np.random.default_rng(0)


def day(sticky: bool) -> np.ndarray:
    """Return the standardized readings of a day, (500, 5)."""
    rows = rng.normal(size=(500, 5)) + 0.1 * rng.normal(size=5)
    if sticky:
        rows[:, 3] = 0.1 * rng.normal() + rng.choice([-0.9, 0.9], 500) + np.sqrt(1 - 0.9**2) * rng.normal(size=500)
    return rows


june, july = [day(False) for _ in range(30)], [day(True) for _ in range(30)]

# %%
# A sketch of a day has a fixed size, and the rows can be thrown away. The p-values come from permutations of days, so
# that differences between days do not raise a false alarm.

found = cramix.drift(
    [cramix.SliceSketch(5).update(rows) for rows in june], [cramix.SliceSketch(5).update(rows) for rows in july]
)
print(found)
for name, distance, p_value, shift in zip(
    columns, found.columns, found.column_p_values, found.mean_shifts, strict=True
):
    print(f"{name:12} distance {distance:.3f}, p {p_value:.4f}, shift of the mean {shift:+.2f} standard deviations")

# %%
# Bars are Cramér distances in standard deviations. On the right, the area between the curves is what the bar measures.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
alarm = found.column_p_values < 0.01
left.barh(columns, found.columns.numpy(), color=[ORANGE if bad else "0.75" for bad in alarm])
for i, (distance, p_value) in enumerate(zip(found.columns.tolist(), found.column_p_values.tolist(), strict=True)):
    left.text(distance + 0.002, i, f"p = {p_value:.4f}" if p_value < 0.01 else f"p = {p_value:.2f}", va="center")
left.invert_yaxis()
left.set(xlabel="Cramér distance, June to July (standard deviations)", xlim=(0, 1.3 * found.columns.max().item()))
names = " and ".join(name for name, bad in zip(columns, alarm.tolist(), strict=True) if bad)
left.set_title(f"Only {names} has drifted")

grid = np.linspace(-3.2, 3.2, 400)
cdfs = {}
for month, rows, colour in (("June", june, "0.35"), ("July", july, ORANGE)):
    values = np.sort(np.concatenate(rows)[:, 3])
    cdfs[month] = np.searchsorted(values, grid) / len(values)
    right.plot(grid, cdfs[month], color=colour, lw=2)
right.fill_between(grid, cdfs["June"], cdfs["July"], color=ORANGE, alpha=0.25, lw=0)
right.text(0.45, 0.82, "June", color="0.35", ha="right")
right.text(1.0, 0.62, "July", color=ORANGE)
right.set(xlabel="vibration (standard deviations)", ylabel="fraction of readings below", ylim=(0, 1))
right.set_title(f"Its mean moved by {found.mean_shifts[3]:+.2f}; its shape changed")
plt.show()
