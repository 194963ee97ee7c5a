"""Environments in worker processes with shared memory, which step while the device learns."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.sharedctypes import RawArray
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

_STEP, _RESET, _CLOSE = range(3)
_NO_SEED = -1
_TYPES = {"d": np.float64, "f": np.float32, "q": np.int64, "b": np.int8}


class Step(NamedTuple):
    """The result of a step of every environment.

    Args:
        observations: before the next action; of the new episode if one has ended.
        next_observations: after the step, before any reset.
        rewards: of the step.
        terminated: whether the episode has terminated.
        ended: whether the episode has terminated or was truncated.
    """

    observations: np.ndarray
    next_observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    ended: np.ndarray


class _Shared:
    """Arrays in shared memory, by name."""

    def __init__(self, envs: int, width: int):
        shapes = {
            "observations": ("f", (envs, width)),
            "next_observations": ("f", (envs, width)),
            "rewards": ("d", (envs,)),
            "terminated": ("b", (envs,)),
            "ended": ("b", (envs,)),
            "actions": ("q", (envs,)),
            "seeds": ("q", (envs,)),
            "command": ("q", (1,)),
        }
        self._raw = {name: (RawArray(kind, int(np.prod(shape))), kind, shape) for name, (kind, shape) in shapes.items()}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays, as views of the shared memory."""
        return {name: np.frombuffer(raw, _TYPES[kind]).reshape(shape) for name, (raw, kind, shape) in self._raw.items()}


class Environments:
    """Copies of one environment, distributed over worker processes.

    Args:
        env: name of the environment; its observations are vectors and its actions discrete.
        count: number of copies.
        workers: number of processes; by default one less than there are cores.
    """

    def __init__(self, env: str, count: int, workers: int | None = None):
        one = gymnasium.make(env)
        if not isinstance(one.observation_space, spaces.Box) or len(one.observation_space.shape) != 1:
            raise ValueError(
                f"env must have vectors as observations; got {one.observation_space}. Train without a device."
            )
        if not isinstance(one.action_space, spaces.Discrete):
            raise ValueError(f"env must have discrete actions; got {one.action_space}. Use another algorithm.")
        self.count, self.width, self.actions = count, one.observation_space.shape[0], int(one.action_space.n)
        one.close()
        context = multiprocessing.get_context("spawn")
        shared = _Shared(count, self.width)
        self._memory = shared.arrays()
        shares = np.array_split(np.arange(count), min(count, workers or max(1, (os.cpu_count() or 1) - 1)))
        self._go = [context.Semaphore(0) for _ in shares]
        self._done = context.Semaphore(0)
        self._processes = [
            context.Process(target=_work, args=(env, share.tolist(), shared, go, self._done, os.getpid()), daemon=True)
            for share, go in zip(shares, self._go, strict=True)
        ]
        for process in self._processes:
            process.start()

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Reset all environments with seeds and return the observations, `(count, width)`."""
        self._memory["seeds"][:] = seeds
        self._send(_RESET)
        self._wait()
        return self._memory["observations"].copy()

    def start(self, actions: np.ndarray, seeds: np.ndarray | int = _NO_SEED) -> None:
        """Start a step of every environment, to `wait` for; episodes that end are reset, with seeds if given."""
        self._memory["actions"][:] = actions
        self._memory["seeds"][:] = seeds
        self._send(_STEP)

    def wait(self) -> Step:
        """Wait for the step and return its result, in arrays that the next step overwrites."""
        self._wait()
        m = self._memory
        return Step(m["observations"], m["next_observations"], m["rewards"], m["terminated"], m["ended"])

    def close(self) -> None:
        """Stop the worker processes."""
        self._send(_CLOSE)
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.terminate()

    def _send(self, command: int) -> None:
        self._memory["command"][0] = command
        for go in self._go:
            go.release()

    def _wait(self) -> None:
        for _ in self._processes:
            while not self._done.acquire(timeout=5):
                dead = [process.exitcode for process in self._processes if not process.is_alive()]
                if dead:
                    raise RuntimeError(f"Environment worker exited with code {dead[0]}.")

    def __enter__(self) -> Environments:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def _work(env: str, indices: list[int], shared: _Shared, go: Any, done: Any, parent: int) -> None:
    """Execute commands for some of the environments."""
    memory = shared.arrays()
    envs = [gymnasium.make(env) for _ in indices]
    first = [int(e.action_space.start) for e in envs]  # type: ignore[attr-defined]
    observations, next_observations = memory["observations"], memory["next_observations"]

    def seed(i: int) -> int | None:
        return None if memory["seeds"][i] == _NO_SEED else int(memory["seeds"][i])

    while True:
        while not go.acquire(timeout=5):
            if os.getppid() != parent:
                return
        command = memory["command"][0]
        if command == _CLOSE:
            return
        for e, i, start in zip(envs, indices, first, strict=True):
            if command == _RESET:
                observations[i] = e.reset(seed=seed(i))[0]
                continue
            observation, reward, terminated, truncated, _ = e.step(int(memory["actions"][i]) + start)
            next_observations[i], memory["rewards"][i] = observation, reward
            memory["terminated"][i], memory["ended"][i] = terminated, terminated or truncated
            observations[i] = e.reset(seed=seed(i))[0] if terminated or truncated else observation
        done.release()
