"""Space Invaders: a cannon against a wave of aliens that comes down."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.minatar.games.game import FIRE, LEFT, RIGHT, SIZE, Game, State, full, screen

_SHOT_COOLDOWN = 5
_MOVE_INTERVAL = 12
_SHOT_INTERVAL = 10


class SpaceInvaders(Game):
    """An alien that is shot gives a reward of 1; the episode ends when an alien or its bullet hits the cannon.

    Aliens and bullets are maps `(envs, 10, 10)`; the fewer aliens are left, the faster they move.
    """

    channels = 6

    def reset(self, uniform: Tensor) -> State:  # noqa: D102
        return {
            "x": full(uniform, 5),
            "bullets": full(uniform, False, 10, 10),
            "alien_bullets": full(uniform, False, 10, 10),
            "aliens": _wave(uniform.device).repeat(len(uniform), 1, 1),
            "direction": full(uniform, -1),
            "move_interval": full(uniform, _MOVE_INTERVAL),
            "move_timer": full(uniform, _MOVE_INTERVAL),
            "alien_shot_timer": full(uniform, _SHOT_INTERVAL),
            "shot_timer": full(uniform, 0),
        }

    def step(self, state: State, action: Tensor, uniform: Tensor) -> tuple[State, Tensor, Tensor]:  # noqa: D102
        aliens, direction, interval = (state[name] for name in ("aliens", "direction", "move_interval"))
        fires = (action == FIRE) & (state["shot_timer"] == 0)
        shot_timer = torch.where(fires, _SHOT_COOLDOWN, state["shot_timer"])
        cells = torch.arange(SIZE, device=action.device)
        muzzle = (cells == state["x"].unsqueeze(1)) & fires.unsqueeze(1)
        x = (state["x"] + (action == RIGHT).long() - (action == LEFT).long()).clamp(0, 9)
        here = cells == x.unsqueeze(1)  # the column of the cannon, (envs, 10)

        # A new bullet starts in row 9 and moves up with the others.
        nothing = torch.zeros_like(muzzle).unsqueeze(1)
        up = torch.cat([state["bullets"][:, 1:], nothing], 1)
        bullets = up | (muzzle.unsqueeze(1) & (cells == 8).view(1, -1, 1))
        alien_bullets = torch.cat([nothing, state["alien_bullets"][:, :-1]], 1)
        terminal = ((alien_bullets[:, 9] | aliens[:, 9]) & here).any(1)

        due = state["move_timer"] == 0
        at_edge = torch.where(direction < 0, aliens[:, :, 0].any(1), aliens[:, :, 9].any(1))
        turns = due & at_edge
        terminal = terminal | (turns & aliens[:, 9].any(1))
        move_timer = torch.where(due, torch.minimum(aliens.flatten(1).sum(1), interval), state["move_timer"])
        sideways = torch.where((direction < 0).view(-1, 1, 1), aliens.roll(-1, 2), aliens.roll(1, 2))
        moved = torch.where(at_edge.view(-1, 1, 1), aliens.roll(1, 1), sideways)
        aliens = torch.where(due.view(-1, 1, 1), moved, aliens)
        direction = torch.where(turns, -direction, direction)
        terminal = terminal | (due & (aliens[:, 9] & here).any(1))

        shoots = state["alien_shot_timer"] == 0
        alien_shot_timer = torch.where(shoots, _SHOT_INTERVAL, state["alien_shot_timer"])
        shooter = _lowest_in_nearest_column(aliens, x)
        alien_bullets = alien_bullets | (shooter & shoots.view(-1, 1, 1))

        killed = aliens & bullets
        aliens, bullets = aliens & ~killed, bullets & ~killed
        cleared = ~aliens.flatten(1).any(1)
        harder = cleared & (interval > 6) if self.ramping else torch.zeros_like(cleared)
        after = {
            "x": x,
            "bullets": bullets,
            "alien_bullets": alien_bullets,
            "aliens": aliens | (cleared.view(-1, 1, 1) & _wave(x.device)),
            "direction": direction,
            "move_interval": interval - harder.long(),
            "move_timer": move_timer - 1,
            "alien_shot_timer": alien_shot_timer - 1,
            "shot_timer": (shot_timer - 1).clamp(min=0),
        }
        return after, killed.flatten(1).sum(1).float(), terminal

    def observe(self, state: State) -> Tensor:  # noqa: D102
        aliens, left = state["aliens"], (state["direction"] < 0).view(-1, 1, 1)
        x = state["x"].unsqueeze(1)
        cannon = screen(torch.ones_like(x, dtype=torch.bool), torch.full_like(x, 9), x)
        return torch.stack([cannon, aliens, aliens & left, aliens & ~left, state["bullets"], state["alien_bullets"]], 1)


def _wave(device: torch.device) -> Tensor:
    """Return a full wave of aliens, `(1, 10, 10)`."""
    y, x = torch.arange(SIZE, device=device).view(-1, 1), torch.arange(SIZE, device=device)
    return ((y < 4) & (x >= 2) & (x < 8)).unsqueeze(0)


def _lowest_in_nearest_column(aliens: Tensor, x: Tensor) -> Tensor:
    """Return a map of the alien that shoots: the lowest one in the column nearest to x; the left one of two."""
    cells = torch.arange(SIZE, device=x.device)
    distance = 2 * SIZE * (cells - x.unsqueeze(1)).abs() + cells  # ties go to the left
    column = torch.where(aliens.any(1), distance, 10**6).argmin(1, keepdim=True)  # (envs, 1)
    below = aliens.flip(1).long().cumsum(1).flip(1)  # aliens at or below each cell of its column
    return aliens & (below == 1) & (cells == column).unsqueeze(1)
