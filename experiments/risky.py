"""Small stochastic environments in which the mean and the CVaR of the return prefer different actions.

Each is a finite decision process, so that the best policy by a risk measure, and the distribution of its return, can be
computed without learning.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

HOME = -1
# Of the environments in Gymnasium, by class.
NAMES: dict[str, str] = {}
# Probabilities of returns.
Returns = dict[float, float]


class Chance(NamedTuple):
    """A possible outcome of an action.

    Args:
        probability: of the outcome; those of an action sum to 1.
        reward: a number.
        next_state: its number, or `HOME` at the end.
    """

    probability: float
    reward: float
    next_state: int


class FiniteEnv(gymnasium.Env[np.int64, np.int64]):
    """An environment with finitely many states, actions and outcomes. Observations are state numbers.

    Args:
        start: the state where episodes start; None samples it uniformly, so that rare states are visited often too.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
    first: ClassVar[int] = 0
    horizon: ClassVar[int]
    names: ClassVar[tuple[str, ...]]

    def __init__(self, start: int | None = -1):
        self.chances = self.table()
        self.start = self.first if start == -1 else start
        self.observation_space = spaces.Discrete(len(self.chances))
        self.action_space = spaces.Discrete(len(self.chances[0]))
        self.state, self.steps = self.first, 0
        self._limits = [[np.cumsum([c.probability for c in action]) for action in state] for state in self.chances]

    @classmethod
    @abstractmethod
    def table(cls) -> list[list[list[Chance]]]:
        """Return the chances of every action in every state."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self.steps = 0
        self.state = int(self.np_random.integers(len(self.chances))) if self.start is None else self.start
        return np.int64(self.state), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Take an action; at home the observation is still that of the last state."""
        limits, chances = self._limits[self.state][action], self.chances[self.state][action]
        drawn = chances[min(int(np.searchsorted(limits, self.np_random.random(), "right")), len(chances) - 1)]
        self.steps += 1
        if drawn.next_state != HOME:
            self.state = drawn.next_state
        return np.int64(self.state), drawn.reward, drawn.next_state == HOME, self.steps >= self.horizon, {}

    @classmethod
    def solve(cls, level: float | None = None) -> tuple[list[int], Returns]:
        """Return the best actions of all states, and the distribution of the return from the first state.

        The value of an action is the CVaR of the undiscounted return from there on, if later actions are chosen by the
        same rule. This is what agents with `risk="cvar:level"` learn. None is the mean.
        """
        table = cls.table()
        best: list[Returns] = [{0.0: 1.0}] * len(table)
        for _ in range(cls.horizon):
            every = [[_mixed(action, best) for action in state] for state in table]
            policy = [int(np.argmax([round(value(p, level), 9) for p in state])) for state in every]
            best = [state[action] for state, action in zip(every, policy, strict=True)]
        return policy, best[cls.first]


def _mixed(chances: list[Chance], later: list[Returns]) -> Returns:
    """Return the distribution of the reward plus the later return."""
    mixed: Returns = {}
    for chance in chances:
        for x, p in ({0.0: 1.0} if chance.next_state == HOME else later[chance.next_state]).items():
            total = round(chance.reward + x, 6)
            mixed[total] = mixed.get(total, 0.0) + chance.probability * p
    return mixed


def value(returns: Returns, level: float | None) -> float:
    """Return the CVaR of a distribution, or its mean if level is None.

    Example:
        >>> value({0.0: 0.25, 1.0: 0.75}, 0.5)
        0.5
    """
    left, total = 1.0 if level is None else level, 0.0
    for x, p in sorted(returns.items()):
        total, left = total + min(p, left) * x, left - min(p, left)
    return total / (1.0 if level is None else level)


