"""Gradient descent: unconstrained tensors, single steps, stationary points, batches, recovery of known mixtures."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import check_grad, rosen, rosen_der
from scipy.spatial import KDTree
from torch import Tensor

from cramix import MultivariateNormalMixture, NormalMixture, Tied, fit, sliced_cramer_loss
from cramix.directions import equispaced
from cramix.fitting import FitResult, GradientDescent, descend
from cramix.fitting.descent import Iterate
from cramix.fitting.lbfgs import minimize
from cramix.fitting.learning_rates import Rates
from cramix.fitting.objectives import Batches, Cramer, Likelihood, Objective, default_bandwidth
from cramix.fitting.problem import Components, Problem, standard_units
from cramix.fitting.unconstrained import PARAMETRIZATIONS, Parametrization
from cramix.mixture.covariance import FAMILIES, Family

D = torch.float64


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_parameters(family: Family, k: int, seed: int) -> Components:
    g = generator(seed)
    roots = torch.randn(k, family.dim, family.dim, generator=g, dtype=D)
    weights = torch.randn(k, generator=g, dtype=D).softmax(-1)
    means = torch.randn(k, family.dim, generator=g, dtype=D)
    return Components(*family.parameters(family.sums(weights, means, roots @ roots.mT)))


def truth(name: str, d: int) -> MultivariateNormalMixture:
    """Three components far apart, of each kind."""
    means = torch.stack([torch.zeros(d, dtype=D), torch.full((d,), 9.0, dtype=D), torch.linspace(-9, 9, d, dtype=D)])
    means[2, 0] = -9
    covariances = 0.5 * torch.eye(d, dtype=D).expand(3, d, d) + {"full": 0.4, "tied": 0.4}.get(name, 0.0)
    if name in ("full", "diag", "spherical"):
        covariances = covariances * torch.tensor([1.0, 2.0, 0.5], dtype=D)[:, None, None]
    if name == "diag":
        covariances = covariances * torch.diag(1 + torch.arange(d, dtype=D))
    return MultivariateNormalMixture(torch.tensor([0.5, 0.3, 0.2], dtype=D), means, covariances)


def samples(p: MultivariateNormalMixture, n: int, seed: int = 0) -> Tensor:
    return p.sample((n,), generator=generator(seed))


def assert_found(result: FitResult, p: MultivariateNormalMixture, n: int) -> None:
    """Weights, means and covariances of the truth to five standard errors of n samples."""
    order = torch.cdist(p.means, result.mixture.means).argmin(-1)
    assert sorted(order.tolist()) == [0, 1, 2]
    size = n * p.weights
    variances = p.covariances.diagonal(dim1=-2, dim2=-1)
    assert ((result.mixture.weights[order] - p.weights).abs() < 5 * (p.weights / n).sqrt()).all()
    assert ((result.mixture.means[order] - p.means).abs() < 5 * (variances / size[:, None]).sqrt()).all()
    error = 5 * (2 * variances[:, :, None] * variances[:, None, :] / size[:, None, None]).sqrt()
    assert ((result.mixture.covariances[order] - p.covariances).abs() < error).all()


def problem(x: Tensor, k: int = 3, name: str = "full", seed: int = 0, weights: Tensor | None = None) -> Problem:
    target = MultivariateNormalMixture.from_samples(x, weights)
    family = FAMILIES[name]
    return Problem(target, k, family(x.shape[1], 1e-6), standard_units(target, family), generator=generator(seed))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
@pytest.mark.parametrize("d", [1, 3])
def test_free_tensors_and_back(name: str, parametrization: str, d: int) -> None:
    chart = Parametrization(FAMILIES[name](d, 1e-3), parametrization)
    parameters = random_parameters(chart.family, 4, seed=1)
    for given, back in zip(parameters, chart.components(chart.unconstrained(parameters)), strict=True):
        torch.testing.assert_close(back, given, rtol=1e-10, atol=1e-12)
    mixture = chart.mixture(chart.unconstrained(parameters))
    assert type(mixture.covariance_kind) is chart.family.kind
    torch.testing.assert_close(mixture.covariances, chart.family.kind(parameters[2]).matrices(d).expand(4, d, d))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS)
def test_any_free_tensors_are_valid_and_above_the_floor(name: str, parametrization: str) -> None:
    chart = Parametrization(FAMILIES[name](3, 1e-2), parametrization)
    start = chart.unconstrained(random_parameters(chart.family, 4, seed=2))
    for seed in range(20):
        free = Components(*(5 * torch.randn(x.shape, generator=generator(seed), dtype=D) for x in start))
        weights, means, spread = chart.components(free)
        mixture = MultivariateNormalMixture(weights, means, chart.family.kind(spread), validate_args=True)
        assert torch.linalg.eigvalsh(mixture.covariances).min() >= 0.99e-2


def test_weights_of_zero_and_flat_covariances_have_free_tensors() -> None:
    for name in FAMILIES:
        chart = Parametrization(FAMILIES[name](2, 1e-6))
        spread = {"full": (2, 2, 2), "tied": (2, 2), "diag": (2, 2), "spherical": (2,)}[name]
        free = chart.unconstrained(
            Components(torch.tensor([0.0, 1.0], dtype=D), torch.zeros(2, 2, dtype=D), torch.zeros(spread, dtype=D))
        )
        assert all(x.isfinite().all() for x in free)
        assert torch.linalg.eigvalsh(chart.mixture(free).covariances).max() < 1.1e-6


def test_the_paper_has_its_gram_matrix() -> None:
    """`S^T S`, not `S S^T`."""
    chart = Parametrization(FAMILIES["full"](2, 1e-9), "gram")
    s = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]], dtype=D)
    _, _, spread = chart.components(Components(torch.zeros(1, dtype=D), torch.zeros(1, 2, dtype=D), s))
    np.testing.assert_allclose(spread[0].numpy(), s[0].numpy().T @ s[0].numpy(), atol=1e-8)


def test_lbfgs_finds_the_minimum_of_rosenbrock() -> None:
    def function(x: np.ndarray) -> tuple[float, np.ndarray]:
        return float(rosen(x)), rosen_der(x)

    points = list(itertools.islice(minimize(function, np.full(10, -1.2)), 200))
    values = [point.value for point in points]
    assert all(b < a for a, b in itertools.pairwise(values))
    np.testing.assert_allclose(points[-1].x, np.ones(10), atol=1e-6)


def test_lbfgs_solves_a_quadratic_in_about_as_many_steps_as_dimensions() -> None:
    """Steepest descent would need thousands: the condition number is 1e4."""
    scales = np.logspace(0, 4, 8)

    def function(x: np.ndarray) -> tuple[float, np.ndarray]:
        return 0.5 * float(x @ (scales * x)), scales * x

    points = list(itertools.islice(minimize(function, np.ones(8)), 60))
    assert points[-1].value < 1e-12


def test_lbfgs_walks_along_an_infinite_wall() -> None:
    """`x - log x`, infinite left of 0, from a start where the first step would land there."""

    def function(x: np.ndarray) -> tuple[float, np.ndarray]:
        if (x <= 0).any():
            return math.inf, np.zeros_like(x)
        return float((x - np.log(x)).sum()), 1 - 1 / x

    *_, last = minimize(function, np.array([0.01, 50.0]))
    np.testing.assert_allclose(last.x, 1, atol=1e-5)


def test_a_step_of_lion_moves_every_number_by_its_rate() -> None:
    """The first update is the sign of the gradient, times the rate of the group."""
    p = problem(samples(truth("full", 2), 60))
    chart = Parametrization(p.family, "gram")
    start = chart.unconstrained(random_parameters(p.family, 3, seed=3))
    # With a lower factor as S the upper half counts, too.
    start = start._replace(covariances=start.covariances + 0.1)
    rates = Rates(0.5, 0.25, 0.125)
    objective = Likelihood(p)
    leaves = Components(*(x.clone().requires_grad_() for x in start))
    objective(chart.components(leaves)).backward()
    first, second = itertools.islice(descend(chart, start, objective, "lion", rates, 1), 2)
    assert (first.step, second.step) == (0, 1)
    for before, after, leaf, rate in zip(first.unconstrained, second.unconstrained, leaves, rates, strict=True):
        assert leaf.grad is not None
        torch.testing.assert_close(after, before - rate * leaf.grad.sign(), rtol=0, atol=1e-15)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_first_step_is_that_of_the_formula(optimizer: str) -> None:
    """Adam moves by the rate against the sign, RMSprop by ten times as much."""
    p = problem(samples(truth("full", 2), 60))
    chart = Parametrization(p.family)
    start = chart.unconstrained(random_parameters(p.family, 3, seed=4))
    rates = Rates(0.1, 0.2, 0.3)
    first, second = itertools.islice(descend(chart, start, Likelihood(p), optimizer, rates, 1), 2)
    size = 1.0 if optimizer == "adam" else 10.0
    for before, after, rate in zip(first.unconstrained[:2], second.unconstrained[:2], rates, strict=False):
        torch.testing.assert_close((after - before).abs(), torch.full_like(before, size * rate), rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("objective", ["likelihood", "cramer"])
def test_objectives_are_the_public_losses_with_right_gradients(name: str, objective: str) -> None:
    """The value from torch or the sliced loss in the units, the gradient by differences."""
    w = torch.rand(40, generator=generator(5), dtype=D)
    p = problem(samples(truth("full", 2), 40), name=name, weights=w)
    chart = Parametrization(p.family)
    free = chart.unconstrained(random_parameters(p.family, 3, seed=6))
    loss: Objective = Likelihood(p) if objective == "likelihood" else Cramer(p)
    mixture, x = chart.mixture(free), p.units.of(p.target.means)
    if objective == "likelihood":
        expected = -(w / w.sum() @ mixture.to_torch().log_prob(x)).item()
        assert loss.shown(expected) == pytest.approx(expected + p.units.scale.log().sum().item())
    else:
        expected = sliced_cramer_loss(mixture, MultivariateNormalMixture.from_samples(x, w)).item()
    assert loss(chart.components(free)).item() == pytest.approx(expected, rel=1e-9)
    sizes = [t.numel() for t in free]

    def at(flat: np.ndarray) -> Components:
        parts = torch.from_numpy(flat).split(sizes)
        return Components(*(part.clone().view_as(t).requires_grad_() for part, t in zip(parts, free, strict=True)))

    def value(flat: np.ndarray) -> float:
        return loss(chart.components(at(flat))).item()

    def gradient(flat: np.ndarray) -> np.ndarray:
        leaves = at(flat)
        return torch.cat([t.flatten() for t in torch.autograd.grad(loss(chart.components(leaves)), leaves)]).numpy()

    flat = torch.cat([t.flatten() for t in free]).numpy()
    error = check_grad(value, gradient, flat, epsilon=1e-6)
    assert error < 1e-4 * max(1.0, float(np.linalg.norm(gradient(flat))))


@pytest.mark.parametrize("objective", [Likelihood, Cramer])
def test_gradients_of_batches_have_no_bias(objective: type[Objective]) -> None:
    """The mean over 1,000 batches of 5 of 30 weighted rows is the gradient, to 4.5 standard errors in each number."""
    w = torch.rand(30, generator=generator(7), dtype=D).square()
    p = problem(samples(truth("full", 2), 30), weights=w)
    chart = Parametrization(p.family)
    wide = torch.tensor([[[1.0, 0.3], [0.3, 0.5]], [[0.6, -0.2], [-0.2, 0.8]]], dtype=D)
    free = chart.unconstrained(
        Components(torch.tensor([0.3, 0.7], dtype=D), torch.tensor([[-0.5, 0.0], [0.3, 0.6]], dtype=D), wide)
    )
    whole, batches = objective(p), objective(p, 5)
    assert batches.random
    assert not whole.random

    def gradient(loss: Objective) -> Tensor:
        leaves = Components(*(t.clone().requires_grad_() for t in free))
        return torch.cat([t.flatten() for t in torch.autograd.grad(loss(chart.components(leaves)), leaves)])

    drawn, exact = torch.stack([gradient(batches) for _ in range(1000)]), gradient(whole)
    error = drawn.std(0) / 1000**0.5
    assert ((drawn.mean(0) - exact).abs() <= 4.5 * error + 1e-12).all()
    assert error.norm() < 0.1 * exact.norm()


def test_batches_of_a_mixture_and_of_equal_rows() -> None:
    p = truth("full", 2)
    target = Problem(p, 2, FAMILIES["full"](2, 1e-6), standard_units(p, FAMILIES["full"]), generator=generator(9))
    batch = Batches(target, 20_000).next()
    torch.testing.assert_close(batch.mean, torch.zeros(2, dtype=D), atol=0.05, rtol=0)
    torch.testing.assert_close(batch.variance, torch.ones(2, dtype=D), atol=0.05, rtol=0)
    rows = problem(torch.arange(10, dtype=D).unsqueeze(-1))
    counts = torch.bincount(
        torch.searchsorted(rows.units.of(rows.target.means).flatten(), Batches(rows, 10_000).next().means.flatten())
    )
    assert len(counts) == 10
    assert ((counts - 1000).abs() < 150).all()


class _Watched(Tensor):
    """A tensor that remembers the most rows that were taken from it at once."""

    most = 0

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = super().__torch_function__(function, types, args, kwargs or {})
        if isinstance(result, Tensor) and result.ndim == 2:
            cls.most = max(cls.most, len(result))
        return result.as_subclass(Tensor) if isinstance(result, Tensor) and len(result.shape) else result


def test_batches_read_only_their_rows() -> None:
    x = samples(truth("full", 2), 50_000)
    p = problem(x)
    watched = MultivariateNormalMixture.from_samples(x)
    watched.means = x.float().as_subclass(_Watched)
    p = Problem(watched, 3, p.family, p.units, generator=generator(10))
    found = GradientDescent("likelihood", "adam", max_iter=3, batch_size=64).run(p)
    assert found.components.means.isfinite().all()
    assert 64 <= _Watched.most <= 1 << 14


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("d", [1, 2, 5])
def test_the_likelihood_finds_a_known_mixture(name: str, d: int) -> None:
    p = truth(name, d)
    x = samples(p, 2000, seed=11)
    result = fit(x, 3, method=GradientDescent("likelihood"), covariance_type=name, generator=generator(12))
    assert result.converged
    assert_found(result, p, 2000)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("d", [1, 2, 5])
def test_the_cramer_loss_finds_a_known_mixture(name: str, d: int) -> None:
    p = truth(name, d)
    x = samples(p, 600, seed=13)
    method = GradientDescent(max_iter=100, tol=1e-6, bandwidth=0)  # which would widen it
    result = fit(x, 3, method=method, covariance_type=name, generator=generator(14))
    assert result.converged
    assert_found(result, p, 300)  # it is not as efficient as the likelihood


# A sign does not average: on the skewed noise of slices and batches Lion's covariances drift, so it gets none.
@pytest.mark.parametrize(
    ("optimizer", "batch_size", "directions", "rate"),
    [("adam", 200, 8, 0.01), ("rmsprop", 200, 8, 0.01), ("lion", None, equispaced(8), 0.003)],
)
@pytest.mark.parametrize("objective", ["cramer", "likelihood"])
def test_first_order_steps_find_a_known_mixture(
    optimizer: str, batch_size: int | None, directions: int | Tensor, rate: float, objective: str
) -> None:
    p = truth("full", 2)
    x = samples(p, 1000, seed=15).float()
    method = GradientDescent(
        objective, optimizer, max_iter=400, batch_size=batch_size, directions=directions, learning_rate=rate, tol=0
    )
    result = fit(x, 3, method=method, generator=generator(16))
    assert result.mixture.means.dtype == torch.float32
    order = torch.cdist(p.means.float(), result.mixture.means).argmin(-1)
    assert (result.mixture.means[order] - p.means).abs().max() < 0.5
    assert (result.mixture.weights[order] - p.weights).abs().max() < 0.1


def test_batches_with_a_bandwidth_in_all_directions_at_once() -> None:
    """The default but for the batches; rates fall towards the end, so that the noise of steps does not stay."""
    p = truth("full", 2)
    x = samples(p, 3000, seed=35)
    method = GradientDescent(optimizer="adam", max_iter=400, batch_size=64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # out of steps, or not
        result = fit(x, 3, method=method, generator=generator(36))
    order = torch.cdist(p.means, result.mixture.means).argmin(-1)
    torch.testing.assert_close(result.mixture.means[order], p.means, atol=0.4, rtol=0)
    torch.testing.assert_close(result.mixture.weights[order], p.weights, atol=0.05, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_lbfgs_ends_where_the_gradient_of_the_loss_vanishes(name: str) -> None:
    """In units that are the same in all directions the loss is that of the data."""
    x = samples(truth("full", 2), 200, seed=17)
    method = GradientDescent(scaling="one", tol=1e-10, bandwidth=0)
    result = fit(x, 4, method=method, covariance_type=name, init_params="k-means++", generator=generator(18))
    mixture = result.mixture

    def norm(mixture: MultivariateNormalMixture) -> float:
        logits, means = mixture.weights.log().requires_grad_(), mixture.means.clone().requires_grad_()
        values = mixture.covariance_kind.values.clone().requires_grad_()
        moved = MultivariateNormalMixture(logits.softmax(-1), means, mixture.covariance_kind.like(values))
        return (
            torch.cat([g.flatten() for g in torch.autograd.grad(sliced_cramer_loss(moved, x), (logits, means, values))])
            .norm()
            .item()
        )

    first = GradientDescent(max_iter=1, tol=0)
    with pytest.warns(UserWarning, match="did not converge"):
        start = fit(x, 4, method=first, covariance_type=name, init_params="k-means++", generator=generator(18))
    assert norm(mixture) < 1e-4
    assert norm(mixture) < 0.01 * norm(start.mixture)


def test_learning_rates_of_lbfgs_scale_the_groups() -> None:
    """The first step goes against the gradient in units of the rates: by their squares."""
    p = problem(samples(truth("full", 2), 60))
    chart, objective = Parametrization(p.family), Likelihood(p)
    start = chart.unconstrained(random_parameters(p.family, 3, seed=19))
    leaves = Components(*(x.clone().requires_grad_() for x in start))
    gradients = torch.autograd.grad(objective(chart.components(leaves)), leaves)
    rates = Rates(1.0, 0.1, 0.01)
    first, second = itertools.islice(descend(chart, start, objective, "lbfgs", rates, 2), 2)
    moved = [
        (b - a) / (rate**2 * g)
        for a, b, g, rate in zip(first.unconstrained, second.unconstrained, gradients, rates, strict=True)
    ]
    length = moved[1].median()
    assert length < 0
    for ratio in moved:
        known = ratio[ratio.isfinite()]
        torch.testing.assert_close(known, length.expand_as(known), rtol=1e-6, atol=1e-9)


def test_the_bandwidth_is_how_far_samples_are_apart() -> None:
    """A grid of step 1, in units of its standard deviation, with all of its points twice."""
    grid = torch.cartesian_prod(torch.arange(9.0), torch.arange(9.0)).to(D)
    step = 1 / torch.arange(9.0).std(correction=0).item()
    assert default_bandwidth(problem(grid.repeat(2, 1))) == pytest.approx(step / 2**0.5)
    assert default_bandwidth(problem(torch.ones(5, 2, dtype=D))) == 0
    x = torch.randn(40_000, 2, generator=generator(31), dtype=D)
    in_turns = x + 50 * torch.arange(20).repeat(2000).unsqueeze(-1)  # every 20th row is of one cluster
    for y in (x, in_turns):
        tree = KDTree((y / y.std(0, correction=0)).numpy())
        truth = np.median(tree.query(tree.data, 2)[0][:, 1]) / 2**0.5
        assert default_bandwidth(problem(y)) == pytest.approx(truth, rel=0.1)


def test_a_bandwidth_widens_the_fit() -> None:
    """Samples of one normal component as wide as 1, each one again as wide as the bandwidth."""
    x = torch.randn(400, 2, generator=generator(32), dtype=D)
    x = (x - x.mean(0)) @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(x.T, correction=0))).T
    for h in (0.0, 0.5):
        spread = fit(x, 1, method=GradientDescent(bandwidth=h), generator=generator(33)).mixture.covariances[0]
        torch.testing.assert_close(spread, (1 + h**2) * torch.eye(2, dtype=D), atol=0.06, rtol=0)


def test_a_bandwidth_goes_with_slices_too() -> None:
    x = samples(truth("full", 2), 60)
    p, h = problem(x), 0.2
    chart = Parametrization(p.family)
    mixture = chart.mixture(chart.unconstrained(random_parameters(p.family, 3, seed=34)))
    kernels = MultivariateNormalMixture(p.target.weights, p.units.of(x), Tied(h**2 * torch.eye(2, dtype=D)))
    for directions in ("exact", equispaced(5)):
        loss = Cramer(p, directions=directions, bandwidth=h)
        value = loss(Components(mixture.weights, mixture.means, mixture.covariance_kind.values)).item()
        wanted = directions if isinstance(directions, str) else directions.to(D)
        assert value == pytest.approx(sliced_cramer_loss(mixture, kernels, directions=wanted).item(), rel=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_mixture_is_fitted_without_sampling(name: str) -> None:
    p = truth(name, 2)
    result = fit(p, 3, method="descent", covariance_type=name, generator=generator(20))
    assert result.log_likelihood is None
    assert sliced_cramer_loss(result.mixture, p).item() < 1e-6
    order = torch.cdist(p.means, result.mixture.means).argmin(-1)
    torch.testing.assert_close(result.mixture.means[order], p.means, atol=0.02, rtol=0)


def test_a_mixture_on_the_line() -> None:
    p = NormalMixture(*(torch.tensor(v, dtype=D) for v in ([0.4, 0.6], [-3.0, 3.0], [1.0, 0.5])))
    result = fit(p, 2, method="descent", generator=generator(21))
    scales, order = result.mixture.scales.sort(descending=True)
    torch.testing.assert_close(scales, p.scales, atol=1e-2, rtol=0)
    torch.testing.assert_close(result.mixture.weights[order], p.weights, atol=1e-2, rtol=0)


@pytest.mark.parametrize(
    "method",
    [GradientDescent(), GradientDescent("likelihood"), GradientDescent("likelihood", "adam", max_iter=60, tol=0)],
)
def test_same_seed_same_fit_whatever_the_global_one(method: GradientDescent) -> None:
    x = samples(truth("full", 2), 150, seed=22).float()
    results = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        results.append(fit(x, 3, method=method, generator=generator(23)))
    assert torch.equal(results[0].mixture.means, results[1].mixture.means)
    assert results[0].log_likelihood == results[1].log_likelihood


def test_weights_are_repetitions() -> None:
    x, repeats = samples(truth("full", 2), 100, seed=24), torch.arange(100) % 3
    start = truth("full", 2)
    for method in (GradientDescent("likelihood"), GradientDescent(bandwidth=0)):
        weighted = fit(x, 3, method=method, sample_weight=repeats.to(D), init_params=start)
        repeated = fit(x.repeat_interleave(repeats, 0), 3, method=method, init_params=start)
        assert weighted.history[-1].loss == pytest.approx(repeated.history[-1].loss, abs=1e-6)


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(5, 2),
        torch.ones(30, 2).cumsum(0).remainder(2),
        torch.stack([torch.arange(20.0), torch.ones(20)], -1),
        torch.eye(5),
        torch.tensor([[0.0], [1e-8], [2e-8]]),
        1e8 * torch.eye(3, 2),
    ],
)
@pytest.mark.parametrize("objective", ["cramer", "likelihood"])
@pytest.mark.parametrize("name", FAMILIES)
def test_poor_data_gives_a_valid_mixture(x: Tensor, objective: str, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # collapsed
        result = fit(
            x.double(), 2, method=GradientDescent(objective, max_iter=60), covariance_type=name, generator=generator(25)
        )
    mixture = result.mixture
    MultivariateNormalMixture(mixture.weights, mixture.means, mixture.covariance_kind, validate_args=True)
    assert all(math.isfinite(step.loss) for step in result.history)


class _Falls(Objective):
    """A loss that is no number after some calls."""

    calls = 0

    def __call__(self, components: Components) -> Tensor:
        self.calls += 1
        weights, means, spread = components
        return (weights.sum() + means.square().sum() + spread.sum()) * (math.nan if self.calls > 4 else 1.0)


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_a_loss_that_is_no_number_ends_the_descent_at_the_last_good_place(optimizer: str) -> None:
    p = problem(samples(truth("full", 2), 20))
    chart = Parametrization(p.family)
    start = chart.unconstrained(random_parameters(p.family, 3, seed=26))
    places = list(descend(chart, start, _Falls(p), optimizer, Rates(1e-3, 1e-3, 1e-3), 50))
    assert all(math.isfinite(place.loss) for place in places)
    assert places[-1].reason is not None
    assert all(x.isfinite().all() for x in places[-1].unconstrained)
    if optimizer == "adam":
        assert places[-1].reason == "the loss at step 4 was not finite"
        assert not places[-1].converged
        assert torch.equal(places[-1].unconstrained.means, places[-2].unconstrained.means)


def test_a_start_without_a_loss_is_returned() -> None:
    p = problem(samples(truth("full", 2), 20))
    chart = Parametrization(p.family)
    start = chart.unconstrained(random_parameters(p.family, 3, seed=27))
    for optimizer in ("adam", "lbfgs"):
        objective = _Falls(p)
        objective.calls = 10
        (only,) = descend(chart, start, objective, optimizer, Rates(1, 1, 1), 50)
        assert "not finite" in str(only.reason)
        assert torch.equal(only.unconstrained.means, start.means)


def test_what_a_start_is_drawn_from_has_the_weights_of_the_whole() -> None:
    n = 20_000
    x, weights = torch.arange(n, dtype=D).unsqueeze(-1) / n, torch.ones(n, dtype=D)
    weights[: n // 2] = 9
    p = problem(x, weights=weights)
    data = Batches(p, 10).for_start()
    assert len(data) < n
    assert len(data.x.unique()) == len(data)
    left = data.weights[data.x.squeeze(-1) < p.units.of(torch.tensor([[0.5]], dtype=D)).item()].sum()
    assert left.item() == pytest.approx(0.9, abs=0.015)  # six standard errors


@pytest.mark.parametrize("name", FAMILIES)
def test_an_outlier_does_not_keep_a_descent_from_its_start(name: str) -> None:
    """It makes the start so wide that covariances in its units have no inverse."""
    x = torch.cat([samples(truth("full", 2), 50), torch.full((1, 2), 1e6, dtype=torch.float64)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its component may have collapsed
        method = GradientDescent("likelihood", max_iter=50)
        result = fit(x, 3, method=method, covariance_type=name, init_params="k-means++", generator=generator(30))
    assert result.n_iter > 5
    assert result.history[-1].loss < result.history[0].loss - 1


def test_a_loss_that_is_not_finite_has_its_own_cure() -> None:
    x = samples(truth("full", 2), 50)
    method = GradientDescent("likelihood", "adam", learning_rate=1e3, max_iter=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they say is in the result, too
        result = fit(x, 3, method=method, init_params="k-means++", generator=generator(31))
    assert result.warnings[-1].endswith("was not finite. Try a smaller step size.")


def test_steps_too_long_for_float64_do_no_harm() -> None:
    x = samples(truth("full", 2), 50)
    method = GradientDescent("likelihood", "adam", learning_rate=1e3, max_iter=20, tol=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fit(x, 3, method=method, generator=generator(28))
    assert result.mixture.means.isfinite().all()
    assert result.mixture.covariances.isfinite().all()


def test_the_last_place_is_in_the_history_once() -> None:
    """The search ends where no step gains, which shows only after the place has been seen."""
    x = samples(truth("full", 2), 60)
    result = fit(x, 3, method=GradientDescent("likelihood", max_iter=200, tol=0), generator=generator(29))
    assert result.n_iter < 200
    assert sum(step.name == "descent" for step in result.history) == result.n_iter + 1


def test_the_history_is_short_and_ends_at_the_result() -> None:
    x = samples(truth("full", 2), 60)
    seen = []
    result = fit(
        x,
        3,
        method=GradientDescent("likelihood", "adam", max_iter=450, tol=0),
        generator=generator(29),
        progress=seen.append,
    )
    assert tuple(seen) == result.history
    assert 100 < len(seen) <= 201
    assert result.history[-1].loss == pytest.approx(-result.log_likelihood, rel=1e-9)
    assert result.converged
    assert result.reason == "all steps were taken"
    assert result.n_iter == 450


def test_places_on_the_way_are_mixtures() -> None:
    p = problem(samples(truth("full", 2), 60))
    places = list(GradientDescent("likelihood", max_iter=30).descents(p))
    assert all(isinstance(place, Iterate) for _, place in places)
    x = p.units.of(p.target.means)
    for _, place in places[::10]:
        shown = -place.mixture().log_prob(x).mean().item() + p.units.log_volume
        assert place.loss == pytest.approx(shown, rel=1e-9)


def test_out_of_steps_is_said() -> None:
    with pytest.warns(UserWarning, match=r"did not converge.* stopped after 2 iterations"):
        fit(samples(truth("full", 2), 60), 3, method=GradientDescent("likelihood", max_iter=2), generator=generator(30))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"objective": "mse"}, "objective must be one of cramer, likelihood; got 'mse'"),
        ({"optimizer": "sgd"}, "optimizer must be one of lbfgs, adam, lion, rmsprop; got 'sgd'"),
        ({"parametrization": "log"}, "parametrization must be one of cholesky, gram; got 'log'"),
        ({"scaling": "all"}, "scaling must be one of each, one, none; got 'all'"),
        ({"directions": "all"}, "directions must be one of exact; got 'all'"),
        ({"directions": 0, "optimizer": "adam"}, "directions must be an integer >= 1; got 0"),
        ({"max_iter": 0}, "max_iter must be an integer >= 1; got 0"),
        ({"batch_size": 0, "optimizer": "adam"}, "batch_size must be an integer >= 1; got 0"),
        ({"batch_size": 10}, 'optimizer must be "adam", .* got "lbfgs" and batch_size=10'),
        ({"directions": 10}, 'optimizer must be "adam", .* got "lbfgs" and directions=10'),
        ({"bandwidth": -1.0}, "bandwidth must be a number >= 0; got -1.0"),
        ({"tol": math.nan}, "tol must be a number >= 0; got nan"),
        ({"learning_rate": 0.0}, "learning_rate must be one number > 0"),
        ({"learning_rate": (1.0, 2.0)}, "learning_rate must be one number > 0"),
        ({"learning_rate": {"mean": 1.0}}, "learning_rate must be one number > 0"),
        ({"learning_rate": {"means": "fast"}}, "learning_rate must be one number > 0"),
    ],
)
def test_bad_settings(settings: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        GradientDescent(**settings)


def test_bad_targets() -> None:
    with pytest.raises(ValueError, match="The likelihood needs samples; X is a mixture"):
        fit(truth("full", 2), 2, method=GradientDescent("likelihood"))
    with pytest.raises(ValueError, match=r"bandwidth must be 0 if X is a mixture; got 0\.1"):
        fit(truth("full", 2), 2, method=GradientDescent(bandwidth=0.1))
    with pytest.raises(ValueError, match=r"directions must be \(t, 2\)"):
        fit(samples(truth("full", 2), 9), 2, method=GradientDescent(directions=torch.eye(3)))
