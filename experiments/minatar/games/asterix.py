"""Asterix: treasures to collect and enemies to avoid, which cross the screen in rows."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.minatar.games.game import DOWN, LEFT, RIGHT, UP, Game, State, full, integers, screen

_RAMP_INTERVAL = 100
_SPAWN_SPEED = 10
_MOVE_SPEED = 5


class Asterix(Game):
    """A treasure gives a reward of 1; the episode ends at the touch of an enemy.

    Things are `(envs, 8)`, at most one per row from 1 to 8.
    """

    channels = 4
    step_draws = 3

    def reset(self, uniform: Tensor) -> State:  # noqa: D102
        return {
            "x": full(uniform, 5),
            "y": full(uniform, 5),
            "there": full(uniform, False, 8),
            "thing": full(uniform, 0, 8),
            "right": full(uniform, False, 8),
            "gold": full(uniform, False, 8),
            "spawn_speed": full(uniform, _SPAWN_SPEED),
            "spawn_timer": full(uniform, _SPAWN_SPEED),
            "move_speed": full(uniform, _MOVE_SPEED),
            "move_timer": full(uniform, _MOVE_SPEED),
            "ramp_timer": full(uniform, _RAMP_INTERVAL),
            "ramp_index": full(uniform, 0),
        }

    def step(self, state: State, action: Tensor, uniform: Tensor) -> tuple[State, Tensor, Tensor]:  # noqa: D102
        s = self._spawned(state, uniform)
        x = (s["x"] + (action == RIGHT).long() - (action == LEFT).long()).clamp(0, 9)
        y = (s["y"] + (action == DOWN).long() - (action == UP).long()).clamp(1, 8)
        there, thing, gold = s["there"], s["thing"], s["gold"]
        mine = torch.arange(1, 9, device=x.device) == y.unsqueeze(1)

        touched = there & mine & (thing == x.unsqueeze(1))
        reward = (touched & gold).any(1).float()
        terminal = (touched & ~gold).any(1)
        there = there & ~(touched & gold)

        moves = s["move_timer"] == 0
        moved = thing + torch.where(s["right"], 1, -1)
        thing = torch.where(moves.unsqueeze(1) & there, moved, thing)
        there = there & (thing >= 0) & (thing <= 9)
        touched = there & mine & (thing == x.unsqueeze(1)) & moves.unsqueeze(1)
        reward = reward + (touched & gold).any(1)
        terminal = terminal | (touched & ~gold).any(1)
        there = there & ~(touched & gold)

        after = {
            **s,
            "x": x,
            "y": y,
            "there": there,
            "thing": thing,
            "spawn_timer": s["spawn_timer"] - 1,
            "move_timer": torch.where(moves, s["move_speed"], s["move_timer"]) - 1,
        }
        return {**after, **self._ramped(s)}, reward, terminal

    def _spawned(self, state: State, uniform: Tensor) -> State:
        """Return the state with a new thing in a free row, where the timer is up."""
        due = state["spawn_timer"] == 0
        right, gold = uniform[:, 0] < 1 / 2, uniform[:, 1] < 1 / 3
        free = ~state["there"]
        count = free.sum(1)
        pick = integers(uniform[:, 2], 0, count)
        new = free & (free.cumsum(1) - 1 == pick.unsqueeze(1)) & due.unsqueeze(1)
        return {
            **state,
            "there": state["there"] | new,
            "thing": torch.where(new, torch.where(right, 0, 9).unsqueeze(1), state["thing"]),
            "right": torch.where(new, right.unsqueeze(1), state["right"]),
            "gold": torch.where(new, gold.unsqueeze(1), state["gold"]),
            "spawn_timer": torch.where(due, state["spawn_speed"], state["spawn_timer"]),
        }

    def _ramped(self, s: State) -> State:
        """Return speeds and timers of the difficulty after a step."""
        if not self.ramping:
            return {}
        spawn, move, timer, index = (s[name] for name in ("spawn_speed", "move_speed", "ramp_timer", "ramp_index"))
        ramps = (spawn > 1) | (move > 1)
        waits = ramps & (timer >= 0)
        harder = ramps & ~waits
        return {
            "move_speed": move - (harder & (move > 1) & (index % 2 == 1)).long(),
            "spawn_speed": spawn - (harder & (spawn > 1)).long(),
            "ramp_index": index + harder.long(),
            "ramp_timer": torch.where(harder, _RAMP_INTERVAL, timer - waits.long()),
        }

    def observe(self, state: State) -> Tensor:  # noqa: D102
        there, thing, right, gold = (state[name] for name in ("there", "thing", "right", "gold"))
        row = torch.arange(1, 9, device=thing.device).expand_as(thing)
        player = screen(torch.ones_like(there[:, :1]), state["y"].unsqueeze(1), state["x"].unsqueeze(1))
        trail = screen(there, row, thing - torch.where(right, 1, -1))
        return torch.stack([player, screen(there & ~gold, row, thing), trail, screen(there & gold, row, thing)], 1)
