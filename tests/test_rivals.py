"""The rivals: each does what its reference says, finds what is easy to find, and never breaks."""

from __future__ import annotations

import itertools
import math
import sys
import warnings

import numpy as np
import ot
import pytest
import torch
from sklearn.cluster import KMeans
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from cramix import MultivariateNormalMixture, cramer_loss, fit
from cramix.fitting import (
    METHODS,
    GradientLikelihood,
    HardAssignment,
    Method,
    SlicedCramer,
    SlicedCramerThenLikelihood,
    SlicedWasserstein,
    WassersteinFisherRao,
)
from cramix.fitting.features import Data
from cramix.fitting.problem import Components, Problem, standard_units
from cramix.fitting.wfr import moved
from cramix.mixture.covariance import FAMILIES

D = torch.float64
# Each with few steps, for what holds after any number of them.
QUICK: dict[str, Method] = {
    "sc2": SlicedCramer(max_iter=25),
    "nll": GradientLikelihood(max_iter=25),
    "sc2+nll": SlicedCramerThenLikelihood(max_iter=15, likelihood_iter=10),
    "kmeans": HardAssignment(n_init=2),
    "sliced-wasserstein": SlicedWasserstein(max_iter=8),
    "wfr": WassersteinFisherRao(max_iter=400, tol=1e-4),
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def truth(d: int = 2) -> MultivariateNormalMixture:
    """Three components of one weight, well apart."""
    means = 4 * torch.eye(3, d, dtype=D) - 2
    means[2] -= 2
    covariances = torch.eye(d, dtype=D) * torch.tensor([0.3, 0.2, 0.1], dtype=D)[:, None, None]
    return MultivariateNormalMixture(torch.full((3,), 1 / 3, dtype=D), means, covariances)


def samples(n: int, d: int = 2, seed: int = 0) -> Tensor:
    return truth(d).sample((n,), generator=generator(seed))


def problem(x: Tensor, k: int, method: Method, name: str = "full", seed: int = 0) -> Problem:
    target, family = MultivariateNormalMixture.from_samples(x), FAMILIES[name]
    units = method.units(standard_units(target, family))
    return Problem(target, k, family(x.shape[1], 1e-6), units, generator=generator(seed))


def valid(mixture: MultivariateNormalMixture) -> bool:
    kind = mixture.covariance_kind
    MultivariateNormalMixture(mixture.weights, mixture.means, kind, validate_args=True)
    return bool(mixture.weights.isfinite().all() and (torch.linalg.eigvalsh(mixture.covariances) > 0).all())


def test_all_are_known_by_name() -> None:
    assert set(QUICK) <= set(METHODS)
    for name, method in QUICK.items():
        assert METHODS[name] is type(method)
        assert METHODS[name]().name == name


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("method", QUICK.values(), ids=QUICK)
def test_all_kinds_and_dimensions_with_weights_in_float32(method: Method, d: int, name: str) -> None:
    """Valid, of the kind and dtype asked for, and the same again whatever the global seed."""
    x = samples(40, d).float()
    weights = torch.rand(40, generator=generator(1))
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few steps
        for seed in (0, 1):
            torch.manual_seed(seed)
            np.random.seed(seed)  # noqa: NPY002, whoever looks at the global one
            results.append(
                fit(x, 3, method=method, covariance_type=name, sample_weight=weights, generator=generator(2))
            )
    first, second = results
    assert valid(first.mixture)
    assert first.mixture.means.dtype == torch.float32
    assert type(first.mixture.covariance_kind) is FAMILIES[name].kind
    assert torch.equal(first.mixture.means, second.mixture.means)
    assert torch.equal(first.mixture.covariances, second.mixture.covariances)
    assert math.isfinite(first.log_likelihood)
    assert all(math.isfinite(step.loss) for step in first.history)
    assert len(first.history) > 0


@pytest.mark.parametrize(
    "method",
    [
        SlicedCramer(),
        GradientLikelihood(max_iter=400),
        SlicedCramerThenLikelihood(max_iter=400),
        HardAssignment(),
        SlicedWasserstein(max_iter=100),
        WassersteinFisherRao(),
    ],
    ids=QUICK,
)
def test_a_known_mixture_is_found(method: Method) -> None:
    p, x = truth(), samples(240, seed=3)
    result = fit(x, 3, method=method, init_params="k-means++", generator=generator(4))
    assert result.converged
    order = torch.cdist(p.means, result.mixture.means).argmin(-1)
    assert sorted(order.tolist()) == [0, 1, 2]
    torch.testing.assert_close(result.mixture.means[order], p.means, atol=0.25, rtol=0)
    torch.testing.assert_close(result.mixture.weights[order], p.weights, atol=0.1, rtol=0)
    scales, wanted = (torch.linalg.eigvalsh(m).sqrt() for m in (result.mixture.covariances[order], p.covariances))
    torch.testing.assert_close(scales, wanted, atol=0.2, rtol=0)


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(5, 2),
        torch.ones(30, 2).cumsum(0).remainder(2),
        torch.stack([torch.arange(20.0), torch.ones(20)], -1),
        torch.eye(4),
        1e6 * torch.eye(3, 2),
        torch.cat([torch.eye(6, 2), torch.full((1, 2), 1e6)]),
    ],
)
@pytest.mark.parametrize("method", QUICK.values(), ids=QUICK)
def test_poor_data_gives_a_valid_mixture(x: Tensor, method: Method) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # collapsed, or fewer places than clusters
        for name in FAMILIES:
            assert valid(fit(x.to(D), 3, method=method, covariance_type=name, generator=generator(5)).mixture)


