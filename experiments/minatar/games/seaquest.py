"""Seaquest: a submarine that shoots, rescues divers and has to surface for oxygen."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.minatar.games.game import DOWN, FIRE, LEFT, RIGHT, UP, Game, State, full, integers, screen

_OXYGEN = 200
_SPAWN_SPEED = 20
_DIVER_INTERVAL = 30
_MOVE_SPEED = 5
_DIVER_MOVE_SPEED = 5
_SHOT_COOLDOWN = 5
_ENEMY_SHOT_INTERVAL = 10
# At most 31 enemies are on the screen: one spawns per step, and one crosses it in 30 steps.
_ENEMIES = 32
_NEVER = 2**62


class Seaquest(Game):
    """An enemy that is shot gives a reward of 1, surfacing with six divers one for each tenth of the oxygen.

    The episode ends when an enemy or its bullet hits the submarine, without oxygen, or at the surface without divers.

    - Enemies are `(envs, 32)`, fish or submarines. `enemy_age` is the number of their spawn, which decides who goes
      first where several compete.
    - Bullets and divers are `(envs, 2)`, the older one first; there are never more at a time.
    - Bullets of enemies are maps `(envs, 10, 10)`, one for each direction.
    """

    channels = 10
    step_draws = 5

    def reset(self, uniform: Tensor) -> State:  # noqa: D102
        def zeros(*shape: int) -> Tensor:
            return full(uniform, 0, *shape)

        def no(*shape: int) -> Tensor:
            return full(uniform, False, *shape)

        return {
            "x": full(uniform, 5),
            "y": zeros(),
            "right": no(),
            "oxygen": full(uniform, _OXYGEN),
            "rescued": zeros(),
            "surfaced": full(uniform, True),
            "shot_timer": zeros(),
            "spawn_speed": full(uniform, _SPAWN_SPEED),
            "spawn_timer": full(uniform, _SPAWN_SPEED),
            "diver_timer": full(uniform, _DIVER_INTERVAL),
            "move_speed": full(uniform, _MOVE_SPEED),
            "ramp_index": zeros(),
            "bullet": no(2),
            "bullet_x": zeros(2),
            "bullet_y": zeros(2),
            "bullet_right": no(2),
            "diver": no(2),
            "diver_x": zeros(2),
            "diver_y": zeros(2),
            "diver_right": no(2),
            "diver_move_timer": zeros(2),
            "enemy": no(_ENEMIES),
            "enemy_x": zeros(_ENEMIES),
            "enemy_y": zeros(_ENEMIES),
            "enemy_right": no(_ENEMIES),
            "enemy_is_sub": no(_ENEMIES),
            "enemy_move_timer": zeros(_ENEMIES),
            "enemy_shot_timer": zeros(_ENEMIES),
            "enemy_age": zeros(_ENEMIES),
            "spawned": zeros(),
            "shots_left": no(10, 10),
            "shots_right": no(10, 10),
        }

    def step(self, state: State, action: Tensor, uniform: Tensor) -> tuple[State, Tensor, Tensor]:  # noqa: D102
        s = _spawn_diver(_spawn_enemy(state, uniform[:, :3]), uniform[:, 3:])
        s = _act(s, action)
        s, reward = _move_bullets(s)
        s = _move_divers(s)
        s, killed, shots, terminal = _move_enemies(s)
        s, shot = _move_shots(s, shots)
        s, surfacing, drowned = self._breathe(s)
        return s, reward + killed + surfacing, terminal | shot | drowned

    def _breathe(self, s: State) -> tuple[State, Tensor, Tensor]:
        """Return the state with less oxygen or after surfacing, the reward for that, and whether the player dies."""
        oxygen, rescued, spawn, move = (s[name] for name in ("oxygen", "rescued", "spawn_speed", "move_speed"))
        below = s["y"] > 0
        arrives = ~below & ~s["surfaced"]
        terminal = (oxygen <= 0) | (arrives & (rescued == 0))
        surfaces = arrives & (rescued != 0)
        all_six = surfaces & (rescued == 6)
        reward = torch.where(all_six, torch.div(oxygen * 10, _OXYGEN, rounding_mode="floor"), 0)
        ramps = surfaces & ((spawn > 1) | (move > 2)) & self.ramping
        after = {
            **s,
            "oxygen": torch.where(surfaces, _OXYGEN, oxygen - below.long()),
            # The game takes one diver more than there are after six, and then counts from -1.
            "rescued": torch.where(all_six, 0, rescued) - surfaces.long(),
            "surfaced": torch.where(below, False, s["surfaced"] | surfaces),
            "move_speed": move - (ramps & (move > 2) & (s["ramp_index"] % 2 == 1)).long(),
            "spawn_speed": spawn - (ramps & (spawn > 1)).long(),
            "ramp_index": s["ramp_index"] + ramps.long(),
            **{name: (s[name] - 1).clamp(min=0) for name in ("spawn_timer", "diver_timer", "shot_timer")},
        }
        return after, reward, terminal

    def observe(self, state: State) -> Tensor:  # noqa: D102
        s = state
        x, y, right = (s[name].unsqueeze(1) for name in ("x", "y", "right"))
        shown = torch.ones_like(right)
        cells = torch.arange(10, device=x.device)
        last_row = (cells == 9).view(1, -1, 1)
        gauge = torch.div(s["oxygen"].clamp(min=0) * 10, _OXYGEN, rounding_mode="floor").unsqueeze(1)
        oxygen = last_row & (cells < gauge).unsqueeze(1)
        divers = last_row & ((cells >= 9 - s["rescued"].unsqueeze(1)) & (cells < 9)).unsqueeze(1)
        enemy = s["enemy"], s["enemy_y"], s["enemy_x"]
        diver = s["diver"], s["diver_y"], s["diver_x"]
        trails = (
            torch.cat([a, b], 1)
            for a, b in zip(_behind(*enemy, s["enemy_right"]), _behind(*diver, s["diver_right"]), strict=True)
        )
        return torch.stack(
            [
                screen(shown, y, x),
                screen(*_behind(shown, y, x, right)),
                screen(s["bullet"], s["bullet_y"], s["bullet_x"]),
                screen(*trails),
                s["shots_left"] | s["shots_right"],
                screen(s["enemy"] & ~s["enemy_is_sub"], *enemy[1:]),
                screen(s["enemy"] & s["enemy_is_sub"], *enemy[1:]),
                oxygen,
                divers,
                screen(*diver),
            ],
            1,
        )


def _spawn_enemy(s: State, uniform: Tensor) -> State:
    """Return the state with a new enemy where the timer is up, unless its row has one in the other direction."""
    due = s["spawn_timer"] == 0
    right, is_sub, y = uniform[:, :1] < 1 / 2, uniform[:, 1:2] < 1 / 3, integers(uniform[:, 2:], 1, 9)
    blocked = (s["enemy"] & (s["enemy_y"] == y) & (s["enemy_right"] != right)).any(1)
    free = ~s["enemy"]
    new = free & (free.cumsum(1) == 1) & (due & ~blocked).unsqueeze(1)  # the first free place
    values = {
        "x": torch.where(right, 0, 9),
        "y": y,
        "right": right,
        "is_sub": is_sub,
        "move_timer": s["move_speed"].unsqueeze(1),
        "shot_timer": torch.full_like(y, _ENEMY_SHOT_INTERVAL),
        "age": s["spawned"].unsqueeze(1),
    }
    return {
        **s,
        "enemy": s["enemy"] | new,
        **{f"enemy_{name}": torch.where(new, x, s[f"enemy_{name}"]) for name, x in values.items()},
        "spawned": s["spawned"] + 1,
        "spawn_timer": torch.where(due, s["spawn_speed"], s["spawn_timer"]),
    }


def _append(s: State, kind: str, due: Tensor, **values: Tensor) -> State:
    """Return the state with a new bullet or diver where one is due `(envs)`; values are `(envs)`.

    The new one is the second of the two; the one that was there becomes the first, whose place is free by then.
    """
    shifts = (due & s[kind][:, 1]).unsqueeze(1)
    new = {kind: torch.ones_like(due), **{f"{kind}_{name}": x for name, x in values.items()}}

    def appended(old: Tensor, x: Tensor) -> Tensor:
        first = torch.where(shifts, old[:, 1:], old[:, :1])
        return torch.cat([first, torch.where(due, x, old[:, 1]).unsqueeze(1)], 1)

    return {**s, **{name: appended(s[name], x) for name, x in new.items()}}


def _spawn_diver(s: State, uniform: Tensor) -> State:
    """Return the state with a new diver where the timer is up."""
    due = s["diver_timer"] == 0
    right, y = uniform[:, 0] < 1 / 2, integers(uniform[:, 1], 1, 9)
    timer = torch.full_like(y, _DIVER_MOVE_SPEED)
    s = _append(s, "diver", due, x=torch.where(right, 0, 9), y=y, right=right, move_timer=timer)
    return {**s, "diver_timer": torch.where(due, _DIVER_INTERVAL, s["diver_timer"])}


def _act(s: State, action: Tensor) -> State:
    """Return the state after the player has moved or fired."""
    fires = (action == FIRE) & (s["shot_timer"] == 0)
    s = _append(s, "bullet", fires, x=s["x"], y=s["y"], right=s["right"])
    left, right = action == LEFT, action == RIGHT
    return {
        **s,
        "shot_timer": torch.where(fires, _SHOT_COOLDOWN, s["shot_timer"]),
        "x": (s["x"] + right.long() - left.long()).clamp(0, 9),
        "y": (s["y"] + (action == DOWN).long() - (action == UP).long()).clamp(0, 8),
        "right": (s["right"] & ~left) | right,
    }


def _first(candidates: Tensor, order: Tensor) -> Tensor:
    """Return a mask of the candidate `(envs, n)` with the lowest order in each row; none where there is none."""
    ranks = torch.where(candidates, order, _NEVER)
    return candidates & (ranks == ranks.amin(1, keepdim=True))


def _move_bullets(s: State) -> tuple[State, Tensor]:
    """Return the state after the player's bullets have moved, and the number of enemies hit: the oldest, fish first."""
    x = s["bullet_x"] + torch.where(s["bullet_right"], 1, -1)
    bullet = s["bullet"] & (x >= 0) & (x <= 9)
    enemy = s["enemy"]
    order = s["enemy_age"] + s["enemy_is_sub"].long() * 2**40
    alive = [bullet[:, 0], bullet[:, 1]]
    for i in (1, 0):  # the newer bullet first
        at = (s["enemy_x"] == x[:, i : i + 1]) & (s["enemy_y"] == s["bullet_y"][:, i : i + 1])
        hit = _first(enemy & at & alive[i].unsqueeze(1), order)
        enemy = enemy & ~hit
        alive[i] = alive[i] & ~hit.any(1)
    left = torch.stack(alive, 1)
    return {**s, "bullet": left, "bullet_x": x, "enemy": enemy}, (bullet & ~left).sum(1).float()


