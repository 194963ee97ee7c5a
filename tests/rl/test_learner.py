"""The learner: targets by hand, target networks, learning rates of groups, clipping, compiled updates."""

import builtins

import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn
from torch._dynamo.backends.debugging import aot_eager
from torch.nn.functional import smooth_l1_loss

from cramix import NormalMixture, cramer_loss
from cramix.rl import ALGORITHMS
from cramix.rl.objective import METRICS
from cramix.rl.replay import Transitions
from cramix.rl.risk import parse_risk
from tests.rl.learners import ACTIONS, STATES, Stepper, batch, compile_with, learner, network, policy


def metrics(values):
    return dict(zip(METRICS, values.tolist(), strict=True))


def value_table(net):
    return net(torch.arange(STATES)).mean().detach()


@pytest.mark.parametrize("unit", [1.0, 5.0])
def test_double_dqn_by_hand(unit):
    learn, online, target = learner("ddqn", unit)
    here, there, b = value_table(online), value_table(target), batch()
    truth = 0.0
    for s, a, r, s2, d in zip(*(x.tolist() for x in b), strict=True):
        best = max(range(ACTIONS), key=lambda i: here[s2, i].item())  # chosen by one network, judged by the other
        goal = r / unit + d * there[s2, best].item()
        truth += smooth_l1_loss(here[s, a], torch.tensor(goal)).item() / len(b.rewards)
    assert metrics(learn.update(b, 0.1))["loss"] == pytest.approx(truth, rel=1e-5)


@pytest.mark.parametrize("risk", [None, "cvar:0.2"])
def test_mixtures_by_hand(risk):
    learn, online, target = learner("gmdqn", 2.0, risk)
    torch.manual_seed(3)
    for parameter in online.parameters():  # so that the best action is not the same everywhere
        nn.init.normal_(parameter)
    b = batch()
    judge = (lambda p: p.mean) if risk is None else parse_risk(risk)
    total, picks = 0.0, []
    for s, a, r, s2, d in zip(*(x.tolist() for x in b), strict=True):
        with torch.no_grad():
            p, ahead, goal = (net(torch.tensor([i])) for net, i in ((online, s), (online, s2), (target, s2)))
        best = judge(ahead.mixture(2.0))[0].argmax()
        picks.append(best.item())
        w, m, v = (x[0, best] for x in goal[:3])
        q = NormalMixture(w, r / 2 + d * m, d * v) if d else torch.tensor([r / 2])
        total += cramer_loss(NormalMixture(*(x[0, a] for x in p[:3])), q).item() / len(b.rewards)
    assert metrics(learn.update(b, 0.1))["loss"] == pytest.approx(total, rel=1e-5)
    assert len(set(picks)) > 1


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_targets_have_no_gradient_and_updates_descend(algo):
    learn, _, target = learner(algo, target_update_interval=1000, learning_rate=0.05)
    frozen, b = [p.clone() for p in target.parameters()], batch(32)
    first = metrics(learn.update(b, 0.05))
    for _ in range(30):
        last = metrics(learn.update(b, 0.05))
    assert last["loss"] < first["loss"]
    for p, q in zip(target.parameters(), frozen, strict=True):
        assert torch.equal(p, q)
    assert all(p.grad is None for p in target.parameters())


def gradient(algo, b):
    """The gradient by plain autograd, with the target made by hand."""
    online, target = network(algo, 0), network(algo, 1)
    with torch.no_grad():
        best = online(b.next_observations).mean().argmax(-1)
        goal = target(b.next_observations).select(best)
        goal = goal._replace(
            means=b.rewards[:, None] + b.discounts[:, None] * goal.means, scales=b.discounts[:, None] * goal.scales
        )
    online.returns.loss(online(b.observations).select(b.actions), goal).mean().backward()
    return {name: p.grad for name, p in online.named_parameters()}


