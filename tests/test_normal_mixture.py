"""NormalMixture as a distribution: construction, densities, distribution functions, moments, transformations."""

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Normal, constraints

from cramix import NormalMixture

# Weights are dyadic, so that they sum to one exactly, in float64 and in mpmath.
CASES = {
    "one": ([1.0], [0.5], [2.0]),
    "three": ([0.25, 0.5, 0.25], [-1.0, 0.5, 4.0], [0.5, 1.0, 2.0]),
    "scales": ([0.5, 0.5], [0.0, 1.0], [1e-8, 1e3]),
    "gap": ([0.75, 0.25], [-1e3, 1e3], [1.0, 3.0]),
    "rare": ([1 - 2.0**-30, 2.0**-30], [0.0, 5.0], [1.0, 4.0]),
    "absent": ([0.5, 0.0, 0.5], [-2.0, 1e5, 3.0], [1.0, 1e-5, 1.5]),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def tensor(x, **options):
    return torch.tensor(x, dtype=torch.float64, **options)


def mixture(case, **options):
    return NormalMixture(*map(tensor, case), **options)


def atoms(*points):
    return NormalMixture.from_samples(tensor(points))


def mp_sum(component, case):
    """Sum weight * component(mean, scale) over the components that are there."""
    return mp.fsum(mp.mpf(w) * component(mp.mpf(m), mp.mpf(s)) for w, m, s in zip(*case, strict=True) if w)


def mp_density(x, case):
    return mp_sum(lambda m, s: mp.exp(-(((x - m) / s) ** 2) / 2) / (s * mp.sqrt(2 * mp.pi)), case)


def mp_cdf(x, case):
    return mp_sum(lambda m, s: mp.erfc((m - x) / (s * mp.sqrt(2))) / 2, case)


def mp_survival(x, case):
    return mp_sum(lambda m, s: mp.erfc((x - m) / (s * mp.sqrt(2))) / 2, case)


def mp_expectation(f, case):
    """E f(X) by quadrature, a component at a time."""

    def component(m, s):
        return mp.quad(lambda z: f(m + s * z) * mp.npdf(z), [-30, -10, -3, 0, 3, 10, 30])

    return mp_sum(component, case)


def points(case, reach):
    """Points at so many scales either side of each component."""
    return sorted({m + sign * r * s for m, s in zip(*case[1:], strict=True) for r in reach for sign in (-1, 1)})


def trapezoid_entropy(weights, means, scales):
    """The trapezoid rule, whose error is exponentially small for an analytic integrand that dies off at both ends."""
    weights, means, scales = (np.array(t)[:, None] for t in (weights, means, scales))
    x = np.linspace((means - 12 * scales).min(), (means + 12 * scales).max(), 100_001)
    log_parts = np.log(weights / scales / math.sqrt(2 * math.pi)) - 0.5 * ((x - means) / scales) ** 2
    log_density = np.logaddexp.reduce(log_parts, axis=0)
    return -(np.exp(log_density) * log_density).sum() * (x[1] - x[0])


def close(got, expected, rtol, atol=0.0):
    torch.testing.assert_close(got, tensor([float(e) for e in expected]).reshape(got.shape), rtol=rtol, atol=atol)


# Construction


def test_from_logits_is_softmax_of_them():
    p = NormalMixture.from_logits(tensor([0.0, math.log(3.0)]) + 7, tensor([1.0, 2.0]), tensor([3.0, 4.0]))
    close(p.weights, [0.25, 0.75], 1e-15)


def test_from_logits_gives_equal_weights_to_components_of_one_broadcast_logit():
    p = NormalMixture.from_logits(tensor([2.0]), tensor([1.0, 2.0, 5.0, 8.0]), tensor([3.0]))
    close(p.weights, [0.25] * 4, 1e-15)


def test_logit_minus_infinity_is_weight_zero():
    p = NormalMixture.from_logits(tensor([0.0, -math.inf]), tensor([1.0, 9.0]), tensor([3.0, 4.0]))
    close(p.weights, [1.0, 0.0], 0.0)


def test_from_samples_counts_points():
    p = NormalMixture.from_samples(tensor([[3.0, 1.0, 1.0, 7.0], [0.0, 0.0, 0.0, 1.0]]))
    close(p.cdf(tensor([[0.9], [1.0], [2.9], [3.0], [7.0]]))[:, 0], [0, 0.5, 0.5, 0.75, 1], 0.0)
    close(p.cdf(tensor(0.5)), [0.0, 0.75], 0.0)


def test_from_samples_scales_weights_to_one():
    p = NormalMixture.from_samples(tensor([1.0, 2.0, 4.0]), sample_weight=tensor([1.0, 0.0, 3.0]))
    close(p.weights, [0.25, 0.0, 0.75], 1e-15)
    close(p.mean, [3.25], 1e-15)


@pytest.mark.parametrize("shape", [(1,), (), (2, 1)])
def test_from_samples_weights_sum_to_one_after_broadcasting(shape):
    p = NormalMixture.from_samples(
        tensor([1.0, 2.0, 4.0, 5.0]), sample_weight=torch.full(shape, 2.0, dtype=torch.float64)
    )
    torch.testing.assert_close(p.weights, torch.full_like(p.means, 0.25), rtol=1e-15, atol=0)


def test_round_trip_through_torch_keeps_values():
    p = NormalMixture(*(tensor([t, t[::-1]]) for t in CASES["three"]))
    x = torch.linspace(-8, 8, 9, dtype=torch.float64).unsqueeze(-1)
    theirs = p.to_torch()
    assert isinstance(theirs, MixtureSameFamily)
    back = NormalMixture.from_torch(theirs)
    for ours in (p, back):
        torch.testing.assert_close(ours.log_prob(x), theirs.log_prob(x), rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(ours.cdf(x), theirs.cdf(x), rtol=1e-13, atol=1e-15)
        torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-14, atol=0)
        torch.testing.assert_close(ours.variance, theirs.variance, rtol=1e-14, atol=0)


def test_from_torch_takes_logits_too():
    logits = tensor([0.3, -1.0])
    theirs = MixtureSameFamily(Categorical(logits=logits), Normal(tensor([0.0, 2.0]), tensor([1.0, 0.5])))
    close(NormalMixture.from_torch(theirs).weights, logits.exp() / logits.exp().sum(), 1e-15)


def test_from_normals_stacks_them():
    normals = [Normal(tensor([0.0, 1.0]), tensor([1.0, 2.0])), Normal(tensor([5.0, 6.0]), tensor([3.0, 4.0]))]
    p = NormalMixture.from_normals(normals)
    close(p.weights, [0.5] * 4, 0.0)
    close(p.means, [0, 5, 1, 6], 0.0)
    close(p.scales, [1, 3, 2, 4], 0.0)
    q = NormalMixture.from_normals(normals, tensor([0.25, 0.75]))
    x = tensor([0.3, 2.0])
    expected = 0.25 * normals[0].log_prob(x).exp() + 0.75 * normals[1].log_prob(x).exp()
    torch.testing.assert_close(q.log_prob(x).exp(), expected, rtol=1e-14, atol=0)


def test_mix_is_the_weighted_sum_of_distribution_functions():
    p, q = mixture(CASES["three"]), NormalMixture(*(tensor([t, t]) for t in CASES["gap"])).affine(tensor([0.0, 3.0]), 1)
    weights = tensor([[0.25, 0.5, 0.25], [1.0, 0.0, 0.0]])
    mixed = NormalMixture.mix([p, q, atoms(0.0, 1.0)], weights)
    x = torch.linspace(-1005, 1005, 41, dtype=torch.float64).unsqueeze(-1)
    parts = torch.stack([p.cdf(x).expand(41, 2), q.cdf(x), atoms(0.0, 1.0).cdf(x).expand(41, 2)], -1)
    torch.testing.assert_close(mixed.cdf(x), (weights * parts).sum(-1), rtol=1e-14, atol=1e-300)


# A torch distribution


def test_is_a_torch_distribution_of_real_numbers():
    p = NormalMixture(torch.full((4, 1, 2), 0.5), torch.zeros(3, 2), torch.ones(2))
    assert isinstance(p, Distribution)
    assert p.batch_shape == (4, 3)
    assert p.event_shape == ()
    assert p.has_rsample
    assert p.support is constraints.real


def test_arg_constraints_hold_for_parameters_and_only_for_them():
    p = NormalMixture(*(tensor([t, t]) for t in CASES["absent"]))
    for name, constraint in NormalMixture.arg_constraints.items():
        value = getattr(p, name)
        assert constraint.check(value).tolist() == [True, True]
        bad = value.clone()
        bad[1, 0] = math.nan if name == "means" else -1.0
        assert constraint.check(bad).tolist() == [True, False]


def test_parameters_broadcast_to_one_shape():
    weights, means, scales = tensor([0.25, 0.75]), tensor([[[0.0, 1.0]], [[5.0, 7.0]]]), tensor([[1.0], [2.0], [3.0]])
    p = NormalMixture(weights, means, scales)
    x = tensor(1.5)
    assert p.batch_shape == (2, 3)
    for i in range(2):
        for j in range(3):
            case = ([0.25, 0.75], means[i, 0].tolist(), [scales[j, 0].item()] * 2)
            close(p.log_prob(x)[i, j], [mp.log(mp_density(1.5, case))], 1e-14)


def test_validate_args_false_trusts_values_but_not_shapes():
    bad = tensor([-1.0, 2.0])
    assert NormalMixture(bad, bad, bad, validate_args=False).scales is bad
    with pytest.raises(ValueError, match="must broadcast"):
        NormalMixture(bad, tensor([1.0, 2.0, 3.0]), bad, validate_args=False)


def test_values_are_checked_even_if_torch_has_its_own_checks_switched_off():
    bad = tensor([-1.0, 2.0])
    with pytest.raises(ValueError, match="weights must be >= 0"):
        NormalMixture(bad, bad, bad)
    Distribution.set_default_validate_args(False)  # as its compiler does for good; put back after the test
    with pytest.raises(ValueError, match="weights must be >= 0"):
        NormalMixture(bad, bad, bad)
    assert NormalMixture(bad, bad, bad, validate_args=False).weights is bad


def test_expand_repeats_values_and_shares_memory():
    p = NormalMixture(*(tensor([[t], [t[::-1]]]) for t in CASES["three"]))
    wide = p.expand((5, 2, 3))
    x = tensor([0.0, 1.0, 7.0])
    assert wide.batch_shape == (5, 2, 3)
    assert wide.means.data_ptr() == p.means.data_ptr()
    torch.testing.assert_close(wide.log_prob(x), p.log_prob(x).expand(5, 2, 3), rtol=0, atol=0)


def test_an_empty_batch_is_a_batch():
    p = NormalMixture(*torch.ones(3, 0, 1, dtype=torch.float64))
    assert p.batch_shape == (0,)
    for value in (p.mean, p.variance, p.cdf(tensor(0.0)), p.log_prob(tensor(0.0)), p.sample()):
        assert value.shape == (0,)


# Densities and distribution functions


@every_case
def test_log_prob_is_the_log_density_far_into_both_tails(case):
    x = points(case, (0, 0.7, 3, 30, 1e3, 1e6))
    with mp.workdps(40):
        expected = [mp.log(mp_density(mp.mpf(t), case)) for t in x]
    # Where two terms cancel the error is that of the larger, about z^2 / 2 roundings: relative to 1 + |log f|.
    close(mixture(case).log_prob(tensor(x)), expected, 1e-14, 1e-14)


@pytest.mark.parametrize("x", [1e3, -1e3, 1e150, -1e150, 1e300, -1e300, math.inf, -math.inf])
def test_log_prob_is_never_nan(x):
    values = mixture(CASES["three"]).log_prob(tensor(x))
    assert not values.isnan()
    assert values < -1e4


def test_log_prob_gradient_ignores_a_component_of_weight_zero():
    parameters = [tensor(t, requires_grad=True) for t in CASES["absent"]]
    x = tensor([-500.0, -2.0, 0.3, 90.0, 1e5], requires_grad=True)
    NormalMixture(*parameters).log_prob(x).sum().backward()
    present = [tensor([t[0], t[2]], requires_grad=True) for t in CASES["absent"]]
    y = x.detach().requires_grad_()
    NormalMixture(*present).log_prob(y).sum().backward()
    for with_absent, without in zip(parameters, present, strict=True):
        assert with_absent.grad.isfinite().all()
        torch.testing.assert_close(with_absent.grad[[0, 2]], without.grad, rtol=1e-14, atol=0)
    assert parameters[1].grad[1] == parameters[2].grad[1] == 0
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-14, atol=0)


