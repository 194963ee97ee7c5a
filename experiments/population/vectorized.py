"""The vectorised learner: the updates of all agents in one call, equal to those of each agent alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from cramix.rl.learner import Learner, compiled, make_optimizer, polyak_update, take_step
from cramix.rl.objective import Objective, clip, global_norm
from cramix.rl.replay import Transitions
from cramix.rl.returns import Parts
from experiments.population.memory import Memory


class VectorizedLearner:
    """Updates many agents that differ only in their parameters.

    Args:
        learners: one per agent, of the same kind and settings, with the initial parameters.
        compile: whether gradients are compiled.
    """

    def __init__(self, learners: Sequence[Learner], *, compile: bool = False):
        one = learners[0]
        self.settings = one.settings
        self.vectors = [torch.stack(parts) for parts in zip(*(x.vectors for x in learners), strict=True)]
        self.targets = [torch.stack(parts) for parts in zip(*(x.targets for x in learners), strict=True)]
        self.units = torch.stack([x.unit for x in learners])
        self.leaves = [torch.nn.Parameter(vector) for vector in self.vectors]
        self.optimizer = make_optimizer(self.leaves, one.rate_factors, self.settings)
        self.objective = _VectorizedObjective(one.objective.network, one.objective.layout, one.objective.max_grad_norm)
        self._gradients = compiled(_gradients) if compile else _gradients
        self.updates = 0

    def gradients(self, memory: Memory, uniform: Tensor) -> Sequence[Tensor]:
        """Return the gradients of every agent for a batch, selected by uniform numbers `(agents, batch)`."""
        with torch.no_grad():
            return self._gradients(self.objective, self.vectors, self.targets, memory, uniform, self.units)

    def update(self, gradients: Sequence[Tensor], rate: float) -> None:
        """Take a step of every agent along its gradient, and update the target networks if they are due."""
        take_step(self.optimizer, self.leaves, gradients, rate)
        self.updates += 1
        if self.updates % self.settings.target_update_interval == 0:
            polyak_update(self.targets, self.vectors, self.settings.tau)

    def best(self, observations: Tensor) -> Tensor:
        """Return the best action of every agent, `(agents)`, for observations `(agents, width)`."""
        with torch.no_grad():
            return self.objective.predict(self.vectors, observations).mean().argmax(-1)


class _VectorizedObjective(Objective):
    """The objective of all agents, whose batches are concatenated: `(agents * batch, ...)`.

    Only the network is vectorised over agents; losses are per row.
    """

    def predict(self, vectors: Sequence[Tensor], observations: Any) -> Parts:
        each = observations.unflatten(0, (len(vectors[0]), -1))
        one = super().predict
        parts = vmap(lambda *arguments: one(*arguments).tensors(), randomness="different")(vectors, each)
        return Parts(*(x.expand(-1, each.shape[1], *x.shape[2:]).flatten(0, 1) for x in parts))


def _gradients(
    objective: Objective,
    vectors: Sequence[Tensor],
    targets: Sequence[Tensor],
    memory: Memory,
    uniform: Tensor,
    units: Tensor,
) -> Sequence[Tensor]:
    agents, batch_size = uniform.shape
    batch = Transitions(*(part.flatten(0, 1) for part in memory.draw(uniform)))  # type: ignore[union-attr]
    rows = units.repeat_interleave(batch_size)

    def loss(vectors: Sequence[Tensor]) -> Tensor:
        return (
            agents * objective.loss(vectors, targets, batch, rows)[0]
        )  # the mean over all rows times the number of agents: the sum of their means

    gradients = grad(loss)(vectors)
    return clip(gradients, global_norm(gradients), objective.max_grad_norm)
