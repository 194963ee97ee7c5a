"""The learner of a population: the updates of all agents in one call, the same as of each alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from cramix.rl.learning.learner import Learner, compiled
from cramix.rl.learning.objective import Objective, length, shortened
from cramix.rl.learning.optimizers import approach, make_optimizer, take_step
from cramix.rl.population.memory import Memory
from cramix.rl.replay import Transitions
from cramix.rl.returns import Parts


class PopulationLearner:
    """Updates many agents that differ in their numbers only.

    Args:
        learners: one for each agent, of the same kind and settings; they give the numbers to start from.
        compile: whether gradients are compiled.
    """

    def __init__(self, learners: Sequence[Learner], *, compile: bool = False):
        one = learners[0]
        self.settings = one.settings
        self.vectors = [torch.stack(parts) for parts in zip(*(x.vectors for x in learners), strict=True)]
        self.targets = [torch.stack(parts) for parts in zip(*(x.targets for x in learners), strict=True)]
        self.units = torch.stack([x.unit for x in learners])
        self.leaves = [torch.nn.Parameter(vector) for vector in self.vectors]
        self.optimizer = make_optimizer(self.leaves, one.shares, self.settings)
        self.objective = _Objective(one.objective.network, one.objective.layout, one.objective.max_grad_norm)
        self._gradients = compiled(_gradients) if compile else _gradients
        self.updates = 0

    def gradients(self, memory: Memory, uniform: Tensor) -> Sequence[Tensor]:
        """Return the gradients of every agent for a batch out of memory; uniform numbers choose it."""
        with torch.no_grad():
            return self._gradients(self.objective, self.vectors, self.targets, memory, uniform, self.units)

    def update(self, gradients: Sequence[Tensor], rate: float) -> None:
        """Take a step of every agent along its gradient; the target networks follow if it is their turn."""
        take_step(self.optimizer, self.leaves, gradients, rate)
        self.updates += 1
        if self.updates % self.settings.target_update_interval == 0:
            approach(self.targets, self.vectors, self.settings.tau)

    def best(self, seen: Tensor) -> Tensor:
        """Return the best action of every agent, `(agents)`, for what each sees, `(agents, width)`."""
        with torch.no_grad():
            return self.objective.predict(self.vectors, seen).mean().argmax(-1)


class _Objective(Objective):
    """The objective of all agents, whose rows follow each other: `(agents * batch, ...)`.

    Only the layers are mapped over agents. A loss is of rows, and these do not know whose they are.
    """

    def predict(self, vectors: Sequence[Tensor], observations: Any) -> Parts:
        each = observations.unflatten(0, (len(vectors[0]), -1))
        one = super().predict
        parts = vmap(lambda *arguments: one(*arguments).present(), randomness="different")(vectors, each)
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
        return agents * objective.loss(vectors, targets, batch, rows)[0]  # from a mean over all to that of each

    gradients = grad(loss)(vectors)
    return shortened(gradients, length(gradients), objective.max_grad_norm)
