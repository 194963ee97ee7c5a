"""Small games for tests of agents."""

from __future__ import annotations

import os

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from cramix import NormalMixture

# Small and quick, for tests that look at anything but how well an agent learns.
QUICK = {"learning_starts": 20, "batch_size": 16, "buffer_size": 500, "policy_kwargs": {"net_arch": [8]}}


class Fork(gymnasium.Env):
    """Two states, two actions each, and returns that are known.

    In state 0, action 0 gives 0.1 and leads to state 1, action 1 gives 0.3 and ends. In state 1, action 0 gives 1 with
    probability 3/4 and else -1, action 1 gives -0.5; both end.
    """

    gamma = 0.9
    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = 0
        return self._seen(), {}

    def step(self, action):
        if self.state == 0 and action == 0:
            self.state = 1
            return self._seen(), 0.1, False, False, {}
        reward = 0.3 if self.state == 0 else -0.5 if action == 1 else float(np.sign(0.75 - self.np_random.random()))
        return self._seen(), reward, True, False, {}

    def _seen(self):
        return np.eye(2, dtype=np.float32)[self.state]

    @classmethod
    def truth(cls) -> NormalMixture:
        """The returns of the best policy, batch shape (states, actions)."""
        good, bad = 0.1 + cls.gamma, 0.1 - cls.gamma
        places = torch.tensor([[[bad, good], [0.3, 0.3]], [[-1.0, 1.0], [-0.5, -0.5]]])
        return NormalMixture(torch.tensor([0.25, 0.75]).expand_as(places), places, torch.zeros_like(places))


class Steps(gymnasium.Env):
    """Counts steps of an episode that ends after `length`, by its rules or by the clock; rewards are the counts.

    Args:
        length: of an episode.
        truncates: whether the clock ends it.
        start: the first action's number.
        kind: of observations: "vector", "image", "dict" or "number".
    """

    def __init__(self, length: int = 5, truncates: bool = False, start: int = 0, kind: str = "vector"):
        self.length, self.truncates, self.kind = length, truncates, kind
        self.action_space = spaces.Discrete(3, start=start)
        self.actions: list[int] = []
        self.observation_space = {
            "vector": spaces.Box(-np.inf, np.inf, (2,), np.float64),
            "image": spaces.Box(0, 255, (36, 36, 1), np.uint8),
            "dict": spaces.Dict({"place": spaces.Box(0, 99, (2,), np.float32), "room": spaces.Discrete(100)}),
            "number": spaces.Discrete(100),
        }[kind]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._seen(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.actions.append(int(action))
        self.count += 1
        over = self.count == self.length
        return self._seen(), float(self.count), over and not self.truncates, over and self.truncates, {}

    def _seen(self):
        if self.kind == "image":
            return np.full((36, 36, 1), self.count, np.uint8)
        if self.kind == "dict":
            return {"place": np.array([self.count, 1], np.float32), "room": self.count}
        return self.count if self.kind == "number" else np.array([self.count, 1.0])


class Gates(gymnasium.Env):
    """Four actions, of which a random set is open; a closed one is an error. Action 3 is the best, when open."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._seen(), {"action_mask": self.open}

    def step(self, action):
        assert self.open[action], "a closed gate"
        self.count += 1
        return self._seen(), float(action), self.count == 10, False, {"action_mask": self.open}

    def _seen(self):
        self.open = self.np_random.random(4) < 0.5
        self.open[self.np_random.integers(4)] = True
        return np.zeros(1, np.float32)


class Broken(Steps):
    """Breaks at some step: "reward" or "seen" is not a number, "raise" an error, "exit" the end of its process.

    At step 0 it is the reset that breaks.
    """

    def __init__(self, at: int = 30, how: str = "raise"):
        super().__init__(length=1000)
        self.at, self.how = at, how

    def reset(self, *, seed=None, options=None):
        found = super().reset(seed=seed)
        self._break()
        return found

    def step(self, action):
        seen, reward, terminated, truncated, info = super().step(action)
        self._break()
        if self.count == self.at:
            seen, reward = (seen * np.nan, reward) if self.how == "seen" else (seen, float("nan"))
        return seen, reward, terminated, truncated, info

    def _break(self):
        if self.count == self.at and self.how == "raise":
            raise ZeroDivisionError("the engine is off")
        if self.count == self.at and self.how == "exit":
            os._exit(1)
