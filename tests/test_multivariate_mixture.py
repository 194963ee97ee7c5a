"""MultivariateNormalMixture as a distribution: densities, moments, projections, marginals, conditionals, maps."""

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal, norm
from torch.distributions import Distribution, constraints

from cramix import Diagonal, Factor, Full, MultivariateNormalMixture, NormalMixture, Spherical, Tied
from tests.multivariate_oracle import (
    KINDS,
    close,
    covariance_of,
    each,
    elements,
    every_batch,
    every_kind,
    every_singular_kind,
    free_parameters,
    generator,
    log_density,
    mean_of,
    near,
    of_free,
    tensor,
)

VALUES = torch.randn(5, 1, 1, 3, generator=generator(7), dtype=torch.float64)
MATRIX = tensor([[1.0, -2.0, 0.5], [0.3, 0.0, 4.0]])
OFFSET = tensor([3.0, -1.0])
DIRECTIONS = tensor([[1.0, 0.0, 0.0], [0.6, 0.0, -0.8], [2.0, -1.0, 0.5], [0.0, 0.0, 0.0]])


def points(*rows, **options):
    return MultivariateNormalMixture.from_samples(tensor(rows), **options)


def conditional(x, given, rest, weights, means, matrices):
    """Weights, means and matrices of the rest given x, by the textbook formula."""
    log_weights, centres, left = [], [], []
    for w, m, c in zip(weights, means, matrices, strict=True):
        gain = c[np.ix_(rest, given)] @ np.linalg.inv(c[np.ix_(given, given)])
        log_weights.append(np.log(w) + multivariate_normal(m[given], c[np.ix_(given, given)]).logpdf(x))
        centres.append(m[rest] + gain @ (x - m[given]))
        left.append(c[np.ix_(rest, rest)] - gain @ c[np.ix_(given, rest)])
    return softmax(log_weights), np.array(centres), np.array(left)


# The comparisons themselves


def test_close_notices_one_percent():
    close(tensor([1.0, 2.0]), [1.0, 2.0])
    with pytest.raises(AssertionError):
        close(tensor([1.0, 2.0]), [1.0, 2.02])
    with pytest.raises(AssertionError):
        close(tensor([1.0, 2.0]), [1.0])


def test_near_notices_one_percent_and_draws_that_tell_too_little():
    draws = 1 + 0.1 * torch.randn(40_000, generator=generator(), dtype=torch.float64)
    near(draws, tensor(1.0))
    with pytest.raises(AssertionError, match="sigmas"):
        near(draws, tensor(1.01))
    with pytest.raises(AssertionError, match="too little"):
        near(draws[:3], tensor(1.01))


def test_the_oracle_of_densities_notices_one_percent():
    kind = KINDS["full"]
    parameters = free_parameters(kind)
    (truth,) = elements(kind, *parameters).reshape(1)
    for i in range(3):
        wrong = [1.01 * x if i == j else x for j, x in enumerate(truth)]
        with pytest.raises(AssertionError):
            close(of_free(kind, *parameters).log_prob(VALUES[0, 0, 0]), log_density(VALUES[0, 0, 0].numpy(), *wrong))


# A torch distribution


def test_is_a_torch_distribution_of_vectors():
    p = MultivariateNormalMixture(torch.full((4, 1, 2), 0.5), torch.zeros(3, 2, 5), Spherical(torch.ones(2)))
    assert isinstance(p, Distribution)
    assert p.batch_shape == (4, 3)
    assert p.event_shape == (5,)
    assert (p.n_components, p.dim) == (2, 5)
    assert p.has_rsample
    assert p.support is constraints.real_vector
    assert p.stddev.shape == (4, 3, 5)


def test_arg_constraints_hold_for_parameters_and_only_for_them():
    p = of_free(KINDS["full"], *free_parameters(KINDS["full"], ((2,), (2,), (2,))))
    for name, constraint in MultivariateNormalMixture.arg_constraints.items():
        value = getattr(p, name)
        assert constraint.check(value).tolist() == [True, True]
        bad = value.clone()
        bad[1, 0] = math.nan if name == "means" else -1.0
        assert constraint.check(bad).tolist() == [True, False]


