"""Samples: their distribution, their generator, and unbiased gradients.

Seeds are fixed, so every outcome is. For a fresh seed the failure rate of a correct sampler is stated at each test.
"""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest, norm

from cramix import NormalMixture


def tensor(x, **options):
    return torch.tensor(x, dtype=torch.float64, **options)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


CASES = {
    "one": ([1.0], [0.5], [2.0]),
    "three": ([0.25, 0.5, 0.25], [-1.0, 0.5, 4.0], [0.5, 1.0, 2.0]),
    "gap": ([0.125, 0.875], [-1e3, 1e3], [1.0, 50.0]),
    "scales": ([0.5, 0.5], [0.0, 1.0], [1e-3, 1e2]),
    "absent": ([0.0, 0.5, 0.0, 0.5, 0.0], [-1e3, 0.0, 1.0, 3.0, 1e3], [1.0] * 5),
}
DRAWS = ["sample", "rsample"]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_samples_follow_the_distribution_function(case, draw, dtype):
    weights, means, scales = map(np.array, case)
    p = NormalMixture(*(torch.tensor(t, dtype=dtype) for t in case))
    x = getattr(p, draw)((20_000,), generator=generator())
    assert x.dtype == dtype
    # Kolmogorov and Smirnov: a fresh seed fails once in a thousand times.
    assert kstest(x.numpy(), lambda t: norm.cdf((t[:, None] - means) / scales) @ weights).pvalue > 1e-3


def test_atoms_are_drawn_as_often_as_they_weigh():
    weights = [0.5, 0.125, 0.25, 0.0625, 0.0625]
    x = NormalMixture.from_samples(torch.arange(5.0), torch.tensor(weights)).sample((50_000,), generator=generator())
    counts = np.bincount(x.long().numpy(), minlength=5)
    # Chi square: a fresh seed fails once in a thousand times.
    assert chisquare(counts, 50_000 * np.array(weights)).pvalue > 1e-3


@pytest.mark.parametrize("draw", DRAWS)
def test_components_of_weight_zero_are_never_drawn(draw):
    p = NormalMixture(tensor([0.0, 0.5, 0.0, 0.5, 0.0]), torch.arange(5.0).double(), torch.zeros(5).double())
    assert set(getattr(p, draw)((10_000,), generator=generator()).tolist()) == {1.0, 3.0}


@pytest.mark.parametrize("draw", DRAWS)
def test_each_batch_element_is_drawn_from_its_own_mixture(draw):
    places = tensor([[[0.0, 1.0]], [[10.0, 11.0]], [[20.0, 21.0]]])
    p = NormalMixture(tensor([[0.25, 0.75], [1.0, 0.0]]), places, tensor([0.0, 0.0]))
    x = getattr(p, draw)((500, 4), generator=generator())
    assert x.shape == (500, 4, 3, 2)
    for i in range(3):
        share = (x[..., i, 0] == 10 * i + 1).double().mean()
        assert abs(share - 0.75) < 4.5 * (0.75 * 0.25 / 2000) ** 0.5  # a fresh seed fails twice in 100,000 times
        assert ((x[..., i, 0] == 10 * i) | (x[..., i, 0] == 10 * i + 1)).all()
        assert (x[..., i, 1] == 10 * i).all()


@pytest.mark.parametrize("draw", DRAWS)
def test_draws_of_one_call_are_independent(draw):
    p = NormalMixture(*map(tensor, CASES["three"])).expand((2,))
    x = getattr(p, draw)((20_000,), generator=generator())
    x = (x - p.mean) / p.stddev
    # Between batch elements, and between neighbours; a fresh seed fails once in 100,000 times.
    for product in (x[:, 0] * x[:, 1], x[1:, 0] * x[:-1, 0]):
        assert abs(product.mean()) < 4.5 / 20_000**0.5


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3)])
@pytest.mark.parametrize("draw", DRAWS)
def test_sample_shape_comes_before_the_batch(shape, draw):
    p = NormalMixture(*map(tensor, CASES["three"])).expand((4, 1))
    assert getattr(p, draw)(shape).shape == (*shape, 4, 1)


@pytest.mark.parametrize("draw", DRAWS)
def test_a_generator_gives_the_same_samples_and_leaves_the_global_one_alone(draw):
    p = NormalMixture(*map(tensor, CASES["three"]))
    before = torch.get_rng_state()
    first, again, other = (getattr(p, draw)((5,), generator=generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("draw", DRAWS)
def test_without_a_generator_the_global_seed_decides(draw):
    p = NormalMixture(*map(tensor, CASES["three"]))
    with torch.random.fork_rng():
        torch.manual_seed(3)
        first, second = getattr(p, draw)((5,)), getattr(p, draw)((5,))
        torch.manual_seed(3)
        assert torch.equal(getattr(p, draw)((5,)), first)
    assert not torch.equal(first, second)


def test_sample_has_no_gradient_and_rsample_has():
    means = tensor([0.0, 1.0], requires_grad=True)
    p = NormalMixture(tensor([0.5, 0.5]), means, tensor([1.0, 2.0]))
    assert not p.sample((3,)).requires_grad
    assert p.rsample((3,)).requires_grad
    assert torch.equal(p.sample((3,), generator=generator()), p.rsample((3,), generator=generator()))


# Gradients of E f(X), one for each sample so that their standard error is known.

N = 200_000
FUNCTIONS = {
    "square": (torch.square, lambda w, m, s: (w * (m.square() + s.square())).sum()),
    "cosine": (torch.cos, lambda w, m, s: (w * m.cos() * (-0.5 * s.square()).exp()).sum()),
}
PARAMETERS = {
    "normals": ([0.1, -0.6, 0.4], [-1.0, 0.5, 1.5], [0.7, 1.0, 0.5]),
    "an atom too": ([0.1, -0.6, 0.4], [-1.0, 0.5, 1.5], [0.7, 0.0, 0.5]),
    "atoms at one place": ([0.1, -0.6, 0.4], [-1.0, 0.5, 0.5], [1.2, 0.0, 0.0]),
}


@pytest.mark.parametrize("parameters", PARAMETERS.values(), ids=PARAMETERS)
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_rsample_gradient_of_an_expectation_is_unbiased(parameters, function):
    f, expectation = function
    logits, means, scales = (tensor(t) for t in parameters)
    leaves = [t.expand(N, 3).clone().requires_grad_() for t in (logits, means, scales)]
    p = NormalMixture(leaves[0].softmax(-1), leaves[1], leaves[2])
    each = torch.autograd.grad(f(p.rsample(generator=generator())).sum(), leaves)  # (N, 3)
    exact = torch.func.grad(lambda a, m, s: expectation(a.softmax(-1), m, s), (0, 1, 2))(logits, means, scales)
    for got, truth in zip(each, exact, strict=True):
        error = (got.mean(0) - truth).abs()
        standard_error = got.std(0) / N**0.5
        assert (standard_error < 0.02).all()
        # 4.5 standard errors for 9 numbers: a fresh seed fails once in 16,000 times.
        assert (error <= 4.5 * standard_error + 1e-12).all()


def test_rsample_gradient_of_atoms_alone_is_that_of_their_places():
    x = tensor([1.0, 2.0, 5.0], requires_grad=True)
    draws = NormalMixture.from_samples(x).rsample((1000,), generator=generator())
    (grad,) = torch.autograd.grad(draws.sum(), x)
    assert grad.tolist() == [(draws == place).sum().item() for place in (1.0, 2.0, 5.0)]
