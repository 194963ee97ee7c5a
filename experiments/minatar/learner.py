"""The learner of a population on MinAtar: predictions and updates of all runs at once."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.minatar.memory import Memory
from experiments.minatar.networks import Layout, convolution, features, hidden, patches
from experiments.minatar.returns import Layers
from experiments.minatar.settings import Plan

_BETAS = (0.9, 0.999)


class Learner:
    """The online and the target networks of all runs, and Adam with a learning rate for each run.

    Nothing waits for the device; counters are tensors, so that a CUDA graph reads their current values.

    Args:
        plan: the runs and their settings.
        device: of all tensors.
        generator: of the initial parameters, on the CPU.
        compile: whether the optimiser and the input of the convolution are compiled, which fuses their loops.
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
        for layers in self._online.values():
            for name, (weight, bias) in layers.items():
                layers[name] = (weight.detach().requires_grad_(), bias.detach().requires_grad_())
        self._adam = torch.compile(_adam, dynamic=False) if compile else _adam
        self._patches = torch.compile(patches, dynamic=False) if compile else patches
        # Uniform numbers per update, by algorithm: those of the prediction, then those of the target.
        s = plan.settings
        self.draws = {
            name: 2 * (part.stop - part.start) * s.members * s.batch_size * self.layout.returns[name].draws
            for name, part in self.parts.items()
        }

    @torch.no_grad()
    def values(self, screens: Tensor) -> Tensor:
        """Return the expected return of every action, `(runs, batch, actions)`, of screens `(runs, batch, ...)`."""
        return self._values(features(self._online["trunk"], self._patches(screens)))

    def update(self, memory: Memory, selection: Tensor, uniform: Tensor) -> None:
        """Take a step of every run along the gradient of a batch.

        Args:
            memory: to draw from.
            selection: uniform numbers `(runs, batch)`.
            uniform: `sum(draws)` uniform numbers.
        """
        loss = self.losses(memory, selection, uniform).sum()
        leaves = [x for layers in self._online.values() for layer in layers.values() for x in layer]
        places = [x for layers in self._gradient.values() for layer in layers.values() for x in layer]
        for place, gradient in zip(places, torch.autograd.grad(loss, leaves), strict=True):
            place.copy_(gradient)
        s = self.plan.settings
        with torch.no_grad():
            self.updates.add_(1)
            progress = (self.updates * s.envs / s.steps).clamp(max=1)
            rates = self.rates * (1 - (1 - s.final_learning_rate) * progress)
            norm = torch.linalg.vector_norm(self.gradient, dim=1, keepdim=True)
            shrink = (s.max_grad_norm / norm.clamp_min(1e-12)).clamp_max(1)
            self._adam(self.online, *self.moments, self.gradient, rates, self.updates, shrink, s.adam_eps)

    def losses(self, memory: Memory, selection: Tensor, uniform: Tensor) -> Tensor:
        """Return the loss of every run, `(runs)`: the sum over members of the means over the batch."""
        batch = memory.draw(selection)
        online, target_trunk = self._online["trunk"], self._target["trunk"]
        with torch.no_grad():
            maps, target_maps = convolution([online, target_trunk], self._patches(batch.next_screens))
            best = self._values(hidden(online, maps)).argmax(-1)
            after = hidden(target_trunk, target_maps)
        now = features(online, self._patches(batch.screens))
        losses = []
        for (name, part), draws in zip(self.parts.items(), uniform.split(list(self.draws.values())), strict=True):
            returns = self.layout.returns[name]
            mine, theirs = (draws.view(*now[part].shape[:-1], -1) if len(draws) else None for draws in draws.chunk(2))
            with torch.no_grad():
                following = returns.distribution(self._target[name], after[part], theirs).select(best[part])
                target = following.joined().affine(batch.rewards[part], batch.discounts[part])
            prediction = returns.distribution(self._online[name], now[part], mine).select(batch.actions[part])
            losses.append(returns.loss(prediction, target).mean(-1).sum(-1))
        return torch.cat(losses)

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

    def _values(self, all_features: Tensor) -> Tensor:
        each = [self._of(self._online[name], name, all_features[part]) for name, part in self.parts.items()]
        return torch.cat(each)

    def _of(self, layers: Layers, name: str, some_features: Tensor) -> Tensor:
        return self.layout.returns[name].distribution(layers, some_features).mean().mean(1)


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
