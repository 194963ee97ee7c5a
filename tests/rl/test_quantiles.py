"""Quantiles of returns: Huber and Cramér losses against others, and the fractions of FQF against their definition."""

import itertools

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from sb3_contrib.common.utils import quantile_huber_loss

from cramix import NormalMixture, cramer_loss
from cramix.rl.agents.quantiles import CramerQuantileReturns, FractionReturns, QuantileReturns, quantile_huber
from cramix.rl.returns import Parts


def atoms(means, weights=None):
    if weights is None:
        weights = torch.full_like(means, 1 / means.shape[-1])
    return Parts(weights, means, torch.zeros_like(means))


@pytest.fixture
def random():
    return torch.Generator().manual_seed(0)


def test_quantile_huber_is_that_of_sb3_contrib(random):
    prediction = (3 * torch.randn(6, 7, generator=random)).requires_grad_()
    target = 3 * torch.randn(6, 5, generator=random)
    ours = QuantileReturns(4, 2, quantiles=7).loss(atoms(prediction), atoms(target)).mean()
    theirs = quantile_huber_loss(prediction, target)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(x, prediction)[0] for x in (ours, theirs)))


def test_quantile_huber_by_a_loop(random):
    prediction, target = torch.randn(4, generator=random), torch.randn(3, generator=random)
    shares, weights = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.5, 0.2, 0.3])
    width, total, before = 0.5, 0.0, 0.0
    for share, theta in zip(shares.tolist(), prediction.tolist(), strict=True):
        tau, before = before + share / 2, before + share
        for weight, y in zip(weights.tolist(), target.tolist(), strict=True):
            u = y - theta
            huber = 0.5 * u * u if abs(u) <= width else width * (abs(u) - 0.5 * width)
            total += weight * abs(tau - (u < 0)) * huber / width
    loss = quantile_huber(atoms(prediction[None], shares[None]), atoms(target[None], weights[None]), width)
    assert loss.item() == pytest.approx(total, rel=1e-5)


def test_cramer_of_quantiles_is_the_distance_of_their_atoms(random):
    prediction = torch.randn(6, 7, generator=random, dtype=torch.float64)
    prediction[0, 3] = prediction[0, 2]
    target = torch.randn(6, 5, generator=random, dtype=torch.float64)
    target[1, 2] = prediction[1, 4]
    weights = torch.rand(6, 5, generator=random, dtype=torch.float64)
    weights /= weights.sum(-1, keepdim=True)
    loss = CramerQuantileReturns(4, 2, quantiles=7).loss(atoms(prediction), atoms(target, weights))
    q = NormalMixture(weights, target, torch.zeros_like(target))
    torch.testing.assert_close(loss, cramer_loss(NormalMixture.from_samples(prediction), q, reduction="none"))


@pytest.mark.parametrize("kind", [QuantileReturns, CramerQuantileReturns])
def test_gradients(kind, random):
    layer = kind(4, 2, quantiles=5).double()
    features = torch.randn(3, 4, generator=random, dtype=torch.float64, requires_grad=True)
    target = atoms(torch.randn(3, 6, generator=random, dtype=torch.float64))
    actions = torch.tensor([1, 0, 1])
    assert torch.autograd.gradcheck(lambda x: layer.loss(layer(x).select(actions), target), features)


def test_quantiles_have_equal_weights(random):
    p = QuantileReturns(4, 2, quantiles=8)(torch.randn(3, 4, generator=random))
    assert p.weights.unique().tolist() == [0.125]
    assert not p.scales.any()
    torch.testing.assert_close(p.mean(), p.means.mean(-1))


class Normal(FractionReturns):
    """Fractions of a known quantile function, that of the normal distribution."""

    def _values(self, features, fractions):
        quantiles = torch.special.ndtri(fractions).unsqueeze(1)
        return torch.cat([quantiles, 2 * quantiles + 1], 1)


def wasserstein(shares, scale):
    """Yang et al., eq. 3: the distance of the normal distribution to atoms at the middles of shares."""
    borders = np.concatenate([[0], np.cumsum(shares)])
    borders[-1] = 1
    total = 0.0
    for a, b in itertools.pairwise(borders):
        middle = scipy.stats.norm.ppf((a + b) / 2)
        f = lambda w, middle=middle: abs(scipy.stats.norm.ppf(w) - middle)  # noqa: E731
        total += scipy.integrate.quad(f, a, b, points=[(a + b) / 2], epsabs=1e-11, limit=200)[0]
    return scale * total