@every_case
def test_cdf_has_relative_accuracy_in_the_left_tail(case):
    x = points(case, (0, 0.3, 2, 8, 20, 36))
    with mp.workdps(40):
        expected = [mp_cdf(mp.mpf(t), case) for t in x]
    # At 36 scales a rounding of the argument changes the value by 36^2 roundings.
    close(mixture(case).cdf(tensor(x)), expected, 5e-13)


@every_case
def test_log_cdf_matches_far_beyond_underflow(case):
    x = points(case, (0, 0.3, 2, 8, 36, 1e3, 1e6))
    with mp.workdps(40):
        expected = [mp.log(mp_cdf(mp.mpf(t), case)) for t in x]
    close(mixture(case).log_cdf(tensor(x)), expected, 1e-13, 1e-15)


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (-1.0, 2.0),
        (-60.0, -30.0),
        (30.0, 31.0),
        (60.0, math.inf),
        (-math.inf, -12.0),
        (-math.inf, math.inf),
        (4.0, 9.0),
    ],
)
def test_prob_has_relative_accuracy_in_both_tails(low, high):
    case = CASES["three"]
    with mp.workdps(400):  # enough that the difference keeps its digits in the left tail too
        expected = mp_survival(mp.mpf(low), case) - mp_survival(mp.mpf(high), case)
    # 30 scales out a rounding of the argument changes the value by 30^2 roundings.
    close(mixture(case).prob(tensor(low), tensor(high)), [expected], 1e-12)