class Cliff(FiniteEnv):
    """A walk along a cliff on slippery ground: the shortest path is along its edge.

    A grid of 3 rows and 6 columns; the start and the goal are at the ends of the lowest row, and the cliff is below it.
    One step in 25 goes to the left or to the right of its direction. A step costs 1, a fall 15 more, and it ends the
    episode. The way along the edge has the best mean: one walk in ten ends in a fall. The way through the row above
    takes two more steps, and falls are rare.
    """

    horizon = 60
    rows, columns, slip, fall = 3, 6, 0.04, 15.0
    first = 12
    names = ("up", "right", "down", "left")

    @classmethod
    def table(cls) -> list[list[list[Chance]]]:  # noqa: D102
        moves = ((-1, 0), (0, 1), (1, 0), (0, -1))

        def after(row: int, column: int, move: int) -> tuple[float, int]:
            row, column = max(row + moves[move][0], 0), min(max(column + moves[move][1], 0), cls.columns - 1)
            if row == cls.rows:
                return -1.0 - cls.fall, HOME
            cell = row * cls.columns + column
            return -1.0, HOME if cell == cls.rows * cls.columns - 1 else cell

        return [
            [
                [
                    Chance(p, *after(*divmod(cell, cls.columns), (move + turn) % 4))
                    for p, turn in ((1 - cls.slip, 0), (cls.slip / 2, 1), (cls.slip / 2, 3))
                ]
                for move in range(4)
            ]
            for cell in range(cls.rows * cls.columns - 1)  # the goal is no state
        ]


class Trading(FiniteEnv):
    """Eight periods in a market that is calm or stormy, with a share of 0, 1/2 or 1 of the wealth invested.

    Investing earns 0.1 or 0.3 with equal chances in calm markets, and 0.3 or 0.5 in stormy ones, where one period in
    eight brings a loss of 2. So the expected gain is positive in both. The market stays as it is in three of four
    periods. The agent sees the period and the market.
    """

    horizon = 8
    names = ("nothing", "half", "all")

    @classmethod
    def table(cls) -> list[list[list[Chance]]]:  # noqa: D102
        gains = (((0.5, 0.1), (0.5, 0.3)), ((0.4375, 0.3), (0.4375, 0.5), (0.125, -2.0)))
        return [
            [
                [
                    Chance(p * stay, share * gain, HOME if period == cls.horizon - 1 else 2 * (period + 1) + market)
                    for p, gain in gains[now]
                    for stay, market in ((0.75, now), (0.25, 1 - now))
                ]
                for share in (0.0, 0.5, 1.0)
            ]
            for period in range(cls.horizon)
            for now in (0, 1)
        ]


class Inventory(FiniteEnv):
    """Six weeks of a shop: order up to four units of a good that spoils after one week more than expected.

    The stock is 0 to 4 units. A unit costs 1 when it is ordered and earns 2.5 when it is sold. A unit left at the end
    of a week costs 0.25. Demand is 4, 3 or 2 units with chances 0.5, 0.25 and 0.1; in 0.15 of the weeks nobody comes.
    """

    horizon = 6
    names = ("order 0", "order 1", "order 2", "order 3", "order 4")
    largest = 4

    @classmethod
    def table(cls) -> list[list[list[Chance]]]:  # noqa: D102
        demand = ((0.5, 4), (0.25, 3), (0.1, 2), (0.15, 0))

        def week(number: int, stock: int, order: int) -> list[Chance]:
            held = min(stock + order, cls.largest)
            last = number == cls.horizon - 1
            return [
                Chance(
                    p,
                    2.5 * min(held, wanted) - 1.0 * order - 0.25 * max(held - wanted, 0),
                    HOME if last else (number + 1) * (cls.largest + 1) + max(held - wanted, 0),
                )
                for p, wanted in demand
            ]

        return [
            [week(number, stock, order) for order in range(cls.largest + 1)]
            for number in range(cls.horizon)
            for stock in range(cls.largest + 1)
        ]


for _env in (Cliff, Trading, Inventory):
    NAMES[_env.__name__] = f"cramix/{_env.__name__}-v0"
    if NAMES[_env.__name__] not in gymnasium.registry:
        gymnasium.register(NAMES[_env.__name__], entry_point=f"experiments.risky:{_env.__name__}")
