"""Gaussian mixtures of returns: three losses against quadrature, gradients, the paper's penalty."""

import itertools

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch

from cramix.rl.agents.gaussian import GMDQN, CramerReturns, JensenTsallisReturns, LikelihoodReturns
from cramix.rl.returns import Parts

HEADS = [CramerReturns, JensenTsallisReturns, LikelihoodReturns]


def parts(seed, rows=3, k=3, width=1.0):
    random = np.random.default_rng(seed)
    weights = random.dirichlet(np.ones(k), rows)
    means, scales = 2 * random.normal(size=(rows, k)), width * random.uniform(0.5, 1.5, (rows, k))
    return Parts(*(torch.tensor(x) for x in (weights, means, scales)))


def density(p, row):
    w, m, s = (x[row].numpy() for x in p[:3])
    return lambda x: (w * scipy.stats.norm.pdf(x, m, s)).sum()


def distribution(p, row):
    w, m, s = (x[row].numpy() for x in p[:3])
    return lambda x: (w * np.where(s > 0, scipy.stats.norm.cdf(x, m, np.where(s > 0, s, 1)), x >= m)).sum()


def integral(f, p, q, row):
    """The integral of f, cut at the means so that no peak is missed."""
    cuts = np.unique(np.concatenate([p.means[row].numpy(), q.means[row].numpy(), [-20, 20]]))
    return sum(scipy.integrate.quad(f, a, b, epsabs=1e-10)[0] for a, b in itertools.pairwise(cuts))


def head(kind, **settings):
    return kind(4, 2, **settings).double()


@pytest.mark.parametrize("atoms", [False, True])
def test_cramer_is_the_integral_of_squared_differences_of_cdfs(atoms):
    p, q = parts(0), parts(1)
    if atoms:
        q = q._replace(scales=torch.zeros_like(q.scales))
    loss = head(CramerReturns).loss(p, q)
    for row in range(3):
        f, g = distribution(p, row), distribution(q, row)
        assert loss[row].item() == pytest.approx(integral(lambda x, f=f, g=g: (f(x) - g(x)) ** 2, p, q, row), rel=1e-6)


def test_jensen_tsallis_is_the_integral_of_squared_differences_of_densities():
    p, q = parts(0), parts(1)
    loss = head(JensenTsallisReturns).loss(p, q)
    for row in range(3):
        f, g = density(p, row), density(q, row)
        assert loss[row].item() == pytest.approx(integral(lambda x, f=f, g=g: (f(x) - g(x)) ** 2, p, q, row), rel=1e-6)


def test_jensen_tsallis_sees_an_atom_as_wide_as_the_floor():
    p, q = parts(0), parts(1)
    atoms, wide = (q._replace(scales=torch.full_like(q.scales, s)) for s in (0.0, 0.3))
    jt = head(JensenTsallisReturns, min_scale=0.3)
    torch.testing.assert_close(jt.loss(p, atoms), jt.loss(p, wide))
    assert torch.isfinite(jt.loss(p, atoms)).all()


def test_likelihood_is_the_cross_entropy():
    p, q = parts(0, width=1.5), parts(1, width=0.5)
    loss = head(LikelihoodReturns).loss(p, q)
    for row in range(3):
        f, g = density(p, row), density(q, row)
        truth = integral(lambda x, f=f, g=g: -g(x) * np.log(f(x)) if g(x) else 0.0, p, q, row)
        assert loss[row].item() == pytest.approx(truth, abs=2e-3)


def test_likelihood_of_atoms_is_exact():
    p, q = parts(0), parts(1)
    loss = head(LikelihoodReturns).loss(p, q._replace(scales=torch.zeros_like(q.scales)))
    for row in range(3):
        f = density(p, row)
        truth = -sum(w * np.log(f(m)) for w, m in zip(q.weights[row].numpy(), q.means[row].numpy(), strict=True))
        assert loss[row].item() == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("scales", ["softplus", "penalty"])
def test_gradients_of_losses(kind, scales):
    torch.manual_seed(0)
    layer = head(kind, scales=scales, min_scale=0.05)
    features, actions = torch.randn(3, 4, dtype=torch.float64, requires_grad=True), torch.tensor([0, 1, 1])
    target = parts(2)
    names = [name for name, _ in layer.named_parameters()]

    def loss(features, *values):
        prediction = torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (features,)).select(
            actions
        )
        return layer.loss(prediction, target) + layer.penalty(prediction)

    assert torch.autograd.gradcheck(loss, (features, *layer.parameters()))