def test_a_tensor_of_covariances_means_full_ones():
    kind = KINDS["full"]
    logits, means, free = free_parameters(kind)
    p = MultivariateNormalMixture(logits.softmax(-1), means, kind.valid(free))
    assert isinstance(p.covariance_kind, Full)
    torch.testing.assert_close(p.log_prob(VALUES), of_free(kind, logits, means, free).log_prob(VALUES), rtol=0, atol=0)


def test_validate_args_false_trusts_values_but_not_shapes():
    bad = tensor([-1.0, 2.0])
    p = MultivariateNormalMixture(bad, torch.zeros(2, 3).double(), Spherical(bad), validate_args=False)
    assert p.weights is bad
    with pytest.raises(ValueError, match="must broadcast"):
        MultivariateNormalMixture(tensor([1.0] * 3), p.means, Spherical(bad), validate_args=False)
    for wrong in (torch.eye(2).double().expand(2, 2, 2), Diagonal(torch.ones(2, 2).double())):
        with pytest.raises(ValueError, match="for means in 3 dimensions"):
            MultivariateNormalMixture(tensor([0.5, 0.5]), p.means, wrong, validate_args=False)


def test_values_are_checked_even_if_torch_has_its_own_checks_switched_off():
    weights, means, bad = tensor([0.5, 0.5]), torch.zeros(2, 3).double(), Spherical(tensor([-1.0, 2.0]))
    with pytest.raises(ValueError, match="variances must be >= 0"):
        MultivariateNormalMixture(weights, means, bad)
    Distribution.set_default_validate_args(False)  # as its compiler does for good; put back after the test
    with pytest.raises(ValueError, match="variances must be >= 0"):
        MultivariateNormalMixture(weights, means, bad)
    assert MultivariateNormalMixture(weights, means, bad, validate_args=False).covariance_kind is bad


def test_an_empty_batch_is_a_batch():
    p = MultivariateNormalMixture(torch.ones(0, 1), torch.ones(0, 1, 2), Diagonal(torch.ones(0, 1, 2)))
    assert p.batch_shape == (0,)
    for value in (p.mean, p.variance, p.sample(), p.rsample()):
        assert value.shape == (0, 2)
    assert p.log_prob(torch.zeros(2)).shape == (0,)
    assert p.project(torch.ones(4, 2)).batch_shape == (0, 4)


# Densities


@every_batch
@every_kind
def test_log_prob_matches_scipy(kind, batches):
    parameters = free_parameters(kind, batches)
    p, truth = of_free(kind, *parameters), elements(kind, *parameters)
    assert p.batch_shape == truth.shape
    expected = [each(lambda *c, x=x: log_density(x, *c), truth) for x in VALUES[:, 0, 0].numpy()]
    values = VALUES.reshape(5, *[1] * truth.ndim, 3)
    close(p.log_prob(values), expected, 1e-10, 1e-11)


@every_kind
def test_each_batch_element_has_its_own_value(kind):
    parameters = free_parameters(kind, ((4, 1), (2,), ()))
    p, truth = of_free(kind, *parameters), elements(kind, *parameters)
    values = torch.randn(4, 2, 3, generator=generator(1), dtype=torch.float64)
    expected = [[log_density(values[i, j].numpy(), *truth[i, j]) for j in range(2)] for i in range(4)]
    close(p.log_prob(values), expected, 1e-10, 1e-11)


@every_kind
def test_log_prob_has_six_digits_in_float32(kind):
    logits, means, free = free_parameters(kind, ((2,), (2,), (2,)))
    p = MultivariateNormalMixture(logits.softmax(-1).float(), means.float(), kind.build(kind.valid(free).float()))
    got, expected = p.log_prob(VALUES[:, 0].float()), of_free(kind, logits, means, free).log_prob(VALUES[:, 0])
    assert got.dtype == torch.float32
    close(got, expected, 2e-5, 2e-5)