def test_prob_of_an_empty_interval_is_zero():
    p = mixture(CASES["three"])
    assert p.prob(tensor(1.0), tensor(1.0)) == 0
    assert p.prob(tensor(3.0), tensor(1.0)) == 0


def test_prob_of_atoms_counts_the_right_end_and_not_the_left():
    p = NormalMixture.from_samples(tensor([0.0, 1.0, 2.0]), sample_weight=tensor([1.0, 2.0, 5.0]))
    low, high = tensor([0.0, -1.0, 0.0, 1.0, 0.5]), tensor([1.0, 0.0, 2.0, 1.9, 2.0])
    close(p.prob(low, high), [0.25, 0.125, 0.875, 0.0, 0.875], 1e-15)


def test_cdf_of_atoms_is_a_right_continuous_step():
    p = NormalMixture(tensor([0.25, 0.5, 0.25]), tensor([-1.0, 2.0, 2.0]), tensor([0.0, 1.0, 0.0]))
    below, above = (math.nextafter(2.0, side) for side in (-math.inf, math.inf))
    close(p.cdf(tensor([below, 2.0, above])), [0.5, 0.75, 0.75], 1e-15)
    close(p.log_cdf(tensor([below, 2.0, above])), np.log([0.5, 0.75, 0.75]), 1e-15)


