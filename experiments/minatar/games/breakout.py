"""Breakout: a paddle keeps a ball in play that breaks three rows of bricks."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.minatar.games.game import LEFT, RIGHT, Game, State, full, screen


class Breakout(Game):
    """The ball moves diagonally; a brick gives a reward of 1; the episode ends when the ball passes the paddle.

    `dx` and `dy` are the direction of the ball, 1 or -1. After a brick the ball passes through others until it has left
    them (`strike`).
    """

    channels = 4
    reset_draws = 1

    def reset(self, uniform: Tensor) -> State:  # noqa: D102
        right = uniform[:, 0] >= 0.5
        x = torch.where(right, 9, 0)
        y = full(uniform, 3)
        bricks = full(uniform, False, 10, 10)
        bricks[:, 1:4] = True
        return {
            "x": x,
            "y": y,
            "last_x": x,
            "last_y": y,
            "dx": torch.where(right, -1, 1),
            "dy": full(uniform, 1),
            "paddle": full(uniform, 4),
            "bricks": bricks,
            "strike": full(uniform, False),
        }

    def step(self, state: State, action: Tensor, uniform: Tensor) -> tuple[State, Tensor, Tensor]:  # noqa: D102
        x, y, dx, dy, bricks = (state[name] for name in ("x", "y", "dx", "dy", "bricks"))
        paddle = (state["paddle"] + (action == RIGHT).long() - (action == LEFT).long()).clamp(0, 9)
        new_x, new_y = x + dx, y + dy
        wall = (new_x < 0) | (new_x > 9)
        new_x = new_x.clamp(0, 9)
        dx = torch.where(wall, -dx, dx)
        top = new_y < 0
        new_y = new_y.clamp(min=0)
        at = screen(~top.unsqueeze(1), new_y.unsqueeze(1), new_x.unsqueeze(1))
        on_brick = (at & bricks).flatten(1).any(1)
        breaks = on_brick & ~state["strike"]
        bricks = bricks & ~(at & breaks.view(-1, 1, 1))
        bottom = (new_y == 9) & ~top & ~on_brick
        cleared = bottom & ~bricks.flatten(1).any(1)
        rows = torch.arange(10, device=x.device).view(1, 10, 1)
        bricks = bricks | (cleared.view(-1, 1, 1) & (rows >= 1) & (rows <= 3))
        straight = bottom & (x == paddle)
        corner = bottom & ~straight & (new_x == paddle)
        dy = torch.where(top | breaks | straight | corner, -dy, dy)
        dx = torch.where(corner, -dx, dx)
        new_y = torch.where(breaks | straight | corner, y, new_y)
        after = {
            "x": new_x,
            "y": new_y,
            "last_x": x,
            "last_y": y,
            "dx": dx,
            "dy": dy,
            "paddle": paddle,
            "bricks": bricks,
            "strike": on_brick,
        }
        return after, breaks.float(), bottom & ~straight & ~corner

    def observe(self, state: State) -> Tensor:  # noqa: D102
        s = {name: x.unsqueeze(1) for name, x in state.items()}
        shown = torch.ones_like(s["strike"])
        paddle = screen(shown, torch.full_like(s["paddle"], 9), s["paddle"])
        ball = screen(shown, s["y"], s["x"])
        trail = screen(shown, s["last_y"], s["last_x"])
        return torch.stack([paddle, ball, trail, state["bricks"]], 1)
