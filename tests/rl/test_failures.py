"""What goes wrong in environments is said clearly, and the agent is whole after it."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from cramix.rl import ALGORITHMS, GMDQN
from cramix.rl.runs.evaluation import evaluate
from tests.refusals import refuses
from tests.rl.games import QUICK, Broken, Steps


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_only_discrete_actions(algo):
    env = gymnasium.make("Pendulum-v1")
    refuses(lambda: ALGORITHMS[algo]("MlpPolicy", env), "env", "Box", "discrete actions")


def test_actions_of_several_parts_are_refused():
    env = Steps()
    env.action_space = spaces.MultiDiscrete([2, 3])
    refuses(lambda: GMDQN("MlpPolicy", env), "env", "MultiDiscrete", "discrete actions")


def test_unknown_policy():
    with pytest.raises(ValueError, match="MlpPolicyy"):
        GMDQN("MlpPolicyy", Steps())


def goes_on(model):
    """The cure that errors name works."""
    assert all(torch.isfinite(x).all() for x in model.policy.state_dict().values())
    model.set_env(Steps() if model.n_envs == 1 else DummyVecEnv([Steps] * model.n_envs))
    before = model.num_timesteps
    model.learn(20, reset_num_timesteps=False)
    assert model.num_timesteps >= before + 20
    assert np.isfinite(model.replay_buffer.rewards).all()


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_reward_that_is_not_a_number(wrapped):
    env = DummyVecEnv([partial(Broken, 30, "reward")])
    model = GMDQN("MlpPolicy", VecNormalize(env) if wrapped else env, seed=0, **QUICK)
    with pytest.raises(ValueError, match=r"rewards must be finite; got nan from environment 0 at step 30\. Mend"):
        model.learn(100)
    assert model.replay_buffer.size() == 29
    if not wrapped:  # the statistics of the wrapper are spoilt for good
        goes_on(model)


def test_an_environment_that_raises():
    model = GMDQN("MlpPolicy", Broken(30), seed=0, **QUICK)
    with pytest.raises(ZeroDivisionError, match="the engine is off") as caught:
        model.learn(100)
    assert "after step 29 of the environments; the model is whole" in caught.value.__notes__[0]
    goes_on(model)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # that it forks
@pytest.mark.parametrize("how", ["raise", "exit"])
def test_a_process_that_ends(how):
    # A process forked later would hold the pipe of an earlier one open, so the one that ends is the first.
    env = SubprocVecEnv([partial(Broken, 30, how), Steps], start_method="fork")
    model = GMDQN("MlpPolicy", env, seed=0, **QUICK)
    with pytest.raises(RuntimeError, match="an environment's process ended at step 58; the model is whole: save it"):
        model.learn(100)
    goes_on(model)
    for process, remote in zip(env.processes, env.remotes, strict=True):  # close would wait for the dead one
        process.terminate()
        process.join()
        remote.close()


def test_an_observation_with_its_info_is_refused():
    model = GMDQN("MlpPolicy", Steps(), **QUICK)
    with pytest.raises(ValueError, match="tuple"):
        model.predict(Steps().reset())


def test_evaluation_closes_its_games_after_an_error():
    closed = []

    class Game(Broken):
        def close(self):
            closed.append(self)

    model = GMDQN("MlpPolicy", Steps(), **QUICK)
    with pytest.raises(ZeroDivisionError):
        evaluate(model, partial(Game, 3), 4)
    assert len(set(closed)) == 4
