"""Freeway: a chicken crosses eight lanes of cars."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.minatar.games.game import DOWN, SIZE, UP, Game, State, full, integers, screen

_PLAYER_SPEED = 3
_TIME_LIMIT = 2500


class Freeway(Game):
    """The top row gives a reward of 1 and new speeds; a car sends the chicken back; the episode has a time limit.

    Cars are `(envs, 8)`, one per row from 1 to 8; a car moves every `|speed| + 1` steps, to the right if its speed is
    positive.
    """

    channels = 7
    step_draws = 16
    reset_draws = 16

    def reset(self, uniform: Tensor) -> State:  # noqa: D102
        speed = _speeds(uniform)
        return {
            "car": full(uniform, 0, 8),
            "timer": speed.abs(),
            "speed": speed,
            "y": full(uniform, 9),
            "move_timer": full(uniform, _PLAYER_SPEED),
            "time_left": full(uniform, _TIME_LIMIT),
        }

    def step(self, state: State, action: Tensor, uniform: Tensor) -> tuple[State, Tensor, Tensor]:  # noqa: D102
        car, timer, speed, y, move_timer = (state[name] for name in ("car", "timer", "speed", "y", "move_timer"))
        up, down = ((action == way) & (move_timer == 0) for way in (UP, DOWN))
        move_timer = torch.where(up | down, _PLAYER_SPEED, move_timer)
        y = (y - up.long() + down.long()).clamp(0, 9)
        wins = y == 0
        y = torch.where(wins, 9, y)
        new = _speeds(uniform)
        speed = torch.where(wins.unsqueeze(1), new, speed)
        timer = torch.where(wins.unsqueeze(1), new.abs(), timer)
        row = torch.arange(1, 9, device=y.device)
        mine = row == y.unsqueeze(1)
        moves = timer == 0
        moved = torch.where(moves, (car + speed.sign()) % SIZE, car)
        hit = (mine & ((car == 4) | (moved == 4))).any(1)
        after = {
            "car": moved,
            "timer": torch.where(moves, speed.abs(), timer - 1),
            "speed": speed,
            "y": torch.where(hit, 9, y),
            "move_timer": (move_timer - 1).clamp(min=0),
            "time_left": state["time_left"] - 1,
        }
        return after, wins.float(), after["time_left"] < 0

    def observe(self, state: State) -> Tensor:  # noqa: D102
        car, speed = state["car"], state["speed"]
        shown = torch.ones_like(car, dtype=torch.bool)
        row = torch.arange(1, 9, device=car.device).expand_as(car)
        chicken = screen(shown[:, :1], state["y"].unsqueeze(1), torch.full_like(car[:, :1], 4))
        back = (car - speed.sign()) % SIZE
        trails = [screen(speed.abs() == pace, row, back) for pace in range(1, 6)]
        return torch.stack([chicken, screen(shown, row, car), *trails], 1)


def _speeds(uniform: Tensor) -> Tensor:
    """Return speeds `(envs, 8)` from 1 to 5 in both directions."""
    return torch.where(uniform[:, 8:] > 0.5, 1, -1) * integers(uniform[:, :8], 1, 6)
