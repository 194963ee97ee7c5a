"""Samples in several dimensions: their distribution, their generator, and unbiased gradients.

Seeds are fixed, so every outcome is. For a fresh seed the failure rate of a correct sampler is stated at each test;
`near` fails once in 1.7 million numbers that it compares.
"""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest, norm

from cramix import Diagonal, Full, MultivariateNormalMixture, NormalMixture, Spherical
from cramix.mixture.sampling import drawn, reparameterized
from tests.multivariate_oracle import (
    KINDS,
    SINGULAR,
    close,
    covariance_of,
    elements,
    every_kind,
    free_parameters,
    generator,
    mean_of,
    near,
    of_free,
    tensor,
)

DRAWS = ["sample", "rsample"]
every_draw = pytest.mark.parametrize("draw", DRAWS)
ALL = {**KINDS, **{f"singular {name}": kind for name, kind in SINGULAR.items()}}


@every_draw
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ALL.values(), ids=ALL)
def test_samples_have_the_moments_of_the_mixture(kind, dtype, draw):
    parameters = free_parameters(kind, ((2,), (2,), ()))
    p = of_free(kind, *(x.to(dtype) for x in parameters))
    x = getattr(p, draw)((20_000,), generator=generator())
    assert x.dtype == dtype
    assert x.shape == (20_000, 2, 3)
    x = x.double()
    for i, truth in enumerate(elements(kind, *parameters)):
        mean = tensor(mean_of(*truth))
        offset = x[:, i] - mean
        # 24 numbers: a fresh seed fails once in 70,000 times. Float32 rounds flat axes to 1e-7.
        near(x[:, i], mean, precision=0.1)
        products = offset.unsqueeze(-1) * offset.unsqueeze(-2)
        near(products, tensor(covariance_of(*truth)), precision=0.3)


@every_draw
@every_kind
def test_projections_of_samples_follow_their_distribution_function(kind, draw):
    parameters = free_parameters(kind)
    (truth,) = elements(kind, *parameters).reshape(1)
    x = getattr(of_free(kind, *parameters), draw)((10_000,), generator=generator()).numpy()
    u = np.array([0.5, -0.7, 0.3])
    means, scales = truth[1] @ u, np.sqrt([u @ c @ u for c in truth[2]])
    # Kolmogorov and Smirnov: a fresh seed fails once in ten thousand times.
    assert kstest(x @ u, lambda t: norm.cdf((t[:, None] - means) / scales) @ truth[0]).pvalue > 1e-4


@every_draw
def test_points_are_drawn_as_often_as_they_weigh(draw):
    weights = np.array([0.5, 0.125, 0.0, 0.25, 0.0625, 0.0625])
    places = torch.arange(6.0).double().unsqueeze(-1) * tensor([1.0, 10.0])
    p = MultivariateNormalMixture.from_samples(places, tensor(weights))
    x = getattr(p, draw)((50_000,), generator=generator())
    assert torch.equal(x[:, 1], 10 * x[:, 0])
    counts = np.bincount(x[:, 0].long().numpy(), minlength=6)
    assert counts[2] == 0
    # Chi square: a fresh seed fails once in a thousand times.
    assert chisquare(np.delete(counts, 2), 50_000 * np.delete(weights, 2)).pvalue > 1e-3


@every_draw
def test_each_batch_element_is_drawn_from_its_own_mixture(draw):
    places = tensor([[[[0.0, 5.0], [1.0, 5.0]]], [[[10.0, 6.0], [11.0, 6.0]]], [[[20.0, 7.0], [21.0, 7.0]]]])
    p = MultivariateNormalMixture(tensor([[0.25, 0.75], [1.0, 0.0]]), places, Spherical(tensor([0.0, 0.0])))
    x = getattr(p, draw)((500, 4), generator=generator())
    assert x.shape == (500, 4, 3, 2, 2)
    for i in range(3):
        share = (x[..., i, 0, 0] == 10 * i + 1).double().mean()
        assert abs(share - 0.75) < 4.5 * (0.75 * 0.25 / 2000) ** 0.5  # a fresh seed fails twice in 100,000 times
        assert ((x[..., i, 0, 0] == 10 * i) | (x[..., i, 0, 0] == 10 * i + 1)).all()
        assert (x[..., i, 1, 0] == 10 * i).all()
        assert (x[..., i, :, 1] == 5 + i).all()