def test_log_cdf_below_all_atoms_is_minus_infinity():
    assert atoms(0.0, 1.0).log_cdf(tensor(-1.0)) == -math.inf
    assert atoms(0.0, 1.0).log_cdf(tensor(1.0)) == 0


@pytest.mark.parametrize("name", ["log_prob", "cdf", "log_cdf"])
def test_functions_of_a_value_pass_gradcheck(name):
    logits, means, log_scales = (tensor(t, requires_grad=True) for t in ([0.1, -0.4], [-1.0, 0.5], [-0.2, 0.3]))
    x = tensor([-3.0, 0.2, 4.0], requires_grad=True)

    def function(x, logits, means, log_scales):
        return getattr(NormalMixture.from_logits(logits, means, log_scales.exp()), name)(x)

    assert torch.autograd.gradcheck(function, (x, logits, means, log_scales))
    assert torch.autograd.gradgradcheck(function, (x, logits, means, log_scales))


# Moments


@every_case
def test_moments_match_quadrature(case):
    p = mixture(case)
    with mp.workdps(30):
        mean = mp_expectation(lambda x: x, case)
        variance, third, fourth = (mp_expectation(lambda x, n=n: (x - mean) ** n, case) for n in (2, 3, 4))
    size = abs(mp_sum(lambda m, s: abs(m) + s, case))
    close(p.mean, [mean], 0.0, 4e-16 * float(size))
    close(p.variance, [variance], 1e-14)
    close(p.stddev, [mp.sqrt(variance)], 1e-14)
    # Positive and negative parts cancel in the third moment.
    close(p.skewness, [third / variance**1.5], 1e-13, 1e-13)
    close(p.kurtosis, [fourth / variance**2 - 3], 1e-13, 1e-13)


