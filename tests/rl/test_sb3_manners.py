"""What people do with models of Stable-Baselines3 besides learning works here too, or says what to do instead."""

import functools
import io

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from cramix.rl import GMDQN
from tests.rl.games import QUICK, Steps
from tests.rl.learners import same


def vector(net):
    return torch.cat([p.flatten() for p in net.parameters()])


class Chase(gymnasium.Env):
    """A dictionary whose keys are not in the order of the alphabet; a mix-up of them is another answer."""

    def __init__(self, keys=("position", "goal")):
        self.observation_space = spaces.Dict([(key, spaces.Box(-1, 1, (2,), np.float32)) for key in keys])
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action):
        return self._seen(), float(action), True, False, {}

    def _seen(self):
        return {key: self.np_random.uniform(-1, 1, 2).astype(np.float32) for key in self.observation_space.spaces}


@pytest.mark.parametrize("env", [None, Chase, lambda: Chase(("goal", "position"))])
def test_keys_keep_their_order_in_files(env, tmp_path):
    model = GMDQN("MultiInputPolicy", Chase(), seed=0, **QUICK).learn(40)
    model.save(tmp_path / "agent")
    again = GMDQN.load(tmp_path / "agent", None if env is None else env())
    seen = {key: np.random.default_rng(0).uniform(-1, 1, (50, 2)).astype(np.float32) for key in ("goal", "position")}
    assert torch.equal(model.return_distribution(seen).means, again.return_distribution(seen).means)
    assert list(again.observation_space.spaces) == ["position", "goal"]


class MyBox(spaces.Box):
    """A space of one's own."""


class MyDiscrete(spaces.Discrete):
    """Actions of one's own."""


def test_spaces_of_ones_own_are_in_files_as_what_they_are(tmp_path):
    env = Steps()
    env.observation_space, env.action_space = MyBox(-np.inf, np.inf, (2,), np.float64), MyDiscrete(3)
    model = GMDQN("MlpPolicy", env, seed=0, **QUICK)
    model.save(tmp_path / "agent")
    assert same(model, GMDQN.load(tmp_path / "agent", env))
    assert same(model, GMDQN.load(tmp_path / "agent"))


def test_files_that_are_open():
    model, stream = GMDQN("MlpPolicy", Steps(), seed=0, **QUICK).learn(30), io.BytesIO()
    model.save(stream)
    stream.seek(0)
    assert same(model, GMDQN.load(stream))


def test_a_folder_is_made(tmp_path):
    model = GMDQN("MlpPolicy", Steps(), seed=0, **QUICK)
    model.save(tmp_path / "new" / "folder" / "agent")
    assert same(model, GMDQN.load(tmp_path / "new" / "folder" / "agent"))


@pytest.mark.parametrize("acting_only", [False, True])
def test_parameters_of_a_file(acting_only, tmp_path):
    model = GMDQN("MlpPolicy", Steps(), seed=0, **QUICK).learn(60)
    model.save(tmp_path / "agent", acting_only=acting_only)
    other = GMDQN("MlpPolicy", Steps(), seed=1, **QUICK)
    other.set_parameters(tmp_path / "agent")
    assert torch.equal(*(vector(m.q_net) for m in (model, other)))
    assert torch.equal(*(vector(m.q_net_target) for m in (model, other))) != acting_only
    other = GMDQN("MlpPolicy", Steps(), seed=2, **QUICK)
    other.set_parameters(model.get_parameters())
    assert same(model, other)


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_the_log_goes_on_where_it_was(kind, tmp_path):
    folder = tmp_path / "log"
    model = GMDQN("MlpPolicy", Steps(), tensorboard_log=kind(folder), verbose=1, stats_window_size=7, **QUICK)
    model.save(tmp_path / "agent")
    again = GMDQN.load(tmp_path / "agent")
    assert (again.tensorboard_log, again.verbose, again._stats_window_size) == (str(folder), 1, 7)
    assert GMDQN.load(tmp_path / "agent", verbose=0).verbose == 0


def test_arguments_of_load(tmp_path, capsys):
    model = GMDQN("MlpPolicy", Steps(), seed=0, **QUICK)
    model.save(tmp_path / "agent")
    other = {"gamma": 0.5, "lr_schedule": lambda left: left}
    again = GMDQN.load(tmp_path / "agent", custom_objects=other, print_system_info=True, force_reset=True)
    assert again.gamma == 0.5
    assert "Python" in capsys.readouterr().out


def test_numbers_that_are_whole(tmp_path):
    """A rate of 0 in JSON is no float."""
    model = GMDQN("MlpPolicy", Steps(), exploration_final_eps=0, exploration_fraction=0.1, **QUICK).learn(60)
    model.save(tmp_path / "agent")
    assert GMDQN.load(tmp_path / "agent").exploration_rate == 0


def test_what_the_caller_changes_is_not_the_fault_of_the_file(tmp_path):
    GMDQN("MlpPolicy", Steps(), **QUICK).save(tmp_path / "agent")
    with pytest.raises(ValueError, match=r"must fit its settings with policy_kwargs changed; .* Change other settings"):
        GMDQN.load(tmp_path / "agent", policy_kwargs={"net_arch": [9]})
    with pytest.raises(RuntimeError, match="nowhere"):
        GMDQN.load(tmp_path / "agent", device="nowhere")


def test_an_activation_that_is_a_function():
    activation = functools.partial(torch.nn.LeakyReLU, 0.1)
    model = GMDQN("MlpPolicy", Steps(), **QUICK | {"policy_kwargs": {"net_arch": [8], "activation_fn": activation}})
    assert model.policy.q_net.each[0][0][1].negative_slope == 0.1


def test_no_seed_leaves_random_numbers_as_they_are():
    model = GMDQN("MlpPolicy", Steps(), seed=3, **QUICK)
    state = model.exploration.generator.bit_generator.state
    model.set_random_seed(None)
    assert model.exploration.generator.bit_generator.state == state


def test_a_seed_that_is_set_later():
    def learned():
        model = GMDQN("MlpPolicy", Steps(), **QUICK)
        model.set_parameters(start)
        model.set_random_seed(9)
        model.exploration_rate = 0.5
        model.learn(60)
        return model, model.env.get_attr("actions")

    start = GMDQN("MlpPolicy", Steps(), **QUICK).get_parameters()
    (one, actions), (two, others) = learned(), learned()
    assert same(one, two)
    assert actions == others


class Pictures(gymnasium.Env):
    """Images whose values are between 0 and 1 already."""

    observation_space = spaces.Box(0, 1, (3, 36, 36), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, True, False, {}


def test_images_that_are_not_bytes():
    settings = {**QUICK, "policy_kwargs": {"normalize_images": False}}
    model = GMDQN("CnnPolicy", Pictures(), **settings).learn(25)
    assert model.return_distribution(Pictures.observation_space.sample()).batch_shape == (2,)
