"""Optimisers of groups of parameters, each with its share of the learning rate."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cramix.fitting.learning_rates import require_lion
from cramix.rl.settings import Settings


def shares_of(groups: int, fractions: bool, settings: Settings) -> list[float]:
    """Return the share of the learning rate of every group; fractions are the last, and may be all there is."""
    if not fractions:
        return [1.0]
    start, own = settings.rate(1.0), settings.fraction_learning_rate or 0.0
    if start <= 0:
        raise ValueError(
            f"fraction_learning_rate must be None where learning_rate starts at 0; got {own}. "
            "It is a share of the first learning rate, so start above 0."
        )
    return [1.0, own / start][-groups:]


def make_optimizer(
    leaves: Sequence[nn.Parameter], shares: Sequence[float], settings: Settings
) -> torch.optim.Optimizer:
    """Return the optimiser of the settings."""
    start = settings.rate(1.0)
    groups = [{"params": [leaf], "share": share} for leaf, share in zip(leaves, shares, strict=True)]
    arguments = dict(settings.optimizer_kwargs)
    if settings.optimizer == "adam":
        return torch.optim.Adam(groups, lr=start, fused=True, **{"eps": 1e-4, **arguments})
    if settings.optimizer == "lion":
        return require_lion()(groups, lr=start, **arguments)
    return settings.optimizer(groups, lr=start, **arguments)  # type: ignore[operator]


def take_step(
    optimizer: torch.optim.Optimizer,
    leaves: Sequence[nn.Parameter],
    gradients: Sequence[Tensor],
    rate: float,
) -> None:
    """Take a step along gradients at a learning rate, of which each group has its share."""
    for leaf, gradient in zip(leaves, gradients, strict=True):
        leaf.grad = gradient
    for group in optimizer.param_groups:
        group["lr"] = rate * group["share"]
    optimizer.step()


def approach(vectors: Sequence[Tensor], goals: Sequence[Tensor], part: float) -> None:
    """Move vectors a part of the way to their goals."""
    for vector, goal in zip(vectors, goals, strict=True):
        vector.lerp_(goal, part)


def state_of(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state of an optimiser, `{"0/exp_avg": ..., ...}`."""
    states = optimizer.state_dict()["state"]
    return {f"{i}/{name}": torch.as_tensor(x) for i, state in states.items() for name, x in state.items()}


def restore(optimizer: torch.optim.Optimizer, state: dict[str, Tensor]) -> None:
    """Give an optimiser the state that `state_of` has returned, in new tensors."""
    states: dict[int, dict[str, Tensor]] = {}
    for key, x in state.items():
        i, _, name = key.partition("/")
        states.setdefault(int(i), {})[name] = x
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
