"""Environments by name; games of the Arcade Learning Environment get their standard preprocessing.

It is that of Machado et al. (2018): frames of 84 x 84 grey pixels, each the maximum of two, an action for four frames,
stacks of four, up to 30 idle frames at the start, and rewards clipped to their sign in training. Episodes end with the
game, not with a life. The names "ALE/...-v5" have sticky actions.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

_FRAMES = 4


def make_env(name: str, **options: Any) -> gymnasium.Env:
    """Return an environment to evaluate in.

    Args:
        name: such as "CartPole-v1" or "ale_py:ALE/Pong-v5".
        options: arguments of `gymnasium.make`.
    """
    if not is_atari(name):
        return gymnasium.make(name, **options)
    return preprocess_frames(gymnasium.make(name, **{"frameskip": 1, **options}))


def make_training_env(name: str, count: int = 1) -> VecEnv:
    """Return a vectorised environment to train in; its log has the rewards of the game.

    Args:
        name: such as "CartPole-v1" or "ale_py:ALE/Pong-v5".
        count: number of environments. Several games of the Arcade Learning Environment run in processes of their own;
            steps of other environments are mostly too short for that to pay.
    """
    if not is_atari(name):
        return make_vec_env(name, n_envs=count)
    return make_vec_env(
        name,
        n_envs=count,
        vec_env_cls=SubprocVecEnv if count > 1 else DummyVecEnv,
        env_kwargs={"frameskip": 1},
        wrapper_class=preprocess_frames,
        wrapper_kwargs={"clip_rewards": True},
    )


def is_atari(name: str) -> bool:
    """Return whether a name is that of a game of the Arcade Learning Environment."""
    module, _, plain = name.rpartition(":")
    if module:
        import_module(module)
    spec = gymnasium.registry.get(plain)
    return spec is not None and str(spec.entry_point).startswith("ale_py")


def preprocess_frames(env: gymnasium.Env, clip_rewards: bool = False) -> gymnasium.Env:
    """Return an environment of images `(4, 84, 84)` around one that shows every frame.

    Args:
        env: a game of the Arcade Learning Environment with `frameskip=1`.
        clip_rewards: whether rewards are replaced by their sign.
    """
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TransformReward

    env = FrameStackObservation(AtariPreprocessing(env, frame_skip=_FRAMES), _FRAMES)
    return TransformReward(env, _sign) if clip_rewards else env


def _sign(reward: Any) -> float:
    return float(np.sign(reward))
