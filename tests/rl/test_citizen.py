"""What users of Stable-Baselines3's DQN and sb3-contrib's QR-DQN rely on: buffers, modes of layers, files, logs."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.callbacks import (
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv, FakeImageEnv, IdentityEnv, SimpleMultiObsEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize
from stable_baselines3.her import HerReplayBuffer
from torch import nn

from cramix.rl import GMDQN
from cramix.rl.replay import Replay
from tests.refusals import refuses
from tests.rl.games import QUICK, Steps
from tests.rl.learners import same

GAMMA = 0.9


class Modes(BaseFeaturesExtractor):
    """Layers that differ between training and evaluation."""

    def __init__(self, observation_space, dropout=0.5):
        super().__init__(observation_space, 4)
        self.norm, self.dropout = nn.BatchNorm1d(observation_space.shape[0]), nn.Dropout(dropout)

    def forward(self, seen):
        return self.dropout(self.norm(seen)).repeat(1, 2)[:, :4]


MODES = {**QUICK, "policy_kwargs": {"net_arch": [8], "features_extractor_class": Modes}}


def statistics(net):
    norm = net.features_extractor.norm
    return norm.running_mean.clone(), norm.running_var.clone(), norm.num_batches_tracked.item()


def test_an_update_counts_one_batch_and_its_targets_are_not_random():
    model = GMDQN("MlpPolicy", Steps(), seed=0, tau=1.0, target_update_interval=10_000, **MODES).learn(20)
    before, target = statistics(model.q_net), statistics(model.q_net_target)
    model.train(3, 16)
    after = statistics(model.q_net)
    assert after[2] == before[2] + 3
    assert not torch.equal(before[0], after[0])
    assert statistics(model.q_net_target)[2] == target[2]
    model.learner.update_target(0.25)  # statistics are copied as a whole, as in Stable-Baselines3
    assert torch.equal(statistics(model.q_net_target)[0], after[0])


def test_targets_are_those_of_evaluation(monkeypatch):
    model = GMDQN("MlpPolicy", Steps(), seed=0, **MODES).learn(20)
    modes = []
    for net, name in ((model.q_net, "online"), (model.q_net_target, "target")):
        net.register_forward_hook(lambda net, *_, name=name: modes.append((name, net.features_extractor.training)))
    model.train(1, 16)
    assert sorted(modes) == [("online", False), ("online", True), ("target", False)]
    assert modes[-1] == ("online", True)


def test_acting_leaves_statistics_alone_and_is_not_random():
    model = GMDQN("MlpPolicy", Steps(), seed=0, **MODES).learn(40)
    before = statistics(model.q_net)
    seen = np.random.default_rng(0).normal(size=(50, 2))
    first = model.predict(seen, deterministic=True)[0]
    for _ in range(5):
        np.testing.assert_array_equal(first, model.predict(seen, deterministic=True)[0])
    assert torch.equal(before[0], statistics(model.q_net)[0])
    model.learning_starts = 10_000
    model.learn(20)  # steps without updates
    assert torch.equal(before[0], statistics(model.q_net)[0])


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("n_steps", [1, 3])
def test_samples_are_those_of_their_buffers(n_envs, n_steps):
    """The same steps in the buffers of Stable-Baselines3."""
    arguments = spaces.Box(-np.inf, np.inf, (1,), np.float32), spaces.Discrete(5)
    kinds = {"n_steps": n_steps, "gamma": GAMMA}
    model = GMDQN("MlpPolicy", make_vec_env("CartPole-v1", n_envs), gamma=GAMMA, n_steps=n_steps, **QUICK)
    ours = type(model.replay_buffer)(30 * n_envs, *arguments, "cpu", n_envs, **kinds)
    theirs = NStepReplayBuffer(30 * n_envs, *arguments, "cpu", n_envs, **kinds)
    assert isinstance(ours, NStepReplayBuffer)
    random = np.random.default_rng(0)
    for t in range(70):
        seen = 100.0 * np.arange(n_envs)[:, None] + t
        done = random.random(n_envs) < 0.2
        infos = [{"TimeLimit.truncated": bool(x)} for x in done & (random.random(n_envs) < 0.5)]
        step = seen, seen + 0.5, random.integers(5, size=n_envs), random.normal(size=n_envs), done, infos
        ours.add(*step)
        theirs.add(*step)
    rows = {}
    for buffer in (ours, theirs):
        found = buffer.sample(3000)
        assert {tuple(x.shape) for x in found} == {(3000, 1)}
        columns = zip(*(x.flatten().tolist() for x in found), strict=True)
        rows[buffer] = {seen: tuple(np.round(rest, 4)) for seen, *rest in columns}
    assert rows[ours] == rows[theirs]
    assert len(rows[ours]) == 30 * n_envs


@pytest.mark.parametrize("kind", ["vector", "dict"])
@pytest.mark.parametrize("n_steps", [1, 3])
def test_optimised_memory_gives_the_same_transitions(kind, n_steps):
    policy = "MultiInputPolicy" if kind == "dict" else "MlpPolicy"
    settings = {**QUICK, "replay_buffer_kwargs": {"handle_timeout_termination": False}, "n_steps": n_steps}
    models = [
        GMDQN(policy, Steps(kind=kind), seed=0, **{**settings, "optimize_memory_usage": flag, "buffer_size": 30}).learn(
            70
        )
        for flag in (False, True)
    ]
    assert not hasattr(models[1].replay_buffer, "next_observations")
    found = []
    for model in models:
        b = model.replay_buffer.sample(400)
        seen, after = ((x["place"] if kind == "dict" else x)[:, 0] for x in (b.observations, b.next_observations))
        alive = b.dones[:, 0] == 0  # what comes after the end has no meaning
        rest = (x.flatten().tolist() for x in (seen, b.rewards, b.dones, b.discounts, torch.where(alive, after, -1)))
        found.append(set(zip(*rest, strict=True)))
    assert found[1] == found[0]
    refuses(lambda: GMDQN("MlpPolicy", Steps(), optimize_memory_usage=True), "optimize_memory_usage", "True")


@pytest.mark.parametrize("kind", [ReplayBuffer, NStepReplayBuffer])
def test_buffers_of_theirs(kind, tmp_path):
    model = GMDQN("MlpPolicy", Steps(), seed=0, n_steps=1, replay_buffer_class=kind, **QUICK).learn(60)
    assert type(model.replay_buffer) is kind
    assert model._n_updates == 40
    model.save(tmp_path / "agent")
    model.save_replay_buffer(tmp_path / "memory.pkl")
    again = GMDQN.load(tmp_path / "agent", Steps())
    again.load_replay_buffer(tmp_path / "memory.pkl")
    assert type(again.replay_buffer) is again.replay_buffer_class is kind
    np.testing.assert_array_equal(again.replay_buffer.rewards, model.replay_buffer.rewards)
    again.learn(20, reset_num_timesteps=False)


@pytest.mark.parametrize("kind", [Replay, NStepReplayBuffer])
def test_buffers_with_n_steps_have_those_of_the_model(kind):
    model = GMDQN("MlpPolicy", Steps(), n_steps=5, gamma=0.9, replay_buffer_class=kind, **QUICK)
    assert (model.replay_buffer.n_steps, model.replay_buffer.gamma) == (5, 0.9)
    model.gamma, model.n_steps = 0.8, 2
    assert (model.replay_buffer.n_steps, model.replay_buffer.gamma) == (2, 0.8)
    for given in (None, kind):
        kwargs = {"replay_buffer_class": given, "replay_buffer_kwargs": {"n_steps": 5}}
        refuses(lambda kwargs=kwargs: GMDQN("MlpPolicy", Steps(), **kwargs, **QUICK), "replay_buffer_kwargs", "n_steps")
    refuses(lambda: GMDQN("MlpPolicy", Steps(), replay_buffer_class="Replay", **QUICK), "replay_buffer_class", "Replay")


def test_n_steps_of_a_buffer_of_theirs_are_its_own():
    with pytest.warns(UserWarning, match="n_steps=3 has no effect"):
        GMDQN("MlpPolicy", Steps(), n_steps=3, replay_buffer_class=ReplayBuffer, **QUICK)


def goals():
    return BitFlippingEnv(n_bits=4, continuous=False, max_steps=4)


@pytest.mark.filterwarnings("ignore:The last trajectory:UserWarning")  # it is Stable-Baselines3's
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_hindsight(strategy, tmp_path):
    kwargs = {"n_sampled_goal": 2, "goal_selection_strategy": strategy}
    settings = {**QUICK, "replay_buffer_class": HerReplayBuffer, "replay_buffer_kwargs": kwargs, "n_steps": 1}
    model = GMDQN("MultiInputPolicy", make_vec_env(goals, 2), seed=0, **settings).learn(80)
    assert model._n_updates > 0
    model.save(tmp_path / "agent")
    model.save_replay_buffer(tmp_path / "memory.pkl")
    refuses(lambda: GMDQN.load(tmp_path / "agent"), "env", "None")
    again = GMDQN.load(tmp_path / "agent", make_vec_env(goals, 2))
    again.load_replay_buffer(tmp_path / "memory.pkl")
    again.learn(20, reset_num_timesteps=False)
    assert evaluate_policy(again, make_vec_env(goals, 1), 2)[0] <= 0


@pytest.mark.slow
def test_hindsight_learns():
    """Bits to flip until they are those of the goal: -1 for each step; 10 of them without a plan."""
    env = BitFlippingEnv(n_bits=6, continuous=False, max_steps=6)
    model = GMDQN(
        "MultiInputPolicy",
        env,
        seed=0,
        replay_buffer_class=HerReplayBuffer,
        n_steps=1,
        gamma=0.98,
        learning_starts=100,
        policy_kwargs={"net_arch": [64, 64]},
    ).learn(4000)
    assert evaluate_policy(model, Monitor(env), 40)[0] > -3.6  # random: -5.9


def test_dictionaries_in_their_buffer():
    model = GMDQN("MultiInputPolicy", Steps(kind="dict"), n_steps=1, replay_buffer_class=DictReplayBuffer, **QUICK)
    assert model.learn(40)._n_updates == 20


def test_a_buffer_that_was_dropped_is_read_again(tmp_path):
    model = GMDQN("MlpPolicy", Steps(), seed=0, **QUICK).learn(60)
    old = model.replay_buffer
    model.save_replay_buffer(tmp_path / "memory.pkl")
    model.replay_buffer = None
    model.load_replay_buffer(tmp_path / "memory.pkl")
    for name in ("observations", "next_observations", "actions", "rewards", "dones"):
        np.testing.assert_array_equal(getattr(old, name), getattr(model.replay_buffer, name))
    with (tmp_path / "open").open("wb") as stream:
        model.save_replay_buffer(stream)
    with (tmp_path / "open").open("rb") as stream:
        model.load_replay_buffer(stream)


@pytest.mark.parametrize("deterministic", [False, True])
def test_one_observation_gives_an_array(deterministic):
    model = GMDQN("MlpPolicy", Steps(), seed=0, **QUICK).learn(30)
    action, state = model.predict(np.zeros(2), deterministic=deterministic)
    assert isinstance(action, np.ndarray)
    assert (action.shape, action.dtype, state) == ((), np.int64, None)
    action, state = model.predict(np.zeros((3, 2)), (np.ones(2),), np.ones(3, bool), deterministic)
    assert action.shape == (3,)
    assert state[0].tolist() == [1, 1]


def test_exploration_of_predict_is_at_the_current_rate():
    model = GMDQN("MlpPolicy", Steps(), seed=0, **QUICK).learn(30)
    best = model.predict(np.zeros(2), deterministic=True)[0]
    model.exploration_rate = 0.0
    assert model.predict(np.zeros((200, 2)))[0].tolist() == [best] * 200
    model.exploration_rate = 1.0
    assert set(model.predict(np.zeros((200, 2)))[0].tolist()) == {0, 1, 2}


class Kept(KVWriter):
    def __init__(self):
        self.rows = []

    def write(self, key_values, key_excluded, step=0):
        self.rows.append((step, dict(key_values)))

    def close(self):
        pass


def test_every_dump_has_the_updates_before_it():
    model, kept = GMDQN("MlpPolicy", Monitor(Steps()), seed=0, **QUICK), Kept()
    model.set_logger(Logger(None, [kept]))
    model.learn(60, log_interval=1)
    assert [step for step, _ in kept.rows] == list(range(5, 65, 5))
    for step, row in kept.rows:
        assert ("train/loss" in row) == (step > 21)
        assert row.get("train/n_updates", 0) == max(0, step - 21)
        assert "rollout/exploration_rate" in row
    model.train(4, 16)
    assert model.logger.name_to_value["train/n_updates"] == 44


def test_files_hold_schedules(tmp_path):
    for schedule in (lambda left: 0.1 * left**2, LinearSchedule(1e-2, 1e-3, 0.5)):
        model = GMDQN("MlpPolicy", Steps(), seed=0, learning_rate=schedule, **QUICK).learn(30)
        for acting_only in (False, True):
            model.save(tmp_path / "agent", acting_only=acting_only)
            again = GMDQN.load(tmp_path / "agent", Steps())
            for left in (1.0, 0.7123, 0.25, 0.0):
                assert again.lr_schedule(left) == pytest.approx(schedule(left), rel=1e-4, abs=1e-6)
        again.save(tmp_path / "second")
        assert GMDQN.load(tmp_path / "second").lr_schedule(0.3) == again.lr_schedule(0.3)


def test_load_as_rl_zoo_does(tmp_path):
    model = GMDQN("MlpPolicy", Steps(), seed=0, **QUICK).learn(30)
    model.save(tmp_path / "agent")
    objects = {"learning_rate": 0.0, "lr_schedule": lambda _: 0.0, "clip_range": lambda _: 0.0}
    again = GMDQN.load(tmp_path / "agent", custom_objects=objects, device="cpu", seed=0, buffer_size=1)
    assert (again.learning_rate, again.lr_schedule(1.0), again.buffer_size) == (0.0, 0.0, 1)
    seen = np.random.default_rng(0).normal(size=(9, 2))
    np.testing.assert_array_equal(*(m.predict(seen, deterministic=True)[0] for m in (model, again)))
    refuses(lambda: GMDQN.load(tmp_path / "agent", Steps(), force_reset=False), "force_reset", "False")


def test_what_is_saved_can_be_chosen(tmp_path):
    model = GMDQN("MlpPolicy", Steps(), verbose=0, gamma=0.5, seed=4, **QUICK)
    model.save(tmp_path / "agent", exclude=["gamma", "seed"], include=["seed"])
    again = GMDQN.load(tmp_path / "agent")
    assert (again.gamma, again.seed) == (0.995, 4)
    assert same(model, again)
    model.save(tmp_path / "agent", ["replay_buffer"])  # never in a file
    refuses(lambda: model.save(tmp_path / "agent", exclude=["gama"]), "exclude", "'gama'")
    refuses(lambda: model.save(tmp_path / "agent", exclude=["policy_kwargs"]), "exclude", "'policy_kwargs'")
    refuses(lambda: model.save(tmp_path / "agent", include=["env"]), "include", "'env'")


def test_parameters_are_those_of_stable_baselines3():
    model, other = (GMDQN("MlpPolicy", Steps(), seed=seed, **QUICK).learn(40) for seed in (0, 1))
    found = model.get_parameters()
    assert set(found) == {"policy", "policy.optimizer"}
    other.set_parameters(found)
    assert same(model, other)
    with pytest.raises(ValueError, match="invalid object name"):
        other.set_parameters({**found, "nothing": {}})
    with pytest.raises(ValueError, match="do not match"):
        other.set_parameters({"policy": found["policy"]})
    with pytest.raises(RuntimeError, match="Missing key"):
        other.set_parameters({**found, "policy": dict(list(found["policy"].items())[:-1])})
    other.set_parameters({"policy": dict(list(found["policy"].items())[:-1])}, exact_match=False)


def test_layers_and_optimiser_of_the_policy():
    kwargs = {
        "net_arch": [5, 7],
        "activation_fn": nn.ELU,
        "optimizer_class": torch.optim.RMSprop,
        "optimizer_kwargs": {"alpha": 0.5},
    }
    model = GMDQN("MlpPolicy", Steps(), **{**QUICK, "policy_kwargs": kwargs}).learn(30)
    assert type(model.policy.optimizer) is torch.optim.RMSprop
    assert model.policy.optimizer.param_groups[0]["alpha"] == 0.5
    assert [x.out_features for x in model.q_net.each[0][0] if isinstance(x, nn.Linear)] == [5, 7]
    assert model.policy_kwargs == kwargs
    assert (model.q_net, model.q_net_target) == (model.policy.q_net, model.policy.q_net_target)
    model = GMDQN("MlpPolicy", Steps(), **{**QUICK, "policy_kwargs": {"optimizer_kwargs": {"eps": 1e-5}}})
    assert model.policy.optimizer.param_groups[0]["eps"] == 1e-5
    assert GMDQN("MlpPolicy", Steps(), **QUICK).policy.optimizer.param_groups[0]["eps"] == 1e-4


def test_wrappers_of_vectors_and_images(tmp_path):
    small = {**QUICK, "policy_kwargs": {"features_extractor_kwargs": {"features_dim": 4}}, "buffer_size": 60}
    images = VecFrameStack(
        DummyVecEnv([lambda: FakeImageEnv(screen_height=36, screen_width=36, n_channels=1, discrete=True)] * 2), 3
    )
    model = GMDQN("CnnPolicy", images, **small).learn(40)
    assert model.observation_space.shape == (3, 36, 36)  # the channels first
    model = GMDQN("MultiInputPolicy", VecFrameStack(DummyVecEnv([SimpleMultiObsEnv]), 2), **QUICK).learn(40)
    assert model._n_updates > 0
    env = VecNormalize(make_vec_env("CartPole-v1", 2), gamma=0.995)
    model = GMDQN("MlpPolicy", env, **QUICK).learn(60)
    assert model.get_vec_normalize_env() is env
    assert evaluate_policy(model, env, 2)[0] > 0
    model.save(tmp_path / "agent")
    env.save(tmp_path / "normalize.pkl")
    again = GMDQN.load(
        tmp_path / "agent", VecNormalize.load(tmp_path / "normalize.pkl", make_vec_env("CartPole-v1", 2))
    )
    again.learn(20, reset_num_timesteps=False)


def test_callbacks(tmp_path):
    watched = EvalCallback(
        Monitor(Steps()),
        callback_on_new_best=StopTrainingOnRewardThreshold(1e9),
        callback_after_eval=StopTrainingOnNoModelImprovement(1),
        n_eval_episodes=1,
        eval_freq=10,
        log_path=str(tmp_path),
        verbose=0,
    )
    saving = EveryNTimesteps(25, CheckpointCallback(1, str(tmp_path)))
    model = GMDQN("MlpPolicy", Monitor(Steps()), seed=0, **QUICK)
    model.learn(1000, CallbackList([watched, saving, StopTrainingOnMaxEpisodes(50)]))
    assert model.num_timesteps == 30  # the second evaluation without an improvement
    assert GMDQN.load(tmp_path / "rl_model_25_steps").num_timesteps == 25
    model.learn(1000, StopTrainingOnMaxEpisodes(3))
    assert model.num_timesteps == 15


def test_environments_that_are_set():
    model = GMDQN("MlpPolicy", Steps(), seed=0, **QUICK).learn(30)
    model.set_env(Steps(), force_reset=True)
    assert model._last_obs is None
    model.learn(10, reset_num_timesteps=False)
    model.set_env(model.get_env(), force_reset=False)
    assert model._last_obs is not None
    assert model.learn(10, reset_num_timesteps=False).num_timesteps == 50
    with pytest.raises(AssertionError, match="number of environments"):
        model.set_env(DummyVecEnv([Steps, Steps]))
    with pytest.raises(ValueError, match="spaces"):
        model.set_env(gymnasium.make("CartPole-v1"))


def test_other_spaces_of_actions_are_refused():
    with pytest.raises(AssertionError, match=r"only supports .*Discrete"):
        GMDQN("MlpPolicy", "Pendulum-v1")


class Late(gymnasium.Env):
    """Nothing for a long time, then much: a reward of 500 at the end of an episode, from some step on."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, first):
        self.first, self.steps = first, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count, self.steps = self.count + 1, self.steps + 1
        over = self.count == 5
        reward = 500.0 if over and self.steps > self.first else 0.0
        return np.full(1, self.count / 5, np.float32), reward, over, False, {}


