"""Quantiles: values against mpmath and brute force, gradients by the implicit function theorem."""

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from cramix import NormalMixture
from tests.oracle import mp_cdf, mp_parts, mp_quantile

# Weights are dyadic, so that they sum to one exactly, in float64 and in mpmath.
CASES = {
    "one": ([1.0], [0.5], [2.0]),
    "three": ([0.25, 0.5, 0.25], [-1.0, 0.5, 4.0], [0.5, 1.0, 2.0]),
    "gap": ([0.25, 0.75], [-100.0, 100.0], [1.0, 2.0]),
    "scales": ([0.25, 0.75], [0.5, 1.0], [1e-8, 1e3]),
    "offset": ([0.5, 0.5], [1e8, 1e8 + 3], [1.0, 2.0]),
    "absent": ([0.5, 0.0, 0.5], [-2.0, 1e6, 3.0], [1.0, 1e-9, 1.5]),
    "rare": ([1 - 2.0**-30, 2.0**-30], [0.0, 50.0], [1.0, 1e-6]),
}
LEVELS = [1e-300, 1e-16, 1e-9, 0.1, 0.249, 0.251, 0.4999, 0.5, 0.5001, 0.9, 1 - 1e-6, 1 - 1e-12]
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def tensor(x, **options):
    return torch.tensor(x, dtype=torch.float64, **options)


def mixture(case):
    return NormalMixture(*map(tensor, case))


def brute_force_quantile(u, points, weights):
    """The first point, in order, at which the exact sum of the weights so far reaches the exact level."""
    mass = Fraction(0)
    for x, w in sorted(zip(points, weights, strict=True)):
        mass += Fraction(w)
        if w and mass >= Fraction(u):
            return x
    return max(x for x, w in zip(points, weights, strict=True) if w)


@every_case
@pytest.mark.parametrize("u", LEVELS)
def test_quantile_is_the_root_to_1e_12(case, u):
    with mp.workdps(50):
        expected = float(mp_quantile(u, case))
        slope = sum(w / s * mp.npdf((mp.mpf(expected) - m) / s) for w, m, s in mp_parts(case))
    smallest = min(s for w, s in zip(case[0], case[2], strict=True) if w)
    # 1e-12 of the smallest scale, the rounding of the answer, and what the rounding of F itself leaves open.
    atol = 1e-12 * smallest + 4e-16 * abs(expected) + float(4e-16 * min(u, 1 - u) / slope)
    assert atol < 1e-6 * max(case[2])
    torch.testing.assert_close(mixture(case).icdf(tensor(u)), tensor(expected), rtol=0, atol=atol)


def test_quantile_at_the_level_of_a_gap_is_in_the_gap():
    p = mixture(CASES["gap"])
    x = p.icdf(tensor(0.25))
    assert -93 < x < 85
    assert p.cdf(x) == 0.25


@every_case
def test_cdf_of_quantile_is_the_level(case):
    p, u = mixture(case), tensor(LEVELS)
    x = p.icdf(u)
    slope = p.log_prob(x).exp()
    # A quantile is rounded, by far the most at the large offset; 37 scales out F changes by 37^2 roundings.
    torch.testing.assert_close(
        p.cdf(x) / u, torch.ones_like(u), rtol=0, atol=float((3e-16 * x.abs() * slope / u).max() + 1e-12)
    )


@given(data=st.data())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_quantile_brackets_the_level(data):
    k = data.draw(st.integers(1, 4))
    logits = tensor(data.draw(st.lists(st.floats(-20, 0), min_size=k, max_size=k)))
    means = data.draw(st.lists(st.floats(-100, 100), min_size=k, max_size=k))
    scales = data.draw(st.lists(st.floats(1e-3, 1e3), min_size=k, max_size=k))
    u = data.draw(st.floats(1e-12, 1 - 1e-12))
    weights = logits.softmax(-1)
    case = (weights.tolist(), means, scales)
    x = mixture(case).icdf(tensor(u)).item()
    step = 1e-12 * min(scales) + 1e-15 * abs(x)
    with mp.workdps(40):
        total = sum(w for w, _, _ in mp_parts(case))
        # The weights sum to one, and F is computed, up to a few roundings.
        slack = 1e-15 * min(u, 1 - u) + abs(total - 1)
        assert mp_cdf(mp.mpf(x - step), case) <= u + slack
        assert mp_cdf(mp.mpf(x + step), case) >= u - slack


def test_levels_zero_and_one_are_the_ends_of_the_line():
    p = mixture(CASES["three"])
    assert p.icdf(tensor([0.0, 1.0])).tolist() == [-math.inf, math.inf]