@every_draw
@every_kind
def test_each_batch_element_is_drawn_with_its_own_covariance(kind, draw):
    parameters = free_parameters(kind, ((), (), (3,)), k=1)
    p = of_free(kind, *parameters)
    x = getattr(p, draw)((20_000,), generator=generator())
    for i, truth in enumerate(elements(kind, *parameters)):
        offset = x[:, i] - tensor(truth[1][0])
        # 27 numbers: a fresh seed fails once in 60,000 times.
        near(offset.unsqueeze(-1) * offset.unsqueeze(-2), tensor(truth[2][0]), precision=0.3)


@every_draw
def test_draws_of_one_call_are_independent(draw):
    kind = KINDS["full"]
    p = of_free(kind, *free_parameters(kind)).expand((2,))
    x = getattr(p, draw)((20_000,), generator=generator())
    x = (x - p.mean) / p.stddev
    # Between batch elements, and between neighbours; six numbers.
    near(x[:, 0] * x[:, 1], torch.zeros(3))
    near(x[1:, 0] * x[:-1, 0], torch.zeros(3))


def test_many_draws_are_made_in_blocks():
    kind = KINDS["full"]
    p = of_free(kind, *free_parameters(kind, ((2,), (2,), (2,))))
    whole = p.sample((50,), generator=generator())
    close(drawn(p.weights, p.means, p.covariance_kind, whole.shape, generator(), block=64), whole)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3)])
@every_draw
@every_kind
def test_sample_shape_comes_before_the_batch(kind, draw, shape):
    logits, means, free = free_parameters(kind, ((4, 1), (2,), ()))
    means.requires_grad_()
    assert getattr(of_free(kind, logits, means, free), draw)(shape).shape == (*shape, 4, 2, 3)


