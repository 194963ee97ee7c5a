"""Likelihoods against torch's distributions, closed forms and quadrature."""

from __future__ import annotations

import pytest
import scipy.integrate
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from cramix import (
    Diagonal,
    MultivariateNormalMixture,
    NormalMixture,
    Spherical,
    kl_divergence,
    nll_loss,
)
from cramix.distance.likelihood import log_density
from tests import oracle


def plane(*shape: int, seed: int) -> MultivariateNormalMixture:
    w, m, s = oracle.random_parameters(*shape, seed=seed)
    return MultivariateNormalMixture(w, torch.stack((m, m.flip(-1)), -1), Diagonal(torch.stack((s, s.square()), -1)))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_negative_log_likelihood_is_torchs() -> None:
    p, q = oracle.random_mixture(3, seed=0), plane(3, seed=1)
    x = torch.randn(7, generator=seeded(2), dtype=torch.float64)
    y = torch.randn(7, 2, generator=seeded(3), dtype=torch.float64)
    weights = torch.rand(7, generator=seeded(4), dtype=torch.float64)
    share = weights / weights.sum()
    for mixture, points in ((p, x), (q, y)):
        each = -mixture.to_torch().log_prob(points)
        assert nll_loss(mixture, points).item() == pytest.approx(each.mean().item(), rel=1e-12)
        expected = (share * each).sum().item()
        assert nll_loss(mixture, points, sample_weight=weights).item() == pytest.approx(expected, rel=1e-12)


def test_negative_log_likelihood_of_batches() -> None:
    p, q = oracle.random_mixture(4, 3, seed=5), plane(4, 3, seed=6)
    x = torch.randn(7, generator=seeded(7), dtype=torch.float64)
    y = torch.randn(4, 7, 2, generator=seeded(8), dtype=torch.float64)
    losses = nll_loss(p, NormalMixture.from_samples(x), reduction="none")
    assert losses.shape == (4,)
    assert losses[2].item() == pytest.approx(nll_loss(p[2], x).item(), rel=1e-12)
    assert nll_loss(p, NormalMixture.from_samples(x)).item() == pytest.approx(losses.mean().item(), rel=1e-12)
    weights = torch.rand(4, 7, generator=seeded(9), dtype=torch.float64)
    both = nll_loss(q, MultivariateNormalMixture.from_samples(y, weights), reduction="none")
    assert both.shape == (4,)
    assert both[3].item() == pytest.approx(nll_loss(q[3], y[3], sample_weight=weights[3]).item(), rel=1e-12)


def test_negative_log_likelihood_gradients_and_dtypes() -> None:
    w, m, s = (t.requires_grad_() for t in oracle.random_parameters(3, seed=10))
    x = torch.randn(5, generator=seeded(11), dtype=torch.float64).requires_grad_()
    shares = torch.rand(5, generator=seeded(12), dtype=torch.float64).requires_grad_()

    def of(w: Tensor, m: Tensor, s: Tensor, x: Tensor, shares: Tensor) -> Tensor:
        return nll_loss(NormalMixture(w, m, s, validate_args=False), x, sample_weight=shares)

    assert gradcheck(of, (w, m, s, x, shares))
    half = NormalMixture(torch.ones(1).half(), torch.zeros(1).half(), torch.ones(1).half())
    far = nll_loss(half, torch.tensor([1000.0]).half())
    assert far.dtype == torch.float32
    assert far.item() == pytest.approx(5e5, rel=1e-5)  # beyond half's 65504
    ball = MultivariateNormalMixture(torch.ones(1).half(), torch.zeros(1, 2).half(), Spherical(torch.ones(1).half()))
    assert nll_loss(ball, torch.ones(3, 2).half()).item() == pytest.approx(2.8378770664, rel=1e-6)


def test_kl_of_normals_within_five_standard_errors() -> None:
    one = torch.ones(1, dtype=torch.float64)
    p = NormalMixture(one, 0 * one, one)
    q = NormalMixture(one, 1.5 * one, 2 * one)
    exact = torch.distributions.kl_divergence(
        torch.distributions.Normal(0.0, 1.0), torch.distributions.Normal(1.5, 2.0)
    ).item()
    estimate, error = kl_divergence(p, q, 20_000, seeded(13), with_error=True)
    assert abs(estimate.item() - exact) < 5 * error.item()
    # log f/g = const + (x - 1.5)^2/8 - x^2/2, of variance (3/8)^2 * 2 + (3/8)^2.
    assert error.item() == pytest.approx((3 * (3 / 8) ** 2 / 20_000) ** 0.5, rel=0.05)


def test_kl_of_mixtures_within_five_standard_errors() -> None:
    p, q = oracle.random_mixture(3, seed=14), oracle.random_mixture(2, seed=15)

    def integrand(x: float) -> float:
        at = torch.tensor(x, dtype=torch.float64)
        log_f = p.log_prob(at)
        return (log_f.exp() * (log_f - q.log_prob(at))).item()

    exact = scipy.integrate.quad(integrand, -60, 60, points=p.means.tolist(), limit=500)[0]
    estimate, error = kl_divergence(p, q, 20_000, seeded(16), with_error=True)
    assert abs(estimate.item() - exact) < 5 * error.item()
    assert error.item() < 0.05 * exact
    assert torch.equal(kl_divergence(p, q, 100, seeded(1)), kl_divergence(p, q, 100, seeded(1)))