def test_levels_zero_and_one_of_atoms_are_the_first_and_last_that_are_there():
    p = NormalMixture.from_samples(tensor([5.0, 1.0, 3.0, 0.0, 9.0]), sample_weight=tensor([1.0, 2.0, 3.0, 0.0, 0.0]))
    assert p.icdf(tensor([0.0, 1.0])).tolist() == [1.0, 5.0]


@pytest.mark.parametrize("seed", range(3))
def test_quantile_of_atoms_matches_brute_force(seed):
    rng = np.random.default_rng(seed)
    points = rng.integers(-20, 20, size=60).astype(float)  # with ties
    weights = rng.integers(0, 5, size=60).astype(float)
    weights[0] += 1024 - weights.sum()  # dyadic after division: sums are exact
    levels = np.concatenate([rng.random(50), np.arange(1, 1025, 93) / 1024, np.cumsum(np.sort(weights))[-3:] / 1024])
    p = NormalMixture.from_samples(tensor(points), sample_weight=tensor(weights))
    expected = [brute_force_quantile(u, points, weights / 1024) for u in levels]
    assert p.icdf(tensor(levels)).tolist() == expected


@pytest.mark.parametrize("n", [3, 7, 10, 49, 100, 1000])
def test_level_j_of_n_is_the_j_th_of_n_samples(n):
    p = NormalMixture.from_samples(torch.arange(1, n + 1, dtype=torch.float64).flip(0))
    levels = torch.arange(1, n + 1, dtype=torch.float64) / n
    assert p.icdf(levels).tolist() == list(range(1, n + 1))


MIXED = ([0.25, 0.25, 0.375, 0.125], [0.0, 1.0, -0.5, 1.0], [1.0, 0.0, 0.5, 0.0])


@pytest.mark.parametrize("u", [1e-300, 1e-9, 0.1, 0.4, 0.5, 0.55, 0.583, 0.7, 0.9, 0.958, 0.97, 1 - 1e-12])
def test_quantile_of_atoms_and_normals_is_the_smallest_x_that_reaches_the_level(u):
    with mp.workdps(50):
        expected = float(mp_quantile(u, MIXED))
    torch.testing.assert_close(mixture(MIXED).icdf(tensor(u)), tensor(expected), rtol=1e-14, atol=1e-14)


def test_quantile_in_the_jump_of_an_atom_is_exactly_on_it():
    p = mixture(MIXED)
    before = float(mp_cdf(mp.mpf(1) - mp.mpf(10) ** -12, MIXED))
    levels = torch.linspace(before + 1e-9, before + 0.375 - 1e-9, 50, dtype=torch.float64)
    assert (p.icdf(levels) == 1.0).all()
    assert p.icdf(tensor(before - 1e-6)) < 1 < p.icdf(tensor(before + 0.375 + 1e-6))


@pytest.mark.parametrize("u", [0.0, 0.1, 0.25, 0.3, 0.5, 0.9, 1.0])
def test_normal_of_weight_zero_does_not_show_among_atoms(u):
    means = tensor([1.0, 2.0, 5.0, 3.0], requires_grad=True)
    p = NormalMixture(tensor([0.25, 0.25, 0.5, 0.0]), means, tensor([0.0, 0.0, 0.0, 1.0]))
    expected = brute_force_quantile(u, [1.0, 2.0, 5.0], [0.25, 0.25, 0.5])
    x = p.icdf(tensor(u))
    assert x == expected
    (grad,) = torch.autograd.grad(x, means)
    assert grad.tolist() == [float(m == expected) for m in means]


