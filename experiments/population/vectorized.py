"""The vectorised learner: the updates of all agents in one call, equal to those of each agent alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from cramix.rl.algorithm import DistributionalDQN
from cramix.rl.learner import clip_factor, compiled, in_order
from cramix.rl.objective import Objective
from cramix.rl.replay import Transitions
from cramix.rl.returns import Parts
from cramix.torch_internals import lerp_all
from experiments.population.memory import Memory

Parameters = dict[str, Tensor]  # (agents, ...), by name


class VectorizedLearner:
    """Updates many agents that differ only in their parameters.

    Args:
        models: of the same kind and settings, with the initial parameters.
        compile: whether gradients are compiled.
    """

    def __init__(self, models: Sequence[DistributionalDQN], *, compile: bool = False):
        one = models[0]
        self.max_grad_norm, self.tau, self.interval = one.max_grad_norm, one.tau, one.target_update_interval
        self.parameters = {name: nn.Parameter(x) for name, x in _stacked([m.q_net for m in models]).items()}
        self.targets = _stacked([m.q_net_target for m in models])
        self.units = torch.stack([m.policy.unit for m in models])
        self.network = one.q_net_target  # in evaluation mode
        self.objective = Objective(one.q_net.returns, one.q_net.members)
        self.optimizer = one.policy.make_optimizer(self.parameters, one.lr_schedule(1))
        self._gradients = compiled(_gradients) if compile else _gradients
        self.updates = 0

    def gradients(self, memory: Memory, uniform: Tensor) -> Parameters:
        """Return the gradients of every agent for a batch, selected by uniform numbers `(agents, batch)`."""
        values = {name: x.detach() for name, x in self.parameters.items()}
        with torch.no_grad():
            return self._gradients(
                self.objective, self.network, values, self.targets, memory, uniform, self.units, self.max_grad_norm
            )

    def update(self, gradients: Parameters, rate: float) -> None:
        """Take a step of every agent along its gradient, and update the target networks if they are due."""
        for name, parameter in self.parameters.items():
            parameter.grad = gradients[name]
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["rate_factor"]
        self.optimizer.step()
        self.updates += 1
        if self.updates % self.interval == 0:
            lerp_all(list(self.targets.values()), list(self.parameters.values()), self.tau)

    def best(self, observations: Tensor) -> Tensor:
        """Return the best action of every agent, `(agents)`, for observations `(agents, width)`."""
        with torch.no_grad():
            return _predict(self.network, self.parameters)(observations).mean().argmax(-1)


def _stacked(networks: Sequence[nn.Module]) -> Parameters:
    several = [dict(network.named_parameters()) for network in networks]
    return {name: torch.stack([one[name].detach() for one in several]) for name in several[0]}


def _predict(network: nn.Module, parameters: Mapping[str, Tensor]) -> Callable[[Any], Parts]:
    """Return the prediction of all agents, whose batches are concatenated: `(agents * batch, ...)`.

    Only the network is vectorised over agents; losses are per row.
    """

    def predict(observations: Any) -> Parts:
        each = observations.unflatten(0, (len(next(iter(parameters.values()))), -1))
        parts = vmap(lambda values, x: functional_call(network, values, (x,)).tensors(), randomness="different")(
            parameters, each
        )
        return Parts(*(x.expand(-1, each.shape[1], *x.shape[2:]).flatten(0, 1) for x in parts))

    return predict


def _gradients(
    objective: Objective,
    network: nn.Module,
    parameters: Parameters,
    targets: Parameters,
    memory: Memory,
    uniform: Tensor,
    units: Tensor,
    max_grad_norm: float | None,
) -> Parameters:
    agents, batch_size = uniform.shape
    batch = Transitions(*(part.flatten(0, 1) for part in memory.draw(uniform)))  # type: ignore[union-attr]
    rows = units.repeat_interleave(batch_size)
    target = objective.target(_predict(network, parameters), _predict(network, targets), batch, rows)

    def loss(values: Parameters) -> Tensor:
        # The mean over all rows times the number of agents: the sum of their means.
        return agents * objective.loss(_predict(network, values)(batch.observations), target, batch.actions)[0]

    gradients = grad(loss)(parameters)
    norm = torch.stack([x.flatten(1).square().sum(-1) for x in gradients.values()]).sum(0).sqrt()
    shrink = clip_factor(norm, max_grad_norm)
    return {name: in_order(x * shrink.view(-1, *(1 for _ in x.shape[1:]))) for name, x in gradients.items()}
