"""Action masks: observations that contain which actions are allowed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor

KEY = "action_mask"


def mask_of(observation: Any) -> Any:
    """Return the mask `(batch, actions)` of an observation, or None."""
    return observation.get(KEY) if isinstance(observation, dict) else None


def without_mask(space: spaces.Space) -> spaces.Space:
    """Return the part of an observation space that is input of the network."""
    if not isinstance(space, spaces.Dict) or KEY not in space.spaces:
        return space
    rest = {key: part for key, part in space.spaces.items() if key != KEY}
    if not rest:
        raise ValueError(f"observations must have keys besides {KEY}; got only that. Add what the agent observes.")
    return spaces.Dict(rest)


def check_normalization(normalizer: VecNormalize | None) -> None:
    """Require a `VecNormalize` that leaves masks as they are."""
    if normalizer is None or not normalizer.norm_obs or not isinstance(normalizer.observation_space, spaces.Dict):
        return
    if KEY in (normalizer.norm_obs_keys or ()):
        raise ValueError(
            f"VecNormalize must leave {KEY} as it is; got it among norm_obs_keys. Use norm_obs_keys=[...] without it."
        )


def apply_mask(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return values with minus infinity for masked actions; a mask that allows no action is ignored."""
    if mask is None:
        return values
    mask = mask.bool()
    return values.masked_fill(~(mask | ~mask.any(-1, keepdim=True)), -float("inf"))


class MaskedActions(gymnasium.Wrapper):
    """Adds the action mask of an environment to its observations, `{"observation": ..., "action_mask": ...}`.

    The mask is the result of `env.action_masks()`, of the environment or of a wrapper, or `info["action_mask"]`.

    Example:
        >>> env = MaskedActions(gymnasium.make("Taxi-v4"))
        >>> observation, _ = env.reset(seed=0)
        >>> sorted(observation), observation["action_mask"].shape
        (['action_mask', 'observation'], (6,))
    """

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        if not isinstance(env.action_space, spaces.Discrete):
            raise ValueError(f"env must have discrete actions; got {env.action_space}. Other actions have no mask.")
        observed = env.observation_space
        parts = dict(observed.spaces) if isinstance(observed, spaces.Dict) else {"observation": observed}
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
                f"env must have a method action_masks or return info[{KEY!r}]; got neither. Add one of them."
            )
        parts = observation if isinstance(observation, dict) else {"observation": observation}
        return {**parts, KEY: np.asarray(mask, np.int8)}
