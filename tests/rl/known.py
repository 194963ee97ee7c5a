"""Agents on the bridge, where the returns are known."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.env_util import make_vec_env

from cramix import NormalMixture
from cramix.rl import ALGORITHMS, DistributionalDQN
from experiments.bridge import NAME, Bridge

GAMMA = 0.9
SETTINGS = {
    "gamma": GAMMA,
    "n_steps": 1,  # actions are random, so that sums of more rewards would be those of another policy
    "exploration_final_eps": 1.0,
    "learning_starts": 32_000,
    "buffer_size": 160_000,
    "batch_size": 512,
    "learning_rate": 2e-3,
    "tau": 0.05,
    "compile": False,
    "policy_kwargs": {"net_arch": [64, 64], "members": 1},
}


def learn(algo: str = "gmdqn", steps: int = 160_000, seed: int = 0, **changes: Any) -> DistributionalDQN:
    """An agent after so many random steps from random states, and an update for every 64 of them after 32,000."""
    env = make_vec_env(NAME, n_envs=64, env_kwargs={"start": None})
    return ALGORITHMS[algo]("MlpPolicy", env, seed=seed, device="cpu", **{**SETTINGS, **changes}).learn(steps)


def every_return(model: DistributionalDQN) -> NormalMixture:
    """What an agent thinks of all actions in all states, batch shape (6, 2)."""
    return model.return_distribution(np.arange(len(Bridge.states)))
