"""Copies of agents learn on exactly as the original does."""

import copy
import pickle

import cloudpickle
import numpy as np
import pytest
import torch

from cramix.rl import ALGORITHMS, GMDQN
from tests.rl.games import QUICK
from tests.rl.learners import compile_with, same

COPIES = {
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "cloudpickle": lambda model: pickle.loads(cloudpickle.dumps(model)),
    "deepcopy": copy.deepcopy,
}


def learn_on(model, steps=40):
    before = [p.detach().clone() for p in model.q_net.parameters()]
    model.learn(steps, reset_num_timesteps=False)
    assert all(not torch.equal(p, q) for p, q in zip(model.q_net.parameters(), before, strict=True))
    return model


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("algo", ["gmdqn", "fqf"])
def test_copies_learn_on(how, algo):
    model = ALGORITHMS[algo]("MlpPolicy", "CartPole-v1", seed=0, verbose=1, **QUICK).learn(60)
    copied = COPIES[how](model)
    assert copied.policy is not model.policy
    assert copied.q_net is copied.policy.q_net is copied.learner.policy.q_net
    assert same(learn_on(model), learn_on(copied))
    assert not same(learn_on(model), copied)


def test_copies_of_copies_and_of_models_that_never_learned():
    model = GMDQN("MlpPolicy", "CartPole-v1", seed=0, **QUICK)
    copied = copy.deepcopy(pickle.loads(pickle.dumps(model)))
    assert same(model.learn(50), copied.learn(50))


def test_a_policy_in_a_file_of_torch(tmp_path):
    model = GMDQN("MlpPolicy", "CartPole-v1", seed=0, risk="cvar:0.1", **QUICK).learn(60)
    model.policy.save(tmp_path / "policy.pkl")
    again = type(model.policy).load(tmp_path / "policy.pkl")
    seen = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    np.testing.assert_array_equal(
        model.policy.predict(seen, deterministic=True)[0], again.predict(seen, deterministic=True)[0]
    )
    assert again.measure == model.policy.measure
    model.risk = "mean"
    model.q_net.save(tmp_path / "net.pkl")
    net = type(model.q_net).load(tmp_path / "net.pkl")
    assert torch.equal(net(torch.as_tensor(seen)).means, model.q_net(torch.as_tensor(seen)).means)
    np.testing.assert_array_equal(net.predict(seen)[0], model.predict(seen, deterministic=True)[0])


def test_weights_that_are_loaded_are_those_that_learn():
    model, other = (GMDQN("MlpPolicy", "CartPole-v1", seed=seed, **QUICK).learn(60) for seed in (0, 1))
    other.set_parameters(model.get_parameters())
    other.replay_buffer, other.exploration = copy.deepcopy(model.replay_buffer), copy.deepcopy(model.exploration)
    for one in (model, other):
        one.train(20, 16)
    assert same(model, other)


def test_other_types_learn_on_and_come_back():
    model = GMDQN("MlpPolicy", "CartPole-v1", seed=0, **QUICK).learn(60)
    plain = copy.deepcopy(model)
    model.policy.to(torch.float64)
    moments = [x for state in model.policy.optimizer.state.values() for x in state.values() if x.ndim]
    assert {x.dtype for x in moments} == {torch.float64}
    model.policy.to(torch.float32)
    assert same(learn_on(plain), learn_on(model))
    model.policy.to(torch.float64)
    learn_on(model)
    assert {p.dtype for p in model.q_net.parameters()} == {torch.float64}


def test_another_policy_is_the_one_that_learns():
    model, other = (GMDQN("MlpPolicy", "CartPole-v1", seed=seed, **QUICK).learn(40) for seed in (0, 1))
    before = [p.detach().clone() for p in other.q_net.parameters()]
    model.policy = other.policy
    assert model.q_net is other.q_net
    model.final_learning_rate = 1.0
    model.train(5, 16)
    assert all(not torch.equal(p, q) for p, q in zip(other.q_net.parameters(), before, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("how", COPIES)
def test_copies_of_compiled_models_learn_on(how, monkeypatch):
    compile_with(monkeypatch, "aot_eager")
    model = GMDQN("MlpPolicy", "CartPole-v1", seed=0, compile=True, **QUICK).learn(40)
    assert model.learner.compiled
    copied = COPIES[how](model)
    assert copied.learner.compiled
    assert same(learn_on(model, 10), learn_on(copied, 10))