def test_log_prob_matches_mpmath_far_out():
    weights, means, cov = (
        [0.25, 0.75],
        [[0.0, 1.0], [-2.0, 0.5]],
        [[[2.0, 0.5], [0.5, 1.0]], [[1.0, -0.25], [-0.25, 4.0]]],
    )
    p = MultivariateNormalMixture(tensor(weights), tensor(means), tensor(cov))
    for x in ([0.3, -0.7], [30.0, -50.0], [1e6, 1e6], [1e150, -1e149]):
        with mp.workdps(40):
            logs = []
            for w, m, ((a, b), (_, c)) in zip(weights, means, cov, strict=True):
                u, v, det = mp.mpf(x[0]) - m[0], mp.mpf(x[1]) - m[1], mp.mpf(a) * c - mp.mpf(b) ** 2
                square = (c * u * u - 2 * b * u * v + a * v * v) / det
                logs.append(mp.log(w) - square / 2 - mp.log(det) / 2 - mp.log(2 * mp.pi))
            top = max(logs)
            expected = top + mp.log(mp.fsum(mp.exp(t - top) for t in logs))
        close(p.log_prob(tensor(x)), float(expected), 1e-14)


@every_kind
@pytest.mark.parametrize("x", [1e150, -1e200, 1e300, math.inf, -math.inf])
def test_log_prob_is_never_nan(kind, x):
    p = of_free(kind, *free_parameters(kind))
    for value in (tensor([x, x, x]), tensor([0.0, x, 0.0]), tensor([0.0, x, -x]), tensor([x, 1.0, 2.0])):
        got = p.log_prob(value)
        assert not got.isnan()
        assert got < -1e4


def test_components_of_weight_zero_have_no_part_in_the_density_and_its_gradient():
    kind = KINDS["full"]
    logits, means, free = free_parameters(kind)
    logits = tensor([0.3, -math.inf, 1.0])
    means[1] = 1e5
    leaves = [t.clone().requires_grad_() for t in (logits.softmax(-1), means, kind.valid(free))]
    x = VALUES.clone().requires_grad_()
    MultivariateNormalMixture(*leaves).log_prob(x).sum().backward()
    left = [t.detach()[[0, 2]].requires_grad_() for t in leaves]
    y = VALUES.clone().requires_grad_()
    MultivariateNormalMixture(*left).log_prob(y).sum().backward()
    for whole, part in zip(leaves, left, strict=True):
        assert (whole.grad[1] == 0).all()
        close(whole.grad[[0, 2]], part.grad, 1e-13)
    close(x.grad, y.grad, 1e-13)


@every_kind
def test_responsibilities_are_bayes_rule(kind):
    parameters = free_parameters(kind, ((2,), (2,), ()))
    p, truth = of_free(kind, *parameters), elements(kind, *parameters)
    got = p.responsibilities(VALUES[:, 0])
    assert got.shape == (5, 2, 3)
    for i in range(5):
        for j in range(2):
            weights, means, matrices = truth[j]
            density = [multivariate_normal(m, c).pdf(VALUES[i, 0, 0]) for m, c in zip(means, matrices, strict=True)]
            close(got[i, j], weights * density / (weights @ density), 1e-10)


# Moments


@every_batch
@every_kind
def test_moments_match_loops(kind, batches):
    parameters = free_parameters(kind, batches)
    p, truth = of_free(kind, *parameters), elements(kind, *parameters)
    close(p.mean, each(mean_of, truth))
    close(p.covariance, each(covariance_of, truth))
    close(p.variance, np.diagonal(each(covariance_of, truth), axis1=-2, axis2=-1))
    close(p.covariances, each(lambda w, m, c: c, truth))


def test_moments_of_points_are_those_of_the_sample():
    x = np.random.default_rng(0).gamma(2.0, size=(50, 3))
    counts = np.random.default_rng(1).integers(1, 5, size=50)
    p = MultivariateNormalMixture.from_samples(tensor(x), sample_weight=tensor(counts))
    close(p.mean, np.average(x, axis=0, weights=counts))
    close(p.covariance, np.cov(x.T, ddof=0, fweights=counts))


# Projections