def test_the_unit_of_returns_waits_for_the_first_reward():
    settings = {**QUICK, "gamma": 1.0, "learning_rate": 1e-2, "final_learning_rate": 1.0, "learning_starts": 50}
    model = GMDQN("MlpPolicy", Late(200), seed=0, **settings).learn(200)
    assert (model.policy.unit, model._scaled_at) == (1.0, 0)
    model.learn(1000, reset_num_timesteps=False)
    assert model.policy.unit == pytest.approx(100.0)
    np.testing.assert_allclose(model.return_distribution([0.0]).mean, 500.0, rtol=0.1)


def test_the_unit_follows_returns_that_grow_and_predictions_stay():
    model = GMDQN("MlpPolicy", Steps(), seed=0, **QUICK).learn(60)
    unit, seen = model.policy.unit.item(), [[1.0, 1.0], [4.0, 1.0]]
    before = model.return_distribution(seen)
    model.replay_buffer.rewards *= 1000
    model._scaled_at = 30
    model._measure_unit()
    assert model.policy.unit.item() == pytest.approx(1000 * unit, rel=0.3)
    torch.testing.assert_close(model.return_distribution(seen).mean, before.mean, rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(model.return_distribution(seen).stddev, before.stddev, rtol=0.6, atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_defaults_learn_the_identity(seed):
    env = DummyVecEnv([lambda: IdentityEnv(4)])
    model = GMDQN("MlpPolicy", env, seed=seed).learn(1500)
    assert evaluate_policy(model, env, 10, warn=False) == (100.0, 0.0)