def test_kl_gradients_within_five_standard_errors() -> None:
    """Of 40 independent estimates: KL(N(m, S) || N(n, T)) has a closed form, its gradients by autograd."""
    p_mean, q_mean = (torch.tensor(t, dtype=torch.float64, requires_grad=True) for t in ([0.0, 1.0], [0.5, 0.0]))
    p_var, q_var = (torch.tensor(t, dtype=torch.float64, requires_grad=True) for t in ([1.0, 0.5], [2.0, 1.0]))
    leaves = (p_mean, p_var, q_mean, q_var)
    ratio, apart = p_var / q_var, q_mean - p_mean
    exact = torch.autograd.grad(0.5 * (ratio + apart.square() / q_var - 1 - ratio.log()).sum(), leaves)
    one = torch.ones(1, dtype=torch.float64)
    estimates = []
    for seed in range(40):
        p, q = (
            MultivariateNormalMixture(one, m.unsqueeze(0), Diagonal(v.unsqueeze(0)))
            for m, v in ((p_mean, p_var), (q_mean, q_var))
        )
        estimates.append(torch.autograd.grad(kl_divergence(p, q, 500, seeded(seed)), leaves))
    for i, gradient in enumerate(exact):
        each = torch.stack([e[i] for e in estimates])
        error = each.std(0) / len(each) ** 0.5
        assert ((each.mean(0) - gradient).abs() < 5 * error).all()
        assert (error < 0.05).all()


def test_kl_gradient_in_the_weights_within_five_standard_errors() -> None:
    q = oracle.random_mixture(2, seed=17)
    _, m, s = oracle.random_parameters(2, seed=18)
    logit = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def mixture(logit: Tensor) -> NormalMixture:
        return NormalMixture(torch.stack((logit.sigmoid(), 1 - logit.sigmoid())), m, s, validate_args=False)

    x = torch.linspace(-40, 40, 20_001, dtype=torch.float64)
    log_f = mixture(logit).log_prob(x)
    exact = torch.autograd.grad(torch.trapezoid(log_f.exp() * (log_f - q.log_prob(x)), x), logit)[0].item()
    each = torch.stack(
        [torch.autograd.grad(kl_divergence(mixture(logit), q, 500, seeded(i)), logit)[0] for i in range(40)]
    )
    error = each.std().item() / 40**0.5
    assert abs(each.mean().item() - exact) < 5 * error
    assert error < 0.2 * abs(exact)


def test_kl_of_a_mixture_to_itself_is_zero_with_every_draw() -> None:
    p = oracle.random_mixture(3, seed=19)
    means = p.means.clone().requires_grad_()
    loss, error = kl_divergence(NormalMixture(p.weights, means, p.scales), p, 10, seeded(0), with_error=True)
    assert loss.item() == 0
    assert error.item() == 0
    torch.testing.assert_close(torch.autograd.grad(loss, means)[0], torch.zeros_like(means), rtol=0, atol=1e-15)


def test_second_derivatives_of_kl_in_p_are_refused_and_in_q_are_right() -> None:
    p, q = oracle.random_mixture(2, seed=24), oracle.random_mixture(2, seed=25)
    p_means, q_means = p.means.clone().requires_grad_(), q.means.clone().requires_grad_()

    def of(p_means: Tensor, q_means: Tensor) -> Tensor:
        sides = NormalMixture(p.weights, p_means, p.scales), NormalMixture(q.weights, q_means, q.scales)
        return kl_divergence(*sides, 50, seeded(0))

    assert gradgradcheck(lambda q_means: of(p.means, q_means), q_means)
    (gradient,) = torch.autograd.grad(of(p_means, q_means), p_means, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(gradient.sum(), p_means)


def test_kl_batches_and_dtypes() -> None:
    p, q = plane(2, 1, 3, seed=20), plane(5, 2, seed=21)
    estimate, error = kl_divergence(p, q, 50, seeded(1), with_error=True)
    assert estimate.shape == error.shape == (2, 5)
    assert (estimate > -5 * error).all()
    assert kl_divergence(plane(3, seed=20), q, 50, seeded(1)).shape == (5,)
    half = NormalMixture(torch.ones(1).half(), torch.zeros(1).half(), torch.ones(1).half())
    assert kl_divergence(half, half, 10, seeded(0)).dtype == torch.float32


def test_bad_input() -> None:
    p, q = oracle.random_mixture(2, seed=22), plane(2, seed=23)
    points = torch.zeros(3, dtype=torch.float64)
    with pytest.raises(ValueError, match="sample_weight must be >= 0 with a positive sum; got min -1"):
        nll_loss(p, points, sample_weight=points - 1)
    with pytest.raises(ValueError, match="scales must be > 0 for a density; got 0"):
        nll_loss(NormalMixture.from_samples(points), points)
    with pytest.raises(ValueError, match="samples must be an integer >= 2; got 1"):
        kl_divergence(p, p, 1)
    with pytest.raises(ValueError, match=r"p and q must have one event shape; got \(\) and \(2,\)"):
        kl_divergence(p, q)
    with pytest.raises(ValueError, match="q must be a mixture; got Tensor"):
        kl_divergence(p, points)


@pytest.mark.parametrize("block", [1, 20, None])
def test_log_density_in_blocks_is_torchs(block: int | None) -> None:
    for p in (plane(3, seed=1), oracle.random_mixture(3, seed=2)):
        x = p.sample((17,), seeded(3))
        torch.testing.assert_close(log_density(p, x, block), p.to_torch().log_prob(x), rtol=1e-12, atol=1e-12)
    means = torch.zeros(1, requires_grad=True)
    assert not log_density(NormalMixture(torch.ones(1), means, torch.ones(1)), torch.zeros(2)).requires_grad
