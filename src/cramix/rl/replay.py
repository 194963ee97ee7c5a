"""The replay buffer: n-step returns, terminated and truncated episodes, files without code."""

from __future__ import annotations

import os
import zipfile
import zlib
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.preprocessing import get_obs_shape
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
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


def to_transitions(
    samples: ReplayBufferSamples | DictReplayBufferSamples, gamma: float, first_action: int = 0
) -> Transitions:
    """Return the samples of a buffer of Stable-Baselines3 as transitions.

    Args:
        samples: actions, rewards and ends are `(batch, 1)`.
        gamma: discount factor where the buffer has none.
        first_action: number of the first action.
    """
    discounts = (1 - samples.dones) * (gamma if samples.discounts is None else samples.discounts)
    actions = samples.actions.long().flatten()
    return Transitions(
        samples.observations,
        actions - first_action if first_action else actions,
        samples.rewards.flatten(),
        samples.next_observations,
        discounts.flatten(),
    )


class Replay(NStepReplayBuffer):
    """The last transitions of one or several environments, to sample batches from.

    Besides the buffer of Stable-Baselines3 it derives from, it has n-step returns of dictionaries and with
    `optimize_memory_usage`, a generator of its own, ends of episodes that are reset early, and files without code.

    Terminated episodes have a return of 0 after their end; truncated episodes bootstrap from the network.

    Args:
        buffer_size: number of transitions of all environments together.
        observation_space: of one environment; may be a dictionary.
        action_space: discrete.
        device: of the batches.
        n_envs: number of environments.
        optimize_memory_usage: store every observation once, as in Stable-Baselines3.
        handle_timeout_termination: whether truncated episodes bootstrap; must be False with `optimize_memory_usage`.
        n_steps: number of rewards that are summed.
        gamma: discount factor.
        seed: of the sampled batches.
    """

    observations: Any  # an array, or a dictionary of arrays
    next_observations: Any

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        n_steps: int = 1,
        gamma: float = 0.99,
        seed: int | np.random.SeedSequence | None = None,
    ):
        super(ReplayBuffer, self).__init__(buffer_size, observation_space, action_space, device, n_envs=n_envs)
        if optimize_memory_usage and handle_timeout_termination:
            raise ValueError(
                "optimize_memory_usage must be False if truncated episodes bootstrap, because it overwrites their last "
                'observation; got True. Use replay_buffer_kwargs={"handle_timeout_termination": False}.'
            )
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage, self.handle_timeout_termination = optimize_memory_usage, handle_timeout_termination
        self.n_steps, self.gamma = n_steps, gamma
        self.generator = np.random.default_rng(seed)
        self.ends_at_next_step = False  # whether the next step does not continue the newest
        lead = (self.buffer_size, n_envs)

        def zeros(space: spaces.Space) -> Any:
            if isinstance(space, spaces.Dict):
                return {key: zeros(part) for key, part in space.spaces.items()}
            return np.zeros((*lead, *get_obs_shape(space)), _narrow(space.dtype))

        self.observations = zeros(observation_space)
        if not optimize_memory_usage:
            self.next_observations = zeros(observation_space)
        self.actions = np.zeros((*lead, self.action_dim), self._maybe_cast_dtype(action_space.dtype))
        self.rewards = np.zeros(lead, np.float32)
        self.dones = np.zeros(lead, np.float32)  # terminated or truncated: n-step returns stop here
        self.timeouts = np.zeros(lead, np.float32)  # truncated

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        """Store one step of every environment."""
        if self.ends_at_next_step:
            self.end_episodes()
        i = self.pos
        _store(self.observations, i, obs)
        if self.optimize_memory_usage:
            _store(self.observations, (i + 1) % self.buffer_size, next_obs)
        else:
            _store(self.next_observations, i, next_obs)
        self.actions[i] = np.asarray(action).reshape(self.n_envs, self.action_dim)
        self.rewards[i] = reward
        self.dones[i] = done
        if self.handle_timeout_termination:
            truncated = [info.get("TimeLimit.truncated", False) for info in infos]
            self.timeouts[i] = np.reshape(truncated, self.n_envs)
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full, self.pos = True, 0

    def end_episodes(self) -> None:
        """Mark the newest steps as truncated, because environments are reset: n-step returns end there."""
        self.ends_at_next_step = False
        if self.size():
            newest = self.pos - 1
            if not self.optimize_memory_usage:  # else the next observation will be overwritten
                self.timeouts[newest] = np.maximum(self.timeouts[newest], 1 - self.dones[newest])
            self.dones[newest] = 1

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Sample a batch; `env` is a `VecNormalize` whose statistics apply, or None."""
        return self._get_samples(self._choose(batch_size), env)

    def transitions(self, batch_size: int, env: VecNormalize | None = None, first_action: int = 0) -> Transitions:
        """Sample a batch as `to_transitions(buffer.sample(...))` does, in half the time."""
        observations, actions, after, terminated, rewards, powers = self._parts(self._choose(batch_size), env)
        discounts = powers * (1 - terminated)
        if first_action:
            actions = actions - first_action
        on = self._on_device
        return Transitions(observations, on(actions), on(rewards), after, on(discounts))

    def _choose(self, batch_size: int) -> np.ndarray:
        """Return random steps."""
        if self.optimize_memory_usage and self.full:  # the observation of the oldest step was overwritten
            return (self.pos + self.generator.integers(1, self.buffer_size, size=batch_size)) % self.buffer_size
        return self.generator.integers(self.size(), size=batch_size)

    def _get_samples(self, batch_inds: np.ndarray, env: VecNormalize | None = None) -> Any:
        observations, actions, after, *numbers = self._parts(batch_inds, env)
        columns = [self._on_device(x[:, None]) for x in (actions, *numbers)]
        kind = DictReplayBufferSamples if isinstance(self.observations, dict) else ReplayBufferSamples
        return kind(observations, columns[0], after, *columns[1:])

    def _parts(self, steps: np.ndarray, env: VecNormalize | None) -> tuple[Any, ...]:
        """Return the parts of samples in the order of Stable-Baselines3; those that are not observed as arrays."""
        rows, n = steps, self.n_envs  # numbered over steps and environments
        if n > 1:
            rows = rows * n + self.generator.integers(n, size=len(rows))
        rewards, last, count = self._sums(rows, env)
        ahead, after = (last + n, self.observations) if self.optimize_memory_usage else (last, self.next_observations)
        return (
            self._tensors(self.observations, rows, env),
            self.actions.take(rows).astype(np.int64, copy=False),
            self._tensors(after, ahead, env),
            self.dones.take(last, mode="wrap") * (1 - self.timeouts.take(last, mode="wrap")),
            rewards,
            _powers(self.gamma, self.n_steps).take(count),
        )

    def _on_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def _sums(self, rows: np.ndarray, env: VecNormalize | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return discounted sums of rewards from each row, the row of the last reward (may wrap), and their number."""
        n, ahead = self.n_envs, np.arange(self.n_steps)
        steps = rows[:, None] + n * ahead  # (batch, n_steps)
        rewards = self._normalize_reward(self.rewards.take(steps, mode="wrap"), env)
        newest = (self.pos - 1 - rows // n) % self.buffer_size  # so many steps ahead
        over = (self.dones.take(steps, mode="wrap") > 0) | (ahead == newest[:, None])
        going = ~np.logical_or.accumulate(over, axis=1)[:, :-1]  # whether the next step counts too
        count = 1 + going.sum(1)
        rewards[:, 1:] *= going
        total = rewards @ _powers(self.gamma, self.n_steps)[:-1]
        return total.astype(np.float32, copy=False), rows + n * (count - 1), count

    def _tensors(self, arrays: Any, rows: np.ndarray, env: VecNormalize | None) -> Any:
        if env is not None:
            parts = (
                {key: _take(x, rows) for key, x in arrays.items()} if isinstance(arrays, dict) else _take(arrays, rows)
            )
            return to_tensor(self._normalize_obs(parts, env), self.device)
        if isinstance(arrays, dict):
            return {key: _gather(x, rows, self.device) for key, x in arrays.items()}
        return _gather(arrays, rows, self.device)

    def save(self, path: str | os.PathLike | BinaryIO) -> None:
        """Write the transitions to a file, atomically, or to an open file."""
        # With optimize_memory_usage, the newest next observation is one place after the last step.
        kept = min(self.size() + self.optimize_memory_usage, self.buffer_size)
        arrays: dict[str, Any] = {name: x[:kept] for name, x in self._arrays().items()}
        opened = replacing(path) if isinstance(path, str | os.PathLike) else nullcontext(path)
        with opened as file:
            np.savez(file, position=np.array([self.pos, int(self.full), self.buffer_size]), **arrays)

    def load(self, path: str | os.PathLike | BinaryIO) -> None:
        """Read transitions from a file that `save` wrote; sizes and shapes must be equal."""
        try:
            with _opened(path) as raw, np.load(raw, allow_pickle=False) as file:
                content = dict(file.items())
            position = content.pop("position")
            if set(content) != set(self._arrays()):
                raise ValueError(f"parts {sorted(content)}")
            if position[2] != self.buffer_size:
                raise ValueError(f"{position[2]} steps")
            n = self.buffer_size if position[1] else min(position[0] + self.optimize_memory_usage, self.buffer_size)
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
        arrays = {name: getattr(self, name) for name in ("actions", "rewards", "dones", "timeouts")}
        for group in ("observations",) if self.optimize_memory_usage else ("observations", "next_observations"):
            parts = getattr(self, group)
            arrays |= {f"{group}/{key}": x for key, x in (parts if isinstance(parts, dict) else {"": parts}).items()}
        return arrays


def returns_in(buffer: ReplayBuffer, gamma: float, env: VecNormalize | None = None) -> np.ndarray:
    """Return the discounted returns from each step to the end of its episode or of the buffer, `(steps, envs)`.

    Args:
        buffer: any buffer of Stable-Baselines3.
        gamma: discount factor.
        env: a `VecNormalize` whose statistics apply, or None.
    """
    order = (np.arange(buffer.size()) + (buffer.pos if buffer.full else 0)) % buffer.buffer_size
    rewards = buffer._normalize_reward(buffer.rewards[order], env)
    return discounted_returns(rewards, buffer.dones[order] > 0, gamma)


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


def _opened(path: str | os.PathLike | BinaryIO) -> Any:
    """Return a file to read as a context that closes it, if it was not open already."""
    return Path(path).open("rb") if isinstance(path, str | os.PathLike) else nullcontext(path)


def _store(arrays: Any, i: int, values: Any, key: str = "") -> None:
    """Copy the observations of a step into arrays at an index; they must be finite."""
    if isinstance(arrays, dict):
        for name, array in arrays.items():
            _store(array, i, values[name], name)
        return
    arrays[i] = np.asarray(values).reshape(arrays.shape[1:])
    if arrays.dtype.kind == "f" and not np.isfinite(arrays[i]).all():
        wrong = arrays[i][~np.isfinite(arrays[i])][0]
        raise ValueError(f"observations must be finite; got {wrong}{f' in {key}' if key else ''}. Fix the environment.")


def _take(array: np.ndarray, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Return rows of an array `(steps, envs, ...)`, numbered over both axes, from the first again after the last."""
    return array.reshape(-1, *array.shape[2:]).take(rows, 0, out=out, mode="wrap")


def _gather(array: np.ndarray, rows: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return rows of an array as `_take` does, on a device.

    For a GPU they are collected in pinned memory, in their own type, so that the copy does not wait for the GPU.
    On a CPU the channels of images become the last axis in memory, which is cheapest while they are bytes.
    """
    if device.type != "cuda":
        taken = torch.from_numpy(_take(array, rows))
        images = taken.ndim == 4 and taken.dtype == torch.uint8
        return taken.contiguous(memory_format=torch.channels_last) if images else taken
    dtype = torch.from_numpy(array[:0]).dtype
    pinned = torch.empty((len(rows), *array.shape[2:]), dtype=dtype, pin_memory=True)
    _take(array, rows, pinned.numpy())
    return pinned.to(device, non_blocking=True)


@lru_cache
def _powers(gamma: float, n: int) -> np.ndarray:
    """Return gamma to the power of 0 to n."""
    return np.power(gamma, np.arange(n + 1)).astype(np.float32)


def _narrow(dtype: Any) -> Any:
    """Networks compute in float32, so the buffer stores no more."""
    return np.float32 if dtype == np.float64 else dtype