def test_batches_of_atoms_and_normals_are_solved_each_as_alone():
    weights, means = tensor([[0.25, 0.75], [0.5, 0.5], [0.5, 0.5]]), tensor([[1.0, 4.0], [-9.0, 9.0], [1e8, 1e8 + 3]])
    scales = tensor([[0.0, 0.0], [1.0, 2.0], [0.0, 1e-3]])
    p = NormalMixture(weights, means, scales)
    u = tensor([[[0.2]], [[0.25]], [[0.7]], [[0.999]]])
    x = p.icdf(u.expand(4, 2, 1))
    assert x.shape == (4, 2, 3)
    for i in range(4):
        for j in range(3):
            alone = NormalMixture(weights[j], means[j], scales[j]).icdf(u[i, 0, 0])
            torch.testing.assert_close(x[i, :, j], alone.expand(2), rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("shape", [(), (1,), (5, 3), (2, 5, 1)])
def test_levels_broadcast_against_the_batch(shape):
    p = mixture(CASES["three"]).affine(tensor([0.0, 10.0, 20.0]), 2.0)
    u = torch.full(shape, 0.3, dtype=torch.float64)
    expected = mixture(CASES["three"]).icdf(tensor(0.3)) * 2 + tensor([0.0, 10.0, 20.0])
    torch.testing.assert_close(p.icdf(u), expected.expand(torch.broadcast_shapes(shape, (3,))), rtol=1e-14, atol=1e-14)


# Gradients


def free_parameters():
    return [tensor(t, requires_grad=True) for t in ([0.1, -0.4, 0.3], [-1.0, 0.5, 2.0], [-0.2, 0.3, -0.5])]


def quantile_of_free(u, logits, means, log_scales):
    return NormalMixture.from_logits(logits, means, log_scales.exp()).icdf(u)


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_quantile_passes(check):
    u = tensor([0.02, 0.3, 0.5, 0.77, 0.99], requires_grad=True)
    assert check(quantile_of_free, (u, *free_parameters()))


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_quantile_beside_an_atom_passes(check):
    logits, means, _ = free_parameters()
    u = tensor([0.05, 0.2, 0.95], requires_grad=True)

    def quantile(u, logits, means, log_scales):
        scales = torch.cat((log_scales.exp(), torch.zeros(1, dtype=torch.float64)))
        return NormalMixture.from_logits(logits, means, scales).icdf(u)

    assert check(quantile, (u, logits, means, tensor([-0.2, 0.3], requires_grad=True)))


@pytest.mark.parametrize("u", [1e-300, 1e-16, 0.3, 1 - 1e-12])
def test_quantile_gradient_is_that_of_the_implicit_function_theorem(u):
    case = CASES["three"]
    weights, means, scales = (tensor(t, requires_grad=True) for t in case)
    level = tensor(u, requires_grad=True)
    logits = weights.detach().log().requires_grad_()
    x = NormalMixture.from_logits(logits, means, scales).icdf(level)
    at_level, at_logits, at_means, at_scales = torch.autograd.grad(x, (level, logits, means, scales))
    with mp.workdps(50):
        q = mp_quantile(u, case)
        parts = [(w, (q - m) / s, s) for w, m, s in mp_parts(case)]
        density = [w / s * mp.npdf(z) for w, z, s in parts]
        total = sum(density)
        # F_i - F loses its digits in the right tail unless taken from there.
        each = [mp.ncdf(z) if u < 0.5 else -mp.erfc(z / mp.sqrt(2)) / 2 for _, z, _ in parts]
        overall = sum(w * e for (w, _, _), e in zip(parts, each, strict=True))
        expected = [
            [1 / total],
            [-w * (e - overall) / total for (w, _, _), e in zip(parts, each, strict=True)],
            [d / total for d in density],
            [d * z / total for d, (_, z, _) in zip(density, parts, strict=True)],
        ]
    for got, truth in zip((at_level, at_logits, at_means, at_scales), expected, strict=True):
        # 37 scales out a density changes by 37^2 roundings of x; in the other tail components have no effect left.
        torch.testing.assert_close(got.reshape(-1), tensor([float(t) for t in truth]), rtol=1e-11, atol=1e-14)


def test_float32_gradients_are_right_in_the_tail():
    means = torch.tensor([-1.0, 0.5, 4.0], requires_grad=True)
    p = NormalMixture(torch.tensor([0.25, 0.5, 0.25]), means, torch.tensor([0.5, 1.0, 2.0]))
    for u in (1e-30, 1e-6, 0.4, 1 - 1e-6):
        (grad,) = torch.autograd.grad(p.icdf(torch.tensor(u)), means)
        # Moving all means by one moves the quantile by one.
        torch.testing.assert_close(grad.sum(), torch.tensor(1.0), rtol=1e-5, atol=0)


def test_gradient_of_an_atoms_quantile_is_that_of_its_place():
    parameters = [tensor(t, requires_grad=True) for t in ([0.25, 0.5, 0.25], [-1.0, 2.0, 3.0], [1.0, 0.0, 1.0])]
    level = tensor(0.5, requires_grad=True)
    x = NormalMixture(*parameters).icdf(level)
    grads = torch.autograd.grad(x, (level, *parameters), allow_unused=True, materialize_grads=True)
    assert x == 2
    assert [g.tolist() for g in grads] == [0.0, [0.0] * 3, [0.0, 1.0, 0.0], [0.0] * 3]


def test_gradient_at_the_ends_of_the_line_is_zero_not_nan():
    means = tensor([-1.0, 2.0], requires_grad=True)
    x = NormalMixture(tensor([0.5, 0.5]), means, tensor([1.0, 2.0])).icdf(tensor([0.0, 0.5, 1.0]))
    (grad,) = torch.autograd.grad(x[[0, 2]].sum(), means)
    assert grad.tolist() == [0.0, 0.0]