@every_batch
@every_kind
def test_project_is_the_mixture_of_the_projections(kind, batches):
    parameters = free_parameters(kind, batches)
    p, truth = of_free(kind, *parameters), elements(kind, *parameters)
    line = p.project(DIRECTIONS)
    assert isinstance(line, NormalMixture)
    assert line.batch_shape == (*truth.shape, 4)
    u = DIRECTIONS.numpy()
    close(line.means, each(lambda w, m, c: [[v @ t for t in m] for v in u], truth))
    close(line.scales, each(lambda w, m, c: [[math.sqrt(v @ t @ v) for t in c] for v in u], truth), 1e-12, 1e-14)
    close(line.weights, each(lambda w, m, c: [w] * 4, truth))


@every_singular_kind
def test_project_takes_singular_covariances(kind):
    parameters = free_parameters(kind, ((2,), (), ()))
    p, truth = of_free(kind, *parameters), elements(kind, *parameters)
    u = DIRECTIONS.numpy()
    expected = each(lambda w, m, c: [[math.sqrt(max(0.0, v @ t @ v)) for t in c] for v in u], truth)
    close(p.project(DIRECTIONS).scales, expected, 1e-7, 1e-7)  # the root of a rounding


def test_project_of_points_is_atoms():
    line = points([1.0, 2.0], [3.0, -1.0]).project(tensor([[1.0, 1.0], [0.0, 2.0]]))
    assert line.is_empirical
    close(line.means, [[3.0, 2.0], [4.0, -2.0]], 0, 0)
    close(line.cdf(tensor([2.5, 4.0])), [0.5, 1.0], 0, 0)


# Marginals


@pytest.mark.parametrize("dims", [[0], [2, 0], [1, 2], (-1, 0), [-3], [0, 1, 2]])
@every_kind
def test_marginal_of_coordinates_matches_scipy(kind, dims):
    parameters = free_parameters(kind, ((4, 1), (2,), (2,)))
    p, truth = of_free(kind, *parameters).marginal(dims), elements(kind, *parameters)
    assert isinstance(p, MultivariateNormalMixture)
    assert p.event_shape == (len(dims),)
    x = np.arange(len(dims)) - 0.5
    expected = each(lambda w, m, c: log_density(x, w, m[:, dims], c[:, dims][:, :, dims]), truth)
    close(p.log_prob(tensor(x)), expected, 1e-10, 1e-11)


@pytest.mark.parametrize("dim", [0, 2, -1, -3])
@every_kind
def test_marginal_of_a_number_is_a_normal_mixture(kind, dim):
    parameters = free_parameters(kind, ((4, 1), (2,), (2,)))
    line, truth = of_free(kind, *parameters).marginal(dim), elements(kind, *parameters)
    assert isinstance(line, NormalMixture)
    assert line.batch_shape == (4, 2)
    close(line.means, each(lambda w, m, c: m[:, dim], truth))
    close(line.scales, each(lambda w, m, c: np.sqrt(c[:, dim, dim]), truth))
    expected = each(lambda w, m, c: w @ norm.cdf((0.7 - m[:, dim]) / np.sqrt(c[:, dim, dim])), truth)
    close(line.cdf(tensor(0.7)), expected)


