"""The memory of a population: transitions of all agents on the device, a row each."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.rl.replay import Transitions


class Memory:
    """The last transitions of every agent, drawn from without leaving the device.

    The counters are tensors, so that a recorded graph of calls reads their present values.

    Args:
        agents: how many.
        width: of observations.
        size: transitions an agent.
        gamma: discount.
        n_steps: rewards that are summed.
        device: where it is.
    """

    def __init__(self, agents: int, width: int, size: int, gamma: float, n_steps: int, device: torch.device):
        self.width, self.size, self.gamma, self.n_steps = width, size, gamma, n_steps
        # Seen, after, action, reward, terminated, ended.
        self.rows = torch.zeros(agents, size, 2 * width + 4, device=device)
        self.position = torch.zeros((), dtype=torch.long, device=device)
        self.filled = torch.zeros((), dtype=torch.long, device=device)
        self._agents = torch.arange(agents, device=device).unsqueeze(-1)
        self._ahead = torch.arange(n_steps, device=device)
        self._powers = gamma ** torch.arange(n_steps + 1, dtype=torch.float32, device=device)

    def add(self, rows: Tensor) -> None:
        """Remember one transition of every agent, `(agents, 2 width + 4)`."""
        self.rows.index_copy_(1, self.position.view(1), rows.unsqueeze(1))
        self.position.add_(1).remainder_(self.size)
        self.filled.add_(1).clamp_(max=self.size)

    def count(self, added: int) -> None:
        """Take the rows for the last of this many that were added."""
        self.position.fill_(added % self.size)
        self.filled.fill_(min(added, self.size))

    def cut(self) -> None:
        """Say that the environments start anew."""
        self.rows[:, self.position - 1, -1] = 1.0

    def draw(self, uniform: Tensor) -> Transitions:
        """Return a batch for every agent, parts `(agents, batch, ...)`, by uniform numbers `(agents, batch)`."""
        shape = uniform.shape
        first = (uniform * self.filled).long().clamp_(max=self.size - 1)
        places = (first.unsqueeze(-1) + self._ahead) % self.size  # (agents, batch, n)
        rows = self.rows[self._agents.unsqueeze(-1), places]
        seen, after, action, reward, terminated, ended = rows.split([self.width, self.width, 1, 1, 1, 1], -1)
        newest = (self.position - 1) % self.size
        stops = (ended.squeeze(-1) > 0) | (places == newest)
        going = torch.cat([torch.ones_like(stops[..., :1]), ~stops[..., :-1]], -1).long().cumprod(-1)
        last = going.sum(-1) - 1  # (agents, batch), the last step that counts
        pick = last.unsqueeze(-1).unsqueeze(-1)
        return Transitions(
            seen[..., 0, :],
            action[..., 0, 0].long(),
            (going * self._powers[:-1] * reward.squeeze(-1)).sum(-1),
            after.gather(-2, pick.expand(*shape, 1, self.width)).squeeze(-2),
            self._powers[last + 1] * (1 - terminated.squeeze(-1).gather(-1, last.unsqueeze(-1)).squeeze(-1)),
        )
