"""
Why did my mixture network learn nonsense?
==========================================

The same network, data and seed, trained once by the likelihood and once by the Cramér loss. The targets lie on two
branches that cross, and one target in a hundred is wrong by a factor of about a hundred. The likelihood's gradients
jump whenever a batch has one of those; the Cramér loss has a bound on them.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

from cramix import CramerLoss, MixtureHead, MixtureNLLLoss, NormalMixture, cramer_distance
from cramix.plot.figure import COLOURS

plt.rc("axes", titlelocation="left")
plt.rc("axes.spines", top=False, right=False)
ORANGE, BLUE, GREEN = COLOURS[:3]

# %%
# A thousand rows: y is x or -x, with some noise. Ten targets or so are replaced by numbers around ± 100.

generator = torch.Generator().manual_seed(0)
x = 2 * torch.rand(1000, 1, generator=generator) - 1
sign = torch.where(torch.rand(1000, generator=generator) < 0.5, -1, 1)
y = sign * x[:, 0] + 0.1 * torch.randn(1000, generator=generator)
wrong = torch.rand(1000, generator=generator) < 0.01
y = torch.where(wrong, 100 * torch.randn(1000, generator=generator), y)
print(f"{wrong.sum()} wrong targets, up to {y.abs().max():.0f}")

# %%
# A plain training loop; only the loss differs. It records the norm of the gradient at every step.

STEPS = 400


def train(loss: nn.Module, n_components: int) -> tuple[nn.Module, list[float]]:
    """Return the network, and the norms of its gradients."""
    torch.manual_seed(0)
    batches = torch.Generator().manual_seed(0)
    head = MixtureHead(64, n_components, targets=y)
    network = nn.Sequential(nn.Linear(1, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), head)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    norms = []
    for _ in range(STEPS):
        rows = torch.randint(len(x), (100,), generator=batches)
        optimizer.zero_grad()
        loss(network(x[rows]), y[rows]).backward()
        norms.append(nn.utils.get_total_norm([w.grad for w in network.parameters()]).item())
        optimizer.step()
        schedule.step()
    return network, norms


# %%
# The truth is known, so the error is the Cramér distance from it, averaged over the inputs. Two components are enough
# for clean targets. With a third one to spare, the likelihood may spend it on the wrong ones, and its error is a matter
# of luck.

inputs = torch.linspace(-1, 1, 201).unsqueeze(-1)
truth = NormalMixture([0.5, 0.5], torch.cat([inputs, -inputs], -1), torch.full((201, 2), 0.1))
predictions, norms, errors = {}, {}, {}
for n_components in (3, 2):
    for name, loss in (("likelihood", MixtureNLLLoss()), ("Cramér", CramerLoss())):
        network, norms[name] = train(loss, n_components)
        predictions[name] = network(inputs).detach()
        errors[name] = cramer_distance(predictions[name], truth).mean().item()
        print(f"{n_components} components, {name}: error {errors[name]:.3f}, largest gradient {max(norms[name]):.1f}")

# %%
# On the left the predictions of the networks with two components, darker where y is more probable.

figure, axes = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
values = torch.linspace(-1.6, 1.6, 240)
for one, (name, p), colour in zip(axes, predictions.items(), (ORANGE, BLUE), strict=False):
    density = p.log_prob(values.unsqueeze(-1)).exp()  # (240, 201)
    shade = (density / truth.log_prob(values.unsqueeze(-1)).exp().max()).clamp(max=1).sqrt()
    one.pcolormesh(
        inputs[:, 0].numpy(),
        values.numpy(),
        shade.numpy(),
        cmap="Greys",
        vmin=0,
        vmax=1.2,
        shading="nearest",
        rasterized=True,
    )
    one.scatter(x[:, 0], y, s=3, color=colour, alpha=0.35, lw=0)
    one.set(xlabel="x", ylabel="y", xlim=(-1, 1), ylim=(-1.6, 1.6))
    one.set_title(f"{name}: error {errors[name]:.2f}", color=colour)
for (name, values), colour in zip(norms.items(), (ORANGE, BLUE), strict=True):
    axes[2].semilogy(range(1, STEPS + 1), values, color=colour, lw=1)
    axes[2].text(STEPS * 1.02, values[-1], name, color=colour, va="center")
axes[2].set(xlabel="step", ylabel="norm of the gradient", xlim=(0, 1.32 * STEPS), xticks=[0, 200, 400])
axes[2].set_title(f"Gradients up to {max(norms['likelihood']):.0f}, and up to {max(norms['Cramér']):.1f}")
plt.show()
