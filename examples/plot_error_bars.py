"""
My measurements have error bars. What is behind them?
=====================================================

Each measurement is a true value plus noise of a known size, its error bar. The histogram of the measurements is too
wide, and two groups may look like one. What is observed is a mixture with wider components, so ten lines of PyTorch fit
the mixture behind it. (``fit`` has no argument for error bars today.)
"""

import matplotlib.pyplot as plt
import torch

from cramix import NormalMixture, cramer_distance, fit, nll_loss
from cramix.plot.figure import COLOURS

plt.rc("axes", titlelocation="left")
plt.rc("axes.spines", top=False, right=False)
ORANGE, BLUE, GREEN = COLOURS[:3]

# %%
# Two groups of stars with different velocities, and error bars between 2 and 12 km/s.

generator = torch.Generator().manual_seed(0)
truth = NormalMixture([0.65, 0.35], [-6.0, 8.0], [2.5, 2.0]).to(torch.float64)
n = 1500
error = 2 + 10 * torch.rand(n, generator=generator, dtype=torch.float64)
x = truth.sample((n,), generator=generator) + error * torch.randn(n, generator=generator, dtype=torch.float64)

# %%
# A measurement with the error e comes from a mixture with the scales sqrt(s² + e²). There is one such mixture for each
# measurement; they share weights, means and s. L-BFGS maximises their likelihood.

logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
means = x.quantile(torch.tensor([0.25, 0.75], dtype=torch.float64)).requires_grad_()
log_scales = torch.full((2,), x.std().log().item() - 1, dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.LBFGS([logits, means, log_scales], max_iter=200, line_search_fn="strong_wolfe")


def loss() -> torch.Tensor:
    """Return the negative log likelihood of the measurements, with gradients."""
    optimizer.zero_grad()
    scales = torch.hypot(log_scales.exp(), error.unsqueeze(-1))  # (n, 2)
    observed = NormalMixture(logits.softmax(-1), means, scales)
    value = nll_loss(observed, x)
    value.backward()
    return value


optimizer.step(loss)
behind = NormalMixture(logits.softmax(-1), means, log_scales.exp()).detach().sort()
print(behind)

# %%
# Compare with a fit that takes the measurements as they are.

plain = fit(x, 2, generator=generator).mixture
distances = {name: cramer_distance(p, truth).item() for name, p in (("plain", plain), ("behind", behind))}
print(f"distance from the truth: {distances['plain']:.2f} km/s without error bars, {distances['behind']:.2f} with them")

# %%
# The histogram hardly shows two groups.

grid = torch.linspace(-30, 30, 600, dtype=torch.float64)
figure, axes = plt.subplots(figsize=(7.5, 4.4), layout="constrained")
axes.hist(x.numpy(), 60, range=(-30, 30), density=True, color="0.9")
axes.plot(grid, truth.log_prob(grid).exp(), color="0.35", lw=5, alpha=0.35)
axes.plot(grid, plain.log_prob(grid).exp(), color=ORANGE, lw=2)
axes.plot(grid, behind.log_prob(grid).exp(), color=BLUE, lw=2)
axes.text(-10.5, 0.09, "with error bars", color=BLUE, ha="right")
axes.text(14, 0.03, "without error bars", color=ORANGE)
axes.text(9.9, 0.069, "truth", color="0.45")
axes.text(-29, 0.017, f"{n} measurements", color="0.5")
axes.set(xlabel="velocity (km/s)", ylabel="density", xlim=(-30, 30), ylim=(0, None))
axes.set_title(f"Error bars bring the fit from {distances['plain']:.2f} to {distances['behind']:.2f} km/s of the truth")
plt.show()