@pytest.mark.parametrize("algo", ["gmdqn", "fqf", "c51"])
def test_each_group_has_its_own_rate_and_both_follow_the_schedule(algo):
    slopes = gradient(algo, batch())
    for rate in (0.4, 0.1):  # at the start of the schedule, and later
        learn, online, _ = learner(algo, learning_rate=0.4, fraction_learning_rate=0.004)
        before = {name: p.clone() for name, p in online.named_parameters()}
        slow = {id(p) for p in online.returns.fractions()}
        learn.update(batch(), rate)
        for name, p in online.named_parameters():
            step = rate * (0.01 if id(p) in slow else 1.0)
            torch.testing.assert_close(before[name] - p, step * slopes[name], rtol=1e-3, atol=1e-7)


def test_fractions_are_in_the_common_group_without_a_rate_of_their_own():
    learn, *_ = learner("gmdqn")
    assert len(learn.policy.optimizer.param_groups) == 1
    learn, *_ = learner("qrdqn", fraction_learning_rate=1e-3)  # it has no fractions
    assert len(learn.policy.optimizer.param_groups) == 1


def test_a_rate_that_starts_at_zero_has_no_share_for_fractions():
    learner("fqf", learning_rate=lambda left: 0.1 * (1 - left))
    with pytest.raises(ValueError, match="fraction_learning_rate"):
        learner("fqf", learning_rate=lambda left: 0.1 * (1 - left), fraction_learning_rate=1e-3)


def test_lion_takes_steps_of_one_size():
    learn, online, _ = learner("gmdqn", optimizer_class="Lion", learning_rate=1e-3, fraction_learning_rate=1e-5)
    slopes = gradient("gmdqn", batch())
    before = {name: p.clone() for name, p in online.named_parameters()}
    learn.update(batch(), 1e-3)
    for name, p in online.named_parameters():
        size = 1e-5 if "logits" in name else 1e-3
        torch.testing.assert_close(before[name] - p, size * slopes[name].sign(), rtol=1e-2, atol=1e-7)


def test_missing_lion_names_the_package(monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **also):
        if name == "lion_pytorch":
            raise ImportError(name)
        return real(name, *rest, **also)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'cramix\[lion\]'"):
        learner("gmdqn", optimizer_class="Lion")


def test_gradients_are_clipped_together():
    slopes = torch.cat([x.flatten() for x in gradient("gmdqn", batch()).values()])
    for limit in (1e-2, 1e2):
        learn, online, _ = learner("gmdqn", max_grad_norm=limit)
        before = torch.cat([p.flatten() for p in online.parameters()]).clone()
        seen = metrics(learn.update(batch(), 1.0))
        step = before - torch.cat([p.flatten() for p in online.parameters()])
        assert step.norm().item() == pytest.approx(min(limit, slopes.norm().item()), rel=1e-3)
        assert seen["gradient_norm"] == pytest.approx(slopes.norm().item(), rel=1e-4)


@pytest.mark.parametrize(("tau", "interval"), [(1.0, 3), (0.25, 1)])
def test_target_network_follows(tau, interval):
    learn, online, target = learner("gmdqn", tau=tau, target_update_interval=interval)
    truth = [p.clone() for p in target.parameters()]
    for i in range(1, 7):
        learn.update(batch(seed=i), 0.1)
        if i % interval == 0:
            truth = [q + tau * (p - q) for p, q in zip(online.parameters(), truth, strict=True)]
        for p, q in zip(target.parameters(), truth, strict=True):
            torch.testing.assert_close(p, q)


def test_metrics_say_what_they_are_called():
    learn, online, _ = learner("gmdqn")
    b = batch()
    p = online(b.observations).select(b.actions)
    seen = metrics(learn.update(b, 0.1))
    assert seen["smallest_scale"] == pytest.approx(p.scales.min().item())
    assert seen["value"] == pytest.approx(p.mean().mean().item(), rel=1e-5)
    assert seen["entropy"] == pytest.approx(torch.distributions.Categorical(p.weights).entropy().mean().item())
    assert seen["penalty"] == 0


