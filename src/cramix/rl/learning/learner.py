"""The learner: the networks and their optimiser, one update at a time, compiled where that pays."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from cramix.rl.learning.flat import FlatParameters
from cramix.rl.learning.objective import Objective
from cramix.rl.learning.optimizers import approach, make_optimizer, shares_of, take_step
from cramix.rl.network import ReturnNetwork
from cramix.rl.replay import Transitions
from cramix.rl.risk import Measure
from cramix.rl.settings import Settings


class Learner:
    """Holds the online and the target network and takes steps of the optimiser.

    Args:
        online: the network that learns.
        target: the one that predicts what comes next.
        unit: returns are this many times the network's numbers, a tensor of one number.
        settings: of the algorithm.
        measure: what the best next action is judged by; None is the mean.
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
        self.shares = shares_of(len(self.vectors), bool(fractions), settings)
        self._leaves = [nn.Parameter(vector) for vector in self.vectors]
        self.optimizer = make_optimizer(self._leaves, self.shares, settings)
        self.compiled = False
        self._gradient: Callable[..., tuple[Sequence[Tensor], Tensor]] = self.objective.eager_gradient
        self.updates = 0

    def compile(self) -> None:
        """Compile the update; where that fails it stays as it is, and says so."""
        # One graph for prediction, target, loss and gradient: layers of this size cost less than calls of them.
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
                    f"the update could not be compiled and runs as it is, slower: {_first_line(error)}. "
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
            approach(self.targets, self.vectors, self.settings.tau)
        return metrics


def compiled(function: Callable) -> Callable:
    """Return a plain function compiled in one piece or not at all: in many pieces it is slower than as it is."""
    # The compiler keeps what it made beside the code of a function, looks through all of it at each call, and refuses
    # after eight. So that many learners can live in one program, each has code of its own.
    own = FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    return torch.compile(own, dynamic=False, fullgraph=True)


def _same(module: nn.Module, other: nn.Module, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Return the parameters of a module that have the names of some of another."""
    wanted = {id(p) for p in parameters}
    names = {name for name, p in other.named_parameters() if id(p) in wanted}
    return [p for name, p in module.named_parameters() if name in names]


def can_compile(device: torch.device) -> bool:
    """Whether there is a compiler for code on the device."""
    if device.type == "cuda":
        return True
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
