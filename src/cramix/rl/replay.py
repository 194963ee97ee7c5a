"""The replay buffer: n-step returns, terminated and truncated episodes, files without code."""

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
        next_observations: after those rewards, `(batch, ...)`.
        discounts: of the return after them, `(batch)`; 0 where the episode terminated.
    """

    observations: Observation
    actions: torch.Tensor
    rewards: torch.Tensor
    next_observations: Observation
    discounts: torch.Tensor


class Replay(ReplayBuffer):
    """The last transitions of one or several environments, to sample batches from.

    Terminated episodes have a return of 0 after their end; truncated episodes bootstrap from the network.

    Args:
        buffer_size: number of transitions of all environments together.
        observation_space: of one environment; may be a dictionary.
        action_space: discrete.
        device: of the batches.
        n_envs: number of environments.
        gamma: discount factor.
        n_steps: number of rewards that are summed.
        seed: of the sampled batches.
    """

    # By key; the key of observations that are not dictionaries is "".
    observations: dict[str, np.ndarray]  # type: ignore[assignment]
    next_observations: dict[str, np.ndarray]  # type: ignore[assignment]

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
        self.observations = {key: np.zeros(shapes[key], dtypes[key]) for key in parts}
        self.next_observations = {key: np.zeros(shapes[key], dtypes[key]) for key in parts}
        self.actions = np.zeros(lead, np.int64)
        self.rewards = np.zeros(lead, np.float32)
        self.terminated = np.zeros(lead, bool)
        self.ended = np.zeros(lead, bool)  # terminated or truncated: n-step returns stop here

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        """Store one step of every environment."""
        i = self.pos
        for arrays, parts in ((self.observations, obs), (self.next_observations, next_obs)):
            for key, array in arrays.items():
                array[i] = np.asarray(parts[key] if key else parts).reshape(array.shape[1:])
                if array.dtype.kind == "f" and not np.isfinite(array[i]).all():
                    wrong = array[i][~np.isfinite(array[i])][0]
                    raise ValueError(
                        f"observations must be finite; got {wrong}{f' in {key}' if key else ''}. Fix the environment."
                    )
        self.actions[i] = np.asarray(action).reshape(self.n_envs)
        self.rewards[i] = reward
        self.ended[i] = done
        for j in range(self.n_envs):
            self.terminated[i, j] = done[j] and not infos[j].get("TimeLimit.truncated", False)
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full, self.pos = True, 0

    def end_episodes(self) -> None:
        """Mark the newest steps as truncated, because environments are reset: n-step returns end there."""
        if self.size():
            self.ended[self.pos - 1] = True

    def draw(self, batch_size: int, env: VecNormalize | None = None) -> Transitions:
        """Sample a batch; `env` is a `VecNormalize` whose statistics apply, or None."""
        i = self.generator.integers(self.size(), size=batch_size)
        j = self.generator.integers(self.n_envs, size=batch_size) if self.n_envs > 1 else np.zeros(batch_size, int)
        rewards, last, discounts = self._sums(i, j, env)
        return Transitions(
            to_tensor(self._observations(self.observations, i, j, env), self.device),
            torch.as_tensor(self.actions[i, j], device=self.device),
            torch.as_tensor(rewards, device=self.device),
            to_tensor(self._observations(self.next_observations, last, j, env), self.device),
            torch.as_tensor(discounts, device=self.device),
        )

    def _sums(
        self, i: np.ndarray, j: np.ndarray, env: VecNormalize | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return sums of rewards from step i of environment j, the last step of each sum, and the discount after it."""
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
        self, arrays: dict[str, np.ndarray], i: np.ndarray, j: np.ndarray, env: VecNormalize | None
    ) -> Any:
        parts = {key: array[i, j] for key, array in arrays.items()}
        return self._normalize_obs(parts.get("", parts), env)

    def returns(self, env: VecNormalize | None = None) -> np.ndarray:
        """Return the discounted returns from each step to the end of its episode or of the buffer, `(steps, envs)`.

        Args:
            env: a `VecNormalize` whose statistics apply, or None.
        """
        order = (np.arange(self.size()) + (self.pos if self.full else 0)) % self.buffer_size
        return discounted_returns(self._normalize_reward(self.rewards[order], env), self.ended[order], self.gamma)

    def save(self, path: str | os.PathLike) -> None:
        """Write the transitions to a file, atomically."""
        arrays: dict[str, Any] = {name: x[: self.size()] for name, x in self._arrays().items()}
        with replacing(path) as file:
            np.savez(file, position=np.array([self.pos, int(self.full), self.buffer_size]), **arrays)

    def load(self, path: str | os.PathLike) -> None:
        """Read transitions from a file that `save` wrote; sizes and shapes must be equal."""
        try:
            with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                content = dict(file.items())
            position = content.pop("position")
            if set(content) != set(self._arrays()):
                raise ValueError(f"parts {sorted(content)}")
            if position[2] != self.buffer_size:
                raise ValueError(f"{position[2]} steps")
            n = self.buffer_size if position[1] else position[0]
            for name, x in self._arrays().items():
                wanted = (n, *x.shape[1:])
                if content[name].shape != wanted:
                    raise ValueError(f"{name} of shape {content[name].shape} instead of {wanted}")
        except FileNotFoundError:
            raise
        except _DAMAGE as error:
            raise ValueError(
                f"{path} must be an intact replay buffer of {self.buffer_size} steps like this one; got: {error}. "
                "Use the file of this run."
            ) from None
        for name, x in self._arrays().items():
            x[:n] = content[name]
        self.pos, self.full = int(position[0]), bool(position[1])

    def _arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays by their names in files."""
        observed = ("observations", self.observations), ("next_observations", self.next_observations)
        return {
            **{name: getattr(self, name) for name in ("actions", "rewards", "terminated", "ended")},
            **{f"{group}/{key}": x for group, arrays in observed for key, x in arrays.items()},
        }


def discounted_returns(rewards: np.ndarray, ended: np.ndarray, gamma: float) -> np.ndarray:
    """Return the discounted returns of rewards `(steps, envs)` from each step to the end of its episode or of the data.

    Example:
        >>> discounted_returns(np.array([[1.0], [2.0], [4.0]]), np.array([[False], [True], [False]]), 0.5).ravel()
        array([2., 2., 4.])
    """
    sums, total = np.zeros(rewards.shape), np.zeros(rewards.shape[1])
    for i in range(len(rewards) - 1, -1, -1):
        total = rewards[i] + gamma * np.where(ended[i], 0, total)
        sums[i] = total
    return sums


# Errors of reading a damaged file, or another kind of file.
_DAMAGE = (ValueError, KeyError, TypeError, IndexError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


def _narrow(dtype: Any) -> Any:
    """Networks compute in float32, so the buffer stores no more."""
    return np.float32 if dtype == np.float64 else dtype