def _move_divers(s: State) -> State:
    """Return the state after divers have moved; the player takes up to six on board."""
    there, x, timer = s["diver"], s["diver_x"], s["diver_move_timer"]
    same_row = s["diver_y"] == s["y"].unsqueeze(1)
    moves = there & (timer == 0)
    moved = x + torch.where(s["diver_right"], 1, -1)
    before, after = (same_row & (z == s["x"].unsqueeze(1)) for z in (x, moved))
    meets = there & (before | (moves & after))
    rescued = s["rescued"]
    taken = []
    for i in (1, 0):  # the newer diver first
        takes = meets[:, i] & (rescued < 6)
        rescued = rescued + takes.long()
        taken.append(takes)
    left = there & ~torch.stack(taken[::-1], 1) & ~(moves & ((moved < 0) | (moved > 9)))
    return {
        **s,
        "diver": left,
        "diver_x": torch.where(moves, moved, x),
        "diver_move_timer": torch.where(moves, _DIVER_MOVE_SPEED, timer - 1),
        "rescued": rescued,
    }


def _move_enemies(s: State) -> tuple[State, Tensor, tuple[Tensor, Tensor, Tensor], Tensor]:
    """Return the state after enemies have moved, those killed by bullets, their shots, and whether one hits the player.

    The package moves submarines before fish, the newest first; each takes the oldest bullet in its new cell.
    """
    enemy, x, y, right = (s[name] for name in ("enemy", "enemy_x", "enemy_y", "enemy_right"))
    same_row = y == s["y"].unsqueeze(1)
    moves = enemy & (s["enemy_move_timer"] == 0)
    moved = torch.where(moves, x + torch.where(right, 1, -1), x)
    at_player = enemy & same_row & ((x == s["x"].unsqueeze(1)) | (moved == s["x"].unsqueeze(1)))
    alive = enemy & (moved >= 0) & (moved <= 9)
    at_risk = moves & alive & ~(same_row & (moved == s["x"].unsqueeze(1)))
    order = -s["enemy_age"] + (~s["enemy_is_sub"]).long() * 2**40
    bullets = [s["bullet"][:, 0], s["bullet"][:, 1]]
    killed = torch.zeros_like(enemy)
    for i in (0, 1):  # the older bullet first
        at = (moved == s["bullet_x"][:, i : i + 1]) & (y == s["bullet_y"][:, i : i + 1])
        hit = _first(at_risk & ~killed & at & bullets[i].unsqueeze(1), order)
        killed = killed | hit
        bullets[i] = bullets[i] & ~hit.any(1)
    subs = enemy & s["enemy_is_sub"]
    shoots = subs & (s["enemy_shot_timer"] == 0)
    after = {
        **s,
        "enemy": alive & ~killed,
        "enemy_x": moved,
        "enemy_move_timer": torch.where(moves, s["move_speed"].unsqueeze(1), s["enemy_move_timer"] - 1),
        "enemy_shot_timer": torch.where(shoots, _ENEMY_SHOT_INTERVAL, s["enemy_shot_timer"] - 1),
        "bullet": torch.stack(bullets, 1),
    }
    return after, killed.sum(1), (shoots, y, moved), at_player.any(1)


def _move_shots(s: State, shots: tuple[Tensor, Tensor, Tensor]) -> tuple[State, Tensor]:
    """Return the state after new and old bullets of enemies have moved, and whether one hits the player."""
    shoots, y, x = shots
    left = s["shots_left"] | screen(shoots & ~s["enemy_right"], y, x)
    right = s["shots_right"] | screen(shoots & s["enemy_right"], y, x)
    player = screen(torch.ones_like(s["right"]).unsqueeze(1), s["y"].unsqueeze(1), s["x"].unsqueeze(1))
    nothing = torch.zeros_like(left[:, :, :1])
    left_after, right_after = torch.cat([left[:, :, 1:], nothing], 2), torch.cat([nothing, right[:, :, :-1]], 2)
    hit = ((left | right | left_after | right_after) & player).flatten(1).any(1)
    return {**s, "shots_left": left_after, "shots_right": right_after}, hit


def _behind(shown: Tensor, y: Tensor, x: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cells behind things, for `screen`."""
    return shown, y, x - torch.where(right, 1, -1)