def test_moments_keep_their_digits_at_a_large_offset():
    p = mixture(CASES["three"])
    shifted = p.affine(2.0**30, 1.0)
    # The shift costs no digit of the means here, but the mean itself is rounded to 2^-23.
    for name in ("variance", "skewness", "kurtosis"):
        torch.testing.assert_close(getattr(shifted, name), getattr(p, name), rtol=1e-7, atol=1e-7)


def test_moments_of_atoms_are_those_of_the_sample():
    x = np.random.default_rng(0).gamma(2.0, size=50)
    p = atoms(*x)
    z = (x - x.mean()) / x.std()
    close(p.variance, [x.var()], 1e-13)
    close(p.skewness, [(z**3).mean()], 1e-12)
    close(p.kurtosis, [(z**4).mean() - 3], 1e-12)


# Transformations


@pytest.mark.parametrize("scale", [2.5, -0.5, 1e-6, -1e6])
def test_affine_moves_the_distribution_function(scale):
    case, loc = CASES["three"], 3.0
    p = mixture(case).affine(loc, scale)
    assert (p.scales > 0).all()
    for x in (-3.0, 0.2, 5.0):
        expected = mp_cdf(x, case) if scale > 0 else mp_survival(x, case)
        # The point itself is rounded, which matters where loc is large beside the scale.
        close(p.cdf(tensor(loc + scale * x)), [expected], 1e-13 + 1e-15 / abs(scale))


