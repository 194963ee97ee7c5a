"""
What if the clusters move while I watch?
========================================

``partial_fit`` learns from one batch at a time and needs no batch twice. With ``forgetting`` older rows lose weight, so
that the fit follows clusters that move. Here three clusters go around in a circle, in a hundred batches.
"""

import matplotlib.pyplot as plt
import numpy as np

from cramix import CramerMixture
from cramix.plot.figure import COLOURS

plt.rc("axes", titlelocation="left")
plt.rc("axes.spines", top=False, right=False)

# %%
# Batches of 300 rows. In the course of the stream the clusters go a third of the way around.

rng = np.random.default_rng(0)
batches, rows = 100, 300


def centres(t: int) -> np.ndarray:
    """Return the true centres of the clusters, (3, 2)."""
    angle = 2 * np.pi * (np.arange(3) / 3 + 0.28 * t / batches)
    return 3 * np.stack([np.cos(angle), np.sin(angle)], -1)


def batch(t: int) -> np.ndarray:
    """Return the rows of a batch, (rows, 2)."""
    return centres(t)[rng.integers(3, size=rows)] + rng.normal(0, 0.6, (rows, 2))


# %%
# One estimator remembers everything, the other forgets: about the last ``1 / forgetting`` rows count, here 600.

models = {
    "remembers": CramerMixture(3, random_state=0),
    "forgets": CramerMixture(3, forgetting=1 / 600, random_state=0),
}
tracks = {name: [] for name in models}
errors = {name: [] for name in models}
stream = []  # some rows, only for the picture
for t in range(batches):
    x = batch(t)
    stream.append(x[::4])
    for name, model in models.items():
        model.partial_fit(x)
        distance = np.linalg.norm(centres(t)[:, None] - model.means_, axis=-1)  # of each centre from each mean
        tracks[name].append(model.means_[distance.argmin(-1)])
        errors[name].append(distance.min(-1).mean())
for name, values in errors.items():
    print(f"{name}: means are {np.mean(values[-20:]):.2f} from the centres in the last 20 batches")

# %%
# Grey dots are a quarter of the 30,000 rows, coloured lines the means of the fit that forgets, and wide grey lines the
# true centres.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained", width_ratios=[1, 1.25])
left.scatter(*np.concatenate(stream).T, s=2, color="0.85", lw=0)
track, truth = np.array(tracks["forgets"]), np.array([centres(t) for t in range(batches)])
for i in range(3):
    left.plot(*truth[:, i].T, color="0.3", lw=5, alpha=0.3, solid_capstyle="round")
    left.plot(*track[:, i].T, color=COLOURS[i], lw=2)
    left.plot(*track[-1, i], "o", color=COLOURS[i], ms=8)
left.set(aspect="equal", xticks=[], yticks=[])
left.spines[:].set_visible(False)
left.set_title("The fit that forgets follows the clusters")

for name, colour in (("remembers", "0.5"), ("forgets", COLOURS[1])):
    right.plot(range(1, batches + 1), errors[name], color=colour, lw=2)
    right.text(batches + 1, errors[name][-1], name, color=colour, va="center")
right.set(xlabel="batch", ylabel="distance of the means from the centres", ylim=(0, None), xlim=(0, 118))
right.set_title(
    f"Off by {errors['forgets'][-1]:.2f} at the end, instead of {errors['remembers'][-1]:.2f} (clusters: ± 0.6)"
)
plt.show()
