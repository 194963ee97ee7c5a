"""
What does a kernel density estimate smooth away?
================================================

Marron and Wand's "claw" is one broad bump with five narrow peaks on top of it. A kernel density estimate has one
bandwidth for all of it. A mixture learns a width for each component, and sees the peaks in the same 2,000 numbers.
"""

import matplotlib.pyplot as plt
import torch
from scipy.stats import gaussian_kde

import cramix
from cramix.plot.figure import COLOURS

plt.rc("axes", titlelocation="left")
plt.rc("axes.spines", top=False, right=False)
ORANGE, BLUE, GREEN = COLOURS[:3]

# %%
# The claw is a Gaussian mixture itself, so the truth is known. We draw 2,000 numbers from it.

truth = cramix.NormalMixture(
    weights=[0.5, 0.1, 0.1, 0.1, 0.1, 0.1],
    means=[0.0, -1.0, -0.5, 0.0, 0.5, 1.0],
    scales=[1.0, 0.1, 0.1, 0.1, 0.1, 0.1],
).to(torch.float64)
x = truth.sample((2000,), generator=torch.Generator().manual_seed(0))

# %%
# ``select`` fits mixtures of 1 to 10 components and compares them by their BIC. Samples of shape ``(n,)`` give a
# ``NormalMixture``, a distribution of torch.

choice = cramix.select(x, range(1, 11), generator=torch.Generator().manual_seed(0))
mixture = choice.results[choice.by_bic].mixture.sort()
print(f"{choice.by_bic} components")
for weight, mean, scale in zip(mixture.weights, mixture.means, mixture.scales, strict=True):
    print(f"weight {weight:.2f}, mean {mean:+.2f}, scale {scale:.2f}")

# %%
# A kernel density estimate is a mixture too, with a component for every sample and one scale for all of them. So both
# estimates have the same methods. The error is the total variation distance to the truth: the largest difference of the
# probabilities of any event.

scale = torch.tensor(gaussian_kde(x.numpy()).factor) * x.std()  # Scott's rule
kernels = cramix.NormalMixture(torch.full_like(x, 1 / len(x)), x, scale.expand(len(x)))

grid = torch.linspace(-4, 4, 2001, dtype=torch.float64)
densities = {name: p.log_prob(grid).exp() for name, p in (("truth", truth), ("kernels", kernels), ("mixture", mixture))}
errors = {name: 0.5 * torch.trapezoid((y - densities["truth"]).abs(), grid).item() for name, y in densities.items()}
print(f"total variation: {errors['kernels']:.3f} for the kernels, {errors['mixture']:.3f} for the mixture")

# %%
# Both curves come from the same samples.

figure, axes = plt.subplots(figsize=(7.5, 4.4), layout="constrained")
axes.fill_between(grid, densities["truth"], color="0.88")
axes.plot(grid, densities["kernels"], color=ORANGE, lw=2)
axes.plot(grid, densities["mixture"], color=BLUE, lw=2)
axes.annotate("truth", (-1.42, 0.12), color="0.45", ha="right")
axes.text(1.35, 0.34, f"mixture:\n{errors['mixture']:.0%} of the mass misplaced", color=BLUE)
axes.text(1.75, 0.2, f"kernel density estimate:\n{errors['kernels']:.0%} misplaced", color=ORANGE)
axes.set(xlim=(-3, 3.6), ylim=(0, None), xlabel="x", ylabel="density")
axes.set_title("The mixture sees the five peaks; the kernel density estimate flattens them")
plt.show()