def test_affine_takes_a_number_for_each_batch_element():
    p = mixture(CASES["three"])
    loc, scale = tensor([[0.0], [10.0]]), tensor([1.0, -2.0, 0.0])
    moved = p.affine(loc, scale)
    assert moved.batch_shape == (2, 3)
    torch.testing.assert_close(moved.mean, loc + scale * p.mean, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(moved.stddev, (scale.abs() * p.stddev).expand(2, 3), rtol=1e-14, atol=0)
    torch.testing.assert_close(moved.skewness[:, :2], p.skewness * tensor([[1.0, -1.0]] * 2), rtol=1e-12, atol=0)


def test_affine_with_scale_zero_is_an_atom_at_loc():
    p = mixture(CASES["three"]).affine(3.0, 0.0)
    close(p.cdf(tensor([2.999, 3.0])), [0, 1], 0.0)


def test_affine_of_samples_is_samples():
    p = atoms(1.0, 4.0).affine(1.0, -2.0)
    assert p.is_empirical
    close(p.cdf(tensor([-7.1, -7.0, -1.0])), [0, 0.5, 1], 0.0)


def test_affine_passes_gradients_to_loc_and_scale():
    p, loc, scale = mixture(CASES["three"]), tensor(2.0, requires_grad=True), tensor(-1.5, requires_grad=True)
    mean_grads = torch.autograd.grad(p.affine(loc, scale).mean, (loc, scale))
    (variance_grad,) = torch.autograd.grad(p.affine(loc, scale).variance, scale)
    close(torch.stack(mean_grads), [1.0, p.mean], 1e-14)
    close(variance_grad, [2 * -1.5 * p.variance], 1e-14)


def test_sort_puts_components_in_the_order_of_their_means():
    p = NormalMixture(
        tensor([[0.5, 0.25, 0.25], [0.125, 0.375, 0.5]]),
        tensor([[3.0, -1.0, 2.0], [0.0, 5.0, -5.0]]),
        tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
    ).sort()
    close(p.weights, [0.25, 0.25, 0.5, 0.5, 0.125, 0.375], 0.0)
    close(p.means, [-1, 2, 3, -5, 0, 5], 0.0)
    close(p.scales, [2, 3, 1, 6, 4, 5], 0.0)


def test_prune_drops_light_components_and_scales_up_the_rest():
    p = NormalMixture(tensor([0.5, 0.0, 0.125, 0.375]), tensor([1.0, 2.0, 3.0, 4.0]), tensor([5.0, 6.0, 7.0, 8.0]))
    close(p.prune().weights, [0.5, 0.125, 0.375], 0.0)
    pruned = p.prune(0.125)
    close(pruned.weights, [4 / 7, 3 / 7], 1e-15)
    close(pruned.means, [1, 4], 0.0)
    close(pruned.scales, [5, 8], 0.0)


def test_prune_in_a_batch_keeps_a_component_that_some_element_needs():
    p = NormalMixture(tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]), tensor([1.0, 2.0, 3.0]), tensor([1.0, 1.0, 1.0]))
    pruned = p.prune()
    assert pruned.n_components == 2
    close(pruned.weights, [0.5, 0.5, 1.0, 0.0], 0.0)


# Entropy: the docstring states an error of 1e-9.

ENTROPY_CASES = {
    "three": CASES["three"],
    # The valley between two equal components is where log f bends the fastest: the worst of a scan over distances.
    "valley": ([0.5, 0.5], [0.0, 7.55], [1.0, 1.0]),
    "valley 5": ([0.5, 0.5], [0.0, 5.0], [1.0, 1.0]),
    "rare": ([1 - 1e-6, 1e-6], [0.0, 6.0], [1.0, 2.0]),
    "narrow on wide": ([0.5, 0.5], [0.0, 0.3], [0.01, 1.0]),
}


@pytest.mark.parametrize("case", ENTROPY_CASES.values(), ids=ENTROPY_CASES)
def test_entropy_matches_quadrature(case):
    close(mixture(case).entropy(), [trapezoid_entropy(*case)], 0.0, 1e-9)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_entropy_of_a_normal_is_known(scale):
    # The nodes around the mean are rounded, to eps * mean / scale of a scale.
    expected, rounding = math.log(scale * math.sqrt(2 * math.pi * math.e)), 2.2e-16 * 3.0 / scale
    close(mixture(([1.0], [3.0], [scale])).entropy(), [expected], 0.0, 1e-13 + rounding)


def test_entropy_of_parts_that_do_not_meet_is_known():
    weights, scales = (0.125, 0.5, 0.375, 0.0), (1e-3, 1.0, 1e3, 1.0)
    p = mixture((weights, (-1e3, 0.0, 1e5, 0.2), scales))
    parts = [w * math.log(s * math.sqrt(2 * math.pi * math.e) / w) for w, s in zip(weights, scales, strict=True) if w]
    close(p.entropy(), [math.fsum(parts)], 0.0, 1e-9)


