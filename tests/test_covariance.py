"""Kinds of covariances: each of their methods against numpy loops, and where a matrix counts as singular."""

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal

from cramix import Diagonal, Factor, Full, MultivariateNormalMixture, Spherical, Tied
from cramix.mixture.covariance import Points
from tests.multivariate_oracle import (
    KINDS,
    close,
    each,
    elements,
    every_kind,
    every_singular_kind,
    free_parameters,
    generator,
    of_free,
    tensor,
)

DTYPES = [torch.float32, torch.float64]
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def case(kind, batches=((2,), (2,), (2,)), **sizes):
    """The covariances, and the matrices that are meant, `(*batch, k, d, d)`."""
    parameters = free_parameters(kind, batches, **sizes)
    truth = each(lambda w, m, c: c, elements(kind, *parameters))
    return of_free(kind, *parameters).covariance_kind, truth


def grown(x, shape):
    """What broadcasts, broadcast: kinds share where they can."""
    return x.expand(torch.broadcast_shapes(x.shape, shape))


def square_root(kind, d):
    """The root R of each component, as a matrix."""
    root = kind.roots(d)
    return torch.diag_embed(root.expand(*root.shape[:-1], d)) if kind.axis_aligned else root


@every_kind
def test_matrices_and_roots_are_the_covariances(kind):
    covariances, truth = case(kind)
    shape = truth.shape
    close(grown(covariances.matrices(3), shape), truth)
    root = grown(square_root(covariances, 3), shape)
    close(root @ root.mT, truth, 1e-12, 1e-13)


@pytest.mark.parametrize("rank", [1, 2, 4, 6])
def test_factors_have_as_many_free_numbers_as_ways_to_move_their_covariances(rank):
    s = torch.randn(3, rank, 4, generator=generator(1), dtype=torch.float64)
    moves = torch.func.jacrev(lambda x: Factor(x).matrices(4))(s).reshape(3 * 4 * 4, -1)
    p = MultivariateNormalMixture(torch.full((3,), 1 / 3, dtype=torch.float64), s.mean(-2), Factor(s))
    assert p.covariance_kind.n_parameters(4) == torch.linalg.matrix_rank(moves)
    assert p.n_parameters == 2 + 12 + torch.linalg.matrix_rank(moves)


def test_points_and_shared_covariances_have_no_free_numbers_of_their_own():
    x = torch.zeros(5, 3)
    assert MultivariateNormalMixture.from_samples(x).n_parameters == 4 + 15
    assert Diagonal(torch.ones(7, 1, 3)).n_parameters(3) == 3


@every_singular_kind
def test_roots_of_singular_covariances_are_roots(kind):
    covariances, truth = case(kind)
    root = grown(square_root(covariances, 3), truth.shape)
    close(root @ root.mT, truth, 1e-12, 1e-14)
    assert root.isfinite().all()


@pytest.mark.parametrize("r", [1, 2, 3, 4, 9])
def test_roots_of_factors_with_any_number_of_rows(r):
    s = torch.randn(2, r, 3, generator=generator(), dtype=torch.float64)
    root = Factor(s).roots(3)
    assert root.shape == (2, 3, 3)
    close(root @ root.mT, [a.T @ a for a in s.numpy()])


@every_kind
def test_whiten_solves_with_the_lower_cholesky_factor(kind):
    covariances, truth = case(kind)
    offsets = torch.randn(5, 2, 3, 3, generator=generator(1), dtype=torch.float64)
    z, log_diagonal = covariances.whiten(offsets)
    log_diagonal = grown(log_diagonal, (2, 3, 3))
    for i, j in np.ndindex(2, 3):
        lower = np.linalg.cholesky(truth[i, j])
        close(log_diagonal[i, j], np.log(np.diag(lower)), 1e-10, 1e-11)
        close(z[:, i, j], np.linalg.solve(lower, offsets[:, i, j].numpy().T).T, 1e-9, 1e-10)


