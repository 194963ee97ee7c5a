"""
What is the Cramér distance, and why are its gradients bounded?
===============================================================

The squared Cramér distance is the area between two distribution functions, with the gap squared. Moving a component far
away adds area at a constant rate: the gradient has a limit. The negative log likelihood grows with the square of the
distance, and its gradient has none.
"""

import matplotlib.pyplot as plt
import torch

from cramix import NormalMixture, cramer_distance, cramer_loss, nll_loss
from cramix.plot.figure import COLOURS

plt.rc("axes", titlelocation="left")
plt.rc("axes.spines", top=False, right=False)
ORANGE, BLUE, GREEN = COLOURS[:3]

# %%
# Two mixtures and their distribution functions. The distance has a closed form; a sum over a grid agrees with it.

p = NormalMixture([0.6, 0.4], [-1.0, 2.0], [0.6, 0.5]).to(torch.float64)
q = NormalMixture([0.3, 0.7], [-0.5, 2.5], [0.5, 0.9]).to(torch.float64)
x = torch.linspace(-8, 10, 4001, dtype=torch.float64)
gap = p.cdf(x) - q.cdf(x)
area = torch.trapezoid(gap.square(), x)
loss = cramer_loss(p, q)
print(f"closed form {loss:.8f}, on a grid {area:.8f}; the distance is its root, {cramer_distance(p, q):.4f}")

# %%
# Now one Gaussian with standard deviation 1, and one observation that moves away from it. For one observation the
# Cramér loss is the CRPS. We need the derivative of each loss with respect to the mean of the Gaussian.


def gradients(error: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the size of both derivatives with respect to the mean, for observations at these distances from it."""
    means = torch.zeros(len(error), 1, dtype=torch.float64, requires_grad=True)
    normal = NormalMixture(torch.ones_like(means), means, torch.full_like(means, scale))
    return tuple(
        torch.autograd.grad(f(normal, error, reduction="sum"), means)[0].abs() for f in (cramer_loss, nll_loss)
    )


errors = torch.logspace(-1, 3, 60, dtype=torch.float64)
cramer, likelihood = gradients(errors, scale=1.0)
print(f"at 1,000 standard deviations: {cramer[-1].item():.3f} by Cramér, {likelihood[-1].item():.0f} by the likelihood")

# %%
# The other way to infinity: an observation half a unit away, and a Gaussian that gets narrower, as where targets have
# no noise.

scales = torch.logspace(-3, 0.5, 60, dtype=torch.float64)
narrow = [gradients(torch.tensor([0.5], dtype=torch.float64), scale) for scale in scales.tolist()]

# %%
# The bound on the derivative is twice the weight of the component, whatever the observation; for one observation and
# one Gaussian it is 1.

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 4), layout="constrained", width_ratios=[1.2, 1, 1])
left.fill_between(x, p.cdf(x), q.cdf(x), color=GREEN, alpha=0.3, lw=0)
left.plot(x, p.cdf(x), color="0.2", lw=2)
left.plot(x, q.cdf(x), color="0.5", lw=2, ls="--")
left.text(-1.6, 0.42, "P", color="0.2", fontsize=12)
left.text(2.9, 0.45, "Q", color="0.4", fontsize=12)
left.text(-0.35, 0.43, "gap", color=GREEN, ha="left", fontsize=11)
left.set(xlim=(-3.5, 6), ylim=(0, 1.02), xlabel="x", ylabel="probability below x")
left.set_title(f"Squared gap, integrated: {loss:.3f}")

middle.loglog(errors, likelihood, color=ORANGE, lw=2)
middle.loglog(errors, cramer, color=BLUE, lw=2)
middle.text(12, 100, "likelihood", color=ORANGE, ha="right")
middle.text(8, 1.4, f"Cramér: at most {cramer.max():.0f}", color=BLUE)
middle.set(xlabel="error (standard deviations)", ylabel="size of the gradient of the mean")
middle.set_title("An outlier")

right.loglog(scales, [b.item() for _, b in narrow], color=ORANGE, lw=2)
right.loglog(scales, [a.item() for a, _ in narrow], color=BLUE, lw=2)
right.text(0.02, 8e3, "likelihood", color=ORANGE)
right.text(2e-3, 2.2, "Cramér", color=BLUE)
right.set(xlabel="standard deviation of the prediction")
right.set_title("A prediction that is too narrow")
plt.show()
