"""The learner: both networks and the optimiser, one update at a time, compiled where that pays."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from cramix.fitting.learning_rates import require_lion
from cramix.rl.layout import FlatParameters
from cramix.rl.network import ReturnNetwork
from cramix.rl.objective import Objective
from cramix.rl.replay import Transitions
from cramix.rl.risk import Measure
from cramix.rl.settings import Settings


class Learner:
    """Holds the online and the target network and takes steps of the optimiser.

    Args:
        online: the network that learns.
        target: the network that evaluates next actions.
        unit: one unit of the networks in units of the rewards, a tensor with one element.
        settings: of the algorithm.
        measure: the risk measure that selects the best next action; None is the mean.
    """

    def __init__(
        self,
        online: ReturnNetwork,
        target: ReturnNetwork,
        unit: Tensor,
        settings: Settings,
        measure: Measure | None = None,
    ):
        self.unit, self.settings = unit, settings
        fractions = online.fractions() if settings.fraction_learning_rate is not None else []
        layout = FlatParameters(online, [fractions])
        self.vectors, self.targets = layout.vectors, FlatParameters(target, [_same(target, online, fractions)]).vectors
        self.objective = Objective(online, layout, settings.max_grad_norm, measure)
        self.rate_factors = rate_factors(len(self.vectors), bool(fractions), settings)
        self._leaves = [nn.Parameter(vector) for vector in self.vectors]
        self.optimizer = make_optimizer(self._leaves, self.rate_factors, settings)
        self.compiled = False
        self._gradient: Callable[..., tuple[Sequence[Tensor], Tensor]] = self.objective.eager_gradient
        self.updates = 0

    def compile(self) -> None:
        """Compile the update; if that fails, warn and run it without the compiler."""
        # One graph for prediction, target, loss and gradient: in networks of this size, calls cost more than layers.
        graph = compiled(Objective.gradient)
        works = False

        def gradient(*state: Any) -> tuple[Sequence[Tensor], Tensor]:
            nonlocal works
            try:
                with torch.no_grad():
                    result = graph(self.objective, *state)
                works = True
                return result
            except Exception as error:
                if works:
                    raise
                warnings.warn(
                    f"the update could not be compiled and runs uncompiled, which is slower: {_first_line(error)}. "
                    "Install a C++ compiler, or use compile=False.",
                    stacklevel=2,
                )
                self.compiled, self._gradient = False, self.objective.eager_gradient
                return self._gradient(*state)

        self.compiled, self._gradient = True, gradient

    def update(self, batch: Transitions, rate: float) -> Tensor:
        """Take one step at a learning rate and return `METRICS` as one tensor."""
        gradients, metrics = self._gradient(self.vectors, self.targets, batch, self.unit)
        take_step(self.optimizer, self._leaves, gradients, rate)
        self.updates += 1
        if self.updates % self.settings.target_update_interval == 0:
            polyak_update(self.targets, self.vectors, self.settings.tau)
        return metrics


def compiled(function: Callable) -> Callable:
    """Return a function compiled as one graph, or not at all: with graph breaks it is slower than uncompiled."""
    # The compiler caches its graphs with the code object of a function, tries all of them at each call, and gives up
    # after eight. Each learner gets a code object of its own, so that a process can have many.
    own = FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    return torch.compile(own, dynamic=False, fullgraph=True)


def can_compile(device: torch.device) -> bool:
    """Whether there is a compiler for the device."""
    if device.type == "cuda":
        return True
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def rate_factors(groups: int, fractions: bool, settings: Settings) -> list[float]:
    """Return the learning rate of every group relative to `learning_rate`; fractions are the last group."""
    if not fractions:
        return [1.0]
    start, own = settings.rate(1.0), settings.fraction_learning_rate or 0.0
    if start <= 0:
        raise ValueError(
            f"fraction_learning_rate must be None if learning_rate starts at 0; got {own}. "
            "It is relative to the initial learning rate, so start above 0."
        )
    return [1.0, own / start][-groups:]


def make_optimizer(
    leaves: Sequence[nn.Parameter], rate_factors: Sequence[float], settings: Settings
) -> torch.optim.Optimizer:
    """Return the optimiser of the settings."""
    start = settings.rate(1.0)
    groups = [{"params": [leaf], "rate_factor": x} for leaf, x in zip(leaves, rate_factors, strict=True)]
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
    """Take a step along gradients; each group's learning rate is a multiple of `rate`."""
    for leaf, gradient in zip(leaves, gradients, strict=True):
        leaf.grad = gradient
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate_factor"]
    optimizer.step()


def polyak_update(targets: Sequence[Tensor], vectors: Sequence[Tensor], tau: float) -> None:
    """Move the target network by a fraction `tau` towards the online network."""
    for target, vector in zip(targets, vectors, strict=True):
        target.lerp_(vector, tau)


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state of an optimiser, `{"0/exp_avg": ..., ...}`."""
    states = optimizer.state_dict()["state"]
    return {f"{i}/{name}": torch.as_tensor(x) for i, state in states.items() for name, x in state.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Tensor]) -> None:
    """Load the result of `optimizer_state` into an optimiser, in new tensors."""
    states: dict[int, dict[str, Tensor]] = {}
    for key, x in state.items():
        i, _, name = key.partition("/")
        states.setdefault(int(i), {})[name] = x
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def _same(module: nn.Module, other: nn.Module, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Return the parameters of a module with the same names as these parameters of another module."""
    wanted = {id(p) for p in parameters}
    names = {name for name, p in other.named_parameters() if id(p) in wanted}
    return [p for name, p in module.named_parameters() if name in names]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
