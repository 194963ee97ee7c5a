"""Settings: the signature, presets, changes in flight, schedules, refusals."""

import inspect

import pytest
import sb3_contrib
import stable_baselines3
import torch
from stable_baselines3.common.utils import LinearSchedule

from cramix.rl import ALGORITHMS, GMDQN, JTDQN
from cramix.rl.settings import check_setting
from tests.refusals import refuses
from tests.rl.games import QUICK, Steps

OURS = ["final_learning_rate", "fraction_learning_rate", "return_scale", "risk", "compile", "returns"]


@pytest.mark.parametrize("peer", [stable_baselines3.DQN, sb3_contrib.QRDQN])
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_signature_is_that_of_stable_baselines3_with_ours_behind_it(algo, peer):
    ours, theirs = (inspect.signature(kind).parameters for kind in (ALGORITHMS[algo], peer))
    assert list(ours) == [*theirs, *OURS]
    for name in theirs:
        assert ours[name].kind == theirs[name].kind
        assert (ours[name].default is inspect.Parameter.empty) == (theirs[name].default is inspect.Parameter.empty)
    assert all(ours[name].kind is inspect.Parameter.KEYWORD_ONLY for name in OURS)


def test_arguments_by_their_place():
    model = GMDQN("MlpPolicy", Steps(), 1e-3, 500, 20, 16, 0.1, 0.9, 2, 3)
    found = model.learning_rate, model.buffer_size, model.learning_starts, model.batch_size, model.tau, model.gamma
    assert found == (1e-3, 500, 20, 16, 0.1, 0.9)
    assert (model.train_freq.frequency, model.gradient_steps) == (2, 3)


def test_a_preset_keeps_what_is_not_named():
    changed = GMDQN.preset("paper", returns={"n_components": 5}, policy_kwargs={"net_arch": [4]})
    assert changed["returns"] == {**GMDQN.preset("paper")["returns"], "n_components": 5}
    assert changed["policy_kwargs"]["net_arch"] == [4]
    assert changed["policy_kwargs"]["members"] == 1
    assert GMDQN.presets["paper"]["returns"]["n_components"] == 3
    assert GMDQN.preset() == {}


def test_options_of_returns_keep_those_that_are_not_named():
    model = JTDQN("MlpPolicy", Steps(), returns={"n_components": 5}, **QUICK)
    assert (model.q_net.returns.min_scale, model.q_net.returns.n_components) == (0.05, 5)


def test_learning_rate_goes_on_a_line_to_its_last_part():
    model = GMDQN("MlpPolicy", Steps(), learning_rate=0.4, final_learning_rate=0.25, **QUICK)
    assert [model.lr_schedule(left) for left in (1.0, 0.5, 0.0)] == pytest.approx([0.4, 0.25, 0.1])


def test_a_schedule_of_ones_own_is_taken_as_it_is():
    model = GMDQN("MlpPolicy", Steps(), learning_rate=lambda left: left**2, final_learning_rate=0.5, **QUICK)
    assert model.lr_schedule(0.5) == 0.25


def test_unknown_names_suggest_the_one_that_was_meant():
    with pytest.raises(TypeError, match="batchsize"):
        GMDQN("MlpPolicy", "CartPole-v1", batchsize=3)
    with pytest.raises(TypeError, match=r"got batchsize\. Did you mean batch_size\?"):
        GMDQN.preset(batchsize=3)
    with pytest.raises(TypeError, match=r"got netarch\. Did you mean net_arch\?"):
        GMDQN("MlpPolicy", "CartPole-v1", policy_kwargs={"netarch": [8]})
    with pytest.raises(TypeError, match=r"got n_quantiles\. There are net_arch"):
        GMDQN("MlpPolicy", "CartPole-v1", policy_kwargs={"n_quantiles": 9})


def test_unknown_preset():
    refuses(lambda: GMDQN.preset("papr"), "preset", "'papr'", "default, atari, paper")
    refuses(lambda: ALGORITHMS["c51"].preset("paper"), "preset", "'paper'")


BAD = [
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
    ("compile", "always", "always"),
    ("risk", "cvar:2", "cvar:2"),
    ("train_freq", (1, "day"), "day"),
    ("train_freq", 0, "0"),
    ("train_freq", "often", "often"),
    ("policy_kwargs", [8], "8"),
]


@pytest.mark.parametrize(("name", "value", "got"), BAD)
def test_bad_values_are_refused(name, value, got):
    refuses(lambda: GMDQN("MlpPolicy", "CartPole-v1", **{name: value}), name, got)


def test_bad_values_are_refused_later_too():
    model = GMDQN("MlpPolicy", Steps(), **QUICK)
    for name, value, got in BAD:
        refuses(lambda name=name, value=value: setattr(model, name, value), name, got)


@pytest.mark.parametrize("good", [4, (4, "step"), (1, "episode"), [1, "episode"]])
def test_train_freq_of_all_kinds(good):
    check_setting("train_freq", good)


@pytest.mark.parametrize(
    ("name", "value"), [("buffer_size", 7), ("policy_kwargs", {"members": 3}), ("optimize_memory_usage", True)]
)
def test_what_shapes_networks_and_buffer_is_not_changed_later(name, value):
    model = GMDQN("MlpPolicy", Steps(), **QUICK)
    with pytest.raises(AttributeError, match=f"{name} must be set when the model is created"):
        setattr(model, name, value)
    setattr(model, name, getattr(model, name))  # no change