def test_marginals_of_points_are_points():
    p = points([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    assert p.marginal(1).is_empirical
    assert p.marginal([2, 0]).is_empirical
    close(p.marginal([2, 0]).means, [[3.0, 1.0], [6.0, 4.0]], 0, 0)


@every_singular_kind
def test_marginal_takes_singular_covariances(kind):
    parameters = free_parameters(kind)
    p, (truth,) = of_free(kind, *parameters), elements(kind, *parameters).reshape(1)
    close(p.marginal([2, 0]).covariances, truth[2][:, [2, 0]][:, :, [2, 0]])
    close(p.marginal(1).scales, np.sqrt(truth[2][:, 1, 1]))


# Conditionals


@pytest.mark.parametrize(("given", "rest"), [([0], [1, 2]), ([2, 0], [1]), ([-1], [0, 1]), ([1, 2], [0])])
@every_kind
def test_condition_is_the_textbook_formula(kind, given, rest):
    parameters = free_parameters(kind, ((4, 1), (2,), ()))
    truth = elements(kind, *parameters)
    values = torch.randn(5, 4, 2, len(given), generator=generator(3), dtype=torch.float64)
    p = of_free(kind, *parameters).condition(given, values)
    assert p.batch_shape == (5, 4, 2)
    assert p.event_shape == (len(rest),)
    for s, i, j in np.ndindex(5, 4, 2):
        weights, means, matrices = conditional(values[s, i, j].numpy(), given, rest, *truth[i, j])
        close(p.weights[s, i, j], weights, 1e-9)
        close(p.means[s, i, j], means, 1e-9, 1e-10)
        close(p.covariances[s, i, j], matrices, 1e-9, 1e-10)


@every_batch
@every_kind
def test_conditional_density_is_joint_over_marginal(kind, batches):
    p = of_free(kind, *free_parameters(kind, batches))
    x = torch.randn(6, *p.batch_shape, 3, generator=generator(2), dtype=torch.float64)
    got = p.condition([2, 0], x[..., [2, 0]]).log_prob(x[..., [1]])
    close(got, p.log_prob(x) - p.marginal([2, 0]).log_prob(x[..., [2, 0]]), 1e-9, 1e-10)


@every_kind
def test_condition_on_one_value_serves_a_whole_batch(kind):
    p = of_free(kind, *free_parameters(kind, ((2,), (2,), ())))
    one = p.condition([1], tensor([0.7]))
    assert one.batch_shape == (2,)
    many = p.condition([1], tensor([0.7]).expand(2, 1))
    close(one.log_prob(tensor([0.1, 0.2])), many.log_prob(tensor([0.1, 0.2])))
    assert p.condition([1], torch.zeros(4, 1, 1).double()).batch_shape == (4, 2)


def test_condition_takes_covariances_that_are_singular_in_the_rest():
    # y = 2 x exactly, and a flat third axis.
    p = MultivariateNormalMixture(tensor([1.0]), tensor([[1.0, 2.0, 5.0]]), Factor(tensor([[[1.0, 2.0, 0.0]]])))
    rest = p.condition([0], tensor([4.0]))
    close(rest.means, [[8.0, 5.0]])
    close(rest.covariances, np.zeros((1, 2, 2)))
    q = MultivariateNormalMixture(tensor([1.0]), tensor([[1.0, 2.0]]), Diagonal(tensor([[1.0, 0.0]])))
    close(q.condition([0], tensor([4.0])).covariances, [[[0.0]]], 0, 0)
    with pytest.raises(ValueError, match="covariances must be positive definite"):
        q.condition([1], tensor([4.0]))


def test_condition_far_from_one_component_chooses_the_other():
    p = MultivariateNormalMixture(tensor([0.5, 0.5]), tensor([[0.0, -1.0], [100.0, 1.0]]), Spherical(tensor([1.0])))
    close(p.condition([0], tensor([[0.0], [100.0], [50.0]])).weights, [[1, 0], [0, 1], [0.5, 0.5]])


# Maps


@every_batch
@every_kind
def test_affine_is_the_formula(kind, batches):
    parameters = free_parameters(kind, batches)
    p, truth = of_free(kind, *parameters).affine(OFFSET, MATRIX), elements(kind, *parameters)
    a, b = MATRIX.numpy(), OFFSET.numpy()
    assert p.event_shape == (2,)
    close(p.means, each(lambda w, m, c: [a @ t + b for t in m], truth))
    close(p.covariances, each(lambda w, m, c: [a @ t @ a.T for t in c], truth))
    close(p.weights, each(lambda w, m, c: w, truth))


@every_kind
def test_affine_takes_a_matrix_for_each_batch_element(kind):
    parameters = free_parameters(kind, ((2,), (2,), ()))
    matrix = torch.randn(4, 2, 5, 3, generator=generator(4), dtype=torch.float64)
    offset = torch.randn(2, 5, generator=generator(5), dtype=torch.float64)
    p, truth = of_free(kind, *parameters).affine(offset, matrix), elements(kind, *parameters)
    assert p.batch_shape == (4, 2)
    for i, j in np.ndindex(4, 2):
        a, (_, m, c) = matrix[i, j].numpy(), truth[j]
        close(p.means[i, j], m @ a.T + offset[j].numpy())
        close(p.covariances[i, j], [a @ t @ a.T for t in c])


@every_singular_kind
def test_affine_of_singular_covariances_is_the_formula(kind):
    parameters = free_parameters(kind)
    p, (truth,) = of_free(kind, *parameters).affine(0.0, MATRIX), elements(kind, *parameters).reshape(1)
    close(p.means, truth[1] @ MATRIX.numpy().T)
    close(p.covariances, [MATRIX.numpy() @ t @ MATRIX.numpy().T for t in truth[2]])


def test_affine_of_points_moves_the_points():
    p = points([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]).affine(OFFSET, MATRIX)
    assert p.is_empirical
    close(p.means, [MATRIX.numpy() @ x + OFFSET.numpy() for x in ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])])


