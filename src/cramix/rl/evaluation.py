"""Episodes without exploration: the returns of many, played in parallel, or one to watch.

To watch means frames of the environment, and the return distributions of all actions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.vec_env import VecNormalize

from cramix.mixture import NormalMixture
from cramix.rl.environments import is_atari, make_env
from cramix.rl.masks import mask_of

if TYPE_CHECKING:
    from cramix.rl.algorithm import DistributionalDQN
    from cramix.rl.risk import Risk

# Evaluation uses seeds that training does not, the same for all agents.
FIRST_SEED = 1_000_000
# The return of a step is known if at most this fraction of its weights lies after the end of a truncated episode.
MAX_UNKNOWN = 0.1
# Frames per second to aim at; environments with more are subsampled.
_RATE = 17.0
# Maximum number of frames of an episode; longer ones keep every second, every fourth, ...
_MAX_FRAMES = 600

_ACTIONS = {
    "LunarLander": ("nothing", "left engine", "main engine", "right engine"),
    "CartPole": ("left", "right"),
    "Acrobot": ("torque -1", "nothing", "torque +1"),
    "MountainCar": ("left", "nothing", "right"),
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pick up", "drop off"),
}


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
    make = (lambda: make_env(env)) if isinstance(env, str) else env
    envs = [make() for _ in range(episodes)]
    try:
        return _play_all(model, envs, seed, risk)
    finally:
        for each in envs:
            each.close()


def _play_all(model: DistributionalDQN, envs: list[gymnasium.Env], seed: int, risk: Risk | None) -> np.ndarray:
    """Return the return of one episode of each environment."""
    observations: list[Any] = [e.reset(seed=FIRST_SEED + seed + i)[0] for i, e in enumerate(envs)]
    returns, normalizer = np.zeros(len(envs)), model.get_vec_normalize_env()
    playing = list(range(len(envs)))
    while playing:
        observed = normalized(stack([observations[i] for i in playing]), normalizer)
        actions, _ = model.predict(observed, deterministic=True, risk=risk)
        still = []
        for i, action in zip(playing, actions, strict=True):
            observations[i], reward, terminated, truncated, _ = envs[i].step(int(action))
            returns[i] += float(reward)
            if not (terminated or truncated):
                still.append(i)
        playing = still
    return returns


def stack(observations: list[Any]) -> Any:
    """Return observations as one batch."""
    if isinstance(observations[0], dict):
        return {key: np.stack([x[key] for x in observations]) for key in observations[0]}
    return np.stack(observations)


def normalized(observations: Any, normalizer: VecNormalize | None) -> Any:
    """Return observations as the network sees them: by the statistics of a `VecNormalize`, if there is one."""
    return observations if normalizer is None else normalizer.normalize_obs(observations)


def reward_in_training(reward: float, clips: bool, normalizer: VecNormalize | None) -> float:
    """Return a reward as in training, which predictions are about: its sign if it is clipped, or normalised."""
    value = float(np.sign(reward)) if clips else reward
    return value if normalizer is None else float(normalizer.normalize_reward(np.array([value]))[0])


class Moment(NamedTuple):
    """A step of an episode.

    Args:
        step: number of the step.
        frame: image before the step, `(height, width, 3)` bytes.
        returns: mixture of returns for every action, batch shape `(actions)`.
        action: index of the action; None at the end.
        score: sum of the rewards before the step.
        allowed: which actions the action mask allows, `(actions)`; None is all of them.
        realised: the return that followed, of rewards as in training, discounted; None if too much of it lies after the
            end of a truncated episode.
    """

    step: int
    frame: np.ndarray
    returns: NormalMixture
    action: int | None
    score: float
    allowed: np.ndarray | None = None
    realised: float | None = None


class Episode(NamedTuple):
    """The moments of an episode; the last one is its end, with the returns predicted just before.

    Args:
        moments: in order.
        rate: moments per second.
        names: of the actions.
        gamma: discount factor of the returns.
        risk: measure that the actions were chosen by.
    """

    moments: list[Moment]
    rate: float
    names: list[str]
    gamma: float = 1.0
    risk: Risk = "mean"

    @property
    def score(self) -> float:
        """Sum of all rewards."""
        return self.moments[-1].score


def make_visible(name: str) -> gymnasium.Env:
    """Return an environment with the render mode "rgb_array"; a ValueError if it has none."""
    env = make_env(name)
    modes = env.metadata.get("render_modes") or []
    env.close()
    if "rgb_array" not in modes:
        raise ValueError(
            f'env must have the render mode "rgb_array"; got {name} with {list(modes)}. Play it without rendering.'
        )
    return make_env(name, render_mode="rgb_array")


def play(
    model: DistributionalDQN,
    env: gymnasium.Env,
    *,
    seed: int = 0,
    risk: Risk | None = None,
    every: int | None = None,
) -> Episode:
    """Play an episode without exploration.

    Args:
        model: the agent.
        env: with the render mode "rgb_array"; it is closed at the end.
        seed: of the initial state; the first episode of `evaluate` with the same seed is this one.
        risk: a measure in place of that of the agent.
        every: number of steps from one moment to the next; None is for about 17 moments per second. It doubles whenever
            there are more than 600 moments.
    """
    names, fps = action_names(env), float(env.metadata.get("render_fps") or 30)
    every = max(1, round(fps / _RATE)) if every is None else every
    clips, normalizer = env.spec is not None and is_atari(env.spec.id), model.get_vec_normalize_env()
    observation = normalized(env.reset(seed=FIRST_SEED + seed)[0], normalizer)
    moments: list[Moment] = []
    rewards: list[float] = []
    score, terminated, truncated = 0.0, False, False
    while not (terminated or truncated):
        step = len(rewards)
        action = int(model.predict(observation, deterministic=True, risk=risk)[0])
        if step % every == 0:
            index, returns = action - model.policy.first_action, model.return_distribution(observation)
            moments.append(Moment(step, _frame(env), returns, index, score, _allowed(observation)))
        if len(moments) > _MAX_FRAMES:
            every, moments = 2 * every, moments[::2]
        following, reward, terminated, truncated, _ = env.step(action)
        observation = normalized(following, normalizer)
        score += float(reward)
        rewards.append(reward_in_training(float(reward), clips, normalizer))
    moments.append(moments[-1]._replace(step=len(rewards), frame=_frame(env), action=None, score=score))
    env.close()
    end = None if terminated else expected_return(model, observation)
    realised = [*discounted_returns(rewards, model.gamma, end or 0.0), 0.0]
    for i, moment in enumerate(moments):
        if terminated or model.gamma ** (len(rewards) - moment.step) <= MAX_UNKNOWN:
            moments[i] = moment._replace(realised=float(realised[moment.step]))
    return Episode(moments, fps / every, names, model.gamma, model.risk if risk is None else risk)


def discounted_returns(rewards: Sequence[float], gamma: float, end: float) -> np.ndarray:
    """Return the discounted return from every step on, `(steps)`.

    Args:
        rewards: of all steps.
        gamma: discount factor.
        end: return after the last step: 0, or what is expected where the episode was truncated.

    Example:
        >>> discounted_returns([1.0, 2.0, 4.0], 0.5, 8.0)
        array([4., 6., 8.])
    """
    returns = np.empty(len(rewards))
    for i in range(len(rewards) - 1, -1, -1):
        returns[i] = end = rewards[i] + gamma * end
    return returns


def expected_return(model: DistributionalDQN, observation: Any) -> float:
    """Return the mean of the network's prediction for the action that it prefers, as targets bootstrap from it."""
    with torch.no_grad():
        raw, preferred = model.policy.raw_returns(model.policy.obs_to_tensor(observation)[0])
    return float(raw.mean[0, preferred[0]])


def _allowed(observation: Any) -> np.ndarray | None:
    mask = mask_of(observation)
    return None if mask is None or not np.any(mask) else np.asarray(mask, bool)  # agents ignore a mask of zeros


def action_names(env: gymnasium.Env) -> list[str]:
    """Return the names of the actions of an environment, or their numbers.

    Example:
        >>> action_names(gymnasium.make("CartPole-v1"))
        ['left', 'right']
    """
    space = env.action_space
    assert isinstance(space, gymnasium.spaces.Discrete), "agents have discrete actions"
    count = int(space.n)
    meanings = getattr(env.unwrapped, "get_action_meanings", None)  # of Atari games
    known = tuple(meanings()) if meanings else _ACTIONS.get(env.spec.name if env.spec else "", ())
    return [str(x) for x in known] if len(known) == count else [f"action {int(space.start) + i}" for i in range(count)]


def _frame(env: gymnasium.Env) -> np.ndarray:
    frame = np.asarray(env.render())
    return frame if frame.ndim == 3 else np.repeat(frame[..., None], 3, -1)
