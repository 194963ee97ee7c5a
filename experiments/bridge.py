"""The bridge: a small stochastic environment whose return distributions are known in closed form."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch.nn.utils.rnn import pad_sequence

from cramix.mixture import NormalMixture
from cramix.rl.risk import Risk, parse_risk

NAME = "cramix/Bridge-v0"
HOME = -1
# Row and column of each state in pictures.
_MAP = ((1, 0), (0, 1), (1, 2), (0, 3), (2, 1), (2, 3))


class Outcome(NamedTuple):
    """The outcome of an action.

    Args:
        reward: mean of the reward, which is normal.
        scale: its standard deviation.
        next_states: the possible next states, whose numbers are larger than that of this state, or `HOME`.
        probabilities: of these; they sum to 1.
    """

    reward: float
    scale: float
    next_states: tuple[int, ...]
    probabilities: tuple[float, ...] = (1.0,)


class Bridge(gymnasium.Env[np.int64, np.int64]):
    """A bridge and a road lead home. The bridge is better on average, but one crossing in ten ends in the river.

    | state | action 0 | action 1 |
    |---|---|---|
    | 0 fork | take the road | go on the bridge |
    | 1 bridge | turn back to the road | cross to the bank, or fall into the river |
    | 2 river | swim to the bank | swim fast |
    | 3 bank | walk home | run home |
    | 4 road | walk to the forest | run there |
    | 5 forest | walk home | run home |

    Rewards are normal, so returns are Gaussian mixtures; they are of the order of 1. Running and swimming fast earn 0.2
    more, with four times the noise. Episodes take three or four steps from the fork. Observations are state numbers.

    Args:
        start: the state where episodes start; None samples it uniformly, so that rare states are visited often too.
        render_mode: "rgb_array" or None.

    Example:
        >>> env = gymnasium.make("cramix/Bridge-v0").unwrapped
        >>> truth = env.truth(gamma=0.9)
        >>> truth.mean[0], truth.cvar(0.1)[0]  # road and bridge, at the fork
        (tensor([0.6660, 0.8745]), tensor([-0.2019, -1.2189]))
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 2}  # noqa: RUF012
    states: ClassVar[tuple[str, ...]] = ("fork", "bridge", "river", "bank", "road", "forest")
    outcomes: ClassVar[tuple[tuple[Outcome, Outcome], ...]] = (
        (Outcome(0.0, 0.1, (4,)), Outcome(0.0, 0.1, (1,))),
        (Outcome(-0.2, 0.1, (4,)), Outcome(0.6, 0.1, (3, 2), (0.9, 0.1))),
        (Outcome(-3.0, 0.1, (3,)), Outcome(-2.8, 0.4, (3,))),
        (Outcome(0.5, 0.1, (HOME,)), Outcome(0.7, 0.4, (HOME,))),
        (Outcome(0.0, 0.1, (5,)), Outcome(0.2, 0.4, (5,))),
        (Outcome(0.4, 0.1, (HOME,)), Outcome(0.6, 0.4, (HOME,))),
    )

    def __init__(self, start: int | None = 0, render_mode: str | None = None):
        if start not in (None, *range(len(self.outcomes))):
            raise ValueError(f"start must be in 0 to {len(self.outcomes) - 1} or None; got {start!r}. The fork is 0.")
        self.start, self.render_mode = start, render_mode
        self.observation_space = spaces.Discrete(len(self.outcomes))
        self.action_space = spaces.Discrete(2)
        self.state = start or 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self.state = int(self.np_random.integers(len(self.outcomes))) if self.start is None else self.start
        return np.int64(self.state), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Take an action; at home the observation is still that of the last state."""
        outcome = self.outcomes[self.state][action]
        reward = outcome.reward + outcome.scale * self.np_random.standard_normal()
        first, last = outcome.next_states[0], outcome.next_states[-1]
        next_state = first if self.np_random.random() < outcome.probabilities[0] else last
        if next_state != HOME:
            self.state = next_state
        return np.int64(self.state), reward, next_state == HOME, False, {}

    def render(self) -> np.ndarray:
        """Return a picture `(96, 96, 3)`: from the left the fork, bridge over road, river, bank over forest."""
        cells = np.full((3, 4, 3), 255, np.uint8)
        for state, (row, column) in enumerate(_MAP):
            cells[row, column] = (213, 94, 0) if state == self.state else (0, 114, 178) if state == 2 else 190
        return np.kron(cells, np.ones((32, 24, 1), np.uint8))

    @classmethod
    def truth(cls, gamma: float = 0.99, risk: Risk = "mean") -> NormalMixture:
        """Return the exact return distribution of every action in every state, of batch shape `(states, actions)`.

        Later actions are those that are the best by the risk measure, applied to the returns from there on.

        Args:
            gamma: discount factor.
            risk: the risk measure, see `cramix.rl.parse_risk`.
        """
        measure = parse_risk(risk)
        best = {HOME: NormalMixture(torch.ones(1), torch.zeros(1), torch.zeros(1))}
        known: list[NormalMixture] = []
        for state in reversed(range(len(cls.outcomes))):
            actions = [
                _returns(outcome, [best[s] for s in outcome.next_states], gamma) for outcome in cls.outcomes[state]
            ]
            best[state] = max(actions, key=lambda p: measure(p).item())
            known = actions + known
        # Padded with components of weight 0.
        return NormalMixture(
            *(
                pad_sequence([getattr(p, part) for p in known], batch_first=True, padding_value=value).unflatten(
                    0, (len(cls.outcomes), 2)
                )
                for part, value in (("weights", 0.0), ("means", 0.0), ("scales", 1.0))
            )
        )


def _returns(outcome: Outcome, later: list[NormalMixture], gamma: float) -> NormalMixture:
    """Return the distribution of the reward plus the discounted returns of the next states."""
    weights = torch.cat([chance * p.weights for chance, p in zip(outcome.probabilities, later, strict=True)])
    means = torch.cat([outcome.reward + gamma * p.means for p in later])
    scales = torch.cat([(gamma * p.scales).square().add(outcome.scale**2).sqrt() for p in later])
    return NormalMixture(weights, means, scales)


if NAME not in gymnasium.registry:
    gymnasium.register(NAME, entry_point="experiments.bridge:Bridge")
