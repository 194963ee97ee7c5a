"""The learner of a population: the update of one agent, mapped over all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from cramix.rl.learner import Learner
from cramix.rl.optimizers import approach, make_optimizer, take_step
from cramix.rl.replay import Transitions


class PopulationLearner:
    """Updates many agents that differ in their numbers only.

    Args:
        learners: one for each agent, of the same kind and settings; they give the numbers to start from.
    """

    def __init__(self, learners: Sequence[Learner]):
        self.one = learners[0]
        self.settings = self.one.settings
        self.vectors = [torch.stack(parts) for parts in zip(*(x.vectors for x in learners), strict=True)]
        self.targets = [torch.stack(parts) for parts in zip(*(x.targets for x in learners), strict=True)]
        self.units = torch.stack([x.unit for x in learners])
        self.leaves = [torch.nn.Parameter(vector) for vector in self.vectors]
        # A rate that lives on the device can change after the calls are recorded.
        device = self.units.device
        self.rate = torch.tensor(self.settings.rate(1.0), device=device)
        self.optimizer = make_optimizer(self.leaves, self.one.shares, self.settings, recorded=device.type == "cuda")
        self._gradient = vmap(self.one.objective.gradient)
        self._values = vmap(lambda vectors, seen: self.one.objective.predict(vectors, seen).mean())
        self.updates = 0

    def update(self, batch: Transitions) -> None:
        """Take a step of every agent; parts of the batch are `(agents, batch, ...)`."""
        with torch.no_grad():
            gradients, _ = self._gradient(self.vectors, self.targets, batch, self.units)
        take_step(self.optimizer, self.leaves, gradients, self.rate)

    def follow(self) -> None:
        """Let the target networks follow after an update, if it is their turn."""
        self.updates += 1
        if self.updates % self.settings.target_update_interval == 0:
            approach(self.targets, self.vectors, self.settings.tau)

    def best(self, seen: Tensor) -> Tensor:
        """Return the best action of every agent, `(agents)`, for what each sees, `(agents, width)`."""
        with torch.no_grad():
            values = self._values(self.vectors, seen.unsqueeze(1)).squeeze(1)
        return values.argmax(-1)


class Recorded:
    """A function without arguments that is recorded on its first call on a GPU, and replayed after that.

    Args:
        function: works on tensors that stay where they are.
        device: elsewhere than on a GPU the function is just called.
    """

    def __init__(self, function: Callable[[], Any], device: torch.device, generator: torch.Generator | None = None):
        self.function, self.device, self.generator = function, device, generator
        self._graph: torch.cuda.CUDAGraph | None = None
        self._calls = 0

    def __call__(self) -> None:
        """Call the function."""
        self._calls += 1
        if self._graph is not None:
            self._graph.replay()
        elif self.device.type != "cuda" or self._calls <= 3:
            self.function()  # the first calls make what must not be made while recording
        else:
            self._record()

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        if self.generator is not None:
            graph.register_generator_state(self.generator)
        torch.cuda.synchronize(self.device)
        with torch.cuda.graph(graph):
            self.function()
        self._graph = graph
        graph.replay()
