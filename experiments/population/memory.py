"""The replay buffer of a population: transitions of all agents, on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.rl.replay import Transitions


class Memory:
    """The last transitions of every agent, sampled without leaving the device.

    The counters are tensors, so that a CUDA graph reads their current values.

    Args:
        agents: number of agents.
        width: of observations.
        size: number of transitions per agent.
        gamma: discount factor.
        n_steps: number of rewards that are summed.
        device: of the transitions.
    """

    def __init__(self, agents: int, width: int, size: int, gamma: float, n_steps: int, device: torch.device):
        self.width, self.size, self.gamma, self.n_steps = width, size, gamma, n_steps
        # Observation, next observation, action, reward, terminated, ended.
        self.rows = torch.zeros(agents, size, 2 * width + 4, device=device)
        self.position = torch.zeros((), dtype=torch.long, device=device)
        self.filled = torch.zeros((), dtype=torch.long, device=device)
        self._agents = torch.arange(agents, device=device).unsqueeze(-1)
        self._ahead = torch.arange(n_steps, device=device)
        self._powers = gamma ** torch.arange(n_steps + 1, dtype=torch.float32, device=device)

    def add(self, rows: Tensor) -> None:
        """Store one transition of every agent, `(agents, 2 width + 4)`."""
        self.rows.index_copy_(1, self.position.view(1), rows.unsqueeze(1))
        self.position.add_(1).remainder_(self.size)
        self.filled.add_(1).clamp_(max=self.size)

    def set_count(self, added: int) -> None:
        """Set the counters as after this many additions."""
        self.position.fill_(added % self.size)
        self.filled.fill_(min(added, self.size))

    def end_episodes(self) -> None:
        """Mark the newest steps as truncated, because environments are reset."""
        self.rows[:, self.position - 1, -1] = 1.0

    def draw(self, uniform: Tensor) -> Transitions:
        """Return a batch for every agent, `(agents, batch, ...)`, selected by uniform numbers `(agents, batch)`."""
        shape = uniform.shape
        first = (uniform * self.filled).long().clamp_(max=self.size - 1)
        indices = (first.unsqueeze(-1) + self._ahead) % self.size  # (agents, batch, n)
        rows = self.rows[self._agents.unsqueeze(-1), indices]
        observation, next_observation, action, reward, terminated, ended = rows.split(
            [self.width, self.width, 1, 1, 1, 1], -1
        )
        newest = (self.position - 1) % self.size
        stops = (ended.squeeze(-1) > 0) | (indices == newest)
        going = torch.cat([torch.ones_like(stops[..., :1]), ~stops[..., :-1]], -1).long().cumprod(-1)
        last = going.sum(-1) - 1  # (agents, batch), the last step of the sum
        pick = last.unsqueeze(-1).unsqueeze(-1)
        return Transitions(
            observation[..., 0, :],
            action[..., 0, 0].long(),
            (going * self._powers[:-1] * reward.squeeze(-1)).sum(-1),
            next_observation.gather(-2, pick.expand(*shape, 1, self.width)).squeeze(-2),
            self._powers[last + 1] * (1 - terminated.squeeze(-1).gather(-1, last.unsqueeze(-1)).squeeze(-1)),
        )
