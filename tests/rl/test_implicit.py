"""IQN: the loss against a loop, the embedding of fractions against its formula."""

import math

import numpy as np
import pytest
import torch

from cramix.rl import IQN
from cramix.rl.agents.implicit import ImplicitReturns
from cramix.rl.returns import Parts


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return ImplicitReturns(4, 2, quantiles=5, cosines=6).double()


def target(rows=3, k=4, seed=0):
    random = np.random.default_rng(seed)
    weights = torch.tensor(random.dirichlet(np.ones(k), rows))
    return Parts(weights, torch.tensor(random.normal(size=(rows, k))), torch.zeros(rows, k, dtype=torch.float64))


def test_loss_by_a_loop(layer):
    prediction, goal = layer(torch.randn(3, 4).double()).select(torch.tensor([0, 1, 1])), target()
    fractions, theta = prediction.extra.tolist(), prediction.means.tolist()
    for row, loss in enumerate(layer.loss(prediction, goal).tolist()):
        total = 0.0
        for tau, x in zip(fractions[row], theta[row], strict=True):
            for weight, y in zip(goal.weights[row].tolist(), goal.means[row].tolist(), strict=True):
                u = y - x
                huber = 0.5 * u * u if abs(u) <= 1 else abs(u) - 0.5
                total += weight * abs(tau - (u < 0)) * huber
        assert loss == pytest.approx(total)


def test_values_are_those_of_the_cosine_embedding(layer):
    features, fractions = torch.randn(3, 4).double(), torch.rand(3, 5).double()
    parts = layer.at(features, fractions)
    (w, b), (v, c) = ([x.detach().numpy() for x in part.parameters()] for part in (layer.embedding, layer.values))
    for row in range(3):
        for i, tau in enumerate(fractions[row].tolist()):
            waves = np.array([math.cos(math.pi * j * tau) for j in range(1, 7)])
            mixed = features[row].numpy() * np.maximum(w @ waves + b, 0)
            np.testing.assert_allclose(parts.means[row, :, i].detach().numpy(), v @ mixed + c, rtol=1e-5)
    torch.testing.assert_close(parts.extra[:, 1], fractions)
    torch.testing.assert_close(parts.mean(), parts.means.mean(-1))


def test_gradient(layer):
    features = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    fractions, actions = torch.rand(3, 5).double(), torch.tensor([0, 1, 1])
    assert torch.autograd.gradcheck(lambda x: layer.loss(layer.at(x, fractions).select(actions), target()), features)


def test_rescaling_multiplies_returns(layer):
    features, fractions = torch.randn(3, 4).double(), torch.rand(3, 5).double()
    before = layer.at(features, fractions).means.detach()
    layer.rescale(0.25)
    torch.testing.assert_close(layer.at(features, fractions).means.detach(), 0.25 * before)


def test_fractions_are_drawn_in_training_and_midpoints_otherwise(layer):
    features = torch.zeros(2000, 4).double()
    drawn = layer(features).extra[:, 0]
    assert not torch.equal(drawn, layer(features).extra[:, 0])
    assert drawn.mean().item() == pytest.approx(0.5, abs=0.01)  # 3.5 standard deviations
    assert drawn.var().item() == pytest.approx(1 / 12, abs=0.003)
    fixed = layer.eval()(features).extra
    torch.testing.assert_close(fixed[7, 1], torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9]).double())


def test_quantiles_of_a_known_distribution_are_learned():
    torch.manual_seed(0)
    layer = ImplicitReturns(8, 1, quantiles=16)
    optimizer = torch.optim.Adam(layer.parameters(), 0.01)
    features = torch.ones(64, 8)
    for _ in range(600):
        samples = 4 * torch.rand(64, 8)
        goal = Parts(torch.full_like(samples, 1 / 8), 4 * samples, torch.zeros_like(samples))  # uniform on 0 .. 16
        loss = layer.loss(layer(features).select(torch.zeros(64, dtype=torch.long)), goal).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    quantiles = layer.eval()(features[:1]).means[0, 0]
    torch.testing.assert_close(quantiles, 16 * layer.midpoints, rtol=0, atol=1.0)


def test_prediction_is_not_random():
    model = IQN("MlpPolicy", "CartPole-v1", seed=0, learning_starts=20, policy_kwargs={"net_arch": [8]})
    model.learn(60)
    one, two = (model.return_distribution([[0.0, 0.1, 0.0, 0.0]]) for _ in range(2))
    assert torch.equal(one.means, two.means)


@pytest.mark.parametrize(("bad", "name"), [({"quantiles": 0}, "quantiles"), ({"cosines": 0}, "cosines")])
def test_bad_settings_are_refused(bad, name):
    with pytest.raises(ValueError, match=name):
        ImplicitReturns(4, 2, **bad)
