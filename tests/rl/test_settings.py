"""Settings: presets, changes by name, schedules, refusals."""

import dataclasses
import inspect

import pytest
import torch

from cramix.rl import ALGORITHMS, GMDQN, JTDQN, Settings
from tests.refusals import refuses


def test_changes_keep_what_is_not_named():
    changed = JTDQN.presets["default"].replace(returns={"n_components": 5}, policy_kwargs={"net_arch": [4]})
    assert changed.returns == {"min_scale": 0.05, "n_components": 5}
    assert changed.policy_kwargs == {"net_arch": [4]}
    assert Settings().returns == {}


def test_learning_rate_goes_on_a_line_to_its_last_part():
    settings = Settings(learning_rate=0.4, final_learning_rate=0.25)
    assert [settings.rate(left) for left in (1.0, 0.5, 0.0)] == pytest.approx([0.4, 0.25, 0.1])


def test_a_schedule_of_ones_own_is_taken_as_it_is():
    assert Settings(learning_rate=lambda left: left**2, final_learning_rate=0.5).rate(0.5) == 0.25


def test_unknown_setting_suggests_the_one_that_was_meant():
    with pytest.raises(TypeError, match=r"got batchsize\. Did you mean batch_size\?"):
        GMDQN("MlpPolicy", "CartPole-v1", batchsize=3)
    with pytest.raises(TypeError, match=r"got zzz\. There are learning_rate"):
        GMDQN("MlpPolicy", "CartPole-v1", zzz=3)


def test_unknown_layers_suggest_the_one_that_was_meant():
    with pytest.raises(TypeError, match=r"got netarch\. Did you mean net_arch\?"):
        GMDQN("MlpPolicy", "CartPole-v1", policy_kwargs={"netarch": [8]})


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_signatures_are_written_out(algo):
    kind = ALGORITHMS[algo]
    parameters = inspect.signature(kind).parameters
    assert list(parameters)[:3] == ["policy", "env", "preset"]
    for field in dataclasses.fields(Settings):
        assert parameters[field.name].default == getattr(kind.presets["default"], field.name)
        assert parameters[field.name].annotation == field.type
        assert parameters[field.name].kind is inspect.Parameter.KEYWORD_ONLY
    assert all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    inspect.signature(kind).bind("MlpPolicy", "CartPole-v1", gamma=0.9, seed=3)


def test_a_constructor_of_ones_own_has_its_own_signature():
    class Mine(GMDQN):
        def __init__(self, env):
            super().__init__("MlpPolicy", env)

    assert list(inspect.signature(Mine).parameters) == ["env"]


def test_unknown_preset():
    refuses(lambda: GMDQN("MlpPolicy", "CartPole-v1", preset="papr"), "preset", "'papr'", "default, paper")
    refuses(lambda: ALGORITHMS["c51"]("MlpPolicy", "CartPole-v1", preset="paper"), "preset", "'paper'")


@pytest.mark.parametrize(
    ("name", "value", "got"),
    [
        ("batch_size", 0, "0"),
        ("buffer_size", 1.5, "1.5"),
        ("n_steps", 0, "0"),
        ("learning_starts", -1, "-1"),
        ("gradient_steps", -2, "-2"),
        ("learning_rate", -1e-3, "-0.001"),
        ("fraction_learning_rate", float("nan"), "nan"),
        ("max_grad_norm", 0.0, "0"),
        ("gamma", 1.5, "1.5"),
        ("tau", "half", "half"),
        ("exploration_final_eps", -0.1, "-0.1"),
        ("return_scale", 0.0, "0"),
        ("optimizer", "sgd", "sgd"),
        ("compile", "always", "always"),
        ("risk", "cvar:2", "cvar:2"),
        ("train_freq", (1, "day"), "day"),
        ("train_freq", 0, "0"),
        ("train_freq", "often", "often"),
    ],
)
def test_bad_values_are_refused(name, value, got):
    refuses(lambda: Settings(**{name: value}), name, got)


@pytest.mark.parametrize("good", [4, (4, "step"), (1, "episode"), [1, "episode"]])
def test_train_freq_of_all_kinds(good):
    Settings(train_freq=good)


def test_paper_preset_makes_the_papers_agent():
    model = GMDQN("MlpPolicy", "CartPole-v1", preset="paper", learning_starts=10, seed=0).learn(30)
    layers = [layer for layer in model.policy.q_net.each[0][0] if isinstance(layer, torch.nn.Linear)]
    assert [layer.out_features for layer in layers] == [128, 128]
    assert [group["lr"] for group in model.learner.optimizer.param_groups] == pytest.approx([5e-5, 5e-9])
    assert type(model.learner.optimizer).__name__ == "Lion"
    assert model.policy.unit == 1
    assert model.return_distribution([0.0, 0, 0, 0]).means.shape == (2, 3)