def test_masked_next_actions_are_never_the_best():
    space = spaces.Dict({"action_mask": spaces.MultiBinary(ACTIONS), "room": spaces.Discrete(STATES)})
    torch.manual_seed(0)
    made = policy("ddqn", space=space, features_extractor_class=_Room, optimizer_class=torch.optim.SGD)
    learn, online, target = Stepper(made), made.q_net, made.q_net_target
    for parameter in target.parameters():
        nn.init.normal_(parameter)
    mask = torch.tensor([[1, 0, 0], [0, 1, 1], [0, 0, 0]], dtype=torch.int8)
    seen = {"room": torch.tensor([0, 1, 2]), "action_mask": mask}
    here, there = (net(seen).mean().detach() for net in (online, target))
    b = Transitions(seen, torch.tensor([0, 1, 2]), torch.zeros(3), seen, torch.ones(3))
    best = [0, 1 + here[1, 1:].argmax().item(), here[2].argmax().item()]  # a row that allows none allows all
    truth = smooth_l1_loss(here[range(3), range(3)], there[range(3), best])
    assert metrics(learn.update(b, 0.1))["loss"] == pytest.approx(truth.item(), rel=1e-5)


class _Room(FlattenExtractor):
    def __init__(self, space):
        super().__init__(spaces.Discrete(STATES))

    def forward(self, seen):
        return super().forward(seen["room"])


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["gmdqn", "fqf", "c51"])
def test_compiled_and_eager_updates_agree(algo, monkeypatch):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return aot_eager(graph, inputs)

    compile_with(monkeypatch, backend)
    settings = {
        "fraction_learning_rate": 1e-2,
        "max_grad_norm": 0.5,
        "optimizer_class": torch.optim.Adam,
        "net_arch": (5,),
    }
    for unit in (1.0, 3.0):  # what was compiled for one learner must not stand in for the other
        (eager, one, _), (compiled, two, _) = (learner(algo, unit, **settings) for _ in range(2))
        compiled.compiled = True
        for seed in range(3):
            found = (learn.update(batch(seed=seed), 0.01) for learn in (eager, compiled))
            torch.testing.assert_close(*found)
        assert (compiled.compiled, eager.compiled) == (True, False)
        for p, q in zip(one.parameters(), two.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    assert 1 <= len(graphs) <= 2  # the whole update is one


@pytest.mark.slow
def test_compiled_updates_see_what_changes(monkeypatch):
    compile_with(monkeypatch, "eager")
    both = [learner("gmdqn", members=2, net_arch=(5,), optimizer_class=torch.optim.Adam) for _ in range(2)]
    both[1][0].compiled = True

    def agree(rows=8):
        for p, q in zip(*(learn.policy.parameters() for learn, *_ in both), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(*(learn.update(batch(rows), 0.01) for learn, *_ in both))

    agree()
    agree(rows=16)
    for change in (_other_unit, _other_risk, _other_norm, _other_numbers, _other_networks, _other_type):
        for learn, *_ in both:
            torch.manual_seed(1)
            change(learn)
        agree()
        agree()
    assert both[1][0].compiled


def _other_unit(learn):
    learn.policy.unit.fill_(3.0)


def _other_risk(learn):
    learn.policy.measure = parse_risk("cvar:0.3")


def _other_norm(learn):
    learn.max_grad_norm = 1e-3


def _other_numbers(learn):
    learn.policy.restart_returns()


def _other_networks(learn):
    made = learn.policy
    made.q_net, made.q_net_target = made.make_q_net(), made.make_q_net().requires_grad_(False)
    made.optimizer = made.make_optimizer(dict(made.q_net.named_parameters()), 1e-3)


def _other_type(learn):
    learn.policy.to(torch.float64)


def test_frozen_layers_stay_when_compiled(monkeypatch):
    compile_with(monkeypatch, "eager")
    settings = {"net_arch": (5,), "optimizer_class": torch.optim.Adam, "max_grad_norm": 0.1}
    both = [learner("gmdqn", **settings) for _ in range(2)]
    both[1][0].compiled = True
    for frozen in (False, True, False):
        before = both[1][1].each[0][0][0].weight.clone()
        for learn, net, _ in both:
            net.each[0][0].requires_grad_(not frozen)
            learn.update(batch(), 0.01)
        assert torch.equal(both[1][1].each[0][0][0].weight, before) == frozen
        for p, q in zip(both[0][1].parameters(), both[1][1].parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_parameters_in_another_memory_order(monkeypatch):
    compile_with(monkeypatch, "eager")
    both = [learner("gmdqn", net_arch=(5,), optimizer_class=torch.optim.Adam) for _ in range(2)]
    both[1][0].compiled = True
    for learn, net, _ in both:
        weight = net.each[0][0][0].weight
        weight.data = weight.data.T.contiguous().T
        learn.update(batch(seed=1), 0.01)
        learn.update(batch(seed=2), 0.01)
    assert not both[1][1].each[0][0][0].weight.is_contiguous()
    for p, q in zip(both[0][1].parameters(), both[1][1].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


SIGN = {"sign": 1.0}


def by_sign(p):
    return SIGN["sign"] * p.mean


def test_a_compiled_function_of_the_users_sees_what_it_reads(monkeypatch):
    compile_with(monkeypatch, "eager")
    both = [learner("gmdqn", risk=by_sign) for _ in range(2)]
    both[1][0].compiled = True
    for sign in (1.0, -1.0):
        monkeypatch.setitem(SIGN, "sign", sign)
        torch.testing.assert_close(*(learn.update(batch(), 0.1) for learn, *_ in both))
        for p, q in zip(both[0][1].parameters(), both[1][1].parameters(), strict=True):
            torch.testing.assert_close(p, q)


@pytest.mark.slow
def test_settings_may_change_often_when_compiled(monkeypatch):
    compile_with(monkeypatch, "eager")
    one, *_ = learner("gmdqn", optimizer_class=torch.optim.SGD)
    one.compiled = True
    for i in range(12):
        one.policy.set_risk(f"cvar:{0.5 - i / 100:.2f}")
        one.max_grad_norm = 1.0 + i
        one.update(batch(), 0.1)
    assert one.compiled


@pytest.mark.slow
def test_many_learners_compile_in_one_program(monkeypatch):
    """More than the eight that the compiler allows for one piece of code."""
    compile_with(monkeypatch, "eager")
    for width in range(2, 12):
        one, *_ = learner("ddqn", net_arch=(width,))
        one.compiled = True
        one.update(batch(), 0.1)
        assert one.compiled


@pytest.mark.parametrize("before", [0, 2])
def test_what_cannot_be_compiled_runs_as_it_is(before, monkeypatch):
    def broken(f, **options):
        def call(*args):
            raise RuntimeError("no compiler\nand a long story")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    (eager, one, _), (other, two, _) = (learner("gmdqn") for _ in range(2))
    for seed in range(before):
        eager.update(batch(seed=seed), 0.1)
        other.update(batch(seed=seed), 0.1)
    other.compiled = True
    with pytest.warns(UserWarning, match="no compiler. Install a C"):
        other.update(batch(seed=9), 0.1)
    eager.update(batch(seed=9), 0.1)
    assert not other.compiled
    for p, q in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(p, q)


def test_errors_of_a_compiled_update_that_once_worked_are_not_swallowed(monkeypatch):
    calls = []

    def once(f, **options):
        def call(*args):
            calls.append(1)
            if len(calls) > 1:
                raise RuntimeError("out of memory")
            with torch.enable_grad():
                return f(*args)

        return call

    monkeypatch.setattr(torch, "compile", once)
    learn, *_ = learner("gmdqn")
    learn.compiled = True
    learn.update(batch(), 0.1)
    with pytest.raises(RuntimeError, match="out of memory"):
        learn.update(batch(), 0.1)