@every_kind
def test_expand_repeats_values_and_shares_memory(kind):
    p = of_free(kind, *free_parameters(kind, ((2, 1), (2, 1), (2, 1))))
    wide = p.expand((5, 2, 4))
    assert wide.batch_shape == (5, 2, 4)
    assert wide.event_shape == (3,)
    assert wide.means.data_ptr() == p.means.data_ptr()
    assert wide.covariance_kind.values.data_ptr() == p.covariance_kind.values.data_ptr()
    close(wide.log_prob(VALUES[0, 0, 0]), p.log_prob(VALUES[0, 0, 0]).expand(5, 2, 4), 0, 1e-13)
    close(wide.covariances, p.covariances.expand(5, 2, 4, 3, 3, 3), 0, 0)


@every_kind
def test_prune_drops_light_components(kind):
    _, means, free = free_parameters(kind, k=4)
    weights = tensor([0.5, 0.0, 0.125, 0.375])
    p = MultivariateNormalMixture(weights, means, kind.build(kind.valid(free)))
    close(p.prune().log_prob(VALUES), p.log_prob(VALUES))
    assert p.prune().n_components == 3
    heavy = p.prune(0.125)
    close(heavy.weights, [4 / 7, 3 / 7], 1e-15)
    close(heavy.means, means[[0, 3]], 0, 0)
    close(heavy.covariances, p.covariances[[0, 3]], 0, 0)


@every_kind
def test_prune_in_a_batch_keeps_a_component_that_some_element_needs(kind):
    _, means, free = free_parameters(kind, ((), (2,), ()))
    p = MultivariateNormalMixture(tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]), means, kind.build(kind.valid(free)))
    pruned = p.prune()
    assert pruned.n_components == 2
    close(pruned.log_prob(VALUES[:, 0]), p.log_prob(VALUES[:, 0]))


def test_mix_is_the_weighted_sum_of_densities():
    mixtures = [of_free(kind, *free_parameters(kind, seed=i)) for i, kind in enumerate(KINDS.values())]
    mixtures.append(of_free(KINDS["tied"], *free_parameters(KINDS["tied"], ((2,), (2,), ()), k=2)))
    weights = torch.rand(5, 1, len(mixtures), generator=generator(), dtype=torch.float64).softmax(-1)
    mixed = MultivariateNormalMixture.mix(mixtures, weights)
    assert mixed.batch_shape == (5, 2)
    assert mixed.n_components == sum(m.n_components for m in mixtures)
    parts = torch.stack([m.log_prob(VALUES[0]).expand(5, 2) for m in mixtures], -1)
    close(mixed.log_prob(VALUES[0]), logsumexp(parts.numpy(), axis=-1, b=weights.numpy()))


def test_mix_of_points_and_normals_has_the_moments_of_both():
    p, q = points([1.0, 2.0, 0.0], [3.0, 4.0, 1.0]), of_free(KINDS["full"], *free_parameters(KINDS["full"]))
    mixed = MultivariateNormalMixture.mix([p, q], tensor([0.25, 0.75]))
    mean = 0.25 * p.mean + 0.75 * q.mean
    parts = [(0.25, p.mean, p.covariance), (0.75, q.mean, q.covariance)]
    expected = sum(w * (c + torch.outer(m - mean, m - mean)) for w, m, c in parts)
    close(mixed.mean, mean)
    close(mixed.covariance, expected)


def test_mix_of_points_is_points():
    p, q = points([1.0, 2.0], [3.0, 4.0]), points([5.0, 6.0])
    mixed = MultivariateNormalMixture.mix([p, q], tensor([0.5, 0.5]))
    assert mixed.is_empirical
    close(mixed.weights, [0.25, 0.25, 0.5], 0, 0)
    close(mixed.means, [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], 0, 0)