@every_kind
def test_marginals_and_transforms_keep_what_sharing_they_can(kind):
    covariances, truth = case(kind)
    a = np.array([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]])
    close(grown(covariances.transform(tensor(a)).matrices(2), (2, 3, 2, 2)), a @ truth @ a.T)
    part = covariances.marginal([2, 0])
    close(grown(part.matrices(2), (2, 3, 2, 2)), truth[..., [2, 0], :][..., [2, 0]])
    assert type(part) is type(covariances)
    if isinstance(covariances, (Tied, Factor)):
        assert type(covariances.transform(tensor(a))) is type(covariances)


@every_kind
def test_condition_is_regression_and_schur_complement(kind):
    covariances, truth = case(kind)
    gain, left = covariances.condition([2], [0, 1])
    across, own = truth[..., :2, 2:], truth[..., 2:, 2:]
    expected = across / own
    close(grown(torch.zeros(2, 3, 2, 1).double() if gain is None else gain, expected.shape), expected, 1e-11)
    close(grown(left.matrices(2), (2, 3, 2, 2)), truth[..., :2, :2] - across @ np.swapaxes(across, -1, -2) / own, 1e-10)
    assert (gain is None) == covariances.axis_aligned


@pytest.mark.parametrize("name", ["full", "tied", "factor"])
def test_what_is_left_by_a_condition_is_symmetric(name):
    covariances, _ = case(KINDS[name], d=9)
    left = covariances.condition([0, 1, 2], list(range(3, 9)))[1].matrices(6)
    assert torch.equal(left, left.mT)


@every_kind
def test_take_chooses_components(kind):
    covariances, truth = case(kind)
    some = covariances.take(torch.tensor([True, False, True]))
    close(grown(some.matrices(3), (2, 2, 3, 3)), truth[:, [0, 2]])
    assert type(some) is type(covariances)


@every_kind
def test_like_is_the_same_kind_with_other_values(kind):
    covariances, truth = case(kind)
    twice = covariances.like(2 * covariances.values)
    factor = 4 if isinstance(covariances, Factor) else 2
    assert type(twice) is type(covariances)
    assert twice.shape == covariances.shape
    close(grown(twice.matrices(3), truth.shape), factor * truth)


def test_shape_is_that_of_batch_and_components():
    shapes = {
        Full: (4, 2, 3, 3),
        Tied: (4, 3, 3),
        Diagonal: (4, 2, 3),
        Spherical: (4, 2),
        Factor: (4, 2, 7, 3),
    }
    for kind, shape in shapes.items():
        assert kind(torch.zeros(shape)).shape == ((4, 1) if kind is Tied else (4, 2))


def test_from_scale_tril_looks_at_the_lower_triangle_only():
    lower = torch.randn(2, 3, 3, generator=generator(), dtype=torch.float64)
    upper = lower + 7 * torch.ones(3, 3).double().triu(1)
    close(Factor.from_scale_tril(upper).matrices(3), [np.tril(x) @ np.tril(x).T for x in lower.numpy()])