@every_draw
@every_kind
def test_a_generator_gives_the_same_samples_and_leaves_the_global_one_alone(kind, draw):
    p = of_free(kind, *free_parameters(kind))
    before = torch.get_rng_state()
    first, again, other = (getattr(p, draw)((5,), generator=generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@every_draw
def test_without_a_generator_the_global_seed_decides(draw):
    p = of_free(KINDS["tied"], *free_parameters(KINDS["tied"]))
    with torch.random.fork_rng():
        torch.manual_seed(3)
        first, second = getattr(p, draw)((5,)), getattr(p, draw)((5,))
        torch.manual_seed(3)
        assert torch.equal(getattr(p, draw)((5,)), first)
    assert not torch.equal(first, second)


@every_kind
def test_sample_has_no_gradient_and_rsample_has(kind):
    for i in range(3):
        leaves = free_parameters(kind)
        leaves[i].requires_grad_()
        p = of_free(kind, *leaves)
        assert not p.sample((3,)).requires_grad
        assert p.rsample((3,)).requires_grad
        assert torch.equal(p.sample((3,), generator=generator()), p.rsample((3,), generator=generator()))
        with torch.no_grad():
            assert not p.rsample((3,)).requires_grad


@pytest.mark.parametrize("name", [name for name in SINGULAR if name != "zero"])
def test_singular_covariances_are_drawn_but_have_no_gradient(name):
    kind = SINGULAR[name]
    parameters = free_parameters(kind)
    assert of_free(kind, *parameters).rsample((3,)).isfinite().all()
    for i in range(3):
        leaves = [x.clone().requires_grad_(i == j) for j, x in enumerate(parameters)]
        p = of_free(kind, *leaves)
        assert p.sample((3,)).isfinite().all()
        with pytest.raises(ValueError, match="covariances must be positive definite"):
            p.rsample((3,))


# Gradients of E f(X), one for each sample so that their standard error is known.

N = 60_000
A = tensor([[1.0, 0.7], [-0.2, 0.5]])
U = tensor([0.8, -0.5])


def expected_square(w, m, c):
    return (w * ((m @ A) * m).sum(-1)).sum(-1) + (w * (c * A).sum((-2, -1))).sum(-1)


def expected_cosine(w, m, c):
    return (w * (m @ U).cos() * (-0.5 * (c @ U @ U)).exp()).sum(-1)


FUNCTIONS = {
    "square": (lambda x: ((x @ A) * x).sum(-1), expected_square),
    "cosine": (lambda x: (x @ U).cos(), expected_cosine),
}


def matrices_of(name, values):
    """Covariance matrices `(2, 2, 2)` of two components, differentiable, from the definition of the kind."""
    if name in ("full", "full, shared", "tied"):
        return values.expand(2, 2, 2)
    if name == "diagonal":
        return torch.diag_embed(values)
    if name == "spherical":
        return values[:, None, None] * torch.eye(2).double()
    return (
        torch.einsum("kia,kja->kij", values, values)
        if name == "scale_tril"
        else torch.einsum("kai,kaj->kij", values, values)
    )


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("name", KINDS)
def test_rsample_gradient_of_an_expectation_is_unbiased(name, function):
    f, expectation = function
    kind = KINDS[name]
    parameters = free_parameters(kind, k=2, d=2, seed=1)
    leaves = [x.expand(N, *x.shape).clone().requires_grad_() for x in parameters]
    x = of_free(kind, *leaves, validate_args=False).rsample(generator=generator())
    assert x.shape == (N, 2)
    each = torch.autograd.grad(f(x).sum(), leaves)

    def exact(logits, means, free):
        return expectation(logits.softmax(-1), means, matrices_of(name, kind.valid(free)))

    truth = torch.func.grad(exact, (0, 1, 2))(*parameters)
    # At most 22 numbers: a fresh seed fails once in 75,000 times.
    for got, expected in zip(each, truth, strict=True):
        near(got, expected, precision=0.05)


def test_an_error_of_five_percent_in_a_gradient_is_noticed():
    kind = KINDS["full"]
    logits, means, free = (x.expand(N, *x.shape).clone() for x in free_parameters(kind, k=2, d=2, seed=1))
    means.requires_grad_()
    x = of_free(kind, logits, means, free, validate_args=False).rsample(generator=generator())
    (grad,) = torch.autograd.grad(FUNCTIONS["square"][0](x).sum(), means)
    near(grad, grad.mean(0))
    largest = grad.mean(0).abs().max()
    with pytest.raises(AssertionError, match="sigmas"):
        near(grad, grad.mean(0) + 0.05 * largest)


def test_rsample_keeps_every_conditional_distribution_function():
    """The Jacobian of a sample, against central differences of Rosenblatt's map in numpy."""

    def rosenblatt(x, weights, means, lower):
        weights = weights / weights.sum()
        covariances = lower @ np.swapaxes(lower, -1, -2)
        s1 = np.sqrt(covariances[:, 0, 0])
        z1 = (x[0] - means[:, 0]) / s1
        posterior = weights * norm.pdf(z1) / s1
        posterior /= posterior.sum()
        slope = covariances[:, 0, 1] / covariances[:, 0, 0]
        s2 = np.sqrt(covariances[:, 1, 1] - slope * covariances[:, 0, 1])
        z2 = (x[1] - means[:, 1] - slope * (x[0] - means[:, 0])) / s2
        return np.array([weights @ norm.cdf(z1), posterior @ norm.cdf(z2)])

    def differences(function, at):
        columns = []
        for i in np.ndindex(at.shape):
            step = np.zeros_like(at)
            step[i] = 1e-5
            columns.append((function(at + step) - function(at - step)) / 2e-5)
        return np.stack(columns, -1)

    weights, means = tensor([0.375, 0.625]), tensor([[0.0, 1.0], [1.0, -0.5]])
    lower = tensor([[[1.0, 0.0], [0.7, 0.8]], [[0.6, 0.0], [-0.3, 1.1]]])
    leaves = [x.clone().requires_grad_() for x in (weights, means, lower)]
    p = MultivariateNormalMixture(leaves[0], leaves[1], Full(leaves[2] @ leaves[2].mT))
    samples = p.rsample((4,), generator=generator())
    w, m, s = (x.numpy() for x in (weights, means, lower))
    for sample in samples:
        x = sample.detach().numpy()
        inverse = np.linalg.inv(differences(lambda y: rosenblatt(y, w, m, s), x))
        truth = [
            -inverse @ differences(lambda y, x=x: rosenblatt(x, y, m, s), w),
            -inverse @ differences(lambda y, x=x: rosenblatt(x, w, y, s), m),
            -inverse @ differences(lambda y, x=x: rosenblatt(x, w, m, y), s),
        ]
        for j in range(2):
            got = torch.autograd.grad(sample[j], leaves, retain_graph=True)
            for g, t in zip(got, truth, strict=True):
                close(g.flatten(), t[j], 1e-6, 1e-8)


@pytest.mark.parametrize("build", [Diagonal, Full], ids=["diagonal", "full"])
def test_in_one_dimension_the_gradient_is_that_of_the_univariate_mixture(build):
    w, m, s = tensor([0.25, 0.5, 0.25]), tensor([-1.0, 0.5, 4.0]), tensor([0.5, 1.0, 2.0])
    one, many = ([x.clone().requires_grad_() for x in (w, m, s)] for _ in range(2))
    covariances = many[2].square().unsqueeze(-1)
    covariances = covariances if build is Diagonal else covariances.unsqueeze(-1)
    line = NormalMixture(*one)
    p = MultivariateNormalMixture(many[0], many[1].unsqueeze(-1), build(covariances))
    x, y = line.rsample((200,), generator=generator()), p.rsample((200,), generator=generator())
    close(y.squeeze(-1), x)
    direction = torch.randn(200, generator=generator(1), dtype=torch.float64)
    ours = torch.autograd.grad((direction * y.squeeze(-1)).sum(), many)
    theirs = torch.autograd.grad((direction * x).sum(), one)
    # The univariate mixture's gradient in weights is along the simplex.
    close(ours[0] - ours[0].mean(), theirs[0] - theirs[0].mean(), 1e-9)
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        close(a, b, 1e-9)


def test_a_single_component_moves_as_its_cholesky_factor():
    """With one component, x = m + L z for the z of the sample."""
    lower = tensor([[[1.0, 0.0, 0.0], [0.5, 2.0, 0.0], [-1.0, 0.3, 0.7]]], requires_grad=True)
    means = tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    p = MultivariateNormalMixture(tensor([1.0]), means, Full(lower @ lower.mT))
    x = p.rsample((50,), generator=generator())
    c = torch.randn(50, 3, generator=generator(1), dtype=torch.float64)
    got = torch.autograd.grad((c * x).sum(), (means, lower))
    z = torch.linalg.solve_triangular(lower.detach()[0], (x.detach() - means.detach()).T, upper=False).T
    close(got[0], c.sum(0, keepdim=True))
    close(got[1].tril()[0], (c.unsqueeze(-1) * z.unsqueeze(-2)).sum(0).tril(), 1e-10)


def test_rsample_gradient_of_points_is_that_of_their_places():
    x = tensor([[1.0, 0.0], [2.0, 1.0], [5.0, 4.0]], requires_grad=True)
    draws = MultivariateNormalMixture.from_samples(x).rsample((1000,), generator=generator())
    (grad,) = torch.autograd.grad((draws * tensor([1.0, 3.0])).sum(), x)
    counts = [(draws[:, 0] == place).sum().item() for place in (1.0, 2.0, 5.0)]
    assert grad.tolist() == [[n, 3 * n] for n in counts]


@every_kind
def test_gradients_in_float32_are_close_to_those_in_float64(kind):
    parameters = free_parameters(kind, k=2, d=2)
    results = []
    value = of_free(kind, *parameters).sample((100,), generator=generator())
    for dtype in (torch.float32, torch.float64):
        leaves = [x.to(dtype).requires_grad_() for x in parameters]
        p = of_free(kind, *leaves)
        x = reparameterized(value.to(dtype), p.weights, p.means, p.covariance_kind)
        results.append(torch.autograd.grad(x.sin().sum(), leaves))
    for single, double in zip(*results, strict=True):
        assert single.dtype == torch.float32
        close(single, double, 1e-2, 1e-3)
