"""The memory of transitions: n-step returns, terminal and truncated episodes, files without code."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.preprocessing import get_obs_shape
from stable_baselines3.common.vec_env import VecNormalize

from cramix.atomic import replacing
from cramix.rl.network import Observation, to_tensor


class Transitions(NamedTuple):
    """A batch of transitions.

    Args:
        observations: `(batch, ...)`.
        actions: `(batch)`.
        rewards: sums of up to n discounted rewards, `(batch)`.
        next_observations: after them, `(batch, ...)`.
        discounts: of what comes next, `(batch)`; zero where the episode ended.
    """

    observations: Observation
    actions: torch.Tensor
    rewards: torch.Tensor
    next_observations: Observation
    discounts: torch.Tensor


class Replay(ReplayBuffer):
    """The last transitions of some environments, to draw batches from.

    An episode that ended by its rules is worth nothing after; one that was cut off goes on in the mind of the network.

    Args:
        buffer_size: transitions of all environments.
        observation_space: of one environment; may be a dictionary.
        action_space: discrete.
        device: where batches go.
        n_envs: number of environments.
        gamma: discount.
        n_steps: rewards that are summed.
        seed: of the draws.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        device: torch.device | str = "cpu",
        n_envs: int = 1,
        *,
        gamma: float = 0.99,
        n_steps: int = 1,
        seed: int | np.random.SeedSequence | None = None,
    ):
        super(ReplayBuffer, self).__init__(buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.buffer_size = max(buffer_size // n_envs, n_steps)
        self.gamma, self.n_steps = gamma, n_steps
        self.generator = np.random.default_rng(seed)
        lead = (self.buffer_size, n_envs)
        parts = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {"": observation_space}
        shapes = {key: (*lead, *get_obs_shape(space)) for key, space in parts.items()}
        dtypes = {key: _narrow(space.dtype) for key, space in parts.items()}
        self.seen = {key: np.zeros(shapes[key], dtypes[key]) for key in parts}
        self.after = {key: np.zeros(shapes[key], dtypes[key]) for key in parts}
        self.actions = np.zeros(lead, np.int64)
        self.rewards = np.zeros(lead, np.float32)
        self.terminated = np.zeros(lead, bool)
        self.ended = np.zeros(lead, bool)  # terminated or cut off: n-step returns stop here

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        """Remember one step of every environment."""
        i = self.pos
        for memory, parts in ((self.seen, obs), (self.after, next_obs)):
            for key, kept in memory.items():
                kept[i] = np.asarray(parts[key] if key else parts).reshape(kept.shape[1:])
                if kept.dtype.kind == "f" and not np.isfinite(kept[i]).all():
                    wrong = kept[i][~np.isfinite(kept[i])][0]
                    raise ValueError(
                        f"observations must be finite; got {wrong}{f' in {key}' if key else ''}. Mend the environment."
                    )
        self.actions[i] = np.asarray(action).reshape(self.n_envs)
        self.rewards[i] = reward
        self.ended[i] = done
        for j in range(self.n_envs):
            self.terminated[i, j] = done[j] and not infos[j].get("TimeLimit.truncated", False)
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full, self.pos = True, 0

    def cut(self) -> None:
        """Say that the environments start anew, so that no n-step return goes from one episode to the next."""
        if self.size():
            self.ended[self.pos - 1] = True

    def draw(self, batch_size: int, env: VecNormalize | None = None) -> Transitions:
        """Draw a batch; `env` is a `VecNormalize` whose statistics apply, or None."""
        i = self.generator.integers(self.size(), size=batch_size)
        j = self.generator.integers(self.n_envs, size=batch_size) if self.n_envs > 1 else np.zeros(batch_size, int)
        rewards, last, discounts = self._sums(i, j, env)
        return Transitions(
            to_tensor(self._observations(self.seen, i, j, env), self.device),
            torch.as_tensor(self.actions[i, j], device=self.device),
            torch.as_tensor(rewards, device=self.device),
            to_tensor(self._observations(self.after, last, j, env), self.device),
            torch.as_tensor(discounts, device=self.device),
        )

    def _sums(
        self, i: np.ndarray, j: np.ndarray, env: VecNormalize | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return sums of rewards from step i of environment j, the last step in each, and the discount after it."""
        rewards = self._normalize_reward(self.rewards[i, j], env)
        last, discounts = i, np.full(len(i), self.gamma, np.float32)
        newest = (self.pos - 1) % self.buffer_size
        going = ~(self.ended[i, j] | (i == newest))
        for _ in range(self.n_steps - 1):
            following = np.where(going, (last + 1) % self.buffer_size, last)
            rewards = rewards + going * discounts * self._normalize_reward(self.rewards[following, j], env)
            discounts = np.where(going, self.gamma * discounts, discounts).astype(np.float32)
            last = following
            going &= ~(self.ended[last, j] | (last == newest))
        return rewards.astype(np.float32), last, np.where(self.terminated[last, j], np.float32(0), discounts)

    def _observations(
        self, memory: dict[str, np.ndarray], i: np.ndarray, j: np.ndarray, env: VecNormalize | None
    ) -> Any:
        parts = {key: kept[i, j] for key, kept in memory.items()}
        return self._normalize_obs(parts.get("", parts), env)

    def returns(self, env: VecNormalize | None = None) -> np.ndarray:
        """Return the discounted sums of rewards from each step to the end of its episode or memory, `(steps, envs)`.

        Args:
            env: a `VecNormalize` whose statistics apply, or None.
        """
        order = (np.arange(self.size()) + (self.pos if self.full else 0)) % self.buffer_size
        return discounted_returns(self._normalize_reward(self.rewards[order], env), self.ended[order], self.gamma)

    def save(self, path: str | os.PathLike) -> None:
        """Write the transitions to a file, whole or not at all."""
        n = self.size()
        arrays = {name: getattr(self, name)[:n] for name in _ARRAYS}
        arrays |= {f"seen/{key}": x[:n] for key, x in self.seen.items()}
        arrays |= {f"after/{key}": x[:n] for key, x in self.after.items()}
        with replacing(path) as file:
            np.savez(file, position=np.array([self.pos, int(self.full), self.buffer_size]), **arrays)

    def load(self, path: str | os.PathLike) -> None:
        """Read transitions from a file that `save` has written; sizes and shapes must be the same."""
        try:
            with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                content = dict(file.items())
            position = content.pop("position")
            expected = {*_ARRAYS, *(f"seen/{k}" for k in self.seen), *(f"after/{k}" for k in self.after)}
            if set(content) != expected:
                raise ValueError(f"parts {sorted(content)}")
            if position[2] != self.buffer_size:
                raise ValueError(f"{position[2]} steps")
            n = self.buffer_size if position[1] else position[0]
            for name, x in content.items():
                wanted = (n, *self._array(name).shape[1:])
                if x.shape != wanted:
                    raise ValueError(f"{name} of shape {x.shape} in place of {wanted}")
        except FileNotFoundError:
            raise
        except _DAMAGE as error:
            raise ValueError(
                f"{path} must be a whole memory of {self.buffer_size} steps like this one; got: {error}. Write it anew."
            ) from None
        for name, x in content.items():
            self._array(name)[: len(x)] = x
        self.pos, self.full = int(position[0]), bool(position[1])

    def _array(self, name: str) -> np.ndarray:
        """Return the array that has a name in files."""
        group, _, key = name.partition("/")
        memory = getattr(self, group)
        return memory[key] if isinstance(memory, dict) else memory


def discounted_returns(rewards: np.ndarray, ended: np.ndarray, gamma: float) -> np.ndarray:
    """Return the discounted sums of rewards `(steps, envs)` from each step to the end of its episode or of all.

    Example:
        >>> discounted_returns(np.array([[1.0], [2.0], [4.0]]), np.array([[False], [True], [False]]), 0.5).ravel()
        array([2., 2., 4.])
    """
    sums, total = np.zeros(rewards.shape), np.zeros(rewards.shape[1])
    for i in range(len(rewards) - 1, -1, -1):
        total = rewards[i] + gamma * np.where(ended[i], 0, total)
        sums[i] = total
    return sums


_ARRAYS = ("actions", "rewards", "terminated", "ended")
# What reading a file raises that is not one, or is one no more.
_DAMAGE = (ValueError, KeyError, TypeError, IndexError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


def _narrow(dtype: Any) -> Any:
    """Networks compute in float32, so memory keeps no more of it."""
    return np.float32 if dtype == np.float64 else dtype
