"""Agents as Stable-Baselines3 has them: callbacks, logs, environments of all kinds, determinism, distributions."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
import tqdm
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cramix import NormalMixture
from cramix.rl import ALGORITHMS, GMDQN
from cramix.rl.algorithm import return_scale
from cramix.rl.evaluation import evaluate
from cramix.rl.objective import METRICS
from cramix.rl.replay import returns_in, to_transitions
from tests.rl.games import QUICK, Fork, Steps


def weights(model):
    return torch.cat([p.flatten() for p in model.policy.parameters()])


def test_progress_bar(capsys):
    with pytest.warns(tqdm.TqdmExperimentalWarning):
        model = GMDQN("MlpPolicy", "CartPole-v1", seed=0, **QUICK).learn(40, progress_bar=True)
    assert model.num_timesteps == 40
    assert "40/40" in "".join(capsys.readouterr())


def test_tensorboard_has_every_metric(tmp_path):
    model = GMDQN("MlpPolicy", Monitor(Steps()), seed=0, tensorboard_log=str(tmp_path), **QUICK)
    model.learn(100, tb_log_name="mine", log_interval=2)
    events = EventAccumulator(str(tmp_path / "mine_1"))
    events.Reload()
    names = set(events.Tags()["scalars"])
    assert {f"train/{name}" for name in METRICS} <= names
    assert {"rollout/ep_rew_mean", "rollout/exploration_rate", "time/fps", "train/learning_rate"} <= names
    assert [e.value for e in events.Scalars("rollout/ep_rew_mean")] == [15.0] * 10  # 1 + ... + 5
    rates = [e.value for e in events.Scalars("train/learning_rate")]
    assert rates == sorted(rates, reverse=True)


def test_log_is_in_units_of_rewards():
    model = GMDQN("MlpPolicy", Monitor(Steps()), seed=0, return_scale=7.0, **QUICK).learn(40)
    model.learner.update = lambda batch, limit: torch.arange(float(len(METRICS)))
    model.train(3, 16)
    logged = {name: model.logger.name_to_value[f"train/{name}"] for name in METRICS}
    assert logged == {name: i * (7 if name in ("smallest_scale", "value") else 1) for i, name in enumerate(METRICS)}


def test_eval_callback_keeps_the_best_model(tmp_path):
    callback = EvalCallback(
        Monitor(Steps()), n_eval_episodes=2, eval_freq=20, best_model_save_path=str(tmp_path), verbose=0
    )
    model = GMDQN("MlpPolicy", Monitor(Steps()), seed=0, **QUICK).learn(60, callback)
    assert callback.best_mean_reward == 15
    for name in ("best_model", "best_model.zip"):  # as in Stable-Baselines3
        best = GMDQN.load(tmp_path / name)
        assert best.num_timesteps == 20
    assert model.num_timesteps == 60


def test_checkpoint_callback_with_memory(tmp_path):
    callback = CheckpointCallback(30, str(tmp_path), "agent", save_replay_buffer=True)
    model = GMDQN("MlpPolicy", Steps(), seed=0, **QUICK).learn(60, callback)
    again = GMDQN.load(tmp_path / "agent_60_steps.zip", Steps())
    again.load_replay_buffer(tmp_path / "agent_replay_buffer_60_steps.pkl")
    # The callback comes between the step and what is stored of it.
    assert (again.num_timesteps, again.replay_buffer.size()) == (60, 59)
    assert model.replay_buffer.size() == 60


def test_callback_may_stop_learning():
    model = GMDQN("MlpPolicy", Steps(), seed=0, **QUICK).learn(60, lambda values, _: values["self"].num_timesteps < 35)
    assert model.num_timesteps == 35


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # that it forks
@pytest.mark.parametrize("kind", [DummyVecEnv, partial(SubprocVecEnv, start_method="fork")])
def test_vectorised_environments(kind):
    env = kind([Steps, Steps, Steps])
    try:
        model = GMDQN("MlpPolicy", env, seed=0, train_freq=2, gradient_steps=-1, **QUICK).learn(90)
        assert (model.num_timesteps, model.replay_buffer.size()) == (90, 30)
        assert model._n_updates == 6 * 12
        rewards = model.replay_buffer.rewards[:30]
        np.testing.assert_array_equal(rewards, np.tile(np.arange(1, 6), 6)[:, None].repeat(3, 1))
        assert model.predict(env.reset())[0].shape == (3,)
        assert model.return_distribution(env.reset()).batch_shape == (3, 3)
    finally:
        env.close()


@pytest.mark.parametrize("truncates", [False, True])
def test_ends_of_episodes_come_to_the_memory_as_they_were(truncates):
    model = GMDQN("MlpPolicy", Steps(truncates=truncates), seed=0, gamma=0.9, n_steps=1, **QUICK).learn(20)
    memory = model.replay_buffer
    ends = np.arange(20) % 5 == 4
    np.testing.assert_array_equal(memory.dones[:20, 0], ends)
    np.testing.assert_array_equal(memory.timeouts[:20, 0], ends & truncates)
    np.testing.assert_array_equal(
        memory.next_observations[:20, 0, 0], np.tile(np.arange(1, 6), 4)
    )  # not of the next episode
    b = to_transitions(memory.sample(60), 0.9)
    last = b.next_observations[:, 0] == 5
    np.testing.assert_allclose(b.discounts[last], 0.9 if truncates else 0.0)
    assert last.any()


@pytest.mark.parametrize(
    ("kind", "policy"), [("image", "CnnPolicy"), ("dict", "MultiInputPolicy"), ("number", "MlpPolicy")]
)
def test_observations_of_all_kinds(kind, policy):
    """Convolutions, dictionaries and numbers, in one environment and in several."""
    for env in (Steps(kind=kind), DummyVecEnv([lambda: Steps(kind=kind)] * 2)):
        quick = {**QUICK, "policy_kwargs": {"net_arch": [8]}, "buffer_size": 100}
        if kind == "image":
            quick["policy_kwargs"] = {"features_extractor_kwargs": {"features_dim": 8}}
        model = GMDQN(policy, env, seed=0, **quick).learn(26)
        assert model._n_updates > 0
    game = Steps(kind=kind)
    seen, _ = game.reset()
    action, _ = model.predict(seen, deterministic=True)
    assert game.action_space.contains(action)
    assert model.return_distribution(seen).batch_shape == (3,)
    assert evaluate(model, lambda: Steps(kind=kind), 2).tolist() == [15.0, 15.0]


def test_actions_that_start_at_one(monkeypatch):
    games = [Steps(start=1), Steps(start=1)]
    model = GMDQN("MlpPolicy", DummyVecEnv([lambda g=g: g for g in games]), seed=0, **QUICK).learn(120)
    assert {a for game in games for a in game.actions} == {1, 2, 3}
    assert set(model.replay_buffer.actions[:60].flat) == {1, 2, 3}
    samples, learned = model.replay_buffer.sample(50), []

    def update(batch, limit):
        learned.append(batch.actions)
        return torch.zeros(len(METRICS))

    monkeypatch.setattr(model.replay_buffer, "sample", lambda size, env: samples)
    monkeypatch.setattr(model.learner, "update", update)
    model.train(1, 50)
    assert torch.equal(learned[0], samples.actions.flatten() - 1)
    with torch.no_grad():
        model.policy.q_net.returns.values.actions.bias.view(3, -1)[2].add_(1000)
    assert model.predict(np.zeros(2), deterministic=True)[0] == 3
    assert evaluate(model, lambda: Steps(start=1), 2).tolist() == [15.0, 15.0]


def test_a_game_by_name_and_by_function():
    model = GMDQN("MlpPolicy", "CartPole-v1", seed=0, **QUICK)
    by_name = evaluate(model, "CartPole-v1", 3)
    np.testing.assert_array_equal(by_name, evaluate(model, lambda: gymnasium.make("CartPole-v1"), 3))
    assert not np.array_equal(by_name, evaluate(model, "CartPole-v1", 3, seed=50))


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_return_distributions(algo):
    model = ALGORITHMS[algo]("MlpPolicy", Steps(), seed=0, **QUICK).learn(30)
    one, many = model.return_distribution([1.0, 1.0]), model.return_distribution([[1.0, 1.0], [4.0, 1.0]])
    assert isinstance(one, NormalMixture)
    assert (one.batch_shape, many.batch_shape) == ((3,), (2, 3))
    torch.testing.assert_close(one.mean, many.mean[0])
    torch.testing.assert_close(many.weights.sum(-1), torch.ones(2, 3))
    before = many.mean
    model.policy.unit.mul_(10)  # units of the networks are this many units of reward
    torch.testing.assert_close(model.return_distribution([[1.0, 1.0], [4.0, 1.0]]).mean, 10 * before)
    assert model.predict([[1.0, 1.0], [4.0, 1.0]], deterministic=True)[0].tolist() == before.argmax(-1).tolist()


def test_unit_is_the_size_of_returns():
    model = GMDQN("MlpPolicy", Steps(), seed=0, gamma=0.5, **QUICK).learn(21)
    ahead = np.array([sum(0.5**k * r for k, r in enumerate(range(t, 6))) for t in range(1, 6)])
    seen = np.concatenate([np.tile(ahead, 4), [1.0]])  # the last episode has but one step
    assert model.policy.unit.item() == pytest.approx(np.sqrt((seen**2).mean()) / 5, rel=1e-5)
    assert return_scale(np.zeros(3)) == return_scale(np.zeros(0)) == 1.0


def test_unit_with_normalised_rewards_is_theirs():
    env = VecNormalize(DummyVecEnv([lambda: Steps(length=50)]), gamma=0.99)
    model = GMDQN("MlpPolicy", env, seed=0, **QUICK).learn(21)
    size = np.sqrt(env.ret_rms.var + env.epsilon)
    assert model.policy.unit.item() == pytest.approx(
        return_scale(returns_in(model.replay_buffer, 0.995)) / size, rel=1e-3
    )
    np.testing.assert_array_equal(model.replay_buffer.observations[:21, 0, 0], np.arange(21))  # kept as they came


def test_learning_by_seed():
    def learned(seed, **changes):
        model = GMDQN("MlpPolicy", make_vec_env("CartPole-v1", 2), seed=seed, **{**QUICK, **changes}).learn(80)
        return weights(model), model.replay_buffer.observations[:40]

    (one, seen), (again, seen_again), (other, _) = learned(0), learned(0), learned(1)
    assert torch.equal(one, again)
    np.testing.assert_array_equal(seen, seen_again)
    assert not torch.equal(one, other)


def test_random_actions_have_nothing_to_do_with_the_chances_of_the_game():
    """One seed for all must not be one stream of numbers for all."""

    class Dice(Fork):
        def step(self, action):
            rolls.append((action, int(self.np_random.integers(2))))
            return self._seen(), 0.0, False, False, {}

    rolls: list = []
    GMDQN("MlpPolicy", Dice(), seed=3, learning_starts=1000).learn(1000)
    action, roll = np.array(rolls).T
    assert abs(np.corrcoef(action, roll)[0, 1]) < 0.16  # 5 standard deviations
    model = GMDQN("MlpPolicy", Steps(), seed=3)
    drawn, explored = (g.integers(100, size=200) for g in (model.replay_buffer.generator, model.exploration.generator))
    assert (drawn == explored).mean() < 0.1


def test_exploration_falls_as_told():
    rates = []
    model = GMDQN("MlpPolicy", Steps(), exploration_fraction=0.5, exploration_final_eps=0.2, **QUICK)
    model.learn(100, lambda *_: rates.append(model.exploration_rate) or True)
    assert rates[0] == 1.0
    assert len(rates) == 100
    assert rates[26] == pytest.approx(1 - 0.8 * 26 / 50)
    np.testing.assert_allclose(rates[52:], 0.2)


def test_learning_rates_of_groups_survive_the_schedule():
    model = GMDQN("MlpPolicy", Steps(), learning_rate=1e-2, fraction_learning_rate=1e-4, **QUICK)
    model.learn(100, lambda *_: True)
    fast, slow = (group["lr"] for group in model.policy.optimizer.param_groups)
    assert model._current_progress_remaining == 0
    assert fast == pytest.approx(1e-4)
    assert slow == pytest.approx(fast / 100)


def test_a_second_start_does_not_continue_the_first_episode():
    model = GMDQN("MlpPolicy", Steps(length=7), seed=0, **QUICK).learn(10)
    model.learn(10)
    np.testing.assert_array_equal(np.flatnonzero(model.replay_buffer.dones[:20, 0]), [6, 9, 16])
    model.learn(4, reset_num_timesteps=False)  # goes on where it was
    np.testing.assert_array_equal(np.flatnonzero(model.replay_buffer.dones[:24, 0]), [6, 9, 16, 23])
    model.set_env(Steps(length=7))
    model.learn(2, reset_num_timesteps=False)
    np.testing.assert_array_equal(np.flatnonzero(model.replay_buffer.dones[:26, 0]), [6, 9, 16, 23])
    assert model.num_timesteps == 16


def test_another_environment_starts_another_episode():
    model = GMDQN("MlpPolicy", Steps(length=7), seed=0, **QUICK).learn(3)
    model.set_env(Steps(length=7))
    model.learn(3, reset_num_timesteps=False)
    np.testing.assert_array_equal(np.flatnonzero(model.replay_buffer.dones[:6, 0]), [2])


def test_episodes_between_updates():
    model = GMDQN("MlpPolicy", Steps(), seed=0, train_freq=(2, "episode"), gradient_steps=3, **QUICK).learn(50)
    assert model._n_updates == 3 * 3  # after 30, 40 and 50 steps


@pytest.mark.parametrize(
    ("wanted", "steps", "left", "compiles"),
    [("auto", 100, 0, False), ("auto", 60_000, 0, True), ("auto", 100, 60_000, False), (True, 100, 0, True)],
)
def test_long_runs_are_compiled(wanted, steps, left, compiles, monkeypatch):
    model = GMDQN("MlpPolicy", Steps(), seed=0, compile=wanted, **QUICK)
    monkeypatch.setattr("cramix.rl.algorithm.can_compile", lambda device: True)
    model.num_timesteps = left
    model.learn(steps, lambda *_: False, reset_num_timesteps=not left)
    assert model.learner.compiled == compiles


class Late(gymnasium.Env):
    """Eight steps with a reward at the end, but none in the first steps of all episodes together."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, reward, empty):
        self.reward, self.empty, self.count = reward, empty, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_in_episode = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        self.step_in_episode += 1
        over = self.step_in_episode == 8
        reward = self.reward if over and self.count > self.empty else 0.0
        return np.full(1, self.step_in_episode / 8, np.float32), reward, over, False, {}


@pytest.mark.parametrize("reward", [830.0, 0.01])
@pytest.mark.slow
def test_rewards_that_come_late_set_the_unit(reward):
    """Warm-up and the first 1,000 updates see no reward; the buffer has forgotten them in the end."""
    model = GMDQN(
        "MlpPolicy", Late(reward, empty=1200), seed=0, gamma=1.0, learning_starts=200, buffer_size=1000, n_steps=1
    )
    model.learn(1200)
    assert (float(model.policy.unit), model._scaled_at) == (1.0, 0)
    assert model._n_updates == 1000
    model.learn(3000, reset_num_timesteps=False)
    assert float(model.policy.unit) == pytest.approx(reward / 5, rel=1e-4)
    means = model.return_distribution(np.arange(8.0)[:, None] / 8).mean
    assert torch.allclose(means.max(-1).values, torch.tensor(reward), rtol=0.1)
