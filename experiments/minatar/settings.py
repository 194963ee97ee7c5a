"""Settings of a population on MinAtar, the same for all its runs, and the runs themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cramix.checks import check_choice, check_integer, check_number
from experiments.minatar.games import GAMES

ALGORITHMS = ("gmdqn", "nll", "qrdqn", "c51", "iqn", "ddqn")
# The game on which learning rates are chosen, and the seeds, which differ from those of the comparison.
TUNED_ON = "breakout"
FIRST_TUNING_SEED = 100
RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)


@dataclass(frozen=True)
class Settings:
    """The settings that all runs of a population share.

    Args:
        steps: environment steps of a run.
        envs: environments of a run; each step of all of them is followed by one update.
        batch_size: transitions of an update.
        buffer_size: transitions in the replay buffer of a run.
        learning_starts: random steps before the first update.
        exploration_steps: steps in which the rate of random actions falls from 1 to `exploration_final_eps`.
        exploration_final_eps: the final rate.
        target_interval: updates between two updates of the target network.
        tau: fraction by which the target network then moves; 1 copies the online network.
        gamma: discount factor.
        n_steps: number of rewards in a target.
        final_learning_rate: the learning rate falls linearly to this fraction; 1 keeps it constant.
        adam_eps: epsilon of Adam.
        max_grad_norm: the gradients of each run are clipped to this norm.
        members: networks of a run that learn side by side, see `cramix.rl`.
        filters: of the convolution.
        hidden: units of the hidden layer.
    """

    steps: int = 1_000_000
    envs: int = 4
    batch_size: int = 32
    buffer_size: int = 100_000
    learning_starts: int = 5_000
    exploration_steps: int = 100_000
    exploration_final_eps: float = 0.1
    target_interval: int = 250
    tau: float = 1.0
    gamma: float = 0.99
    n_steps: int = 1
    final_learning_rate: float = 1.0
    adam_eps: float = 1e-4
    max_grad_norm: float = 10.0
    members: int = 1
    filters: int = 16
    hidden: int = 128

    def __post_init__(self):
        for name in ("steps", "envs", "batch_size", "buffer_size", "target_interval", "n_steps", "members", "hidden"):
            check_integer(name, getattr(self, name), 1)
        for name in ("adam_eps", "max_grad_norm", "gamma", "tau"):
            check_number(name, getattr(self, name), positive=True)
        if self.learning_starts < self.n_steps * self.envs:
            raise ValueError(f"learning_starts must be at least n_steps * envs; got {self.learning_starts}.")


# GMDQN with the defaults of `cramix.rl`: members, 3-step targets, a slow target network, a falling learning rate.
DEFAULT: dict[str, Any] = {"members": 2, "n_steps": 3, "tau": 0.005, "target_interval": 1, "final_learning_rate": 0.01}


@dataclass(frozen=True)
class Variant:
    """An algorithm with its learning rate."""

    algorithm: str
    learning_rate: float

    def __post_init__(self):
        check_choice("algorithm", self.algorithm, ALGORITHMS)
        check_number("learning_rate", self.learning_rate, positive=True)


@dataclass(frozen=True)
class Plan:
    """The runs of a population: every variant in every game with every seed.

    Run `(variant, game, seed)` has the number `(variant * games + game) * seeds + seed`; variants of one algorithm
    follow one another.

    Args:
        variants: algorithms and learning rates.
        games: names of games.
        seeds: numbers of the seeds.
        settings: of all runs.
    """

    variants: Sequence[Variant]
    games: Sequence[str] = tuple(GAMES)
    seeds: Sequence[int] = tuple(range(10))
    settings: Settings = field(default_factory=Settings)

    def __post_init__(self):
        for game in self.games:
            check_choice("game", game, GAMES)
        found = [variant.algorithm for variant in self.variants]
        if not found or found != sorted(found, key=ALGORITHMS.index):
            raise ValueError(f"variants must be in the order {', '.join(ALGORITHMS)}; got {found}.")

    @property
    def runs(self) -> list[tuple[Variant, str, int]]:
        """The variant, the game and the seed of every run, in order."""
        return [(variant, game, seed) for variant in self.variants for game in self.games for seed in self.seeds]

    def segments(self) -> dict[str, slice]:
        """Return the runs of each algorithm."""
        each = len(self.games) * len(self.seeds)
        names = [variant.algorithm for variant in self.variants]
        return {
            name: slice(each * names.index(name), each * (names.index(name) + names.count(name)))
            for name in dict.fromkeys(names)
        }
