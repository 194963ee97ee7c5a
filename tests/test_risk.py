"""Expectiles and the conditional value at risk: against quadrature, brute force on sorted samples, and their laws."""

from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm
from torch.autograd import gradcheck, gradgradcheck

from cramix import NormalMixture
from tests.oracle import mp_cdf, mp_parts, mp_quantile

# Weights are dyadic, so that they sum to one exactly, in float64 and in mpmath.
CASES = {
    "one": ([1.0], [0.5], [2.0]),
    "three": ([0.25, 0.5, 0.25], [-1.0, 0.5, 4.0], [0.5, 1.0, 2.0]),
    "gap": ([0.25, 0.75], [-50.0, 50.0], [1.0, 2.0]),
    "scales": ([0.25, 0.75], [0.5, 1.0], [1e-6, 1e2]),
    "absent": ([0.5, 0.0, 0.5], [-2.0, 1e6, 3.0], [1.0, 1e-9, 1.5]),
    "atoms too": ([0.25, 0.25, 0.375, 0.125], [0.0, 1.0, -0.5, 3.0], [1.0, 0.0, 0.5, 0.0]),
}
SAMPLES = {
    "ties": ([3.0, 1.0, 1.0, -2.0, 7.0], [0.125, 0.25, 0.25, 0.125, 0.25]),
    "absent": ([3.0, -9.0, 1.0, 2.0, 50.0], [0.25, 0.0, 0.25, 0.5, 0.0]),
    "one": ([2.5], [1.0]),
    # The scale on which the function of interest bends is far below the spread of the sample.
    "outlier": ([0.0, 1.0, 2.0, 3.0, 1e9], [0.25, 0.25, 0.25, 0.125, 0.125]),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_sample = pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
both_tails = pytest.mark.parametrize("tail", ["lower", "upper"])


def tensor(x, **options):
    return torch.tensor(x, dtype=torch.float64, **options)


def mixture(case):
    return NormalMixture(*map(tensor, case))


def atoms(sample):
    return NormalMixture.from_samples(*map(tensor, sample))


def reflected(case):
    return (case[0], [-m for m in case[1]], case[2])


def mp_mean_below(x, case):
    """E(x - X)+, by quadrature of each component."""

    def component(m, s):
        if not s:
            return max(x - m, mp.mpf(0))
        end = (x - m) / s
        nearest = min(end, mp.mpf(0))  # where the density is largest; it is taken out, as mpmath's error is absolute
        cuts = sorted(
            {nearest - 40, *(nearest - t for t in (10, 5, 2, 1, 0.5, 0.2)), nearest, min(end, nearest + 8), end}
        )
        integral = mp.quad(lambda z: (end - z) * mp.exp((nearest**2 - z**2) / 2), cuts)
        return s * mp.npdf(nearest) * integral

    return mp.fsum(w * component(m, s) for w, m, s in mp_parts(case))


def brute_force_cvar(alpha, points, weights):
    """Fill the fraction alpha from the smallest point up; the last point counts with the mass that is left to fill."""
    left, total = Fraction(alpha), Fraction(0)
    for x, w in sorted(zip(points, weights, strict=True)):
        share = min(left, Fraction(w))
        total, left = total + share * Fraction(x), left - share
    return float(total / Fraction(alpha))


def brute_force_expectile(tau, points, weights):
    """Solve on each interval between neighbouring points, where the balance is linear, in exact arithmetic."""
    tau, pairs = Fraction(tau), [(Fraction(x), Fraction(w)) for x, w in zip(points, weights, strict=True)]
    places = sorted({x for x, _ in pairs})
    for low, high in zip([places[0], *places], [*places, places[-1]], strict=True):
        below = [(x, (1 - tau) * w) for x, w in pairs if x <= low]
        above = [(x, tau * w) for x, w in pairs if x > low]
        mass = sum(w for _, w in below + above)
        root = sum(x * w for x, w in below + above) / mass if mass else low
        if low <= root <= high:
            return float(root)
    raise AssertionError("an expectile lies within the sample")


# Expectiles


@every_case
@pytest.mark.parametrize("tau", [1e-9, 0.01, 0.3, 0.5, 0.8, 1 - 1e-6])
def test_expectile_balances_gains_and_losses(case, tau):
    e = mixture(case).expectile(tau)
    with mp.workdps(40):
        x, level = mp.mpf(e.item()), mp.mpf(tau)
        below, above = mp_mean_below(x, case), mp_mean_below(-x, reflected(case))
        slope = level + (1 - 2 * level) * mp_cdf(x, case)
        error = ((1 - level) * below - level * above) / slope
    size = max(*case[2], *(abs(m) for w, m in zip(*case[:2], strict=True) if w))
    # In a tail the shortfall is a difference of numbers z^2 times as large, here 5^2.
    assert abs(error) <= 5e-14 * size


@every_case
def test_expectile_one_half_is_the_mean(case):
    p = mixture(case)
    torch.testing.assert_close(p.expectile(0.5), p.mean, rtol=1e-14, atol=1e-14)


@every_sample
@pytest.mark.parametrize("tau", [1e-10, 1e-9, 4e-9, 0.01, 0.3, 0.5, 0.8, 0.99])
def test_expectile_of_atoms_matches_brute_force(sample, tau):
    expected = brute_force_expectile(tau, *sample)
    torch.testing.assert_close(atoms(sample).expectile(tau), tensor(expected), rtol=1e-12, atol=1e-14)


def test_expectile_moves_with_affine_maps():
    p, tau = mixture(CASES["three"]), tensor([0.1, 0.5, 0.9])
    torch.testing.assert_close(p.affine(3.0, 2.0).expectile(tau), 3 + 2 * p.expectile(tau), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(p.affine(3.0, -2.0).expectile(tau), 3 - 2 * p.expectile(1 - tau), rtol=1e-13, atol=1e-13)


@every_case
def test_expectile_increases_in_tau(case):
    tau = torch.linspace(0.001, 0.999, 200, dtype=torch.float64)
    assert (mixture(case).expectile(tau).diff() > 0).all()


# Conditional value at risk


@every_case
@both_tails
@pytest.mark.parametrize("alpha", [1e-100, 1e-9, 0.01, 0.2, 0.6, 0.999, 1.0])
def test_cvar_is_the_mean_of_the_outcomes_in_the_tail(case, tail, alpha):
    lower, sign = (case, 1) if tail == "lower" else (reflected(case), -1)
    with mp.workdps(40):
        # min over q of the convex function of Rockafellar and Uryasev, with the expectation by quadrature.
        q = mp_quantile(alpha, lower) if alpha < 1 else max(m + 50 * s for _, m, s in mp_parts(lower))
        expected = sign * float(q - mp_mean_below(q, lower) / mp.mpf(alpha))
    size = max(*case[2], *(abs(m) for w, m in zip(*case[:2], strict=True) if w))
    # A few roundings of the size of the mixture. The shortfall, 1 / z of a scale, is a difference of numbers z^2 times
    # as large, which change by z^2 roundings when their argument does by one.
    atol = 2e-14 * size + 1e-16 * abs(norm.ppf(min(alpha, 0.5))) ** 3 * max(case[2])
    torch.testing.assert_close(mixture(case).cvar(alpha, tail), tensor(expected), rtol=0, atol=atol)


@pytest.mark.parametrize("alpha", [0.05, 0.4])
@both_tails
def test_cvar_is_the_mean_of_the_quantile_function(tail, alpha):
    weights, means, scales = map(np.array, CASES["three"])
    start = 0.0 if tail == "lower" else 1 - alpha

    def quantile(u):
        return brentq(lambda x: weights @ norm.cdf((x - means) / scales) - u, -40, 40, xtol=1e-13)

    integral, error = quad(quantile, start, start + alpha, epsabs=1e-10, epsrel=1e-10, limit=200)
    assert error < 1e-8
    torch.testing.assert_close(mixture(CASES["three"]).cvar(alpha, tail), tensor(integral / alpha), rtol=0, atol=1e-7)


@every_sample
@both_tails
@pytest.mark.parametrize("alpha", [1e-9, 0.1, 0.125, 0.2, 0.25, 0.3, 0.5, 0.77, 0.875, 0.99, 1.0])
def test_cvar_of_atoms_matches_sorting_with_a_fraction_of_the_last(sample, tail, alpha):
    points, weights = sample
    if tail == "lower":
        expected = brute_force_cvar(alpha, points, weights)
    else:
        expected = -brute_force_cvar(alpha, [-x for x in points], weights)
    size = max(abs(x) for x, w in zip(*sample, strict=True) if w)
    # Where the quantile is the outlier at 1e9 its rounding stays in the answer.
    torch.testing.assert_close(atoms(sample).cvar(alpha, tail), tensor(expected), rtol=1e-14, atol=1e-15 * size)


@every_case
@both_tails
def test_cvar_of_everything_is_the_mean(case, tail):
    p = mixture(case)
    torch.testing.assert_close(p.cvar(1.0, tail), p.mean, rtol=0, atol=1e-14 * p.stddev.item())


@every_case
def test_cvar_is_monotone_in_alpha_and_bounded_by_quantile_and_mean(case):
    p, alpha = mixture(case), torch.linspace(0.002, 1, 300, dtype=torch.float64)
    size = float(max(abs(p.icdf(tensor(1e-6))), abs(p.icdf(tensor(1 - 1e-6)))))
    rounding = 1e-14 * size
    assert (p.cvar(alpha).diff() > -rounding).all()
    assert (p.cvar(alpha, "upper").diff() < rounding).all()
    assert (p.cvar(alpha) <= p.icdf(alpha) + rounding).all()
    assert (p.cvar(alpha) <= p.mean + rounding).all()
    assert (p.cvar(alpha, "upper") >= p.mean - rounding).all()


def test_tails_share_out_the_mean():
    p, alpha = mixture(CASES["atoms too"]), tensor([0.1, 0.3, 0.5, 0.9])
    both = alpha * p.cvar(alpha) + (1 - alpha) * p.cvar(1 - alpha, "upper")
    torch.testing.assert_close(both, p.mean.expand(4), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("method", ["expectile", "cvar"])
def test_levels_broadcast_against_the_batch(method):
    cases = [CASES["one"], ([1.0], [-3.0], [0.0]), ([1.0], [7.0], [1e-3])]
    p = NormalMixture(*(tensor(t) for t in zip(*cases, strict=True)))
    levels = tensor([[0.1], [0.5], [0.9], [0.99]])
    got = getattr(p, method)(levels)
    assert got.shape == (4, 3)
    for i, level in enumerate(levels):
        for j, case in enumerate(cases):
            torch.testing.assert_close(got[i, j], getattr(mixture(case), method)(level[0]), rtol=1e-14, atol=1e-14)


# Gradients


def free_parameters():
    return [tensor(t, requires_grad=True) for t in ([0.1, -0.4, 0.3], [-1.0, 0.5, 2.0], [-0.2, 0.3, -0.5])]


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("method", ["expectile", "cvar"])
def test_risk_measure_passes(check, method):
    level = tensor([0.05, 0.3, 0.5, 0.9], requires_grad=True)

    def measure(level, logits, means, log_scales):
        return getattr(NormalMixture.from_logits(logits, means, log_scales.exp()), method)(level)

    assert check(measure, (level, *free_parameters()))


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_upper_cvar_passes(check):
    level = tensor([0.05, 0.3, 0.9], requires_grad=True)

    def measure(level, logits, means, log_scales):
        return NormalMixture.from_logits(logits, means, log_scales.exp()).cvar(level, "upper")

    assert check(measure, (level, *free_parameters()))


# Levels at which no small change of a weight moves the quantile or the expectile to another atom.
POINTS, LOGITS = [3.0, 1.0, -2.0, 7.0], [0.0, 0.5, -1.0, 0.3]


@pytest.mark.parametrize("level", [0.05, 0.3, 0.55, 0.95])
@pytest.mark.parametrize(
    ("measure", "truth"),
    [
        (lambda p, a: p.cvar(a), brute_force_cvar),
        (lambda p, a: p.cvar(a, "upper"), lambda a, x, w: -brute_force_cvar(a, [-t for t in x], w)),
        (lambda p, a: p.expectile(a), brute_force_expectile),
    ],
    ids=["cvar", "upper cvar", "expectile"],
)
def test_gradient_at_atoms_is_that_of_brute_force(measure, truth, level):
    x, logits = tensor(POINTS, requires_grad=True), tensor(LOGITS, requires_grad=True)
    grads = torch.autograd.grad(measure(NormalMixture.from_samples(x, logits.softmax(-1)), level), (x, logits))
    step = 1e-6
    for grad, name in zip(grads, ("x", "logits"), strict=True):
        for i in range(4):
            sides = []
            for sign in (1, -1):
                points, free = list(POINTS), list(LOGITS)
                (points if name == "x" else free)[i] += sign * step
                sides.append(truth(level, points, tensor(free).softmax(-1).tolist()))
            # Rounding of a central difference: 1e-16 / 1e-6.
            torch.testing.assert_close(grad[i], tensor((sides[0] - sides[1]) / (2 * step)), rtol=0, atol=5e-9)


def test_cvar_gradient_beside_normals_counts_the_atoms_share():
    means = tensor([-5.0, 0.0, 5.0], requires_grad=True)
    p = NormalMixture(tensor([0.25, 0.5, 0.25]), means, tensor([0.5, 0.0, 0.5]))
    (grad,) = torch.autograd.grad(p.cvar(0.5), means)
    # Half of the worst half is the first component, the other half lies on the atom.
    torch.testing.assert_close(grad, tensor([0.5, 0.5, 0.0]), rtol=1e-12, atol=1e-12)


def test_cvar_of_everything_is_the_mean_even_with_a_light_far_component() -> None:
    p = NormalMixture(torch.tensor([1 - 1e-7, 1e-7]), torch.tensor([0.0, 1e6]), torch.ones(2))
    assert p.cvar(1.0).item() == p.mean.item()


def test_cvar_on_a_plateau_has_finite_gradients() -> None:
    means = torch.tensor([0.0, 100.0], requires_grad=True)
    (grad,) = torch.autograd.grad(NormalMixture(torch.tensor([0.5, 0.5]), means, torch.ones(2)).cvar(0.5), means)
    assert grad.tolist() == pytest.approx([1, 0], abs=1e-6)
