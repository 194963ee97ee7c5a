"""The learner of a population on MinAtar: predictions and updates of all runs at once."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.minatar.memory import Memory, Transitions
from experiments.minatar.networks import Layout, activate, backpropagate, convolution, hidden, patches
from experiments.minatar.returns import Distribution, Layers
from experiments.minatar.settings import Plan
from experiments.population.device import Branches, compiled

_BETAS = (0.9, 0.999)


class Learner:
    """The online and the target networks of all runs, and Adam with a learning rate for each run.

    Nothing waits for the device; counters are tensors, so that a CUDA graph reads their current values.

    Args:
        plan: the runs and their settings.
        device: of all tensors.
        generator: of the initial parameters, on the CPU.
        compile: whether the optimiser and the loops around the convolution are compiled, which fuses them.
    """

    def __init__(self, plan: Plan, device: torch.device, generator: torch.Generator, *, compile: bool = False):
        self.plan, self.layout = plan, Layout(plan)
        self.parts = plan.segments()
        self.online = self.layout.initial(generator).to(device)
        self.target, self.gradient = self.online.clone(), torch.zeros_like(self.online)
        self.moments = (torch.zeros_like(self.online), torch.zeros_like(self.online))
        self.updates = torch.zeros((), device=device)
        self.rates = torch.tensor([variant.learning_rate for variant, _, _ in plan.runs], device=device).unsqueeze(1)
        self._online, self._target = self.layout.views(self.online), self.layout.views(self.target)
        self._gradient = self.layout.views(self.gradient)
        for algorithm in self.parts:
            layers = self._online[algorithm]
            for name, (weight, bias) in layers.items():
                layers[name] = (weight.detach().requires_grad_(), bias.detach().requires_grad_())
        self._branches = Branches(len(self.parts), device)
        self._adam = compiled(_adam) if compile else _adam
        self._patches = compiled(patches) if compile else patches
        self._activate = compiled(activate) if compile else activate
        # Uniform numbers per update, by algorithm: those of the prediction, then those of the target.
        s = plan.settings
        self.draws = {
            name: 2 * (part.stop - part.start) * s.members * s.batch_size * self.layout.returns[name].draws
            for name, part in self.parts.items()
        }

    @torch.no_grad()
    def values(self, screens: Tensor) -> Tensor:
        """Return the expected return of every action, `(runs, batch, actions)`, of screens `(runs, batch, ...)`."""
        trunk = self._online["trunk"]
        features = hidden(trunk, self._convolution([trunk], self._patches(screens))[0])
        return torch.cat([self._values(name, features[part]) for name, part in self.parts.items()])

    @torch.no_grad()
    def differentiate(self, memory: Memory, selection: Tensor, uniform: Tensor) -> None:
        """Compute the gradient for a batch: of the mean losses of every run, summed over its members.

        Args:
            memory: to draw from.
            selection: uniform numbers `(runs, batch)`.
            uniform: `sum(draws)` uniform numbers.
        """
        batch = memory.draw(selection)
        online, target = self._online["trunk"], self._target["trunk"]
        next_maps, target_maps = self._convolution([online, target], self._patches(batch.next_screens))
        next_features, target_features = hidden(online, next_maps), hidden(target, target_maps)
        inputs = self._patches(batch.screens)
        (maps,) = self._convolution([online], inputs)
        features = hidden(online, maps)
        slopes = torch.empty_like(features)
        draws = uniform.split(list(self.draws.values()))
        for i, (name, part) in enumerate(self.parts.items()):
            with self._branches.fork(i):
                rows = Transitions(*(x[part] for x in batch))
                drawn = draws[i].view(2, *features[part].shape[:-1], -1) if len(draws[i]) else (None, None)
                goal = self._goal(name, rows, next_features[part], target_features[part], drawn[1])
                slopes[part] = self._differentiate_last(name, rows.actions, features[part], goal, drawn[0])
        self._branches.join()
        backpropagate(online, inputs, maps, features, slopes, self._gradient["trunk"])

    @torch.no_grad()
    def descend(self) -> None:
        """Take a step of every run along its gradient."""
        s = self.plan.settings
        self.updates.add_(1)
        progress = (self.updates * s.envs / s.steps).clamp(max=1)
        rates = self.rates * (1 - (1 - s.final_learning_rate) * progress)
        norm = torch.linalg.vector_norm(self.gradient, dim=1, keepdim=True)
        shrink = (s.max_grad_norm / norm.clamp_min(1e-12)).clamp_max(1)
        self._adam(self.online, *self.moments, self.gradient, rates, self.updates, shrink, s.adam_eps)

    def update_target(self) -> None:
        """Move the target networks towards the online networks."""
        self.target.lerp_(self.online, self.plan.settings.tau)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that a checkpoint must hold, by name."""
        return {
            "online": self.online,
            "target": self.target,
            "first_moment": self.moments[0],
            "second_moment": self.moments[1],
            "updates": self.updates,
        }

    def _convolution(self, trunks: list[Layers], inputs: Tensor) -> tuple[Tensor, ...]:
        return convolution(trunks, inputs, self._activate)

    def _values(self, name: str, features: Tensor) -> Tensor:
        return self.layout.returns[name].distribution(self._online[name], features).mean().mean(1)

    def _goal(
        self, name: str, batch: Transitions, next_features: Tensor, target_features: Tensor, uniform: Tensor | None
    ) -> Distribution:
        """Return the target of an algorithm: the online network selects actions, the target network predicts."""
        best = self._values(name, next_features).argmax(-1)
        following = self.layout.returns[name].distribution(self._target[name], target_features, uniform).select(best)
        return following.joined().affine(batch.rewards, batch.discounts)

    @torch.enable_grad()
    def _differentiate_last(
        self, name: str, actions: Tensor, features: Tensor, goal: Distribution, uniform: Tensor | None
    ) -> Tensor:
        """Compute the gradients of the last layers; return the derivatives with respect to the features."""
        returns, layers = self.layout.returns[name], self._online[name]
        features = features.detach().requires_grad_()
        prediction = returns.distribution(layers, features, uniform).select(actions)
        loss = returns.loss(prediction, goal).mean(-1).sum()
        leaves = [x for layer in layers.values() for x in layer]
        places = [x for layer in self._gradient[name].values() for x in layer]
        slopes, *gradients = torch.autograd.grad(loss, [features, *leaves])
        for place, gradient in zip(places, gradients, strict=True):
            place.copy_(gradient)
        return slopes


def _adam(
    rows: Tensor,
    first: Tensor,
    second: Tensor,
    gradient: Tensor,
    rates: Tensor,
    updates: Tensor,
    shrink: Tensor,
    eps: float,
) -> None:
    """Take a step of Adam in place along the gradients of rows, each multiplied by its `shrink`."""
    clipped = gradient * shrink
    first.lerp_(clipped, 1 - _BETAS[0])
    second.lerp_(clipped.square(), 1 - _BETAS[1])
    mean, square = first / (1 - _BETAS[0] ** updates), second / (1 - _BETAS[1] ** updates)
    rows.sub_(rates * mean / (square.sqrt() + eps))