@pytest.mark.parametrize("shape", [(1,), (), (2, 1), (2, 4)])
def test_from_samples_weights_sum_to_one_after_broadcasting(shape):
    x = torch.randn(4, 3, generator=generator(), dtype=torch.float64)
    p = MultivariateNormalMixture.from_samples(x, sample_weight=torch.full(shape, 2.0, dtype=torch.float64))
    assert p.batch_shape == shape[:-1]
    close(p.weights, np.full((*shape[:-1], 4), 0.25), 1e-15)
    close(p.mean, x.mean(0).expand(*shape[:-1], 3))


# No densities for what is singular


@pytest.mark.parametrize(
    "call",
    [
        lambda p: p.log_prob(VALUES),
        lambda p: p.responsibilities(VALUES),
        lambda p: p.condition([0, 1], VALUES[..., :2]),
        lambda p: p.to_torch(),
        lambda p: p.to_sklearn(),
    ],
    ids=["log_prob", "responsibilities", "condition", "to_torch", "to_sklearn"],
)
@every_singular_kind
def test_singular_covariances_have_no_density(kind, call):
    p = of_free(kind, *free_parameters(kind))
    with pytest.raises(ValueError, match=r"covariances must be positive definite .*; got "):
        call(p)


@pytest.mark.parametrize("name", ["log_prob", "responsibilities"])
def test_points_have_no_density(name):
    for p in (
        points([1.0, 2.0, 3.0]),
        points([1.0, 2.0, 3.0]).expand((2,)),
        points([1.0, 2.0, 3.0]).affine(0.0, MATRIX),
    ):
        with pytest.raises(ValueError, match="covariances must be positive definite"):
            getattr(p, name)(torch.zeros(p.dim).double())


@every_singular_kind
def test_singular_covariances_have_moments(kind):
    parameters = free_parameters(kind, ((2,), (), ()))
    p, truth = of_free(kind, *parameters), elements(kind, *parameters)
    close(p.mean, each(mean_of, truth))
    close(p.covariance, each(covariance_of, truth))


# Gradients


def gradients(kind, function, *more, second=True, **shape):
    leaves = [*more, *free_parameters(kind, **shape)]
    leaves = [x.clone().requires_grad_() for x in leaves]

    def call(*arguments):
        return function(of_free(kind, *arguments[len(more) :]), *arguments[: len(more)])

    assert torch.autograd.gradcheck(call, leaves)
    assert not second or torch.autograd.gradgradcheck(call, leaves, atol=1e-4)


@every_kind
def test_log_prob_passes_gradcheck(kind):
    gradients(kind, lambda p, x: p.log_prob(x), VALUES[:2, 0, 0, :2], batches=((2,), (2,), ()), k=2, d=2)


@every_kind
def test_moments_pass_gradcheck(kind):
    gradients(kind, lambda p: (p.mean, p.covariance, p.covariances), batches=((2,), (), ()), k=2, d=2, second=False)


@every_kind
def test_projections_pass_gradcheck(kind):
    def function(p, directions):
        line = p.project(directions)
        return line.weights, line.means, line.scales

    gradients(kind, function, DIRECTIONS[1:3, :2], batches=((2,), (2,), ()), k=2, d=2)


@every_kind
def test_marginals_pass_gradcheck(kind):
    def function(p):
        some, one = p.marginal([2, 0]), p.marginal(1)
        return some.means, some.covariances, one.means, one.scales

    gradients(kind, function, k=2)


@every_kind
def test_conditionals_pass_gradcheck(kind):
    def function(p, values):
        q = p.condition([2, 0], values)
        return q.weights, q.means, q.covariances

    gradients(kind, function, VALUES[:2, :, 0, :2], batches=((2,), (), ()), k=2, second=False)


@every_kind
def test_affine_maps_pass_gradcheck(kind):
    def function(p, matrix, offset):
        q = p.affine(offset, matrix)
        return q.means, q.covariances

    gradients(kind, function, MATRIX, OFFSET, k=2, second=False)