def test_entropy_of_a_batch_is_that_of_its_elements():
    cases = [ENTROPY_CASES["valley"], ENTROPY_CASES["narrow on wide"], ([0.25, 0.75], [-100.0, 3.0], [20.0, 0.1])]
    p = NormalMixture(*(tensor(t).reshape(3, 1, 2) for t in zip(*cases, strict=True)))
    each = torch.stack([mixture(c).entropy() for c in cases])
    torch.testing.assert_close(p.entropy(), each.unsqueeze(-1), rtol=0, atol=1e-9)


def test_entropy_passes_gradcheck():
    parameters = [tensor(t, requires_grad=True) for t in ([0.1, -0.4], [-1.0, 0.5], [-0.2, 0.3])]

    def entropy(logits, means, log_scales):
        return NormalMixture.from_logits(logits, means, log_scales.exp()).entropy()

    assert torch.autograd.gradcheck(entropy, parameters, atol=1e-8)


# Dtypes and atoms

METHODS = {
    "log_prob": lambda p: p.log_prob(p.means.new_tensor([-30.0, 0.5])),
    "cdf": lambda p: p.cdf(p.means.new_tensor([-5.0, 0.5])),
    "log_cdf": lambda p: p.log_cdf(p.means.new_tensor([-30.0, 0.5])),
    "prob": lambda p: p.prob(p.means.new_tensor(0.5), p.means.new_tensor(9.0)),
    "icdf": lambda p: p.icdf(p.means.new_tensor([1e-30, 0.6])),
    "expectile": lambda p: p.expectile(0.125),
    "cvar": lambda p: p.cvar(0.125),
    "upper cvar": lambda p: p.cvar(0.125, tail="upper"),
    "entropy": lambda p: p.entropy(),
    "mean": lambda p: p.mean,
    "stddev": lambda p: p.stddev,
    "skewness": lambda p: p.skewness,
    "kurtosis": lambda p: p.kurtosis,
    "affine": lambda p: p.affine(2.0, -3.0).means,
    "prune": lambda p: p.prune(0.25).weights,
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_float32_stays_float32_and_accurate(method):
    expected = method(mixture(CASES["three"]))
    got = method(NormalMixture(*(torch.tensor(t) for t in CASES["three"])))
    assert got.dtype == torch.float32
    # Six digits, less the z^2 of the far tails.
    torch.testing.assert_close(got.double(), expected, rtol=2e-5, atol=0)


ATOMS = {
    "from_samples": lambda p: atoms(0.0, 1.0),
    "one scale": lambda p: NormalMixture(p.weights, p.means, tensor([1.0, 0.0, 1.0])),
    "one of a batch": lambda p: NormalMixture(p.weights, p.means, tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0]])),
    "mix": lambda p: NormalMixture.mix([p, atoms(0.0)], tensor([0.5, 0.5])),
    "affine": lambda p: p.affine(1.0, 0.0),
    "expanded": lambda p: atoms(0.0, 1.0).expand((3,)),
}


@pytest.mark.parametrize("build", ATOMS.values(), ids=ATOMS)
@pytest.mark.parametrize("what", ["log_prob", "entropy", "to_torch"])
def test_atoms_have_no_density(build, what):
    p = build(mixture(CASES["three"]))
    with pytest.raises(ValueError, match=r"scales must be > 0 for .*; got 0, an atom"):
        getattr(p, what)(*([tensor(0.0)] if what == "log_prob" else []))


def test_softmax_of_many_logits_in_float32_is_accepted() -> None:
    logits = 3 * torch.randn(1_000_000, generator=torch.Generator().manual_seed(0))
    p = NormalMixture.from_logits(logits, torch.zeros(1), torch.ones(1))
    assert p.n_components == 1_000_000


@pytest.mark.parametrize(("mean", "scale"), [(1000.0, 0.01), (100.0, 1e-4)])
def test_entropy_in_float32_is_computed_in_float64(mean: float, scale: float) -> None:
    p = NormalMixture(torch.ones(1), torch.tensor([mean]), torch.tensor([scale]))
    assert p.entropy().item() == pytest.approx(0.5 * math.log(2 * math.pi * math.e * p.scales.item() ** 2), rel=1e-6)
