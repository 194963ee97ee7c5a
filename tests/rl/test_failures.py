"""What goes wrong in environments is said clearly, and the agent is whole after it."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from cramix.rl import ALGORITHMS, GMDQN
from cramix.rl.evaluation import evaluate
from tests.refusals import refuses
from tests.rl.games import QUICK, Broken, Steps


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_only_discrete_actions(algo):
    env = gymnasium.make("Pendulum-v1")
    with pytest.raises(AssertionError, match=r"only supports .*Discrete.* but Box"):  # as in Stable-Baselines3
        ALGORITHMS[algo]("MlpPolicy", env)


def test_actions_of_several_parts_are_refused():
    env = Steps()
    env.action_space = spaces.MultiDiscrete([2, 3])
    with pytest.raises(AssertionError, match=r"only supports .*Discrete.* but MultiDiscrete"):
        GMDQN("MlpPolicy", env)


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
    with pytest.raises(ValueError, match=r"rewards must be finite; got nan from environment 0 at step 30\. Fix"):
        model.learn(100)
    assert model.replay_buffer.size() == 29
    if not wrapped:  # the statistics of the wrapper are spoilt for good
        goes_on(model)


def test_an_observation_that_is_not_a_number():
    model = GMDQN("MlpPolicy", Broken(30, "seen"), seed=0, **QUICK)
    with pytest.raises(ValueError, match=r"observations must be finite; got nan\. Fix"):
        model.learn(100)
    assert model.replay_buffer.size() == 29
    goes_on(model)


def seeing(space, **more):
    env = Steps()
    env.observation_space = spaces.Dict({"a": space, **more}) if more else space
    return env


@pytest.mark.parametrize(
    ("policy", "env", "name", "got", "rule"),
    [
        ("MlpPolicy", seeing(spaces.Text(5)), "observations", "Text", "Box"),
        ("MlpPolicy", seeing(spaces.Tuple([spaces.Discrete(2)])), "observations", "Tuple", "Box"),
        ("MlpPolicy", seeing(spaces.Box(0, 1, ())), "observations", "single number", "shape"),
        ("MlpPolicy", seeing(spaces.MultiDiscrete([3, 3], start=[1, 0])), "observations", "MultiDiscrete", "from 0"),
        ("MlpPolicy", seeing(spaces.MultiDiscrete([[3, 3], [2, 2]])), "observations", "MultiDiscrete", "a vector"),
        ("MultiInputPolicy", seeing(spaces.Box(0, 1, (2,))), "MultiInputPolicy", "Box", "dictionaries"),
        ("MultiInputPolicy", seeing(spaces.Box(0, 1, (2,)), b=spaces.Text(3)), "observations of b", "Text", "Box"),
        ("MultiInputPolicy", seeing(spaces.Discrete(2), action_mask=spaces.MultiBinary(2)), "action_mask", "2", "3"),
        ("MlpPolicy", None, "env", "None", "environment"),
    ],
)
def test_spaces_that_networks_cannot_see(policy, env, name, got, rule):
    refuses(lambda: GMDQN(policy, env, **QUICK), name, got, rule)


@pytest.mark.parametrize(
    ("settings", "name", "got"),
    [
        ({"policy_kwargs": {"net_arch": 5}}, "net_arch", "5"),
        ({"policy_kwargs": {"net_arch": "64"}}, "net_arch", "64"),
        ({"policy_kwargs": {"net_arch": [64, 0]}}, "net_arch", "0"),
        ({"policy_kwargs": {"activation_fn": "Tanh"}}, "activation_fn", "Tanh"),
        ({"policy_kwargs": 5}, "policy_kwargs", "5"),
        ({"returns": [1]}, "returns", "[1]"),
        ({"gamma": True}, "gamma", "True"),
    ],
)
def test_settings_that_make_no_network(settings, name, got):
    refuses(lambda: GMDQN("MlpPolicy", Steps(), **settings), name, got)


@pytest.mark.parametrize(("risk", "got"), [(lambda p: p.means, "(1, 3, 6)"), (lambda p: 1.0, "float")])
def test_a_risk_of_ones_own_that_is_none(risk, got):
    model = GMDQN("MlpPolicy", Steps(), **QUICK)
    refuses(lambda: model.predict([1.0, 2.0], risk=risk), "risk", got, "(1, 3)")


def test_an_environment_that_raises():
    model = GMDQN("MlpPolicy", Broken(30), seed=0, **QUICK)
    with pytest.raises(ZeroDivisionError, match="the engine is off") as caught:
        model.learn(100)
    assert "after step 29 of the environments. The model is intact" in caught.value.__notes__[0]
    goes_on(model)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # that it forks
def test_a_process_that_ends_at_once():
    env = SubprocVecEnv([partial(Broken, 0, "exit")], start_method="fork")
    model = GMDQN("MlpPolicy", env, seed=0, **QUICK)
    with pytest.raises(RuntimeError, match="An environment worker exited at step 0"):
        model.learn(100)
    env.remotes[0].close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # that it forks
@pytest.mark.parametrize("how", ["raise", "exit"])
def test_a_process_that_ends(how):
    # A process forked later would hold the pipe of an earlier one open, so the one that ends is the first.
    env = SubprocVecEnv([partial(Broken, 30, how), Steps], start_method="fork")
    model = GMDQN("MlpPolicy", env, seed=0, **QUICK)
    with pytest.raises(RuntimeError, match=r"An environment worker exited at step 58\. The model is intact: save it"):
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
