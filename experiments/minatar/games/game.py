"""A game of MinAtar as pure functions of batched tensors, and many environments of it that are stepped at once."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from experiments.population.device import compiled

# Named tensors `(envs, ...)`: all that a game remembers.
State = dict[str, Tensor]

SIZE = 10
LEFT, UP, RIGHT, DOWN, FIRE = range(1, 6)
ACTIONS = 6


class Game(ABC):
    """The rules of one game; the screen has 10 x 10 cells. No function waits for the device.

    All random decisions are functions of uniform numbers, which the caller draws.

    Args:
        ramping: whether the game becomes more difficult with time, if it can.
    """

    channels: int
    # Uniform numbers that `step` needs, and those that `reset` needs.
    step_draws: int = 0
    reset_draws: int = 0

    def __init__(self, ramping: bool = True):
        self.ramping = ramping

    @abstractmethod
    def reset(self, uniform: Tensor) -> State:
        """Return the first states of episodes; uniform numbers are `(envs, reset_draws)`."""

    @abstractmethod
    def step(self, state: State, action: Tensor, uniform: Tensor) -> tuple[State, Tensor, Tensor]:
        """Return the next states, the rewards and whether episodes terminate, each `(envs)`.

        Args:
            state: of all environments; it is not changed.
            action: `(envs)`.
            uniform: `(envs, step_draws)`.
        """

    @abstractmethod
    def observe(self, state: State) -> Tensor:
        """Return the screens, booleans `(envs, channels, 10, 10)`: channel, row, column."""


class Environments:
    """Environments of one game at fixed addresses, so that a CUDA graph can step them; episodes that end are reset.

    Args:
        game: the rules.
        count: number of environments.
        device: of all tensors.
        sticky: probability that an action is replaced by the previous one.
        compile: whether steps are compiled, which takes long and fuses hundreds of kernels.
    """

    def __init__(
        self, game: Game, count: int, device: torch.device | str = "cpu", sticky: float = 0.1, *, compile: bool = False
    ):
        self.game, self.count, self.sticky = game, count, sticky
        self.draws = 1 + game.step_draws + game.reset_draws
        self.state: State = {}
        self.last_action = torch.zeros(count, dtype=torch.long, device=device)
        self._advance = compiled(advance) if compile else advance

    def reset(self, uniform: Tensor) -> Tensor:
        """Start new episodes and return the screens; uniform numbers are `(envs, draws)`, as for `step`."""
        fresh = self.game.reset(uniform[:, 1 + self.game.step_draws :])
        if not self.state:
            self.state = {name: x.clone() for name, x in fresh.items()}
        for name, x in fresh.items():
            self.state[name].copy_(x)
        self.last_action.zero_()
        return self.game.observe(self.state)

    def step(self, action: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the screens after the step (and after a reset), the rewards, and whether episodes terminated."""
        return self._advance(self.game, self.sticky, self.state, self.last_action, action, uniform)


def advance(
    game: Game, sticky: float, state: State, last_action: Tensor, action: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Step environments in place; see `Environments.step`."""
    repeats, of_step, of_reset = uniform.split([1, game.step_draws, game.reset_draws], 1)
    last_action.copy_(torch.where(repeats[:, 0] < sticky, last_action, action))
    new, reward, terminal = game.step(state, last_action, of_step)
    fresh = game.reset(of_reset)
    # In two passes: entries of the new state may be tensors of the old one, under another name.
    after = {name: torch.where(terminal.view(-1, *(1 for _ in x.shape[1:])), fresh[name], x) for name, x in new.items()}
    for name, x in after.items():
        state[name].copy_(x)
    return game.observe(state), reward, terminal


def integers(uniform: Tensor, low: int, high: Tensor | int) -> Tensor:
    """Return uniform integers `low <= i < high` from uniform numbers in [0, 1)."""
    count = high - low
    scaled = (uniform * count).long()
    return low + (torch.minimum(scaled, count - 1) if isinstance(count, Tensor) else scaled.clamp(max=count - 1))


def screen(shown: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Return `(envs, 10, 10)`, true at the cells `(envs, things)` of things that are shown and inside the screen."""
    inside = shown & (x >= 0) & (x < SIZE)
    cells = torch.where(inside, y * SIZE + x, SIZE * SIZE)  # one cell more takes what is not shown
    flat = torch.zeros(len(x), SIZE * SIZE + 1, dtype=torch.bool, device=x.device)
    return flat.scatter_(1, cells, True)[:, :-1].unflatten(1, (SIZE, SIZE))


def full(like: Tensor, value: int | bool, *shape: int) -> Tensor:
    """Return a constant `(envs, *shape)` on the device of uniform numbers `(envs, ...)`."""
    dtype = torch.bool if isinstance(value, bool) else torch.long
    return torch.full((len(like), *shape), value, dtype=dtype, device=like.device)
