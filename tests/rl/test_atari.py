"""Games of the Arcade Learning Environment: standard preprocessing, from the name alone."""

import gymnasium
import numpy as np
import pytest
from stable_baselines3.common.vec_env import SubprocVecEnv

from cramix.rl import ALGORITHMS
from cramix.rl.algorithm import DistributionalDQN
from cramix.rl.environments import is_atari, make_env, make_training_env
from cramix.rl.policy import CnnPolicy
from cramix.rl.training import Run, train

ale_py = pytest.importorskip("ale_py")
PONG = "ale_py:ALE/Pong-v5"


def test_only_games_of_ale_are_preprocessed():
    assert is_atari(PONG)
    assert not is_atari("CartPole-v1")
    assert make_env("CartPole-v1").observation_space.shape == (4,)


def test_an_action_lasts_four_frames_of_which_the_last_four_are_stacked():
    env = make_env(PONG, repeat_action_probability=0.0)
    assert env.observation_space == gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    env.reset(seed=0)
    before = env.unwrapped.ale.getFrameNumber()
    first = env.step(2)[0]
    second = env.step(2)[0]
    assert env.unwrapped.ale.getFrameNumber() - before == 8
    np.testing.assert_array_equal(first[1:], second[:-1])


def test_rewards_are_clipped_in_training_only(monkeypatch):
    monkeypatch.setattr(
        ale_py.AtariEnv, "step", lambda self, action: (self._get_obs(), 7.0, False, False, {"lives": 0})
    )
    env, training = make_env(PONG), make_training_env(PONG)
    env.reset(seed=0)
    training.reset()
    assert env.step(0)[1] == 28.0  # of four frames
    assert training.step(np.array([0]))[1].tolist() == [1.0]


@pytest.mark.slow
def test_several_games_run_in_processes_of_their_own():
    envs = make_training_env(PONG, 2)
    try:
        assert isinstance(envs, SubprocVecEnv)
        envs.seed(3)
        first = envs.reset()
        envs.seed(3)
        assert first.shape == (2, 4, 84, 84)
        assert first.dtype == np.uint8
        np.testing.assert_array_equal(first, envs.reset())
    finally:
        envs.close()


@pytest.mark.slow
def test_training_from_the_name_alone(tmp_path):
    settings = {"learning_starts": 100, "buffer_size": 400, "batch_size": 8, "policy_kwargs": {"members": 1}}
    seen = []
    real = DistributionalDQN.predict

    def predict(self, observation, *args, **options):
        seen.append((type(self.policy), np.shape(observation)[1:]))
        return real(self, observation, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DistributionalDQN, "predict", predict)
        result = train(Run(PONG, steps=300, settings=settings, episodes=1, curve_episodes=0), tmp_path)
    assert set(seen) == {(CnnPolicy, (4, 84, 84))}
    assert -21 <= result["mean"] <= 21


def test_games_have_a_preset_of_their_own():
    assert Run(PONG).preset == "atari"
    assert Run(PONG, preset="default").preset == "default"
    assert Run("CartPole-v1").preset == "default"


@pytest.mark.slow
def test_the_preset_is_for_all_algorithms(tmp_path):
    settings = {"learning_starts": 100, "buffer_size": 400}
    run = Run(PONG, algo="ddqn", steps=120, settings=settings, episodes=1, curve_episodes=0, envs=2)
    assert -21 <= train(run, tmp_path)["mean"] <= 21
    model = ALGORITHMS["ddqn"].load(tmp_path / "model.zip")
    assert (model.batch_size, model.gamma, model.optimize_memory_usage) == (32, 0.99, True)
    assert model.gradient_steps / (model.train_freq.frequency * 2) == 0.5  # updates for each step
