"""The bridge: its true returns against episodes that are played, and what agents learn of them.

Returns there are around 1, with scales from 0.1 to 0.5. So a C2 of 0.02 is a shift by 0.01 where the scale is 0.1, by
0.03 where it is 0.5, or a chance of disaster that is wrong by 0.013.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

import cramix
from cramix import NormalMixture
from cramix.rl import DistributionalDQN, calibrate
from cramix.rl.evaluation import evaluate
from experiments.bridge import NAME, Bridge
from tests.rl.known import GAMMA, every_return, learn

FORK, BRIDGE = 0, 1
ROAD, ONTO_BRIDGE = 0, 1
BACK, CROSS = 0, 1


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def by_mean(one_thread) -> DistributionalDQN:
    return learn()


@pytest.fixture(scope="module")
def by_cvar(one_thread) -> DistributionalDQN:
    four = {"net_arch": [64, 64]}  # members, as by default
    return learn(steps=128_000, risk="cvar:0.1", batch_size=128, learning_rate=4e-3, policy_kwargs=four)


def played(state: int, action: int, policy: list[int], episodes: int) -> np.ndarray:
    """Discounted returns of episodes that begin with an action and follow a policy."""
    env = Bridge(start=state)
    env.reset(seed=10 * state + action)
    returns = np.empty(episodes)
    for i in range(episodes):
        seen, _ = env.reset()
        done, discount, returns[i], a = False, 1.0, 0.0, action
        while not done:
            seen, reward, done, _, _ = env.step(a)
            returns[i] += discount * reward
            discount, a = discount * GAMMA, policy[seen]
    return returns


def excess(truth: NormalMixture, samples: np.ndarray) -> float:
    """How many times larger C2^2 to samples is than it is on average for samples of the truth itself.

    That average is int F (1 - F) / n = E|X - X'| / 2n; for samples of the truth, 4 is exceeded about once in 10^4.
    """
    y = torch.as_tensor(samples, dtype=truth.means.dtype)
    spread = cramix.cramer_loss(NormalMixture.from_samples(y), truth, reduction="none")
    pairs = np.abs(np.subtract.outer(samples[::2], samples[1::2])).mean()
    return float(spread / (pairs / (2 * len(samples))))


@pytest.mark.parametrize("risk", ["mean", "cvar:0.1"])
def test_truth_is_what_episodes_return(risk):
    truth = Bridge.truth(GAMMA, risk)
    values = truth.mean if risk == "mean" else truth.cvar(0.1)
    policy = values.argmax(-1).tolist()
    for state in range(len(Bridge.states)):
        for action in range(2):
            p = NormalMixture(truth.weights[state, action], truth.means[state, action], truth.scales[state, action])
            samples = played(state, action, policy, 2000)
            assert excess(p, samples) < 4
            # A shift by a quarter of a scale is seen.
            assert excess(p, samples + 0.25 * float(p.scales[0])) > 4


def test_truth_by_hand():
    truth = Bridge.truth(GAMMA)
    # Onto the bridge, across, home at a run; or by the river, swimming fast.
    across, fallen = 0.9 * (0.6 + 0.9 * 0.7), 0.9 * (0.6 + 0.9 * (-2.8 + 0.9 * 0.7))
    np.testing.assert_allclose(truth.weights[FORK, ONTO_BRIDGE], [0.9, 0.1], rtol=1e-6)
    np.testing.assert_allclose(truth.means[FORK, ONTO_BRIDGE], [across, fallen], rtol=1e-6)
    variances = [0.01 + 0.81 * 0.01 + 0.9**4 * 0.16, 0.01 + 0.81 * 0.01 + 0.9**4 * 0.16 + 0.9**6 * 0.16]
    np.testing.assert_allclose(truth.scales[FORK, ONTO_BRIDGE].square(), variances, rtol=1e-5)
    np.testing.assert_allclose(truth.mean[FORK, ROAD], 0.9 * (0.2 + 0.9 * 0.6), rtol=1e-6)


def test_the_best_way_depends_on_the_risk():
    by_mean, by_cvar = Bridge.truth(GAMMA), Bridge.truth(GAMMA, "cvar:0.1")
    assert by_mean.mean[FORK].argmax() == ONTO_BRIDGE
    assert by_mean.mean[BRIDGE].argmax() == CROSS
    assert by_cvar.cvar(0.1)[FORK].argmax() == ROAD
    assert by_cvar.cvar(0.1)[BRIDGE].argmax() == BACK


def test_gymnasium_knows_the_environment_once():
    import cramix.rl

    importlib.reload(cramix.rl)
    env = gymnasium.make(NAME, start=3, render_mode="rgb_array")
    check_env(env.unwrapped)
    assert env.reset(seed=0)[0] == 3
    assert env.render().shape == (96, 96, 3)


def test_start_that_is_not_there():
    with pytest.raises(ValueError, match="start must be in 0 to 5 or None; got 6"):
        Bridge(start=6)


@pytest.mark.slow
def test_learned_returns_are_the_true_ones(by_mean):
    distances = cramix.cramer_distance(every_return(by_mean), Bridge.truth(GAMMA))
    assert distances.shape == (6, 2)
    assert distances.max() < 0.02


@pytest.mark.slow
def test_both_modes_are_learned(by_mean):
    learned, truth = every_return(by_mean), Bridge.truth(GAMMA)
    middle = torch.tensor(-0.2)  # between disaster and what is usual
    chance = learned.cdf(middle.expand(6, 2))[FORK, ONTO_BRIDGE]
    assert abs(chance - truth.cdf(middle.expand(6, 2))[FORK, ONTO_BRIDGE]) < 0.01
    assert abs(chance - 0.1) < 0.015


@pytest.mark.slow
def test_the_mean_walks_into_the_disaster_and_cvar_avoids_it(by_mean):
    walks = evaluate(by_mean, NAME, 300)
    avoids = evaluate(by_mean, NAME, 300, risk="cvar:0.1")
    assert by_mean.predict(FORK, deterministic=True)[0] == ONTO_BRIDGE
    assert by_mean.predict(FORK, deterministic=True, risk="cvar:0.1")[0] == ROAD
    assert 10 < (walks < -0.7).sum() < 60  # one in ten; 30 expected, standard deviation 5
    assert avoids.min() > -0.7
    assert walks.mean() > avoids.mean()


@pytest.mark.slow
def test_calibration_leaves_true_returns_alone(by_mean):
    calibrate(by_mean, lambda: gymnasium.make(NAME, start=None), 800)
    assert cramix.cramer_distance(every_return(by_mean), Bridge.truth(GAMMA)).max() < 0.02
    assert by_mean.predict(FORK, deterministic=True, risk="cvar:0.1")[0] == ROAD
    by_mean.policy.recalibration.clear()  # for the other tests


@pytest.mark.slow
def test_an_agent_that_learns_by_cvar_avoids_the_disaster(by_cvar):
    assert by_cvar.predict(FORK, deterministic=True)[0] == ROAD
    assert by_cvar.predict(BRIDGE, deterministic=True)[0] == BACK
    assert evaluate(by_cvar, NAME, 300).min() > -0.7
    distances = cramix.cramer_distance(every_return(by_cvar), Bridge.truth(GAMMA, "cvar:0.1"))
    assert distances.max() < 0.1
    # The two policies differ: what is true for one is far from true for the other.
    assert cramix.cramer_distance(every_return(by_cvar), Bridge.truth(GAMMA))[FORK, ONTO_BRIDGE] > 0.2
