"""Measures of risk: closed forms against samples, and agents that act by them."""

import numpy as np
import pytest
import torch

from cramix import NormalMixture
from cramix.rl import GMDQN, QRDQN, parse_risk
from tests.refusals import refuses
from tests.rl.games import QUICK, Steps


@pytest.fixture
def samples():
    return np.random.default_rng(0).normal(size=100) ** 3


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
def test_measures_of_points(samples, level):
    p = NormalMixture.from_samples(torch.tensor(samples))
    low = np.sort(samples)
    assert parse_risk("mean")(p).item() == pytest.approx(samples.mean())
    assert parse_risk(f"cvar:{level}")(p).item() == pytest.approx(low[: round(100 * level)].mean())
    assert low[round(100 * level) - 1] <= parse_risk(f"quantile:{level}")(p).item() <= low[round(100 * level)]
    e = parse_risk(f"expectile:{level}")(p).item()
    assert e == pytest.approx(p.expectile(level).item(), abs=2e-6 * np.ptp(samples))
    above, below = np.maximum(samples - e, 0).mean(), np.maximum(e - samples, 0).mean()
    assert level * above == pytest.approx((1 - level) * below, rel=1e-4)


@pytest.mark.parametrize("level", [0.01, 0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("kind", ["cvar", "quantile", "expectile"])
@pytest.mark.parametrize("compiled", [False, True])
def test_measures_of_mixtures_are_exact_to_single_precision(kind, level, compiled):
    g = torch.Generator().manual_seed(0)
    weights = torch.rand(50, 6, generator=g).pow(3)
    means = 100 + 20 * torch.randn(50, 6, generator=g)
    scales = 10 * torch.rand(50, 6, generator=g).pow(4)  # from narrow to wide
    p = NormalMixture(weights / weights.sum(-1, keepdim=True), means, scales)
    exact = p.to("cpu", torch.float64)
    truth = {"cvar": exact.cvar, "quantile": exact.icdf, "expectile": exact.expectile}[kind](
        torch.tensor(level, dtype=torch.float64)
    )
    width = (means + 6 * scales).amax(-1) - (means - 6 * scales).amin(-1)
    measure = parse_risk(f"{kind}:{level}")
    if compiled:  # by bisection
        torch._dynamo.reset()
        whole = torch.compile(
            lambda *x: measure(NormalMixture(*x, validate_args=False)), backend="eager", fullgraph=True
        )
        values = whole(p.weights, p.means, p.scales)
    else:
        values = measure(p)
    assert ((values - truth).abs() <= 5e-6 * width).all()


def test_a_function_of_ones_own():
    measure = parse_risk(lambda p: p.mean - p.stddev)
    assert measure(NormalMixture.from_samples(torch.tensor([-1.0, 1.0]))).item() == pytest.approx(-1)


@pytest.mark.parametrize(
    "risk", ["cvar", "cvar:", "cvar:0", "quantile:1", "expectile:nan", "mean:0.5", "var:0.1", 3, None]
)
def test_bad_risk_is_refused(risk):
    refuses(lambda: parse_risk(risk), "risk", repr(risk), "cvar:level")


def gamble(cls, means, **settings):
    """An agent that knows the returns of three actions, whatever it sees."""
    model = cls("MlpPolicy", Steps(), seed=0, **{**QUICK, "policy_kwargs": {"members": 1}}, **settings)
    outputs = model.policy.q_net.returns.values.actions
    with torch.no_grad():
        outputs.weight.zero_()
        outputs.bias.copy_(torch.as_tensor(means).flatten())
    return model


def test_predict_acts_by_the_risk_asked_for():
    # A sure 1; -5 or 9 at even odds; -1 or 4 at even odds: means are 1, 2, 1.5.
    model = gamble(QRDQN, [[1.0, 1.0], [-5.0, 9.0], [-1.0, 4.0]], returns={"quantiles": 2})
    seen = np.zeros((4, 2))

    def act(risk):
        return set(model.predict(seen, deterministic=True, risk=risk)[0].tolist())

    assert act(None) == act("mean") == {1}
    assert act("cvar:0.5") == act("quantile:0.3") == act("expectile:0.05") == {0}
    assert act("quantile:0.8") == {1}
    assert act(lambda p: -(p.mean - 1.5).abs()) == {2}


def test_risk_of_the_settings_is_what_the_agent_acts_by():
    means = [[1.0, 1.0], [-5.0, 9.0], [-1.0, 4.0]]
    model = gamble(QRDQN, means, returns={"quantiles": 2}, risk="cvar:0.5")
    assert model.predict(np.zeros(2), deterministic=True)[0] == 0
    assert model.predict(np.zeros(2), deterministic=True, risk="mean")[0] == 1
    model.exploration_rate, model.num_timesteps = 0.0, 1000
    model._last_obs = np.zeros((1, 2))
    assert model._sample_action(0, n_envs=1)[0] == [0]


@pytest.mark.parametrize("risk", ["cvar:0.2", "expectile:0.3", "quantile:0.5", lambda p: p.mean - p.stddev])
def test_training_by_risk_runs(risk):
    model = GMDQN("MlpPolicy", Steps(), seed=0, risk=risk, **QUICK).learn(60)
    assert model._n_updates == 40
    assert all(torch.isfinite(p).all() for p in model.policy.parameters())
