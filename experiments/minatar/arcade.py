"""The environments of a population: several games at once, in screens of one size."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.minatar.games import GAMES
from experiments.minatar.games.game import SIZE, Environments
from experiments.population.device import Branches

# Of the game with the most; the channels that a game does not have are empty.
CHANNELS = max(game.channels for game in GAMES.values())


class Arcade:
    """Environments of several games for several variants and seeds, at fixed addresses.

    Results are in `screens`, booleans `(runs, envs, channels, 10, 10)`, `rewards` and `terminal`, `(runs, envs)`. Runs
    are ordered as in `Plan`.

    Args:
        games: names of the games.
        variants: number of variants.
        seeds: number of seeds.
        envs: environments of each run.
        device: of all tensors. On a GPU the games run in parallel streams, beside what is called until `join`.
        compile: whether the games are compiled.
    """

    def __init__(
        self, games: list[str], variants: int, seeds: int, envs: int, device: torch.device, *, compile: bool = False
    ):
        self.shape = (variants, len(games), seeds, envs)
        count = variants * seeds * envs
        self.games = [Environments(GAMES[name](), count, device, compile=compile) for name in games]
        self.draws = [count * game.draws for game in self.games]
        runs = variants * len(games) * seeds
        self.screens = torch.zeros(runs, envs, CHANNELS, SIZE, SIZE, dtype=torch.bool, device=device)
        self.rewards = torch.zeros(runs, envs, device=device)
        self.terminal = torch.zeros(runs, envs, dtype=torch.bool, device=device)
        self._branches = Branches(len(games), device)

    def reset(self, uniform: Tensor) -> None:
        """Start new episodes; `sum(draws)` uniform numbers."""
        for i, (game, draws) in enumerate(zip(self.games, uniform.split(self.draws), strict=True)):
            self._show(i, game.reset(draws.view(game.count, -1)))

    def step(self, actions: Tensor, uniform: Tensor) -> None:
        """Step all environments; the arguments must not change before `join`.

        Args:
            actions: `(runs, envs)`.
            uniform: `sum(draws)` uniform numbers.
        """
        by_game = actions.view(self.shape).movedim(1, 0)
        for i, draws in enumerate(uniform.split(self.draws)):
            with self._branches.fork(i):
                self._step(i, by_game[i], draws)

    def join(self) -> None:
        """Let the current stream wait for the games."""
        self._branches.join()

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that a checkpoint must hold, by name."""
        named = {"screens": self.screens}
        for i, game in enumerate(self.games):
            named |= {f"{i}/{name}": x for name, x in game.state.items()}
            named[f"{i}/last_action"] = game.last_action
        return named

    def _step(self, i: int, actions: Tensor, draws: Tensor) -> None:
        game = self.games[i]
        screens, rewards, terminal = game.step(actions.reshape(-1), draws.view(game.count, -1))
        self._show(i, screens)
        for results, mine in ((self.rewards, rewards), (self.terminal, terminal)):
            part = results.view(self.shape)[:, i]
            part.copy_(mine.view(part.shape))

    def _show(self, i: int, screens: Tensor) -> None:
        part = self.screens.view(*self.shape, CHANNELS, SIZE, SIZE)[:, i, :, :, : screens.shape[1]]
        part.copy_(screens.view(part.shape))
