"""
What does each method of fitting make of the same data?
=======================================================

``cramix.fit`` has nine methods: the default, EM, those of the paper, and others to compare with. Each gets 850 points
on a ring, a line and a square, ten components and the same seed.
"""

import warnings

import matplotlib.pyplot as plt
import torch

import cramix
from cramix.data import ring_line_square
from cramix.fitting import METHODS
from cramix.plot import panels

warnings.simplefilter("ignore", cramix.ConvergenceWarning)  # some methods stop at their last step

# %%
# A method is a name, or an object with settings from ``cramix.fitting``.

x = ring_line_square()
results = {name: cramix.fit(x, 10, method=name, generator=torch.Generator().manual_seed(0)) for name in METHODS}

# %%
# The mean log likelihood, the sliced Cramér distance from the points, and the time:

for name, result in results.items():
    distance = cramix.sliced_cramer_distance(result.mixture, x).item()
    print(f"{name:18} log likelihood {result.log_likelihood:.3f}, distance {distance:.4f}, {result.seconds:.1f} s")

# %%
# Gradient descent on the Cramér loss (``descent``) comes closest to the points in the distance that it minimises. The
# others that follow the likelihood get stuck on the way, or stop at their last step. From this seed EM finds the best
# optimum too; :ref:`other seeds <sphx_glr_gallery_plot_fit_2d.py>` are less lucky.

ranked = sorted(results.items(), key=lambda item: -item[1].log_likelihood)
figure = panels(x, [(f"{name}: {result.log_likelihood:.3f}", result.mixture) for name, result in ranked])
best = ranked[0][1].log_likelihood
reached = [name for name, result in ranked if result.log_likelihood > best - 0.001]
figure.suptitle(f"Mean log likelihood by method: {', '.join(reached)} reach {best:.3f}", x=0.02, ha="left")
plt.figure(figure)  # pyplot shows it
plt.show()