@pytest.mark.parametrize("method", ["sc2", "kmeans", "sliced-wasserstein", "wfr"])
def test_a_mixture_can_be_the_target(method: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few steps
        result = fit(truth(), 2, method=QUICK[method], generator=generator(6))
    assert valid(result.mixture)
    assert result.log_likelihood is None


@pytest.mark.parametrize("method", ["nll", "sc2+nll"])
def test_a_likelihood_wants_samples(method: str) -> None:
    with pytest.raises(ValueError, match="The likelihood needs samples; X is a mixture"):
        fit(truth(), 2, method=QUICK[method], generator=generator(7))


def test_the_paper_start_and_its_first_step() -> None:
    """Equal weights, standard normal means, S = 1; then every number moves by its learning rate."""
    x = 3 + samples(50, seed=8)
    method = SlicedCramer(max_iter=1)
    p = problem(x, 4, method, seed=9)
    (_, first), (_, second) = method.descents(p)
    torch.testing.assert_close(p.units.centre, x.mean(0))
    assert (p.units.scale == 1).all()
    start = first.mixture()
    assert (start.weights == 0.25).all()
    assert torch.equal(start.means, torch.randn(4, 2, generator=generator(9), dtype=D))
    torch.testing.assert_close(start.covariances, torch.eye(2, dtype=D).expand(4, 2, 2), atol=1e-5, rtol=0)
    for before, after, rate in zip(first.unconstrained, second.unconstrained, (5e-6, 2e-2, 3e-3), strict=True):
        moved = (after - before).abs()
        torch.testing.assert_close(moved, torch.full_like(moved, rate), rtol=1e-6, atol=0)


def test_the_paper_loss_is_the_sum_over_a_heptagon() -> None:
    x = samples(50, seed=10)
    method = SlicedCramer(max_iter=1)
    p = problem(x, 3, method)
    _, first = next(method.descents(p))
    mixture, centred = first.mixture(), x - x.mean(0)
    corners = [(math.cos(2 * math.pi * i / 7), math.sin(2 * math.pi * i / 7)) for i in range(7)]
    losses = [
        cramer_loss(mixture.project(torch.tensor([corner], dtype=D))[0], centred @ torch.tensor(corner, dtype=D))
        for corner in corners
    ]
    assert first.loss == pytest.approx(sum(loss.item() for loss in losses), rel=1e-9)


def test_the_likelihood_goes_on_where_the_cramer_loss_ends() -> None:
    x = samples(100, seed=11)
    both = SlicedCramerThenLikelihood(max_iter=20, likelihood_iter=30)
    p = problem(x, 3, both, seed=12)
    places = list(both.descents(p))
    stages = [
        (name, [place for _, place in group]) for name, group in itertools.groupby(places, key=lambda each: each[0])
    ]
    (_, cramer), (_, likelihood) = stages
    alone = [place for _, place in SlicedCramer(max_iter=20).descents(problem(x, 3, both, seed=12))]
    assert (len(cramer), len(likelihood)) == (21, 31)
    assert torch.equal(cramer[-1].unconstrained.means, alone[-1].unconstrained.means)
    assert torch.equal(likelihood[0].unconstrained.covariances, cramer[-1].unconstrained.covariances)
    assert likelihood[-1].loss < likelihood[0].loss
    expected = -likelihood[-1].mixture().to_torch().log_prob(x - x.mean(0)).mean().item()
    assert likelihood[-1].loss == pytest.approx(expected, rel=1e-9)


def test_clusters_of_scikit_learn_with_their_moments() -> None:
    x, w = samples(80, seed=13).numpy(), torch.rand(80, generator=generator(14), dtype=D).numpy()
    scale = np.sqrt(np.average((x - np.average(x, 0, w)) ** 2, 0, w))
    result = fit(torch.from_numpy(x), 3, method="kmeans", sample_weight=torch.from_numpy(w), generator=generator(15))
    labels = KMeans(3, n_init=20, random_state=0).fit((x - np.average(x, 0, w)) / scale, sample_weight=w).labels_
    for i in range(3):
        inside = labels == i
        mean = np.average(x[inside], 0, w[inside])
        nearest = int(np.linalg.norm(result.mixture.means.numpy() - mean, axis=1).argmin())
        covariance = np.cov(x[inside].T, aweights=w[inside], ddof=0) + 1e-6 * np.diag(scale**2)
        np.testing.assert_allclose(result.mixture.means[nearest], mean, rtol=1e-9)
        np.testing.assert_allclose(result.mixture.weights[nearest], w[inside].sum() / w.sum(), rtol=1e-9)
        np.testing.assert_allclose(result.mixture.covariances[nearest], covariance, rtol=1e-6, atol=1e-12)
    assert result.history[-1].loss == pytest.approx(-result.log_likelihood, rel=1e-9)


def test_clusters_begin_where_they_are_told_to() -> None:
    """Two rows of points: from above and below k-means finds the rows, though left and right would be better."""
    x = torch.cartesian_prod(torch.tensor([-3.0, 3.0]), torch.tensor([-1.0, 1.0])).to(D)
    start = MultivariateNormalMixture(
        torch.full((2,), 0.5, dtype=D),
        torch.tensor([[0.0, -1.0], [0.0, 1.0]], dtype=D),
        torch.eye(2, dtype=D).expand(2, 2, 2),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # collapsed
        rows = fit(x, 2, method="kmeans", init_params=start, generator=generator(16)).mixture
    torch.testing.assert_close(rows.means, start.means)


def test_sliced_wasserstein_falls_as_others_measure_it() -> None:
    """Against POT, between samples of the fit and the samples."""
    x = samples(150, seed=17)
    first = fit(x, 3, method=SlicedWasserstein(max_iter=1), generator=generator(18)).mixture
    last = fit(x, 3, method=SlicedWasserstein(max_iter=100), generator=generator(18)).mixture
    before, after = (
        ot.sliced_wasserstein_distance(
            m.sample((2000,), generator=generator(19)).numpy(), x.numpy(), seed=0, n_projections=50
        )
        for m in (first, last)
    )
    assert after < 0.4 * before


def flow(weights: Tensor, means: Tensor, covariances: Tensor, x: Tensor, w: Tensor) -> list[np.ndarray]:
    """Mean responsibilities, means and second moments around the particles, by loops."""
    k, shares = len(weights), (w / w.sum()).numpy()
    normal = [MultivariateNormal(means[j], covariances[j]) for j in range(k)]
    density = np.array([[weights[j].item() * normal[j].log_prob(v).exp().item() for j in range(k)] for v in x])
    part = shares[:, None] * density / density.sum(1, keepdims=True)
    mass = part.sum(0)
    centres = np.array([(part[:, j, None] * x.numpy()).sum(0) / mass[j] for j in range(k)])
    moments = np.array(
        [
            sum(
                p * np.outer(v - means[j].numpy(), v - means[j].numpy())
                for p, v in zip(part[:, j], x.numpy(), strict=True)
            )
            / mass[j]
            for j in range(k)
        ]
    )
    return [mass, centres, moments]


def particles() -> tuple[Tensor, Tensor, Tensor]:
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=D)
    means = torch.tensor([[-1.0, 0.2], [0.5, 0.5], [0.8, -0.7]], dtype=D)
    roots = torch.tensor([[[0.9, 0.0], [0.3, 0.7]], [[1.1, 0.0], [-0.4, 0.8]], [[0.6, 0.0], [0.1, 1.0]]], dtype=D)
    return weights, means, roots @ roots.mT


def test_a_step_of_the_flow_is_that_of_the_formulas() -> None:
    """Equations (3.8) for masses and means, and ours for covariances, in coordinates where each is standard."""
    weights, means, covariances = particles()
    x, w = torch.randn(25, 2, generator=generator(20), dtype=D), torch.rand(25, generator=generator(21), dtype=D)
    family, h = FAMILIES["full"](2, 1e-12), 0.1
    sums, _ = Data(family, x, w).expect(family.coefficients(weights, means, covariances).unsqueeze(0))
    after = moved(Components(weights, means, covariances), family, sums.squeeze(0), h, learn_covariances=True)
    mass, centres, moments = flow(weights, means, covariances, x, w)
    ratio = mass / weights.numpy()
    np.testing.assert_allclose(after.weights, weights.numpy() * (1 + h * (ratio - 1)), rtol=1e-9)
    np.testing.assert_allclose(after.means, means.numpy() + h * ratio[:, None] * (centres - means.numpy()), rtol=1e-9)
    for j in range(3):
        lower = np.linalg.cholesky(covariances[j].numpy())
        white = np.linalg.inv(lower) @ moments[j] @ np.linalg.inv(lower).T
        root = lower @ (np.eye(2) + h * ratio[j] * (white - np.eye(2)))
        np.testing.assert_allclose(after.covariances[j], root @ root.T, rtol=1e-8)
    held = moved(Components(weights, means, covariances), family, sums.squeeze(0), h, learn_covariances=False)
    assert torch.equal(held.covariances, covariances)
    assert torch.equal(held.means, after.means)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_flow_follows_the_gradient_of_the_likelihood(name: str) -> None:
    """For small steps, from standard components, with the gradient by autograd through torch's own mixture.

    The derivative of minus the log likelihood in means is mass times the first variation's, and a flow of Bures and
    Wasserstein has `dC/dt = -2 (G C + C G)`, G the derivative in the covariance.
    """
    weights, means, _ = particles()
    x = 1.5 * torch.randn(30, 2, generator=generator(22), dtype=D)
    family, h = FAMILIES[name](2, 1e-12), 1e-6
    spread = {
        "full": torch.eye(2).expand(3, 2, 2),
        "tied": torch.eye(2),
        "diag": torch.ones(3, 2),
        "spherical": torch.ones(3),
    }
    kind = spread[name].to(D).clone()
    sums, _ = Data(family, x, torch.ones(30, dtype=D)).expect(family.coefficients(weights, means, kind).unsqueeze(0))
    after = moved(Components(weights, means, kind), family, sums.squeeze(0), h, learn_covariances=True)
    moving, values = means.clone().requires_grad_(), kind.clone().requires_grad_()
    matrices = family.kind(values).matrices(2).expand(3, 2, 2)
    peer = MixtureSameFamily(Categorical(weights), MultivariateNormal(moving, matrices))
    at_means, at_values = torch.autograd.grad(-peer.log_prob(x).mean(), (moving, values))
    torch.testing.assert_close((after.means - means) / h, -at_means / weights.unsqueeze(-1), rtol=1e-4, atol=1e-6)
    # A number that stands for two directions has the sum of their derivatives; one matrix for all feels all masses.
    directions = 2 if name == "spherical" else 1
    masses = torch.ones(()) if name == "tied" else weights.view(-1, *(1,) * (kind.ndim - 1))
    torch.testing.assert_close(
        (after.covariances - kind) / h, -4 * at_values / masses / directions, rtol=1e-4, atol=1e-6
    )


def test_the_likelihood_rises_along_the_flow() -> None:
    x = samples(150, seed=23)
    for name in FAMILIES:
        result = fit(x, 3, method=WassersteinFisherRao(step=0.2), covariance_type=name, generator=generator(24))
        losses = [step.loss for step in result.history]
        assert result.converged
        assert all(b <= a + 1e-7 for a, b in itertools.pairwise(losses))


def test_a_flow_out_of_iterations_shows_its_last_one() -> None:
    method = WassersteinFisherRao(tol=0, step=1e-3, max_iter=203)
    with pytest.warns(UserWarning, match="did not converge"):
        result = fit(samples(60, seed=23), 3, method=method, generator=generator(24))
    assert len(result.history) == 102  # every other one, and the last


def test_known_scales_stay_and_far_particles_die() -> None:
    x = samples(150, seed=25)
    away = torch.cat([truth().means, torch.full((1, 2), 60.0, dtype=D)])
    start = MultivariateNormalMixture(torch.full((4,), 0.25, dtype=D), away, torch.eye(2, dtype=D).expand(4, 2, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # out of iterations
        method = WassersteinFisherRao(step=0.5, scale=0.3, tol=0, max_iter=10)
        result = fit(x, 4, method=method, init_params=start, generator=generator(26))
    scale = x.std(0, correction=0)
    torch.testing.assert_close(result.mixture.covariances, torch.diag(0.09 * scale**2).expand(4, 2, 2))
    assert result.mixture.weights[3].item() == pytest.approx(0.25 * 0.5**10, rel=1e-9)
    torch.testing.assert_close(result.mixture.means[3], away[3])


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (lambda: SlicedCramer(max_iter=0), "max_iter must be an integer >= 1; got 0"),
        (lambda: SlicedCramer(slices=0), "slices must be an integer >= 1; got 0"),
        (lambda: GradientLikelihood(learning_rate=-1.0), "learning_rate must be one number > 0"),
        (lambda: SlicedCramerThenLikelihood(likelihood_iter=0), "likelihood_iter must be an integer >= 1; got 0"),
        (lambda: HardAssignment(n_init=0), "n_init must be an integer >= 1; got 0"),
        (lambda: HardAssignment(max_iter=0), "max_iter must be an integer >= 1; got 0"),
        (lambda: SlicedWasserstein(slices=0), "slices must be an integer >= 1; got 0"),
        (lambda: SlicedWasserstein(learning_rate=(1.0,)), "learning_rate must be one number > 0"),
        (lambda: WassersteinFisherRao(step=0), "step must be a number > 0; got 0"),
        (lambda: WassersteinFisherRao(step=1.5), r"step must be at most 1, .* got 1\.5"),
        (lambda: WassersteinFisherRao(scale=0.0), r"scale must be a number > 0; got 0\.0"),
        (lambda: WassersteinFisherRao(tol=-1), "tol must be a number >= 0; got -1"),
    ],
)
def test_bad_settings(settings: object, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        settings()  # type: ignore[operator]


@pytest.mark.parametrize(("method", "module", "extra"), [("sc2", "lion_pytorch", "lion")])
def test_a_missing_package_is_named(method: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"pip install 'cramix\[{extra}\]'"):
        fit(samples(20), 2, method=method, generator=generator(27))
