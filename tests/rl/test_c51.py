"""C51: the projection on fixed atoms against a loop, and the loss."""

import numpy as np
import pytest
import torch

from cramix.rl.agents.c51 import CategoricalReturns
from cramix.rl.agents.ddqn import ExpectedReturns
from cramix.rl.returns import Parts


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return CategoricalReturns(4, 2, atoms=11, low=-2.0, high=3.0).double()


def target(rows=5, k=7, seed=0):
    random = np.random.default_rng(seed)
    means = 2 * random.normal(size=(rows, k))
    means[0, :4] = [-2.0, 3.0, 0.5, 40.0]  # the ends, an atom, beyond
    weights = random.dirichlet(np.ones(k), rows)
    return Parts(torch.tensor(weights), torch.tensor(means), torch.zeros(rows, k, dtype=torch.float64))


def projected(target, atoms, low, high):
    """Algorithm 1 of Bellemare et al. (2017)."""
    step = (high - low) / (atoms - 1)
    out = np.zeros((len(target.means), atoms))
    for row in range(len(out)):
        for weight, place in zip(target.weights[row].tolist(), target.means[row].tolist(), strict=True):
            b = (min(max(place, low), high) - low) / step
            below, above = int(np.floor(b)), int(np.ceil(b))
            if below == above:
                out[row, below] += weight
            else:
                out[row, below] += weight * (above - b)
                out[row, above] += weight * (b - below)
    return out


def test_projection_is_that_of_the_paper(layer):
    np.testing.assert_allclose(layer.project(target()).numpy(), projected(target(), 11, -2.0, 3.0), atol=1e-12)


def test_projection_keeps_the_mean_of_atoms_within_the_range(layer):
    inside = target()._replace(means=target().means.clamp(-2, 3))
    mean = (layer.project(inside) * layer.support.view(-1)).sum(-1)
    torch.testing.assert_close(mean, inside.mean())


def test_loss_is_the_cross_entropy(layer):
    prediction = layer(torch.randn(5, 4).double()).select(torch.tensor([0, 1, 1, 0, 1]))
    truth = -(projected(target(), 11, -2.0, 3.0) * np.log(prediction.weights.detach().numpy())).sum(-1)
    np.testing.assert_allclose(layer.loss(prediction, target()).detach().numpy(), truth)


def test_gradient(layer):
    features, actions = torch.randn(5, 4, dtype=torch.float64, requires_grad=True), torch.tensor([0, 1, 1, 0, 1])
    assert torch.autograd.gradcheck(lambda x: layer.loss(layer(x).select(actions), target()), features)


def test_means_come_from_the_places(layer):
    p = layer(torch.randn(3, 4).double())
    torch.testing.assert_close(p.mixture().mean, (p.weights * torch.linspace(-2, 3, 11).double()).sum(-1))
    assert (layer.atoms, layer.low, layer.high) == (11, -2.0, 3.0)


@pytest.mark.parametrize(("bad", "name"), [({"atoms": 1}, "atoms"), ({"low": 1.0, "high": 1.0}, "low")])
def test_bad_settings_are_refused(bad, name):
    with pytest.raises(ValueError, match=name):
        CategoricalReturns(4, 2, **bad)


def test_expected_returns_learn_by_the_huber_loss():
    layer = ExpectedReturns(4, 2)
    p = Parts(torch.ones(3, 1), torch.tensor([[0.0], [0.0], [0.0]]), torch.zeros(3, 1))
    q = p._replace(means=torch.tensor([[0.5], [-3.0], [0.0]]))
    assert layer.loss(p, q).tolist() == [0.125, 2.5, 0.0]
