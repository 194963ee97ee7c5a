"""Environments in processes that share memory with us: all take a step while the device learns."""

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
_ANY = -1  # in place of a seed
_TYPES = {"d": np.float64, "f": np.float32, "q": np.int64, "b": np.int8}


class Seen(NamedTuple):
    """What a step of every environment gave; `now` is where the next action is taken, after a reset if one ended."""

    now: np.ndarray
    after: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    ended: np.ndarray


class _Shared:
    """Arrays that processes share, by name."""

    def __init__(self, envs: int, width: int):
        shapes = {
            "now": ("f", (envs, width)),
            "after": ("f", (envs, width)),
            "rewards": ("d", (envs,)),
            "terminated": ("b", (envs,)),
            "ended": ("b", (envs,)),
            "actions": ("q", (envs,)),
            "seeds": ("q", (envs,)),
            "command": ("q", (1,)),
        }
        self._raw = {name: (RawArray(kind, int(np.prod(shape))), kind, shape) for name, (kind, shape) in shapes.items()}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return views of the memory."""
        return {name: np.frombuffer(raw, _TYPES[kind]).reshape(shape) for name, (raw, kind, shape) in self._raw.items()}


class Environments:
    """Environments of one name, shared among worker processes.

    Args:
        env: name of the environment; its observations are vectors and its actions discrete.
        count: how many.
        workers: processes; one a core but one by default.
    """

    def __init__(self, env: str, count: int, workers: int | None = None):
        one = gymnasium.make(env)
        if not isinstance(one.observation_space, spaces.Box) or len(one.observation_space.shape) != 1:
            raise ValueError(f"env must have vectors for observations; got {one.observation_space}. Train one by one.")
        if not isinstance(one.action_space, spaces.Discrete):
            raise ValueError(f"env must have discrete actions; got {one.action_space}. Train by another algorithm.")
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
        """Start all environments anew from seeds and return what is seen, `(count, width)`."""
        self._memory["seeds"][:] = seeds
        self._send(_RESET)
        self._wait()
        return self._memory["now"].copy()

    def start(self, actions: np.ndarray, seeds: np.ndarray | int = _ANY) -> None:
        """Begin a step of every environment; `seen` waits for it. What ends starts anew, from its seed if given."""
        self._memory["actions"][:] = actions
        self._memory["seeds"][:] = seeds
        self._send(_STEP)

    def seen(self) -> Seen:
        """Wait for the step and return what it gave; the arrays are written anew by the next one."""
        self._wait()
        m = self._memory
        return Seen(m["now"], m["after"], m["rewards"], m["terminated"], m["ended"])

    def close(self) -> None:
        """End the processes."""
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
                    raise RuntimeError(
                        f"a process of environments must live; got exit code {dead[0]}. See its error above."
                    )

    def __enter__(self) -> Environments:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def _work(env: str, mine: list[int], shared: _Shared, go: Any, done: Any, parent: int) -> None:
    """Serve commands for some of the environments."""
    memory = shared.arrays()
    envs = [gymnasium.make(env) for _ in mine]
    first = [int(e.action_space.start) for e in envs]  # type: ignore[attr-defined]
    now, after = memory["now"], memory["after"]

    def seed(i: int) -> int | None:
        return None if memory["seeds"][i] == _ANY else int(memory["seeds"][i])

    while True:
        while not go.acquire(timeout=5):
            if os.getppid() != parent:
                return
        command = memory["command"][0]
        if command == _CLOSE:
            return
        for e, i, start in zip(envs, mine, first, strict=True):
            if command == _RESET:
                now[i] = e.reset(seed=seed(i))[0]
                continue
            seen, reward, terminated, truncated, _ = e.step(int(memory["actions"][i]) + start)
            after[i], memory["rewards"][i] = seen, reward
            memory["terminated"][i], memory["ended"][i] = terminated, terminated or truncated
            now[i] = e.reset(seed=seed(i))[0] if terminated or truncated else seen
        done.release()
