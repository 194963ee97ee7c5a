"""One episode to look at: pictures of the environment, and what the agent expects of every action."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import gymnasium
import numpy as np

from cramix.mixture import NormalMixture
from cramix.rl.runs.evaluation import FIRST_SEED

if TYPE_CHECKING:
    from cramix.rl.algorithm import DistributionalDQN
    from cramix.rl.risk import Risk

# Pictures a second, near to which the environment's own are thinned.
_RATE = 17.0
# Pictures that are kept of an episode; of a longer one every second, every fourth, ...
_MOST = 600

_ACTIONS = {
    "LunarLander": ("nothing", "left engine", "main engine", "right engine"),
    "CartPole": ("left", "right"),
    "Acrobot": ("torque -1", "nothing", "torque +1"),
    "MountainCar": ("left", "nothing", "right"),
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Taxi": ("south", "north", "east", "west", "pick up", "drop off"),
}


class Moment(NamedTuple):
    """A step of an episode.

    Args:
        step: its number.
        frame: the picture before it, `(height, width, 3)` bytes.
        returns: a mixture for every action, batch shape `(actions)`.
        action: the place of the one that was taken; None at the end.
        score: sum of the rewards before it.
    """

    step: int
    frame: np.ndarray
    returns: NormalMixture
    action: int | None
    score: float


class Episode(NamedTuple):
    """Moments of an episode; the last one is its end, with what was expected just before.

    Args:
        moments: in their order.
        rate: how many of them make a second.
        names: of the actions.
    """

    moments: list[Moment]
    rate: float
    names: list[str]

    @property
    def score(self) -> float:
        """Sum of all rewards."""
        return self.moments[-1].score


def make_visible(name: str) -> gymnasium.Env:
    """Return an environment that draws itself; a ValueError where it cannot."""
    env = gymnasium.make(name)
    modes = env.metadata.get("render_modes") or []
    env.close()
    if "rgb_array" not in modes:
        raise ValueError(f'env must have the render mode "rgb_array"; got {name} with {list(modes)}. Play it unseen.')
    return gymnasium.make(name, render_mode="rgb_array")


def play(model: DistributionalDQN, env: gymnasium.Env, *, seed: int = 0, risk: Risk | None = None) -> Episode:
    """Play an episode without exploration.

    Args:
        model: the agent.
        env: with the render mode "rgb_array"; it is closed at the end.
        seed: of the start; `evaluate` with the same seed plays this episode first.
        risk: judges actions instead of that of the agent.
    """
    names, fps = action_names(env), float(env.metadata.get("render_fps") or 30)
    every = max(1, round(fps / _RATE))
    seen, _ = env.reset(seed=FIRST_SEED + seed)
    moments: list[Moment] = []
    step, score, ended = 0, 0.0, False
    while not ended:
        action = int(model.predict(seen, deterministic=True, risk=risk)[0])
        if step % every == 0:
            place = action - model.policy.first_action
            moments.append(Moment(step, _frame(env), model.return_distribution(seen), place, score))
        if len(moments) > _MOST:
            every, moments = 2 * every, moments[::2]
        seen, reward, terminated, truncated, _ = env.step(action)
        step, score, ended = step + 1, score + float(reward), terminated or truncated
    moments.append(moments[-1]._replace(step=step, frame=_frame(env), action=None, score=score))
    env.close()
    return Episode(moments, fps / every, names)


def action_names(env: gymnasium.Env) -> list[str]:
    """Return words for the actions of an environment, or their numbers.

    Example:
        >>> action_names(gymnasium.make("CartPole-v1"))
        ['left', 'right']
    """
    space = env.action_space
    assert isinstance(space, gymnasium.spaces.Discrete), "agents here have discrete actions"
    count = int(space.n)
    meanings = getattr(env.unwrapped, "get_action_meanings", None)  # as Atari games have it
    known = tuple(meanings()) if meanings else _ACTIONS.get(env.spec.name if env.spec else "", ())
    return [str(x) for x in known] if len(known) == count else [f"action {int(space.start) + i}" for i in range(count)]


def _frame(env: gymnasium.Env) -> np.ndarray:
    frame = np.asarray(env.render())
    return frame if frame.ndim == 3 else np.repeat(frame[..., None], 3, -1)
