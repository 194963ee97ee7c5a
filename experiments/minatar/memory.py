"""The replay buffers of a population on MinAtar: one screen per step, on the device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from experiments.minatar.arcade import CHANNELS
from experiments.minatar.games.game import SIZE

_CELLS = CHANNELS * SIZE * SIZE


class Transitions(NamedTuple):
    """Batches of all runs.

    Args:
        screens: `(runs, batch, channels, 10, 10)`.
        actions: `(runs, batch)`.
        rewards: sums of up to n discounted rewards, `(runs, batch)`.
        next_screens: after those rewards; arbitrary where the episode terminated.
        discounts: of the return after them, 0 where the episode terminated.
    """

    screens: Tensor
    actions: Tensor
    rewards: Tensor
    next_screens: Tensor
    discounts: Tensor


class Memory:
    """The last steps of every environment. The next screen of a step is the screen of the following one.

    A step is added in two parts: `add_screens` before the action, `add_results` after it. Batches can be drawn between
    the two. Episodes are never truncated, so that what follows their end does not matter.

    Args:
        runs: number of runs.
        envs: environments of each run.
        size: transitions of each run.
        gamma: discount factor.
        n_steps: number of rewards that are summed.
        device: of all tensors.
    """

    def __init__(self, runs: int, envs: int, size: int, gamma: float, n_steps: int, device: torch.device):
        self.envs, self.slots, self.n_steps, self.gamma = envs, size // envs + n_steps, n_steps, gamma
        shape = (runs, self.slots, envs)
        self.screens = torch.zeros(*shape, _CELLS, dtype=torch.bool, device=device)
        self.actions = torch.zeros(shape, dtype=torch.uint8, device=device)
        self.rewards = torch.zeros(shape, device=device)
        self.terminal = torch.zeros(shape, dtype=torch.bool, device=device)
        # The counters are tensors, so that a CUDA graph reads their current values.
        self.position = torch.zeros((), dtype=torch.long, device=device)
        self.filled = torch.zeros((), dtype=torch.long, device=device)
        self._words = self.screens.view(-1, _CELLS).view(torch.long)  # the same memory: eight cells are copied at once
        # Of steps, counted over all environments of all runs: the first of each run, and those after a given one.
        self._ring = self.slots * envs
        self._first = self._ring * torch.arange(runs, device=device).view(-1, 1, 1)
        self._ahead = envs * torch.arange(n_steps + 1, device=device)

    def add_screens(self, screens: Tensor) -> None:
        """Store the current screens, `(runs, envs, channels, 10, 10)`."""
        self.screens.index_copy_(1, self.position.view(1), screens.flatten(2).unsqueeze(1))

    def add_results(self, actions: Tensor, rewards: Tensor, terminal: Tensor) -> None:
        """Store what followed, `(runs, envs)`, and go on to the next step."""
        for stored, x in ((self.actions, actions.to(torch.uint8)), (self.rewards, rewards), (self.terminal, terminal)):
            stored.index_copy_(1, self.position.view(1), x.unsqueeze(1))
        self.position.add_(1).remainder_(self.slots)
        self.filled.add_(1).clamp_(max=self.slots - 1)  # the current screens take one place

    def draw(self, uniform: Tensor) -> Transitions:
        """Return a batch for every run, selected by uniform numbers `(runs, batch)`; `add_screens` was called last."""
        count = (self.filled - self.n_steps + 1) * self.envs
        chosen = torch.minimum((uniform.double() * count).long(), count - 1)
        chosen = chosen + (self.position - self.filled) * self.envs  # the first are the oldest
        steps = self._first + (chosen.unsqueeze(-1) + self._ahead) % self._ring
        *during, after = steps.unbind(-1)
        rewards = [self.rewards.view(-1)[step] for step in during]
        goes_on = [~self.terminal.view(-1)[step] for step in during]
        total, discount = rewards[-1], self.gamma * goes_on[-1]
        for reward, going in zip(rewards[-2::-1], goes_on[-2::-1], strict=True):
            total, discount = reward + self.gamma * going * total, self.gamma * going * discount
        actions = self.actions.view(-1)[during[0]].long()
        return Transitions(self._screens(during[0]), actions, total, self._screens(after), discount)

    def _screens(self, index: Tensor) -> Tensor:
        rows = self._words.index_select(0, index.flatten())
        return rows.view(torch.bool).view(*index.shape, CHANNELS, SIZE, SIZE)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that a checkpoint must hold, by name."""
        names = ("screens", "actions", "rewards", "terminal", "position", "filled")
        return {name: getattr(self, name) for name in names}
