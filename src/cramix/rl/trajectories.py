"""Trajectories: what an agent predicted at every step of episodes, and the returns that followed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor

from cramix.mixture import NormalMixture
from cramix.rl.environments import is_atari, make_env
from cramix.rl.evaluation import (
    FIRST_SEED,
    MAX_UNKNOWN,
    discounted_returns,
    expected_return,
    normalized,
    reward_in_training,
    stack,
)
from cramix.rl.exploration import Exploration
from cramix.rl.masks import mask_of

if TYPE_CHECKING:
    from cramix.rl.algorithm import DistributionalDQN
    from cramix.rl.risk import Risk


class Trajectories(NamedTuple):
    """Steps of episodes whose discounted return is known, in the order of episodes; all tensors are `(steps)`.

    Args:
        raw: return distributions of the network before recalibration, batch shape `(steps, actions)`.
        preferred: index of the action that the agent prefers by its raw distributions.
        actions: index of the action that was taken.
        returns: realised, discounted as the agent does.
        remaining: number of steps to the end of the episode.
        episodes: number of the episode.
        off_policy: whether the action is a random one that the agent does not prefer; all later ones are the agent's.
        scores: undiscounted returns of all episodes, `(episodes)`.
    """

    raw: NormalMixture
    preferred: Tensor
    actions: Tensor
    returns: Tensor
    remaining: Tensor
    episodes: Tensor
    off_policy: Tensor
    scores: np.ndarray

    def rows(self, chosen: Tensor) -> Trajectories:
        """Return the steps at which a mask is true."""
        tensors = {name: getattr(self, name)[chosen] for name in self._fields[1:-1]}
        return self._replace(raw=self.raw[chosen.nonzero().squeeze(-1)], **tensors)


class _Record(NamedTuple):
    """Episodes that are being played: what was predicted, by step, and rewards, by episode."""

    playing: list[np.ndarray]
    predictions: list[tuple[Tensor, ...]]
    actions: list[np.ndarray]
    rewards: list[list[float]]


def play_trajectories(
    model: DistributionalDQN,
    env: str | Callable[[], gymnasium.Env],
    episodes: int,
    *,
    seed: int = 0,
    risk: Risk | None = None,
    random_steps: np.ndarray | None = None,
) -> Trajectories:
    """Play episodes and keep the predictions and the returns.

    After a truncated episode, the return goes on with the expected return of the last state, as in the agent's targets;
    steps of which this is more than a tenth are left out.

    Args:
        model: the agent.
        env: name of the environment, or a function that creates it.
        episodes: number of episodes, each with an environment and a seed of its own.
        seed: of the first episode, as in `evaluate`.
        risk: a measure in place of that of the agent.
        random_steps: in each episode, the step with a random action that the agent would not take, `(episodes)`; the
            steps before it, whose returns are not those of the agent, are left out.
    """
    make = (lambda: make_env(env)) if isinstance(env, str) else env
    clips = isinstance(env, str) and is_atari(env)
    envs = [make() for _ in range(episodes)]
    try:
        starts = np.zeros(episodes, int) if random_steps is None else random_steps
        return _play(model, envs, seed, risk, starts, random_steps is not None, clips)
    finally:
        for each in envs:
            each.close()


def _play(
    model: DistributionalDQN,
    envs: list[gymnasium.Env],
    seed: int,
    risk: Risk | None,
    starts: np.ndarray,
    random: bool,
    clips: bool,
) -> Trajectories:
    normalizer = model.get_vec_normalize_env()
    exploration = Exploration(int(model.action_space.n), np.random.SeedSequence([seed, 1]))  # type: ignore[attr-defined]
    observations: list[Any] = [e.reset(seed=FIRST_SEED + seed + i)[0] for i, e in enumerate(envs)]
    record = _Record([], [], [], [[] for _ in envs])
    # Expected returns after the end of truncated episodes; NaN where they terminated.
    ends, scores = np.full(len(envs), np.nan), np.zeros(len(envs))
    playing = np.arange(len(envs))
    step = 0
    while len(playing):
        observed = normalized(stack([observations[i] for i in playing]), normalizer)
        actions = np.asarray(model.predict(observed, deterministic=True, risk=risk)[0])
        if random and (deviates := starts[playing] == step).any():
            actions = np.where(deviates, _others(actions, model, mask_of(observed), exploration), actions)
        record.playing.append(playing)
        record.predictions.append(_predict(model, observed))
        record.actions.append(actions - model.policy.first_action)
        still = []
        for i, action in zip(playing, actions, strict=True):
            observations[i], reward, terminated, truncated, _ = envs[i].step(int(action))
            scores[i] += float(reward)
            record.rewards[i].append(reward_in_training(float(reward), clips, normalizer))
            if not (terminated or truncated):
                still.append(i)
            elif not terminated:
                ends[i] = expected_return(model, normalized(stack([observations[i]]), normalizer))
        playing = np.array(still, int)
        step += 1
    return _arrange(record, ends, scores, starts, random, model.gamma)


def _others(
    actions: np.ndarray, model: DistributionalDQN, mask: np.ndarray | None, exploration: Exploration
) -> np.ndarray:
    """Sample allowed actions that differ from these, where there are any."""
    first = model.policy.first_action
    same = np.arange(exploration.actions) == (actions - first)[:, None]
    allowed = ~same if mask is None else np.asarray(mask, bool) & ~same
    return np.where(allowed.any(-1), exploration.random(len(actions), allowed) + first, actions)


def _predict(model: DistributionalDQN, observed: Any) -> tuple[Tensor, ...]:
    """Return weights, means and scales of raw distributions, and the preferred action."""
    with torch.no_grad():
        raw, preferred = model.policy.raw_returns(model.policy.obs_to_tensor(observed)[0])
    return tuple(x.cpu() for x in (raw.weights, raw.means, raw.scales, preferred))


def _arrange(
    record: _Record, ends: np.ndarray, scores: np.ndarray, starts: np.ndarray, random: bool, gamma: float
) -> Trajectories:
    """Return the steps with known returns, sorted by episodes.

    Args:
        record: of all steps.
        ends: expected returns after the end, `(episodes)`; NaN where the episode terminated.
        scores: undiscounted returns.
        starts: first step that counts, `(episodes)`.
        random: whether the action there was random.
        gamma: discount factor.
    """
    episodes = np.concatenate(record.playing)
    steps = np.concatenate([np.full(len(x), i) for i, x in enumerate(record.playing)])
    lengths = np.array([len(x) for x in record.rewards])
    remaining = lengths[episodes] - steps
    returns = [discounted_returns(x, gamma, np.nan_to_num(end)) for x, end in zip(record.rewards, ends, strict=True)]
    known = np.isnan(ends[episodes]) | (gamma**remaining <= MAX_UNKNOWN)
    rows = np.lexsort((steps, episodes))
    rows = rows[(known & (steps >= starts[episodes]))[rows]]
    weights, means, scales, preferred = (torch.cat(x)[rows] for x in zip(*record.predictions, strict=True))
    every = np.concatenate(returns)
    offsets = np.concatenate([[0], lengths.cumsum()[:-1]])
    return Trajectories(
        NormalMixture(weights, means, scales, validate_args=False),
        preferred,
        torch.as_tensor(np.concatenate(record.actions)[rows]),
        torch.as_tensor(every[offsets[episodes[rows]] + steps[rows]]),
        torch.as_tensor(remaining[rows]),
        torch.as_tensor(episodes[rows]),
        torch.as_tensor((steps == starts[episodes])[rows] & random),
        scores,
    )
