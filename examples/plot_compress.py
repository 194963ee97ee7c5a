"""
Can eight components replace a thousand kernels?
================================================

A kernel density estimate keeps every sample, so that each evaluation reads all of them. ``compress`` finds a small
mixture near a large one, without sampling: it merges components, then minimises the exact sliced Cramér distance.
"""

import time

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import make_moons

import cramix
from cramix.plot.figure import COLOURS

plt.rc("axes", titlelocation="left")
plt.rc("axes.spines", top=False, right=False)
ORANGE, BLUE, GREEN = COLOURS[:3]

# %%
# A thousand samples, and a round kernel at each of them.

x = torch.tensor(make_moons(1000, noise=0.1, random_state=0)[0])
n, width = len(x), 0.12
variances = torch.full((n,), width**2, dtype=torch.float64)
kernels = cramix.MultivariateNormalMixture(torch.full_like(variances, 1 / n), x, cramix.Spherical(variances))

# %%
# Compress it to fewer and fewer components. Compression is deterministic, so there is no seed.

small = {k: cramix.compress(kernels, k) for k in (16, 8, 4)}
distances = {k: cramix.sliced_cramer_distance(p, kernels).item() for k, p in small.items()}
spread = x.var(0).mean().sqrt().item()
for k, distance in distances.items():
    print(f"{k:2} components: distance {distance:.4f}, {distance / spread:.2%} of the standard deviation of the data")

# %%
# Evaluation takes less time in proportion.

cells = 80
across, up = torch.linspace(-1.6, 2.6, cells).double(), torch.linspace(-1.1, 1.6, cells).double()
points = torch.cartesian_prod(across, up)
densities = {}
for name, p in {f"{n} kernels": kernels, **{f"{k} components": p for k, p in small.items()}}.items():
    started = time.perf_counter()
    densities[name] = p.log_prob(points).exp()
    print(f"{len(points)} densities by {name}: {1e3 * (time.perf_counter() - started):.0f} ms")

# %%
# Contour lines at the same heights in all panels.

figure, axes = plt.subplots(2, 2, figsize=(8, 5.6), layout="constrained", sharex=True, sharey=True)
highest = max(density.max().item() for density in densities.values())
levels = torch.linspace(0.05, 1, 9) * highest
for one, (name, density) in zip(axes.flat, densities.items(), strict=True):
    k = int(name.split()[0])
    one.contourf(across, up, density.view(cells, cells).T, levels, cmap="Blues", vmin=0, vmax=1.2 * highest)
    one.contour(across, up, density.view(cells, cells).T, levels[::2], colors=[BLUE], linewidths=0.7)
    one.set_title(f"{name}, off by {distances[k] / spread:.2%}" if k in distances else name)
    one.set(aspect="equal", xticks=[], yticks=[])
    one.spines[:].set_visible(False)
figure.suptitle("Eight components look like a thousand kernels", x=0.02, ha="left")
figure.supxlabel(
    "off by: sliced Cramér distance, relative to the standard deviation of the data", fontsize=9, color="0.4"
)
plt.show()