class Recorded(GMDQN):
    """Keeps what an update is told."""

    def train(self, gradient_steps, batch_size=100):
        super().train(gradient_steps, batch_size)
        self.rates = [group["lr"] for group in self.policy.optimizer.param_groups]
        self.asked = gradient_steps, batch_size


def test_settings_that_change_in_flight_take_effect():
    model = Recorded("MlpPolicy", Steps(), seed=0, final_learning_rate=1.0, **QUICK).learn(30)
    assert model.rates == [5e-4]
    model.learning_rate, model.gamma, model.n_steps, model.batch_size, model.tau = 0.25, 0.5, 2, 7, 1.0
    model.exploration_initial_eps = model.exploration_final_eps = 0.125
    model.train_freq, model.gradient_steps, model.target_update_interval = 4, 2, 3
    model.learn(8, reset_num_timesteps=False)
    assert model.rates == [0.25]
    assert model.asked == (2, 7)
    assert model.exploration_rate == 0.125
    assert model.policy.optimizer.param_groups[0]["lr"] == 0.25
    samples = model.replay_buffer.sample(200)
    assert set(samples.discounts.flatten().tolist()) == {0.5, 0.25}
    model.lr_schedule = LinearSchedule(0.5, 0.5, 1.0)
    model.train(1, 8)
    assert model.rates == [0.5]
    model.max_grad_norm = 1e-9
    model.learning_rate = 1.0
    before = torch.cat([p.flatten() for p in model.q_net.parameters()]).clone()
    model.policy.optimizer = torch.optim.SGD(model.q_net.parameters(), lr=1.0)
    model.train(1, 8)
    assert (torch.cat([p.flatten() for p in model.q_net.parameters()]) - before).norm() < 1e-6


@pytest.mark.parametrize(("tau", "interval"), [(1.0, 3), (0.25, 1)])
def test_the_target_network_follows_when_and_as_far_as_it_is_told(tau, interval):
    model = GMDQN("MlpPolicy", Steps(), seed=0, **QUICK).learn(30)
    model.tau, model.target_update_interval, model._n_calls = tau, interval, 0
    with torch.no_grad():
        for p in model.q_net.parameters():
            p.add_(1.0)
    truth = [p.clone() for p in model.q_net_target.parameters()]
    for step in range(1, 7):
        model._on_step()
        if step % interval == 0:
            truth = [q + tau * (p - q) for p, q in zip(model.q_net.parameters(), truth, strict=True)]
        for p, q in zip(model.q_net_target.parameters(), truth, strict=True):
            torch.testing.assert_close(p, q)


def test_risk_and_the_unit_of_returns_change_in_flight():
    model = GMDQN("MlpPolicy", Steps(), seed=0, **QUICK).learn(60)
    seen = [[1.0, 1.0], [3.0, 1.0]]
    before = model.return_distribution(seen)
    model.return_scale = 100.0
    assert model.policy.unit == 100
    torch.testing.assert_close(model.return_distribution(seen).mean, before.mean, rtol=1e-4, atol=1e-3)
    model.risk = "cvar:0.25"
    values = model.return_distribution(seen).cvar(0.25)
    assert model.predict(seen, deterministic=True)[0].tolist() == values.argmax(-1).tolist()


def test_paper_preset_makes_the_papers_agent():
    arguments = GMDQN.preset("paper", learning_starts=10)
    model = GMDQN("MlpPolicy", "CartPole-v1", seed=0, **arguments).learn(30)
    layers = [layer for layer in model.policy.q_net.each[0][0] if isinstance(layer, torch.nn.Linear)]
    assert [layer.out_features for layer in layers] == [128, 128]
    assert [group["lr"] for group in model.policy.optimizer.param_groups] == pytest.approx([5e-5, 5e-9])
    assert type(model.policy.optimizer).__name__ == "Lion"
    assert model.policy.unit == 1
    assert model.return_distribution([0.0, 0, 0, 0]).means.shape == (2, 3)


def test_presets_are_copies():
    GMDQN.preset("atari")["policy_kwargs"]["members"] = 7
    assert GMDQN.preset("atari")["policy_kwargs"] == JTDQN.preset("atari")["policy_kwargs"] == {"members": 1}


def test_the_window_of_the_log_is_a_setting():
    model = GMDQN("MlpPolicy", Steps(), stats_window_size=7, **QUICK).learn(30)
    assert model.stats_window_size == model.ep_info_buffer.maxlen == 7
    model.stats_window_size = 3
    assert model.learn(30, reset_num_timesteps=False).ep_info_buffer.maxlen == 3
    refuses(lambda: setattr(model, "stats_window_size", 0), "stats_window_size", "0")


def test_the_default_of_tau_goes_with_the_interval():
    model = GMDQN("MlpPolicy", Steps(), seed=0, **QUICK).learn(30)
    assert model.tau == 0.005
    model.target_update_interval = 10
    assert model.tau == 1.0
    model._n_calls = 9
    model._on_step()
    for p, q in zip(model.q_net.parameters(), model.q_net_target.parameters(), strict=True):
        assert torch.equal(p, q)
