"""Calibration of agents: trajectories, their statistics, and agents that are calibrated."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from scipy import stats
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.vec_env import VecNormalize

from cramix.plot import return_calibration
from cramix.rl import (
    ALGORITHMS,
    GMDQN,
    CalibrationCallback,
    MaskedActions,
    ReturnCalibration,
    calibrate,
    evaluate_calibration,
)
from cramix.rl.calibration import loses_by_risk
from cramix.rl.evaluation import evaluate
from cramix.rl.trajectories import play_trajectories
from tests.refusals import refuses
from tests.rl.games import QUICK, Gates, Steps

SMALL = {**QUICK, "policy_kwargs": {"net_arch": [8], "members": 2}}


class Dice(gymnasium.Env):
    """Three steps; rewards are normal, with a mean and a scale that the agent sees, and one more for action 1."""

    observation_space = spaces.Box(-5, 5, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        self.seen = self.np_random.random(2).astype(np.float32)
        return self.seen, {}

    def step(self, action):
        self.count += 1
        reward = 3 + float(action) + 5 * float(self.seen[0]) + 0.2 * self.np_random.standard_normal()
        self.seen = self.np_random.random(2).astype(np.float32)
        return self.seen, reward, self.count == 3, False, {}


def agent(env=Dice, algo: str = "gmdqn", **settings) -> GMDQN:
    policy = "MultiInputPolicy" if isinstance(env().observation_space, spaces.Dict) else "MlpPolicy"
    return ALGORITHMS[algo](policy, env(), seed=0, device="cpu", return_scale=1.0, **{**SMALL, **settings})


def test_figures_of_normal_forecasts():
    """Against scipy, a double loop, and the closed form of the CRPS."""
    random = np.random.default_rng(0)
    means, scales = random.normal(size=300), random.random(300) + 0.5
    y = means + 0.5 * scales * random.standard_normal(300) + 0.1
    z = (y - means) / scales
    crps = scales * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    pit = stats.norm.cdf(z)
    tensors = (torch.as_tensor(x) for x in (pit, crps, means, scales, y, np.ones(300), np.arange(300) // 30))
    c = ReturnCalibration(*tensors, np.zeros(10))
    figures = c.summary()
    for level in (0.5, 0.8, 0.95):
        low, high = stats.norm.interval(level, means, scales)
        assert figures[f"coverage_{100 * level:.0f}"] == pytest.approx(np.mean((low <= y) & (y <= high)))
    assert figures["empirical_crps"] == pytest.approx(np.abs(np.subtract.outer(y, y)).mean() / 2)
    assert figures["return_crps"] == pytest.approx(crps.mean())
    assert figures["return_bias"] == pytest.approx((y - means).mean())
    assert figures["return_error"] == pytest.approx(np.sqrt(np.mean((y - means) ** 2)))
    assert figures["return_deviation"] == pytest.approx(np.sqrt(np.mean(scales**2)))
    groups = list(c.by(c.means, [-10, 0, 5, 10]))
    assert [(low, high) for low, high, _ in groups] == [(-10, 0), (0, 5)]
    assert [len(part.pit) for *_, part in groups] == [(means < 0).sum(), (means >= 0).sum()]


def test_trajectories_have_the_returns_of_their_episodes():
    model = agent(Dice, gamma=0.9)
    played = play_trajectories(model, Dice, 20, seed=3)
    np.testing.assert_allclose(played.scores, evaluate(model, Dice, 20, seed=3))
    assert played.remaining.tolist() == 20 * [3, 2, 1]
    env = Dice()
    for episode in range(20):
        observation, _ = env.reset(seed=1_000_003 + episode)
        rewards = []
        for step in range(3):
            action, _ = model.predict(observation, deterministic=True)
            row = 3 * episode + step
            assert played.actions[row] == played.preferred[row] == action
            torch.testing.assert_close(played.raw[row].means, model.return_distribution(observation).means)
            observation, reward, *_ = env.step(int(action))
            rewards.append(reward)
        expected = [rewards[0] + 0.9 * rewards[1] + 0.81 * rewards[2], rewards[1] + 0.9 * rewards[2], rewards[2]]
        np.testing.assert_allclose(played.returns[3 * episode : 3 * episode + 3], expected)


def test_a_random_step_is_not_the_agents_and_the_steps_before_it_are_left_out():
    model = agent()
    played = play_trajectories(model, Dice, 30, random_steps=np.arange(30) % 4)
    assert played.off_policy.sum() == sum(i % 4 < 3 for i in range(30))
    assert ((played.actions != played.preferred) == played.off_policy).all()
    for episode in range(30):
        rows = played.episodes == episode
        assert played.remaining[rows].tolist() == list(range(3 - episode % 4, 0, -1))


def test_truncated_episodes_go_on_with_the_expected_return():
    model = agent(lambda: Steps(30, truncates=True), gamma=0.9)
    played = play_trajectories(model, lambda: Steps(30, truncates=True), 1)
    assert played.remaining.tolist() == list(range(30, 21, -1))  # 0.9^21 > 0.1 >= 0.9^22
    value = float(model.return_distribution(np.array([30, 1.0])).mean.max())
    total = sum(0.9**i * (i + 1) for i in range(30)) + 0.9**30 * value
    assert played.returns[0].item() == pytest.approx(total, rel=1e-5)
    short = agent(lambda: Steps(5, truncates=True), gamma=0.9)
    refuses(lambda: evaluate_calibration(short, lambda: Steps(5, truncates=True), 2), "episodes", "gamma 0.9")


def test_masks_hold_for_random_steps():
    def gates():
        return MaskedActions(Gates())

    play_trajectories(agent(gates), gates, 40, random_steps=np.arange(40) % 10)  # a closed gate is an error


def test_normalised_rewards_and_observations():
    env = VecNormalize(make_vec_env(Dice, n_envs=2), gamma=0.9)
    model = GMDQN("MlpPolicy", env, seed=0, device="cpu", gamma=0.9, **SMALL).learn(60)
    played = play_trajectories(model, Dice, 3)
    single = Dice()
    seen, _ = single.reset(seed=1_000_000)
    torch.testing.assert_close(played.raw[0].means, model.return_distribution(env.normalize_obs(seen)).means)
    rewards = [single.step(int(a))[1] for a in played.actions[:3]]
    scaled = env.normalize_reward(np.array(rewards))
    assert played.returns[0].item() == pytest.approx(float(scaled @ [1, 0.9, 0.81]), rel=1e-5)
    assert played.scores[0] == pytest.approx(sum(rewards))
    np.testing.assert_allclose(evaluate(model, Dice, 3), played.scores)
    seen, _ = Dice().reset(seed=1_000_000)
    other = VecNormalize(make_vec_env(Dice, n_envs=2), gamma=0.9)
    other.obs_rms.mean, other.obs_rms.var = -7 * np.ones_like(seen), 100 * np.ones_like(seen)
    model.set_env(other)
    assert not torch.equal(play_trajectories(model, Dice, 1).raw[0].means, played.raw[0].means)


def test_rewards_of_atari_games_are_clipped_as_in_training(monkeypatch):
    gymnasium.register("Dice-v0", Dice)
    monkeypatch.setattr("cramix.rl.trajectories.is_atari", lambda name: name == "Dice-v0")
    try:
        played = play_trajectories(agent(gamma=0.9), "Dice-v0", 2)
    finally:
        del gymnasium.registry["Dice-v0"]
    np.testing.assert_allclose(played.returns, 2 * [2.71, 1.9, 1.0])
    assert (played.scores > 3).all()  # of the game


@pytest.mark.parametrize("algo", [name for name in ALGORITHMS if name != "ddqn"])
def test_every_kind_of_returns_can_be_calibrated(algo, tmp_path):
    model = agent(algo=algo, returns={"low": -40, "high": 40} if algo == "c51" else {})
    before = evaluate_calibration(model, Dice, 50)
    calibrate(model, Dice, 320)
    after = evaluate_calibration(model, Dice, 50)
    assert model.policy.recalibration.active
    assert after.crps.mean() < 0.6 * before.crps.mean()
    if algo in ("gmdqn", "nll", "jt"):  # the shape of untrained atoms is wrong, which stays
        assert 0.6 < after.coverage(0.8) < 0.95
    observations = np.random.default_rng(0).random((9, 2), np.float32)
    model.save(tmp_path / "agent.zip", acting_only=True)
    loaded = type(model).load(tmp_path / "agent.zip", device="cpu")
    for risk in ("mean", "cvar:0.25"):
        ours, theirs = (x.predict(observations, deterministic=True, risk=risk)[0] for x in (model, loaded))
        assert (ours == theirs).all()
    assert torch.equal(*(x.return_distribution(observations).means for x in (model, loaded)))
    other = type(model).load(tmp_path / "agent.zip", device="cpu")
    other.policy.recalibration.clear()
    other.set_parameters(tmp_path / "agent.zip")
    assert torch.equal(*(x.return_distribution(observations).means for x in (model, other)))


def test_means_have_no_spread_to_calibrate():
    refuses(lambda: calibrate(agent(algo="ddqn", policy_kwargs={"members": 1}), Dice, 16), "model", "DoubleDQN")
    refuses(lambda: calibrate(agent(), Dice, 8), "episodes", "8")


def test_acting_uses_the_calibrated_distributions():
    model = agent()
    calibrate(model, Dice, 64)
    observations = np.random.default_rng(0).random((50, 2), np.float32)
    p = model.return_distribution(observations)
    for risk, values in (("cvar:0.1", p.cvar(0.1)), ("mean", p.mean)):
        assert (model.predict(observations, deterministic=True, risk=risk)[0] == values.argmax(-1).numpy()).all()
    model.policy.recalibration.clear()
    raw = model.return_distribution(observations)
    assert not torch.allclose(raw.variance, p.variance)
    assert (raw.mean.argmax(-1) == p.mean.argmax(-1)).all()


def test_learning_removes_the_recalibration():
    model = agent()
    calibrate(model, Dice, 64)
    model.learn(15)  # before learning starts
    assert model.policy.recalibration.active
    model.learn(40)
    assert not model.policy.recalibration.active


def test_good_forecasts_are_left_alone():
    """Returns are drawn from what the agent predicts."""
    model = agent(Dice)

    class Oracle(Dice):
        def step(self, action):
            p = model.return_distribution(self.seen)[int(action)]
            self.seen = self.np_random.random(2).astype(np.float32)
            return self.seen, float(p.icdf(torch.tensor(self.np_random.random()))), True, False, {}

    calibrate(model, Oracle, 400)
    assert not model.policy.recalibration.active


def test_the_callback_logs_and_calibrates():
    class Memory(KVWriter):
        seen: list[dict] = []  # noqa: RUF012

        def write(self, key_values, key_excluded, step=0):
            self.seen.append(dict(key_values))

    model = agent()
    model.set_logger(Logger(None, [Memory()]))
    callback = CalibrationCallback(Dice, eval_freq=40, episodes=5, calibrate=64)
    model.learn(100, callback=callback)
    logged = [x for x in Memory.seen if "eval/return_crps" in x]
    assert [row["step"] for row in callback.history] == [40, 80, 100]
    assert [x["eval/coverage_80"] for x in logged] == [row["coverage_80"] for row in callback.history]
    assert model.policy.recalibration.active
    assert callback.history[-1]["return_crps"] < callback.history[-2]["return_crps"]
    model.learn(60, callback=callback)
    assert [row["step"] for row in callback.history] == [40, 80, 100, 40, 60]


def test_a_calibration_that_fails_leaves_the_former_one():
    def broken():
        raise RuntimeError("no environment")

    model = agent()
    calibrate(model, Dice, 64)
    layer = model.policy.recalibration
    assert layer.active
    with pytest.raises(RuntimeError, match="no environment"):
        calibrate(model, broken, 64)
    assert model.policy.recalibration.active
    for x, y in zip(model.policy.recalibration.buffers(), layer.buffers(), strict=True):
        assert torch.equal(x, y)


def test_the_plot_shows_the_figures(tmp_path):
    model = agent()
    for episodes in (1, 40):
        measured = evaluate_calibration(model, Dice, episodes)
        figure = return_calibration(measured)
        figure.savefig(tmp_path / "plot.png")
        pit, coverage, state, time = figure.axes
        assert f"{100 * measured.coverage(0.8):.0f} %" in coverage.get_title()
        assert time.get_xlabel() == "steps to go"
    assert pit.patches
    predicted, realised, scores = (line.get_ydata() for line in state.lines)  # of eight groups of equal size
    assert len(predicted) == 8
    assert np.mean(np.square(predicted)) == pytest.approx(measured.deviation**2)
    assert np.mean(np.square(realised)) == pytest.approx(measured.error**2)
    assert np.mean(scores) == pytest.approx(float(measured.crps.mean()))


class Second(Dice):
    """Action 0 is the better one."""

    def step(self, action):
        return super().step(1 - action)


@pytest.mark.parametrize(("env", "loses"), [(Dice, True), (Second, False)])
def test_spreads_that_mislead_are_found_by_acting(env, loses):
    """Action 1 has a slightly larger mean and spread; by CVaR it is better only if the actions share a spread."""
    model = agent(env)
    for member in model.q_net.each:
        layer = member[1]
        for linear in (layer.logits.actions, layer.values.actions):
            torch.nn.init.zeros_(linear.weight)
            torch.nn.init.zeros_(linear.bias)
        means = torch.tensor([[0.0], [0.2]]).expand(2, 3)
        scales = torch.tensor([[2.7], [3.0]]).expm1().log().expand(2, 3)  # before the softplus
        layer.values.actions.bias.data.copy_(torch.cat([means, scales], 1).flatten())
    recalibration = model.policy.recalibration
    recalibration.width.fill_(1.0)
    recalibration.active = True
    seen = np.zeros((1, 2), np.float32)
    for doubt, best in ((0.0, 0), (0.2, 1)):
        recalibration.doubt.fill_(doubt)
        assert model.predict(seen, deterministic=True, risk="cvar:0.25")[0] == best
    assert loses_by_risk(model, env, 8, 0) is loses
    assert recalibration.doubt == 0
