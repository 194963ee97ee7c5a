"""The batched games against the package `minatar`, step by step: both take the same random decisions."""

from collections import deque

import numpy as np
import pytest
import torch

from experiments.minatar.games import GAMES
from experiments.minatar.games.game import FIRE, LEFT, RIGHT, UP, Environments

minatar = pytest.importorskip("minatar")


class Tape:
    """Stands in for the `RandomState` of the package; it answers from a row of uniform numbers."""

    def __init__(self):
        self.waiting = deque()

    def load(self, uniform):
        self.waiting = deque(uniform)

    def _pop(self, size):
        if size is None:
            return self.waiting.popleft()
        return np.array([self.waiting.popleft() for _ in range(size)])

    def rand(self, size=None):
        return self._pop(size)

    def randint(self, low, high=None, size=None):
        low, high = (0, low) if high is None else (low, high)
        return np.minimum(low + np.floor(self._pop(size) * (high - low)), high - 1).astype(int)


def due_draws(name, env, uniform):
    """Return the uniform numbers that the package asks for in this step, in its order.

    Seaquest skips the numbers of an enemy, if none is due, and then asks for those of a diver.
    """
    if name == "seaquest" and env.env.e_spawn_timer != 0:
        return [uniform[0], *uniform[4:]]
    return list(uniform)


def play(name, steps, envs, policy, ramping=True, seed=0):
    """Step both and compare; return the number of episodes, the rewards and the screens seen."""
    torch.manual_seed(seed)
    game = GAMES[name](ramping=ramping)
    batched = Environments(game, envs)
    theirs = []
    uniform = torch.rand(envs, batched.draws)
    screens = batched.reset(uniform)
    for i in range(envs):
        env = minatar.Environment(name, sticky_action_prob=0.1, difficulty_ramping=ramping)
        env.random = env.env.random = Tape()
        env.random.load(uniform[i, 1 + game.step_draws :].tolist())
        env.reset()
        theirs.append(env)
    rewards, episodes, seen = 0.0, 0, screens.sum((0, 2, 3))
    for t in range(steps):
        for i, env in enumerate(theirs):
            np.testing.assert_array_equal(screens[i].permute(1, 2, 0).numpy(), env.state(), err_msg=f"{t}, {i}")
        actions = policy(screens, t)
        uniform = torch.rand(envs, batched.draws)
        screens, reward, terminal = batched.step(actions, uniform)
        for i, env in enumerate(theirs):
            row = uniform[i].tolist()
            env.random.load(due_draws(name, env, row[: 1 + game.step_draws]))
            r, ended = env.act(int(actions[i]))
            assert (float(r), bool(ended)) == (reward[i].item(), terminal[i].item()), (t, i)
            if ended:
                env.random.load(row[1 + game.step_draws :])
                env.reset()
        rewards, episodes = rewards + reward.sum().item(), episodes + terminal.sum().item()
        seen = seen + screens.sum((0, 2, 3))
    return episodes, rewards, seen


def at_random(screens, t):
    return torch.randint(6, (len(screens),))


def follow_ball(screens, t):
    """A policy that keeps the ball of Breakout in play most of the time."""
    columns = torch.arange(10.0)
    paddle, ball = ((screens[:, c].float().sum(1) * columns).sum(1) for c in (0, 1))
    best = torch.where(ball > paddle, RIGHT, torch.where(ball < paddle, LEFT, 0))
    return torch.where(torch.rand(len(screens)) < 0.05, at_random(screens, t), best)


def mostly_up(screens, t):
    return torch.where(torch.rand(len(screens)) < 0.2, at_random(screens, t), UP)


def shoot_often(screens, t):
    return torch.where(torch.rand(len(screens)) < 0.5, at_random(screens, t), FIRE)


def deep_sea(screens, t):
    """A policy of Seaquest that stays below with its divers, and goes up with them when oxygen runs out."""
    action = shoot_often(screens, t)
    oxygen, divers = screens[:, 7].sum((1, 2)), screens[:, 8].sum((1, 2))
    y = screens[:, 0].any(2).long().argmax(1)
    action = torch.where((y <= 1) & (oxygen > 3), torch.where(torch.rand(len(y)) < 0.7, 4, action), action)
    action = torch.where((action == UP) & (y <= 1), 0, action)
    return torch.where((divers > 0) & ((oxygen <= 3) | (divers >= 6)), UP, action)


@pytest.mark.parametrize(
    ("name", "policy", "ramping"),
    [
        ("asterix", at_random, True),
        ("asterix", at_random, False),
        ("breakout", follow_ball, True),
        ("freeway", mostly_up, True),
        ("seaquest", at_random, True),
        ("seaquest", deep_sea, True),
        ("seaquest", deep_sea, False),
        ("space_invaders", shoot_often, True),
        ("space_invaders", shoot_often, False),
    ],
)
def test_games_equal_the_package(name, policy, ramping):
    _, rewards, seen = play(name, 400, 8, policy, ramping)
    assert rewards > 0
    assert (seen > 0).all() or policy is at_random  # every channel was shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("asterix", at_random),
        ("breakout", follow_ball),
        ("freeway", mostly_up),
        ("seaquest", deep_sea),
        ("space_invaders", shoot_often),
    ],
)
def test_games_equal_the_package_for_long(name, policy):
    episodes, rewards, seen = play(name, 4000, 16, policy, seed=1)
    assert episodes > 0
    assert rewards > 0
    assert (seen > 0).all()
