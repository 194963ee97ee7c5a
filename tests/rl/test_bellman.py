"""The Bellman operator on mixtures: a chain unrolled by hand, and contraction in C2."""

import numpy as np
import pytest
import torch

from cramix import NormalMixture, cramer_distance
from cramix.rl.objective import bellman
from cramix.rl.returns import Parts


def mixtures(random, rows, k=3):
    return Parts(
        torch.tensor(random.dirichlet(np.ones(k), rows)),
        torch.tensor(3 * random.normal(size=(rows, k))),
        torch.tensor(random.uniform(0, 2, (rows, k))),
    )


def test_a_chain_unrolled_by_hand():
    """Three steps to an end: what is known of the end comes back to the start."""
    end = Parts(torch.tensor([[0.4, 0.6]]), torch.tensor([[-7.0, 7.0]]), torch.tensor([[3.0, 5.0]]))
    p = end
    for reward, discount in [(4.0, 0.0), (-1.0, 0.5), (2.0, 0.9)]:
        p = bellman(p, torch.tensor([reward]), torch.tensor([discount]))
    # 2 + 0.9 (-1 + 0.5 * 4): the end is worth nothing after its reward, so all is one atom.
    torch.testing.assert_close(p.means, torch.full((1, 2), 2.9))
    assert not p.scales.any()
    q = bellman(bellman(end, torch.tensor([-1.0]), torch.tensor([0.5])), torch.tensor([2.0]), torch.tensor([0.9]))
    torch.testing.assert_close(q.means, torch.tensor([[2 + 0.9 * (-1 - 3.5), 2 + 0.9 * (-1 + 3.5)]]))
    torch.testing.assert_close(q.scales, torch.tensor([[0.45 * 3, 0.45 * 5]]))
    torch.testing.assert_close(q.weights, end.weights)


def test_is_the_affine_map_of_mixtures():
    random = np.random.default_rng(0)
    p = mixtures(random, 4)
    rewards, discounts = torch.tensor(random.normal(size=4)), torch.tensor([0.9, 0.0, 0.5, 1.0]).double()
    ours = bellman(p, rewards, discounts).mixture()
    other = p.mixture()
    x = torch.linspace(-9, 9, 13).double().unsqueeze(-1)
    for i in (0, 2, 3):
        one = NormalMixture(other.weights[i], other.means[i], other.scales[i]).affine(rewards[i], discounts[i])
        torch.testing.assert_close(ours.cdf(x)[:, i], one.cdf(x[:, 0]))


def policy_evaluation(transitions, rewards, gamma, p):
    """One round of the operator for all states: each is a mixture, over next states, of what they lead to."""
    states, k = len(transitions), p.means.shape[-1]
    here, there = (x.flatten() for x in torch.meshgrid(torch.arange(states), torch.arange(states), indexing="ij"))
    led = bellman(Parts(*(x[there] for x in p[:3])), rewards[here, there], torch.full((states**2,), gamma).double())
    weights = (transitions[here, there].unsqueeze(-1) * led.weights).view(states, states * k)
    return NormalMixture(weights, led.means.view(states, -1), led.scales.view(states, -1), validate_args=False)


def parts(p):
    return Parts(p.weights, p.means, p.scales)


@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("seed", range(4))
def test_contracts_in_cramer_distance_by_the_root_of_the_discount(gamma, seed):
    random = np.random.default_rng(seed)
    states = 4
    transitions = torch.tensor(random.dirichlet(np.full(states, 0.3), states))
    rewards = torch.tensor(5 * random.normal(size=(states, states)))
    p, q = mixtures(random, states), mixtures(random, states)
    before = cramer_distance(p.mixture(), q.mixture()).max()
    for _ in range(3):
        p, q = (parts(policy_evaluation(transitions, rewards, gamma, x)) for x in (p, q))
        after = cramer_distance(p.mixture(), q.mixture()).max()
        assert after <= np.sqrt(gamma) * before * (1 + 1e-9)
        before = after


def test_the_factor_is_reached_where_nothing_is_random():
    """So a smaller factor would be wrong, and so would an operator that discounts too much."""
    random = np.random.default_rng(0)
    transitions = torch.eye(3).double().roll(1, 0)
    p, q = mixtures(random, 3), mixtures(random, 3)
    before = cramer_distance(p.mixture(), q.mixture())
    p, q = (policy_evaluation(transitions, torch.ones(3, 3).double(), 0.8, x) for x in (p, q))
    torch.testing.assert_close(cramer_distance(p, q).sort()[0], np.sqrt(0.8) * before.sort()[0])


def test_fixed_point_has_the_means_of_the_linear_equations():
    random = np.random.default_rng(1)
    states, gamma = 3, 0.3
    transitions = torch.tensor(random.dirichlet(np.ones(states), states))
    rewards = torch.tensor(random.normal(size=(states, states)))
    p = Parts(*(x[:, :1] for x in mixtures(random, states)[:3]))._replace(weights=torch.ones(states, 1).double())
    for _ in range(8):
        p = parts(policy_evaluation(transitions, rewards, gamma, p))
    v = np.linalg.solve(np.eye(states) - gamma * transitions.numpy(), (transitions * rewards).sum(-1).numpy())
    np.testing.assert_allclose(p.mean().numpy(), v, atol=3 * gamma**8)
