"""The learner of a population: the updates of all agents in one call, the same as of each alone."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from cramix.rl.learning.flat import FlatParameters
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
        self.objective = _Objective(one)
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

    Only the layers are mapped, over agents and their members alike. A loss is of rows, and these do not know whose they
    are.
    """

    def __init__(self, learner: Learner):
        whole = learner.objective
        super().__init__(whole.network, whole.layout, whole.max_grad_norm)
        if whole.network.members > 1 and any(True for _ in whole.network.features_extractor.parameters()):
            raise ValueError(
                "features_extractor_class must be one that does not learn; got one that members share. Train singly."
            )
        # Without it the numbers of one member follow those of another.
        member = deepcopy(whole.network)
        member.others = nn.ModuleList()
        fractions = member.fractions() if learner.settings.fraction_learning_rate is not None else []
        self.member = Objective(member, FlatParameters(member, [fractions]))

    def predict(self, vectors: Sequence[Tensor], observations: Any) -> Parts:
        members = len(vectors[0]), self.network.members
        each = observations.unflatten(0, (members[0], -1)).repeat_interleave(members[1], 0)

        def present(*arguments: Any) -> list[Tensor]:
            return [x for x in self.member.predict(*arguments) if x is not None]

        parts = vmap(present)([vector.unflatten(-1, (members[1], -1)).flatten(0, 1) for vector in vectors], each)
        rows = (x.expand(-1, each.shape[1], *x.shape[2:]).unflatten(0, members) for x in parts)
        joined = Parts(*(x.movedim(1, -2) for x in rows)).joined()  # of (agents, batch, actions, members, k)
        return Parts(*(x.flatten(0, 1) for x in joined if x is not None))


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
