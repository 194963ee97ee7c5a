"""The divergence that torch.distributions computes for mixtures."""

import math

import pytest
import torch
from scipy import integrate
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from cramix import MultivariateNormalMixture, NormalMixture
from tests.test_mixture_values import D, generator, line, space


@pytest.mark.parametrize("seed", range(5))
def test_on_the_line_it_is_the_integral(seed):
    p, q = line(seed=seed), line(k=2, seed=seed + 50)

    def integrand(x):
        x = torch.tensor(x, dtype=D)
        return (p.log_prob(x).exp() * (p.log_prob(x) - q.log_prob(x))).item()

    truth, _ = integrate.quad(integrand, -15, 15, points=p.means.tolist(), epsabs=1e-13, epsrel=1e-13, limit=500)
    assert kl_divergence(p, q).item() == pytest.approx(truth, rel=1e-9, abs=1e-11)
    assert kl_divergence(p, p).item() == pytest.approx(0, abs=1e-14)


@pytest.mark.parametrize(("mean", "scale"), [(0.0, 1.0), (30.0, 1e-3), (-4.0, 40.0), (300.0, 0.5)])
def test_of_one_component_it_is_that_of_normals(mean, scale):
    p = NormalMixture(torch.ones(1, dtype=D), torch.tensor([mean], dtype=D), torch.tensor([scale], dtype=D))
    q = NormalMixture([1.0], [1.0], [2.0]).to(D)
    truth = kl_divergence(Normal(p.means, p.scales), Normal(q.means, q.scales))
    torch.testing.assert_close(kl_divergence(p, q), truth.squeeze(), rtol=1e-9, atol=1e-12)


def test_batches_broadcast_and_dtypes_are_promoted():
    p, q = line(3, 1, seed=1), line(4, seed=2)
    found = kl_divergence(p, q.to(torch.float32))
    assert found.shape == (3, 4)
    assert found.dtype == D
    for i in range(3):
        for j in range(4):
            assert found[i, j].item() == pytest.approx(kl_divergence(p[i, 0], q[j]).item(), rel=1e-5)
    assert kl_divergence(p[:0], q).shape == (0, 4)


def test_gradients_are_those_of_the_integral():
    p, q = line(seed=3), line(k=2, seed=4)
    leaves = [x.clone().requires_grad_() for x in (p.means, p.scales, q.means, q.scales)]

    def divergence(*t):
        return kl_divergence(NormalMixture(p.weights, *t[:2]), NormalMixture(q.weights, *t[2:]))

    assert torch.autograd.gradcheck(divergence, leaves)


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical", "factor"])
@pytest.mark.parametrize("d", [1, 2, 4])
def test_in_space_it_is_exact_for_one_component_and_close_for_several(kind, d):
    p, q = space(kind, k=1, d=d, seed=d), space(kind, k=1, d=d, seed=d + 9)
    both = [MultivariateNormal(m.means[0], m.covariances[0]) for m in (p, q)]
    torch.testing.assert_close(kl_divergence(p, q), kl_divergence(*both), rtol=1e-9, atol=1e-9)
    p, q = space(kind, k=3, d=d, seed=d), space(kind, k=2, d=d, seed=d + 9)
    x = p.sample((200_000,), generator())
    ratio = p.log_prob(x) - q.log_prob(x)
    error = ratio.std().item() / math.sqrt(len(ratio))
    assert kl_divergence(p, q).item() == pytest.approx(ratio.mean().item(), abs=4 * error + 5e-3)


def test_what_has_no_density_is_refused():
    atoms = NormalMixture.from_samples(torch.zeros(3))
    for pair in ((atoms, atoms.affine(0.0, 1.0)), (NormalMixture([1.0], [0.0], [1.0]), atoms)):
        with pytest.raises(ValueError, match="scales must be > 0"):
            kl_divergence(*pair)
    with pytest.raises(ValueError, match="positive definite"):
        kl_divergence(*[MultivariateNormalMixture.from_samples(torch.zeros(3, 2))] * 2)
    with pytest.raises(ValueError, match="event shape"):
        kl_divergence(space("full", d=2), space("full", d=3))
