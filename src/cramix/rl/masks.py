"""Action masks: observations that say which actions are allowed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from torch import Tensor

KEY = "action_mask"


def mask_of(observation: Any) -> Any:
    """Return the mask `(batch, actions)` in an observation, None where there is none."""
    return observation.get(KEY) if isinstance(observation, dict) else None


def without_mask(space: spaces.Space) -> spaces.Space:
    """Return what is left of an observation space for the network to see."""
    if not isinstance(space, spaces.Dict) or KEY not in space.spaces:
        return space
    rest = {key: part for key, part in space.spaces.items() if key != KEY}
    if not rest:
        raise ValueError(f"observations must have more keys than {KEY}; got that alone. Add what the agent sees.")
    return spaces.Dict(rest)


def allowed(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return values with minus infinity at actions that are not allowed; a row that allows none allows all."""
    if mask is None:
        return values
    mask = mask.bool()
    return values.masked_fill(~(mask | ~mask.any(-1, keepdim=True)), -float("inf"))


class MaskedActions(gymnasium.Wrapper):
    """Puts the mask of an environment into its observations, `{"observation": ..., "action_mask": ...}`.

    The mask is what `env.action_masks()` returns, of the environment or of a wrapper, or `info["action_mask"]`.

    Example:
        >>> env = MaskedActions(gymnasium.make("Taxi-v4"))
        >>> observation, _ = env.reset(seed=0)
        >>> sorted(observation), observation["action_mask"].shape
        (['action_mask', 'observation'], (6,))
    """

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        if not isinstance(env.action_space, spaces.Discrete):
            raise ValueError(f"env must have discrete actions; got {env.action_space}. Masks are for those.")
        seen = env.observation_space
        parts = dict(seen.spaces) if isinstance(seen, spaces.Dict) else {"observation": seen}
        self.observation_space = spaces.Dict({**parts, KEY: spaces.MultiBinary(int(env.action_space.n))})

    def reset(self, **kwargs):  # noqa: D102
        observation, info = self.env.reset(**kwargs)
        return self._masked(observation, info), info

    def step(self, action):  # noqa: D102
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._masked(observation, info), reward, terminated, truncated, info

    def _masked(self, observation, info):
        if self.env.has_wrapper_attr("action_masks"):
            mask = self.env.get_wrapper_attr("action_masks")()
        elif KEY in info:
            mask = info[KEY]
        else:
            raise ValueError(
                f"env must have a method action_masks or give info[{KEY!r}]; got neither. Add one of them to it."
            )
        parts = observation if isinstance(observation, dict) else {"observation": observation}
        return {**parts, KEY: np.asarray(mask, np.int8)}