def test_points_have_no_spread():
    p = MultivariateNormalMixture.from_samples(tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert isinstance(p.covariance_kind, Points)
    assert isinstance(p.covariance_kind.transform(tensor([[1.0, 2.0]])), Points)
    assert isinstance(p.covariance_kind.marginal([1]), Points)
    assert isinstance(p.covariance_kind.like(torch.zeros(1).double()), Points)
    close(p.covariances, np.zeros((2, 2, 2)), 0, 0)


# Singular up to rounding


@every_dtype
@pytest.mark.parametrize(("d", "rank"), [(2, 1), (3, 1), (3, 2), (6, 5), (12, 11), (30, 29)])
def test_matrices_that_are_singular_but_for_rounding_have_no_density(d, rank, dtype):
    s = torch.randn(300, 1, rank, d, generator=generator(), dtype=dtype)
    weights, means = torch.ones(1, dtype=dtype), torch.zeros(1, d, dtype=dtype)
    for kind in (Full(s.mT @ s), Factor(s)):
        p = MultivariateNormalMixture(weights, means, kind)
        with pytest.raises(ValueError, match="positive definite here; got 300 singular ones"):
            p.log_prob(torch.ones(d, dtype=dtype))


@every_dtype
@pytest.mark.parametrize("d", [2, 3, 12])
def test_factors_with_dependent_columns_but_for_rounding_have_no_density(d, dtype):
    s = torch.randn(300, 1, d + 1, d, generator=generator(), dtype=dtype)
    s[..., -1] = s[..., :-1].sum(-1)
    p = MultivariateNormalMixture(torch.ones(1, dtype=dtype), torch.zeros(1, d, dtype=dtype), Factor(s))
    with pytest.raises(ValueError, match="positive definite here; got 300 singular ones"):
        p.log_prob(torch.ones(d, dtype=dtype))


@every_dtype
def test_matrices_that_are_small_or_badly_scaled_have_a_density(dtype):
    variances = torch.tensor([[1e-12, 1.0, 1e12], [1e-15, 1e-15, 1e-15], [1e15, 1e-10, 1e-5]], dtype=dtype)
    weights, means = torch.ones(1, dtype=dtype), torch.zeros(1, 3, dtype=dtype)
    full = MultivariateNormalMixture(weights, means, torch.diag_embed(variances).unsqueeze(-3))
    axes = MultivariateNormalMixture(weights, means, Diagonal(variances.unsqueeze(-2)))
    x = variances.sqrt()
    close(full.log_prob(x), axes.log_prob(x).double(), 1e-5)


def test_strong_correlation_is_not_singular():
    for correlation in (0.999999, 1 - 1e-12):
        matrix = tensor([[[1.0, correlation], [correlation, 1.0]]])
        p = MultivariateNormalMixture(tensor([1.0]), tensor([[0.0, 0.0]]), matrix)
        gap = 1 - matrix[0, 0, 1].item()  # exact
        expected = -np.log(2 * np.pi) - 0.5 * np.log(gap * (2 - gap)) - 1 / (2 - gap)
        close(p.log_prob(tensor([1.0, 1.0])), expected, 1e-4)


@pytest.mark.parametrize("narrow", [1e-2, 1e-4, 1e-6])
def test_densities_of_factors_keep_the_digits_that_their_covariances_lose(narrow):
    lower = torch.tensor([[[1.0, 0.0], [0.7, narrow]]])
    x = torch.tensor([0.5, 0.35 + narrow])
    truth = MultivariateNormal(torch.zeros(1, 2).double(), scale_tril=lower.double()).log_prob(x.double())
    turn = torch.linalg.qr(torch.randn(4, 2, generator=generator())).Q
    for factor in (Factor.from_scale_tril(lower), Factor(turn @ lower.mT)):
        p = MultivariateNormalMixture(torch.ones(1), torch.zeros(1, 2), factor)
        # A rounding of the value, or of the factor, is eps / narrow of a scale.
        close(p.log_prob(x), truth.squeeze(0), 1e-6, 4 * 1.2e-7 / narrow + 1e-6)
        close(p.to_torch().log_prob(x), truth.squeeze(0), 1e-6, 4 * 1.2e-7 / narrow + 1e-6)


def test_one_singular_matrix_of_many_is_enough():
    covariances = torch.eye(2).double().repeat(4, 3, 1, 1)
    covariances[2, 1] = tensor([[1.0, 2.0], [2.0, 4.0]])
    p = MultivariateNormalMixture(tensor([0.25, 0.25, 0.5]), torch.zeros(3, 2).double(), covariances)
    with pytest.raises(ValueError, match="got 1 singular ones"):
        p.log_prob(tensor([0.0, 0.0]))


def test_singular_matrices_are_found_without_validation():
    kind = KINDS["full"]
    logits, means, _ = free_parameters(kind)
    p = MultivariateNormalMixture(logits.softmax(-1), means, torch.zeros(3, 3, 3).double(), validate_args=False)
    with pytest.raises(ValueError, match="positive definite"):
        p.log_prob(means[0])
