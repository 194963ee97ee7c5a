"""Losses of predictions: one sample, several, weighted ones and mixtures as targets, in every reduction."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scoringrules
import torch
from scipy import integrate, special, stats
from torch import Tensor

from cramix import (
    BlendedLoss,
    CramerLoss,
    Diagonal,
    EnergyScore,
    MultivariateNormalMixture,
    NLLLoss,
    NormalMixture,
    SlicedCramerLoss,
    Spherical,
    blended_loss,
    cramer_loss,
    crps,
    energy_score,
    negative_log_likelihood_loss,
    sliced_cramer_loss,
)
from cramix.loss import ramp
from tests.refusals import refuses

D = torch.float64


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=D)


def line(batch: tuple[int, ...] = (4,), k: int = 3, seed: int = 0) -> NormalMixture:
    weights = random(*batch, k, seed=seed).softmax(-1)
    return NormalMixture(weights, 2 * random(*batch, k, seed=seed + 1), 0.3 + random(*batch, k, seed=seed + 2).abs())


def space(batch: tuple[int, ...] = (4,), k: int = 3, dim: int = 2, seed: int = 0) -> MultivariateNormalMixture:
    weights, means = random(*batch, k, seed=seed).softmax(-1), 2 * random(*batch, k, dim, seed=seed + 1)
    return MultivariateNormalMixture(weights, means, Diagonal(0.3 + random(*batch, k, dim, seed=seed + 2).abs()))


def test_one_sample_each_is_the_crps_of_others() -> None:
    p, y = line((4,)), random(4, seed=5)
    others = scoringrules.crps_mixnorm(y.numpy(), p.means.numpy(), p.scales.numpy(), p.weights.numpy())
    for value in (
        CramerLoss("none")(p, y),
        EnergyScore("none")(p, y),
        crps(p, y),
        cramer_loss(p, y.unsqueeze(-1), "none"),
    ):
        np.testing.assert_allclose(value, others, rtol=1e-9)


def test_one_sample_each_in_every_batch_shape() -> None:
    for batch in ((), (4,), (2, 4), (4, 4)):
        p, y = line(batch), random(*batch, seed=5)
        torch.testing.assert_close(cramer_loss(p, y, "none"), crps(p, y))
        torch.testing.assert_close(negative_log_likelihood_loss(p, y, reduction="none"), -p.log_prob(y))
        q, z = space(batch), random(*batch, 2, seed=5)
        torch.testing.assert_close(sliced_cramer_loss(q, z, reduction="none"), energy_score(q, z, "none") * 2 / math.pi)
        torch.testing.assert_close(negative_log_likelihood_loss(q, z, reduction="none"), -q.log_prob(z))


def test_samples_for_all_mixtures_are_still_for_all() -> None:
    p, x = line((4,)), random(7, seed=5)
    one_by_one = [cramer_loss(NormalMixture(*t), x) for t in zip(p.weights, p.means, p.scales, strict=True)]
    torch.testing.assert_close(cramer_loss(p, x, "none"), torch.stack(one_by_one))


def integral_of_squares(p: NormalMixture, i: int, x: Tensor, weights: Tensor) -> float:
    """`integral (F - G)^2` between the steps of G."""
    places, order = x.sort()
    levels = np.concatenate([[0], (weights[order] / weights.sum()).cumsum(0)])
    edges = [-60.0, *places.tolist(), 60.0]

    def f(t: float) -> float:
        return float((p.weights[i] * torch.from_numpy(stats.norm.cdf(t, p.means[i], p.scales[i]))).sum())

    parts = zip(edges[:-1], edges[1:], levels, strict=True)
    return sum(integrate.quad(lambda t, g=g: (f(t) - g) ** 2, a, b, limit=200)[0] for a, b, g in parts)


@pytest.mark.parametrize("weighted", [False, True])
def test_several_samples_for_each_mixture(weighted: bool) -> None:
    p, x = line((3,)), random(3, 5, seed=6)
    weights = torch.rand(3, 5, generator=torch.Generator().manual_seed(0), dtype=D) if weighted else None
    shares = torch.ones(3, 5, dtype=D) if weights is None else weights
    truth = [integral_of_squares(p, i, x[i], shares[i]) for i in range(3)]
    np.testing.assert_allclose(CramerLoss("none")(p, x, weights), truth, rtol=1e-7)
    shares = shares / shares.sum(-1, keepdim=True)
    scores = (shares * crps(p, x.T).T).sum(-1)
    torch.testing.assert_close(EnergyScore("none")(p, x, weights), scores, rtol=1e-6, atol=0)
    likelihood = -(shares * p.log_prob(x.T).T).sum(-1)
    torch.testing.assert_close(NLLLoss("none")(p, x, weights), likelihood)


@pytest.mark.parametrize("weighted", [False, True])
def test_several_vectors_for_each_mixture(weighted: bool) -> None:
    p, x = space((3,)), random(3, 5, 2, seed=6)
    weights = torch.rand(3, 5, generator=torch.Generator().manual_seed(0), dtype=D) if weighted else None
    shares = torch.full((3, 5), 0.2, dtype=D) if weights is None else weights / weights.sum(-1, keepdim=True)
    one_by_one = torch.stack([energy_score(p, y, "none") for y in x.unbind(1)], -1)
    score = (shares * one_by_one).sum(-1)
    torch.testing.assert_close(EnergyScore("none")(p, x, weights), score, rtol=1e-6, atol=0)
    own = 0.5 * (shares.unsqueeze(-1) * shares.unsqueeze(-2) * torch.cdist(x, x)).sum((-1, -2))
    sliced = SlicedCramerLoss(reduction="none")(p, x, weights)
    torch.testing.assert_close(sliced, (score - own) * 2 / math.pi, rtol=1e-6, atol=1e-9)
    likelihood = -(shares * p.log_prob(x.movedim(1, 0)).T).sum(-1)
    torch.testing.assert_close(NLLLoss("none")(p, x, weights), likelihood)


@pytest.mark.parametrize("dim", [1, 2, 3, 10])
def test_the_energy_score_of_a_ball_in_closed_form(dim: int) -> None:
    """`E|delta + s Z|` is a hypergeometric function of |delta|^2 / s^2."""
    scale, y = 0.7, random(dim, seed=dim)

    def mean_length(delta: float, s: float) -> float:
        ratio = math.sqrt(2) * special.gamma((dim + 1) / 2) / special.gamma(dim / 2)
        return s * ratio * special.hyp1f1(-0.5, dim / 2, -(delta**2) / (2 * s**2))

    truth = mean_length(y.norm().item(), scale) - 0.5 * mean_length(0.0, math.sqrt(2) * scale)
    p = MultivariateNormalMixture(
        torch.ones(1, dtype=D), torch.zeros(1, dim, dtype=D), Spherical(torch.tensor([scale**2], dtype=D))
    )
    assert energy_score(p, y).item() == pytest.approx(truth, rel=1e-6)
    wrong = mean_length(y.norm().item(), 1.01 * scale) - 0.5 * mean_length(0.0, math.sqrt(2) * 1.01 * scale)
    assert energy_score(p, y).item() != pytest.approx(wrong, rel=1e-4)


def test_the_energy_score_of_an_ensemble_counts_its_own_energy() -> None:
    x, y = random(6, 2), random(2, seed=1)
    truth = (x - y).norm(dim=-1).mean() - 0.5 * torch.cdist(x, x).mean()
    torch.testing.assert_close(energy_score(MultivariateNormalMixture.from_samples(x), y), truth, rtol=1e-6, atol=0)
    on_line = (x[:, 0] - y[0]).abs().mean() - 0.5 * (x[:, :1] - x[:, 0]).abs().mean()
    torch.testing.assert_close(energy_score(NormalMixture.from_samples(x[:, 0]), y[0]), on_line)


def test_a_mixture_as_target_is_the_limit_of_its_samples() -> None:
    g = torch.Generator().manual_seed(0)
    for p, q in ((line(()), line((), 2, seed=9)), (space(()), space((), 2, seed=9))):
        x = q.sample((200_000,), generator=g)
        for loss in (EnergyScore(), NLLLoss(), CramerLoss() if isinstance(p, NormalMixture) else None):
            if loss is None:
                continue
            each = loss.__class__("none")(p.expand((len(x),)), x)
            error = 4 * each.std().item() / len(x) ** 0.5
            if isinstance(loss, CramerLoss):  # a distance: less the own energy of the target, half its mean difference
                each = each - 0.5 * (x - x.roll(1)).abs()
                error = 4 * each.std().item() / len(x) ** 0.5
            # the likelihood in the plane is by quasi-random nodes
            slack = 0.02 if isinstance(loss, NLLLoss) and isinstance(p, MultivariateNormalMixture) else 1e-6
            assert abs(loss(p, q).item() - each.mean().item()) < error + slack


def test_the_cross_entropy_to_a_mixture() -> None:
    p, q = line(()), line((), 2, seed=9)
    truth, _ = integrate.quad(
        lambda t: -(q.log_prob(torch.tensor(t, dtype=D)).exp() * p.log_prob(torch.tensor(t, dtype=D))).item(),
        -30, 30, limit=200,
    )  # fmt: skip
    assert NLLLoss()(p, q).item() == pytest.approx(truth, rel=1e-3)
    # One component: the log density is a quadratic, of which any rule with the right moments is exact.
    one = space((2,), 1, dim=3)
    q = space((2,), 2, dim=3, seed=9)
    centred = q.mean - one.means.squeeze(-2)
    variances = one.covariance_kind.values.squeeze(-2)
    square = (q.variance + centred.square()) / variances
    exact = 0.5 * (square + variances.log() + math.log(2 * math.pi)).sum(-1)
    torch.testing.assert_close(NLLLoss("none")(one, q), exact)


@pytest.mark.parametrize("loss", [CramerLoss, EnergyScore, NLLLoss, lambda r: BlendedLoss(9, reduction=r)])
def test_reductions(loss) -> None:
    p, y = line((4,)), random(4, seed=5)
    each = loss("none")(p, y)
    assert each.shape == (4,)
    torch.testing.assert_close(loss("mean")(p, y), each.mean())
    torch.testing.assert_close(loss("sum")(p, y), each.sum())


@pytest.mark.parametrize("module", [EnergyScore(), NLLLoss(), BlendedLoss(2, lambda part: 0.3)])
@pytest.mark.parametrize("make", [line, space])
@pytest.mark.parametrize("target", ["one", "several", "weighted", "mixture"])
def test_gradients(module, make, target) -> None:
    p = make((2,), 2)
    event = p.event_shape
    y = random(2, *event, seed=5) if target == "one" else random(2, 4, *event, seed=5)
    weights = torch.full((2, 4), 0.5, dtype=D) + 0.1 * random(2, 4).abs() if target == "weighted" else None
    if target == "mixture":
        y = make((2,), 2, seed=7)
    logits = p.weights.log().clone().requires_grad_()
    means = p.means.clone().requires_grad_()
    spread = (p.scales if make is line else p.covariance_kind.values).clone().requires_grad_()

    def f(logits, means, spread):
        kind = spread if make is line else Diagonal(spread)
        q = type(p)(logits.softmax(-1), means, kind, validate_args=False)
        return module(q, y, weights)

    torch.autograd.gradcheck(f, (logits, means, spread), eps=1e-5, atol=2e-5, rtol=1e-4)


def test_a_target_mixture_is_a_constant() -> None:
    q = NormalMixture(torch.ones(1, dtype=D), torch.zeros(1, dtype=D, requires_grad=True), torch.ones(1, dtype=D))
    p = line(())
    p.means.requires_grad_()
    for loss in (EnergyScore(), NLLLoss()):
        loss(p, q).backward()
    assert q.means.grad is None


def test_the_blend_goes_from_cramer_to_likelihood() -> None:
    for p, y, first in ((line(), random(4), cramer_loss), (space(), random(4, 2), sliced_cramer_loss)):
        last = negative_log_likelihood_loss(p, y)
        loss = BlendedLoss(10, ramp(0.4, 0.8), unit=3.0)
        values = []
        for _ in range(11):
            values.append(loss(p, y))
            loss.step()
        shares = [0, 0, 0, 0, 0, 0.25, 0.5, 0.75, 1, 1, 1]
        expected = [(1 - a) * first(p, y) / 3 + a * last for a in shares]
        torch.testing.assert_close(values, expected)
        other = BlendedLoss(10, ramp(0.4, 0.8), unit=3.0)
        other.load_state_dict({"done": torch.tensor(6)})
        torch.testing.assert_close(other(p, y), expected[6])


def test_a_share_of_nothing_is_not_computed() -> None:
    """An atom has no likelihood, which is no matter as long as it does not count."""
    p = NormalMixture.from_samples(torch.tensor([0.0, 1.0]))
    assert blended_loss(p, torch.tensor([0.5]), share=0.0).isfinite()
    with pytest.raises(ValueError, match="atom"):
        blended_loss(p, torch.tensor([0.5]), share=0.1)


@pytest.mark.parametrize(
    ("call", "name", "got"),
    [
        (lambda: CramerLoss("max"), "reduction", "max"),
        (lambda: EnergyScore(tolerance=0.0), "tolerance", "0.0"),
        (lambda: CramerLoss()(line(), random(4), random(4).abs()), "weights", "(4,)"),
        (lambda: EnergyScore()(line(), line(), random(4, 3).abs()), "weights", "NormalMixture"),
        (lambda: NLLLoss()(line(), line(), random(4, 3).abs()), "weights", "NormalMixture"),
        (lambda: EnergyScore()(random(4), random(4)), "p", "Tensor"),
        (lambda: NLLLoss()(line(), space()), "p and q", "()"),
        (lambda: BlendedLoss(0), "steps", "0"),
        (lambda: BlendedLoss(5, unit=0.0), "unit", "0.0"),
        (lambda: blended_loss(line(), random(4), share=1.5), "share", "1.5"),
        (lambda: ramp(0.9, 0.1), "begin", "0.9"),
    ],
)
def test_bad_input_is_refused(call, name, got) -> None:
    refuses(call, name, got)
