"""Evaluation: the returns of episodes without exploration, played in parallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

if TYPE_CHECKING:
    from cramix.rl.algorithm import DistributionalDQN
    from cramix.rl.risk import Risk

# Evaluation uses seeds that training does not, the same for all agents.
FIRST_SEED = 1_000_000


def evaluate(
    model: DistributionalDQN,
    env: str | Callable[[], gymnasium.Env],
    episodes: int = 100,
    *,
    seed: int = 0,
    risk: Risk | None = None,
) -> np.ndarray:
    """Return the undiscounted returns of episodes without exploration, `(episodes)`.

    Every episode has its own environment and seed, so all agents meet the same initial states.

    Args:
        model: the agent.
        env: name of the environment, or a function that creates it.
        episodes: number of episodes.
        seed: of the first episode.
        risk: a measure in place of that of the agent.
    """
    make = (lambda: gymnasium.make(env)) if isinstance(env, str) else env
    envs = [make() for _ in range(episodes)]
    try:
        return _play(model, envs, seed, risk)
    finally:
        for each in envs:
            each.close()


def _play(model: DistributionalDQN, envs: list[gymnasium.Env], seed: int, risk: Risk | None) -> np.ndarray:
    """Return the return of one episode of each environment."""
    observations: list[Any] = [e.reset(seed=FIRST_SEED + seed + i)[0] for i, e in enumerate(envs)]
    returns = np.zeros(len(envs))
    playing = list(range(len(envs)))
    while playing:
        actions, _ = model.predict(_stack([observations[i] for i in playing]), deterministic=True, risk=risk)
        still = []
        for i, action in zip(playing, actions, strict=True):
            observations[i], reward, terminated, truncated, _ = envs[i].step(int(action))
            returns[i] += float(reward)
            if not (terminated or truncated):
                still.append(i)
        playing = still
    return returns


def _stack(observations: list[Any]) -> Any:
    if isinstance(observations[0], dict):
        return {key: np.stack([x[key] for x in observations]) for key in observations[0]}
    return np.stack(observations)
