"""
How many slices does a sliced distance need?
============================================

Sliced distances average one-dimensional distances over random directions, so that each evaluation is off by chance. For
the Cramér distance between Gaussian mixtures the average over *all* directions has a closed form up to one integral.
``directions="exact"`` computes it to a tolerance, and it is the default.
"""

import time

import matplotlib.pyplot as plt
import torch

from cramix import MultivariateNormalMixture, directions, sliced_cramer_loss
from cramix.plot.figure import COLOURS

plt.rc("axes", titlelocation="left")
plt.rc("axes.spines", top=False, right=False)
ORANGE, BLUE, GREEN = COLOURS[:3]

# %%
# Two mixtures in ten dimensions that differ in one direction only, as they do when a single column has drifted.

generator = torch.Generator().manual_seed(0)
dim, k = 10, 5
means = 2 * torch.randn(k, dim, generator=generator, dtype=torch.float64)
weights = torch.full((k,), 1 / k, dtype=torch.float64)
covariances = torch.eye(dim, dtype=torch.float64).expand(k, dim, dim)
p = MultivariateNormalMixture(weights, means, covariances)
q = MultivariateNormalMixture(weights, means + torch.eye(dim, dtype=torch.float64)[0], covariances)

# %%
# The exact loss, and its time:


def timed(**options: object) -> tuple[float, float]:
    """Return the loss, and the milliseconds it takes at best of five."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        loss = sliced_cramer_loss(p, q, **options).item()
        times.append(1e3 * (time.perf_counter() - started))
    return loss, min(times)


exact, milliseconds = timed()
print(f"all directions: {exact:.6f} in {milliseconds:.1f} ms")

# %%
# Random slices, 100 times for each number of them. Doubling the precision takes four times as many slices.

counts = [1, 4, 16, 64, 256, 1024]
drawn = {}
for count in counts:
    chosen = [directions.random(count, dim, generator=generator, dtype=torch.float64) for _ in range(100)]
    drawn[count] = torch.tensor([sliced_cramer_loss(p, q, directions=each).item() for each in chosen])
    spread = drawn[count].std().item() / exact
    print(f"{count:4} slices: off by {spread:.0%} in {timed(directions=chosen[0])[1]:.1f} ms")

# %%
# Each dot is an evaluation of the same loss.

figure, axes = plt.subplots(figsize=(7.5, 4.4), layout="constrained")
for i, values in enumerate(drawn.values()):
    jitter = 0.5 * torch.rand(len(values), generator=generator) - 0.25
    shown = values / exact < 3.8  # a few evaluations with one slice are higher
    axes.scatter((i + jitter)[shown], (values / exact)[shown], s=10, color=ORANGE, alpha=0.5, lw=0)
    axes.text(i, 3.98, f"± {values.std().item() / exact:.0%}", ha="center", color=ORANGE)
axes.axhline(1, color=BLUE, lw=2)
axes.text(len(counts) - 0.4, 1, " all\n directions", color=BLUE, va="center")
axes.set_xticks(range(len(counts)), [str(count) for count in counts])
axes.set(xlabel="number of random slices", ylabel="loss, relative to the exact one", ylim=(0, 4.2), xlim=(-0.5, 6.6))
axes.set_title(f"1024 slices are still off by {drawn[1024].std().item() / exact:.1%}; the exact loss needs none")
plt.show()