@pytest.mark.parametrize(("action", "scale"), [(0, 1), (1, 2)])
def test_fractions_follow_the_derivative_of_the_wasserstein_distance(action, scale):
    torch.manual_seed(0)
    layer = Normal(3, 2, quantiles=4).double()
    with torch.no_grad():
        layer.proposal.bias.copy_(torch.tensor([0.3, -0.4, 0.2, 0.0]))
    features = torch.randn(1, 3, dtype=torch.float64, requires_grad=True)
    prediction = layer(features).select(torch.tensor([action]))
    loss = layer.loss(prediction, atoms(torch.zeros(1, 2, dtype=torch.float64)))
    (slope,) = torch.autograd.grad(loss, layer.proposal.bias, retain_graph=True)
    logits = layer.proposal(features).detach().numpy()[0]

    def distance(logits):
        return wasserstein(np.exp(logits) / np.exp(logits).sum(), scale)

    step = 1e-4 * np.eye(4)
    truth = [(distance(logits + d) - distance(logits - d)) / 2e-4 for d in step]
    np.testing.assert_allclose(slope.numpy(), truth, atol=1e-5)
    (through,) = torch.autograd.grad(loss, features, allow_unused=True)
    assert through is None or not through.any()  # the proposal sees the features without changing them


def test_fractions_learned_alone_come_near_the_best_ones():
    """With the values of a normal distribution, shares come to where their distance is least."""
    torch.manual_seed(0)
    layer = Normal(3, 2, quantiles=4).double()
    target = atoms(torch.zeros(1, 2, dtype=torch.float64))
    optimizer = torch.optim.Adam(layer.fractions(), lr=0.05)
    features = torch.ones(1, 3, dtype=torch.float64)
    for _ in range(150):
        optimizer.zero_grad()
        layer.loss(layer(features).select(torch.tensor([0])), target).sum().backward()
        optimizer.step()
    shares = layer(features).weights[0, 0].numpy()
    np.testing.assert_allclose(shares, shares[::-1], atol=2e-3)
    near = [wasserstein([a, 0.5 - a, 0.5 - a, a], 1) for a in np.linspace(0.1, 0.3, 41)]
    assert wasserstein(shares, 1) < min(near) + 1e-4


def test_value_gradient_of_fqf_is_that_of_its_quantiles():
    torch.manual_seed(0)
    layer = FractionReturns(4, 2, quantiles=5, cosines=8).double()
    features, actions = torch.randn(3, 4, dtype=torch.float64, requires_grad=True), torch.tensor([1, 0, 1])
    target = atoms(torch.randn(3, 6, dtype=torch.float64))
    shares = layer.proposal(features).softmax(-1).detach()
    middles = shares.cumsum(-1) - shares / 2

    def at_fixed_fractions(x):
        means = layer._values(x, middles)[torch.arange(3), actions]
        return quantile_huber(atoms(means, shares), target).sum()

    ours = torch.autograd.grad(layer.loss(layer(features).select(actions), target).sum(), features)[0]
    torch.testing.assert_close(ours, torch.autograd.grad(at_fixed_fractions(features), features)[0])
    assert torch.autograd.gradcheck(at_fixed_fractions, features)


def test_cosine_embedding_by_a_loop():
    torch.manual_seed(0)
    layer = FractionReturns(3, 2, quantiles=2, cosines=4).double()
    features, fraction = torch.randn(1, 3, dtype=torch.float64), 0.3
    waves = torch.tensor([np.cos(np.pi * i * fraction) for i in range(1, 5)])
    hidden = features * torch.relu(layer.embedding.weight @ waves + layer.embedding.bias)
    truth = layer.values.actions(hidden)
    torch.testing.assert_close(layer._values(features, torch.tensor([[fraction]]).double())[..., 0], truth)


@pytest.mark.parametrize(
    ("kind", "bad"),
    [(QuantileReturns, {"quantiles": 0}), (FractionReturns, {"quantiles": 1}), (FractionReturns, {"cosines": 0})],
)
def test_bad_settings_are_refused(kind, bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        kind(4, 2, **bad)