@pytest.mark.parametrize("kind", HEADS)
def test_preconditioning_is_an_option_of_all_losses(kind):
    target = parts(2)
    losses, slopes = {}, {}
    for flag in (False, True):
        prediction = Parts(*(x.requires_grad_() for x in parts(3)[:3]))
        loss = head(kind, preconditioned=flag).loss(prediction, target)
        losses[flag], slopes[flag] = loss, torch.autograd.grad(loss.sum(), prediction[:3])
    torch.testing.assert_close(losses[True], losses[False], rtol=0, atol=0)
    torch.testing.assert_close(slopes[True][0], slopes[False][0])
    gain = 1 / (3 * parts(3).weights).clamp_min(1 / 30)
    for i in (1, 2):
        torch.testing.assert_close(slopes[True][i], gain * slopes[False][i])


@pytest.mark.parametrize("dueling", [False, True])
def test_distributions_are_valid_and_components_start_apart(dueling):
    torch.manual_seed(0)
    layer = CramerReturns(4, 2, dueling, n_components=4, min_scale=0.1)
    p = layer(torch.randn(5, 4))
    assert p.weights.shape == p.means.shape == p.scales.shape == (5, 2, 4)
    torch.testing.assert_close(p.weights.sum(-1), torch.ones(5, 2))
    assert p.scales.min() >= 0.1
    still = layer(torch.zeros(1, 4))
    assert (still.means.diff(dim=-1) > 0).any()
    assert still.means.std() > 0.3
    one = CramerReturns(4, 2, n_components=1)(torch.zeros(1, 4))
    assert one.means.shape == (1, 2, 1)


def test_dueling_actions_differ_around_what_they_share():
    torch.manual_seed(0)
    layer = CramerReturns(4, 3, dueling=True)
    features = torch.randn(5, 4)
    middle = layer(features).means.mean(1)
    torch.testing.assert_close(middle, layer.values.shared(features)[:, :3])


def test_penalty_is_ten_relu_of_minus_sigma():
    layer = GMDQN.returns_class(4, 2, **GMDQN.preset("paper")["returns"])
    free = torch.tensor([[0.5, -0.2, -0.3]], requires_grad=True)
    prediction = Parts(torch.full((1, 3), 1 / 3), torch.zeros(1, 3), free.abs(), free)
    penalty = layer.penalty(prediction)
    assert penalty.item() == pytest.approx(10 * (0.2 + 0.3))
    (slope,) = torch.autograd.grad(penalty, free)
    assert slope.tolist() == [[0.0, -10.0, -10.0]]
    assert CramerReturns(4, 2).penalty(prediction).tolist() == [0.0]


def test_negative_scales_count_as_positive():
    layer = CramerReturns(2, 1, scales="penalty")
    with torch.no_grad():
        layer.values.actions.bias.fill_(-0.7)
    p = layer(torch.zeros(1, 2))
    torch.testing.assert_close(p.scales, torch.full((1, 1, 3), 0.7))


def test_paper_preset_has_the_papers_numbers():
    paper = GMDQN("MlpPolicy", "CartPole-v1", **GMDQN.preset("paper"))
    assert (paper.learning_rate, paper.fraction_learning_rate) == (5e-5, 5e-9)
    assert type(paper.policy.optimizer).__name__ == "Lion"
    assert (paper.batch_size, paper.target_update_interval, paper.tau) == (64, 200, 1.0)
    assert (paper.buffer_size, paper.gamma, paper.n_steps) == (100_000, 0.99, 1)
    assert paper.policy_kwargs["net_arch"] == [128, 128]
    assert paper.lr_schedule(0.0) == paper.lr_schedule(1.0) == 5e-5
    assert paper.return_scale == 1.0


def test_mixture_is_in_units_of_rewards():
    p = parts(0)
    one, ten = p.mixture(), p.mixture(10.0)
    torch.testing.assert_close(ten.mean, 10 * one.mean)
    torch.testing.assert_close(ten.variance, 100 * one.variance)


def test_parts_of_actions():
    weights = torch.rand(1, 1, 3)
    means = torch.arange(24.0).view(4, 2, 3)
    p = Parts(weights, means, torch.zeros(1, 1, 3), means[..., :1]).select(torch.tensor([1, 0, 0, 1]))
    assert p.means[:, 0].tolist() == [3.0, 6.0, 12.0, 21.0]
    assert p.extra.flatten().tolist() == [3.0, 6.0, 12.0, 21.0]
    torch.testing.assert_close(p.weights, weights[0].expand(4, 3))


@pytest.mark.parametrize(
    "bad",
    [{"n_components": 0}, {"scales": "exp"}, {"min_scale": -1.0}, {"penalty_factor": "x"}, {"preconditioned": "yes"}],
)
def test_bad_settings_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        CramerReturns(4, 2, **bad)
