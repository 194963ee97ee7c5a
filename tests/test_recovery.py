"""Networks learn a conditional mixture that is known, and no target explodes a step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from cramix import (
    CramerLoss,
    Diagonal,
    EnergyScoreLoss,
    MixtureHead,
    MixtureNLLLoss,
    MultivariateNormalMixture,
    cramer_distance,
    sliced_cramer_distance,
)
from tests.conditional import crossing, growing


def space(x: Tensor) -> MultivariateNormalMixture:
    means = torch.stack([torch.cat([x, x, -x], -1), torch.cat([-x, 1 - x, x * x], -1)], -2)
    weights = torch.cat([torch.sigmoid(2 * x), torch.sigmoid(-2 * x)], -1)
    return MultivariateNormalMixture(weights, means, Diagonal(torch.full_like(means, 0.02)))


def drawn(truth: Callable, n: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 1, generator=g) - 1
    return x, truth(x).sample((), generator=g)


def network(k: int, dim: int, targets: Tensor, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), MixtureHead(32, k, dim, targets=targets)
    )


@pytest.mark.parametrize(
    ("truth", "k", "dim", "steps", "limit"),
    [(crossing, 3, 1, 400, 0.08), (growing, 2, 1, 400, 0.06), (space, 2, 3, 150, 0.15)],
)
def test_a_known_conditional_mixture_is_learned(truth: Callable, k: int, dim: int, steps: int, limit: float) -> None:
    x, y = drawn(truth, 1000, seed=0)
    net = network(k, dim, y)
    loss, distance = (CramerLoss(), cramer_distance) if dim == 1 else (EnergyScoreLoss(), sliced_cramer_distance)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    g = torch.Generator().manual_seed(0)
    unseen, _ = drawn(truth, 300, seed=1)
    with torch.no_grad():
        before = distance(net(unseen), truth(unseen)).mean()
    for _ in range(steps):
        index = torch.randint(1000, (128,), generator=g)
        optimizer.zero_grad()
        loss(net(x[index]), y[index]).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        after = distance(net(unseen), truth(unseen)).mean()
    assert after < limit
    assert before > 2 * limit


@pytest.mark.parametrize("kind", ["far", "constant"])
def test_no_target_explodes_a_step(kind: str) -> None:
    """After a thousand targets at 10^6, or a thousand equal ones, a step of the Cramér loss is as long as ever.

    That of the likelihood is 10^5 times as long, or more.
    """
    x, y = drawn(crossing, 1000, seed=0)
    strange = torch.full_like(y, 1e6) if kind == "far" else torch.zeros_like(y)

    def length(loss: nn.Module, targets: Tensor) -> float:
        net = network(3, 1, y)
        if kind == "constant":  # components as narrow as the floor, as training on equal targets leaves them
            with torch.no_grad():
                net[-1].linear.weight.zero_()
                net[-1].linear.bias[3:6] = 0.01
                net[-1].linear.bias[6:] = -20.0
        gradients = torch.autograd.grad(loss(net(x), targets), list(net.parameters()))
        return torch.cat([g.flatten() for g in gradients]).norm().item()

    assert length(CramerLoss(), strange) < 3 * length(CramerLoss(), y) + 1
    assert length(MixtureNLLLoss(), strange) > 10 * length(CramerLoss(), strange)
