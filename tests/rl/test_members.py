"""Networks side by side: each learns what all of them together say of the next state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cramix.rl import ALGORITHMS, GMDQN
from cramix.rl.network import ReturnNetwork
from cramix.rl.returns import Parts
from tests.refusals import refuses
from tests.rl.games import QUICK, Steps
from tests.rl.learners import STATES, batch, learner, network

MEMBERS = 3


def alone(net: ReturnNetwork, seen: Tensor) -> list[Parts]:
    """What each member says."""
    features = nn.functional.one_hot(seen, STATES).float()
    return [member(features) for member in net.each]


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_what_members_say_counts_alike(algo):
    net, seen = network(algo, 0, (5,), MEMBERS), torch.arange(STATES)
    each, together = alone(net, seen), net(seen)
    assert net.members == len(each) == MEMBERS
    torch.testing.assert_close(together.mean(), sum(parts.mean() for parts in each) / MEMBERS)
    x = torch.linspace(-4, 4, 7)[:, None, None] + 0.01  # not on an atom
    truth = sum(parts.mixture().cdf(x) for parts in each) / MEMBERS
    torch.testing.assert_close(together.mixture().cdf(x), truth)
    assert not torch.equal(each[0].mean() + 0, each[1].mean())
    actions = torch.tensor([0, 1, 2, 0])
    apart = together.select(actions).split_members(MEMBERS)
    for i, parts in enumerate(each):
        one = parts.select(actions)
        for found, true in zip(apart, one, strict=True):
            if true is not None:
                torch.testing.assert_close(found[:, i], true.expand_as(found[:, i]))


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_an_update_is_that_of_each_member_towards_what_all_say(algo):
    settings = {"target_update_interval": 1000, "learning_rate": 0.1, "fraction_learning_rate": 0.05}
    learn, online, target = learner(algo, 2.0, net_arch=(5,), members=MEMBERS, **settings)
    b = batch(16)
    with torch.no_grad():
        best = sum(parts.mean() for parts in alone(online, b.next_observations)).argmax(-1)
        ahead = [parts.select(best) for parts in alone(target, b.next_observations)]
        weights, means, scales = (
            torch.cat([getattr(x, name).expand_as(x.means) for x in ahead], -1)
            for name in ("weights", "means", "scales")
        )
        d = b.discounts[:, None]
        goal = Parts(weights / MEMBERS, b.rewards[:, None] / 2 + d * means, d * scales)
    losses = []
    for parts in alone(online, b.observations):
        one = parts.select(b.actions)
        losses.append((online.returns.loss(one, goal) + online.returns.penalty(one)).mean())
    slopes = torch.autograd.grad(sum(losses), list(online.parameters()))
    before = [p.detach().clone() for p in online.parameters()]
    learn.update(b, 0.1)
    slow = {id(p) for member in online.each for p in member[-1].fractions()}
    for now, was, slope in zip(online.parameters(), before, slopes, strict=True):
        rate = 0.05 if id(now) in slow else 0.1
        torch.testing.assert_close(now, was - rate * slope, rtol=1e-4, atol=1e-6)


def test_the_agent_learns_comes_back_and_says_its_settings(tmp_path):
    settings = {**QUICK, "policy_kwargs": {"net_arch": [8], "members": 2}}
    model = GMDQN("MlpPolicy", Steps(), seed=0, **settings).learn(60)
    model.save(tmp_path / "agent.zip", acting_only=True)
    again = GMDQN.load(tmp_path / "agent.zip")
    seen = np.random.default_rng(0).normal(size=(5, 2))
    found = again.return_distribution(seen)
    assert found.n_components == 6
    assert torch.equal(found.means, model.return_distribution(seen).means)
    assert again.policy_kwargs["members"] == 2


def test_members_may_draw_at_random():
    settings = {**QUICK, "policy_kwargs": {"net_arch": [8], "activation_fn": nn.Dropout, "members": 2}}
    assert GMDQN("MlpPolicy", Steps(), seed=0, **settings).learn(40)._n_updates > 0


def test_bad_numbers_of_members_are_refused():
    make = lambda members: GMDQN("MlpPolicy", Steps(), policy_kwargs={"members": members})  # noqa: E731
    refuses(lambda: make(0), "members", "0")
    refuses(lambda: make(1.5), "members", "1.5")