@pytest.mark.parametrize(
    "kind",
    [
        lambda: Full(torch.zeros(2, 3, 3).double()),
        lambda: Tied(torch.zeros(3, 3).double()),
        lambda: Diagonal(torch.zeros(2, 3).double()),
        lambda: Spherical(torch.zeros(2).double()),
        lambda: Factor(torch.zeros(2, 3, 3).double()),
        lambda: Factor(torch.zeros(2, 1, 3).double()),
    ],
    ids=["full", "tied", "diagonal", "spherical", "factor", "low factor"],
)
@pytest.mark.parametrize("function", [lambda p: p.project(DIRECTIONS), lambda p: p.marginal(0)], ids=["all", "one"])
def test_scales_of_variance_zero_have_gradient_zero(kind, function):
    covariances = kind()
    covariances.values.requires_grad_()
    p = MultivariateNormalMixture(tensor([0.5, 0.5]), tensor([[1.0, 2.0, 3.0]] * 2), covariances)
    scales = function(p).scales
    assert (scales == 0).all()
    (grad,) = torch.autograd.grad(scales.sum(), covariances.values)
    assert (grad == 0).all()


def test_a_direction_along_a_flat_axis_leaves_the_gradients_of_others():
    variances = tensor([[0.0, 4.0]], requires_grad=True)
    p = MultivariateNormalMixture(tensor([1.0]), tensor([[0.0, 0.0]]), Diagonal(variances))
    scales = p.project(tensor([[1.0, 0.0], [0.0, 3.0]])).scales
    close(scales, [[0.0], [6.0]], 1e-15)
    (grad,) = torch.autograd.grad(scales.sum(), variances)
    close(grad, [[0.0, 3 / 4]], 1e-15)  # d(3 sqrt v)/dv at v = 4


def test_gradients_of_log_prob_in_full_covariances_are_the_formula():
    """d log N / d C = (C^-1 r r^T C^-1 - C^-1) / 2."""
    kind = KINDS["full"]
    _, means, free = free_parameters(kind, k=1)
    covariances = kind.valid(free).requires_grad_()
    MultivariateNormalMixture(tensor([1.0]), means, covariances).log_prob(VALUES[0, 0, 0]).backward()
    inverse, r = np.linalg.inv(covariances.detach().numpy()[0]), (VALUES[0, 0, 0] - means[0]).numpy()
    close(covariances.grad[0], 0.5 * (inverse @ np.outer(r, r) @ inverse - inverse), 1e-10)


# Transforms of torch


@every_kind
def test_methods_work_under_vmap(kind):
    logits, means, free = free_parameters(kind, ((4,), (4,), (4,)))
    x = torch.randn(4, 3, generator=generator(1), dtype=torch.float64)

    def function(logits, means, free, x):
        p = of_free(kind, logits, means, free)
        q = p.condition([0], x[:1])
        return p.log_prob(x), p.covariance, p.project(DIRECTIONS).scales, q.log_prob(x[1:]), p.affine(0.0, MATRIX).mean

    for got, *expected in zip(
        torch.func.vmap(function)(logits, means, free, x),
        *[function(*(t[i] for t in (logits, means, free, x))) for i in range(4)],
        strict=True,
    ):
        close(got, torch.stack(expected), 1e-11, 1e-12)


def test_from_logits_is_softmax():
    logits, means = tensor([0.0, 1.0, -math.inf]), torch.zeros(3, 2).double()
    p = MultivariateNormalMixture.from_logits(logits, means, Spherical(tensor([1.0])))
    torch.testing.assert_close(p.weights, tensor([1 / (1 + math.e), math.e / (1 + math.e), 0.0]))
    with pytest.raises(ValueError, match="logits must be < inf"):
        MultivariateNormalMixture.from_logits(logits * math.inf, means, Spherical(tensor([1.0])))


def test_repr_says_the_sizes_and_the_kind():
    p = MultivariateNormalMixture(torch.ones(1), torch.zeros(4, 1, 2), Diagonal(torch.ones(1, 2)))
    assert repr(p) == "MultivariateNormalMixture(batch_shape=(4,), n_components=1, dim=2, covariance_type='diag')"
