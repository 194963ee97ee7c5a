"""Shrinkage of covariances against its formula, its optimum, scikit-learn, and held-out rows."""

from __future__ import annotations

import math
import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.datasets import load_iris, load_wine
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from cramix import ConvergenceWarning, CramerMixture, FitResult, MultivariateNormalMixture, fit
from cramix.fitting import MergeDown
from cramix.fitting.em import maximize, polish
from cramix.fitting.features import Data
from cramix.mixture.covariance import FAMILIES, Prior

D = torch.float64
KINDS = list(FAMILIES)
OWN = [kind for kind in KINDS if kind != "tied"]  # with covariances of each component
INF = float("inf")
EXACT = MergeDown(tol=1e-14, max_iter=20_000)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def clusters(n: int, d: int, k: int, apart: float = 6.0, seed: int = 0) -> np.ndarray:
    """Samples of k clusters with different covariances, of about n / k each."""
    g = np.random.default_rng(seed)
    centres = g.normal(size=(k, d))
    centres *= apart / np.linalg.norm(centres, axis=1, keepdims=True)
    return np.concatenate(
        [centres[j] + g.normal(size=(n // k, d)) @ (np.eye(d) + 0.4 * g.normal(size=(d, d))) for j in range(k)]
    )


def standardised(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(0)) / x.std(0)


def of_kind(kind: str, covariances: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Restrict covariances `(k, d, d)` to a kind."""
    d = covariances.shape[-1]
    if kind == "tied":
        covariances = np.broadcast_to(np.average(covariances, axis=0, weights=weights), covariances.shape)
    if kind == "diag":
        covariances = covariances * np.eye(d)
    if kind == "spherical":
        covariances = np.trace(covariances, axis1=-2, axis2=-1)[:, None, None] / d * np.eye(d)
    return covariances


def pseudo_samples(kind: str, strength: float, d: int) -> float:
    return strength * (3 if kind in ("diag", "spherical") else d + 2)


def shrunk(kind: str, covariances: np.ndarray, counts: np.ndarray, strength: float) -> np.ndarray:
    """Covariances `(k, d, d)` of a kind, of so many samples each, after shrinkage."""
    k, d, _ = covariances.shape
    nu = pseudo_samples(kind, strength, d)
    own = of_kind(kind, covariances, counts)
    to = np.average(own, axis=0, weights=counts)
    if kind == "tied":
        counts, nu, to = np.full(k, counts.sum()), k * nu, to * np.eye(d)
    if math.isinf(nu):
        return np.broadcast_to(to, own.shape)
    return (counts[:, None, None] * own + nu * to) / (counts[:, None, None] + nu)


def moments(x: np.ndarray, responsibilities: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The number of samples, means and covariances of components with responsibilities `(k, n)`."""
    counts = responsibilities.sum(-1)
    means = responsibilities @ x / counts[:, None]
    offsets = x - means[:, None]
    covariances = np.einsum("kn,kni,knj->kij", responsibilities, offsets, offsets) / counts[:, None, None]
    return counts, means, covariances


def responsibilities_of(mixture: MultivariateNormalMixture, x: np.ndarray) -> np.ndarray:
    """By SciPy, `(k, n)`."""
    weights, means, covariances = (t.numpy() for t in (mixture.weights, mixture.means, mixture.covariances))
    each = zip(weights, means, covariances, strict=True)
    joint = np.stack([math.log(w) + multivariate_normal(m, c).logpdf(x) for w, m, c in each])
    return np.exp(joint - logsumexp(joint, 0))


def data_of(kind: str, x: np.ndarray) -> Data:
    return Data(FAMILIES[kind](x.shape[1], 0.0), torch.as_tensor(x), torch.ones(len(x), dtype=D))


def matrices(kind: str, values: torch.Tensor, k: int, d: int) -> np.ndarray:
    """Covariances of a batch of fits as matrices, `(B, k, d, d)`."""
    return FAMILIES[kind].kind(values).matrices(d).expand(-1, k, d, d).numpy()


def held_out_steps(result: FitResult) -> list[tuple[float, float]]:
    """The strength and the loss of each held-out score in the history."""
    steps = [(re.fullmatch(r"held out, .*, shrinkage (\S+)", step.name), step.loss) for step in result.history]
    return [(float(match[1]), loss) for match, loss in steps if match]


@pytest.mark.parametrize("kind", KINDS)
def test_one_step_follows_the_formula(kind: str) -> None:
    """All strengths in one batch, each with the same responsibilities."""
    x, k = clusters(60, 4, 3), 3
    g = np.random.default_rng(1)
    responsibilities = g.dirichlet(np.ones(k), len(x)).T
    data, strengths = data_of(kind, x), [0.0, 0.1, 1.0, 10.0, INF]
    batch = torch.as_tensor(responsibilities).expand(len(strengths), -1, -1)
    prior = data.family.shrinkage(torch.tensor(strengths, dtype=D), len(x))
    weights, means, values = data.family.parameters(data.sums(batch), prior)
    counts, expected_means, covariances = moments(x, responsibilities)
    for i, strength in enumerate(strengths):
        np.testing.assert_allclose(weights[i], counts / len(x), atol=1e-12)
        np.testing.assert_allclose(means[i], expected_means, atol=1e-12)
        expected = shrunk(kind, covariances, counts, strength)
        np.testing.assert_allclose(matrices(kind, values, k, 4)[i], expected, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_strength_zero_is_no_prior(kind: str) -> None:
    x = clusters(60, 4, 3)
    data = data_of(kind, x)
    sums = data.sums(torch.as_tensor(np.random.default_rng(1).dirichlet(np.ones(3), len(x)).T[None].copy()))
    zero = data.family.shrinkage(torch.zeros(1, dtype=D), len(x))
    for found, expected in zip(data.family.parameters(sums, zero), data.family.parameters(sums), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("strength", [0.0, 1e-300, 1e300, INF])
@pytest.mark.parametrize("kind", KINDS)
def test_extreme_strengths_are_limits(kind: str, strength: float) -> None:
    """Even for a component without variance, and for one without samples but for 1e-12 of one."""
    x = np.concatenate((clusters(60, 4, 3), np.ones((4, 4))))
    labels = np.repeat([0, 1], [60, 4])
    responsibilities = np.stack([(labels == 0) - 1e-12, labels == 1, np.where(labels == 0, 1e-12, 0)]).astype(float)
    data = data_of(kind, x)
    prior = data.family.shrinkage(torch.tensor([strength], dtype=D), len(x))
    _, _, values = data.family.parameters(data.sums(torch.as_tensor(responsibilities[None])), prior)
    counts, _, covariances = moments(x, responsibilities)
    expected = shrunk(kind, covariances, counts, 0.0 if strength < 1 else INF)
    np.testing.assert_allclose(matrices(kind, values, 3, 4)[0], expected, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_pseudo_samples_of_data_far_out_have_a_density(kind: str) -> None:
    """Groups 1e6 apart have a covariance that is singular up to rounding; a component without samples takes it."""
    family, variances = FAMILIES[kind](2, 1e-6), torch.linspace(1e11, 2e11, 50, dtype=D)
    sums = family.sums(torch.full((50, 1), 1e-12, dtype=D), torch.zeros(50, 1, 2, dtype=D), torch.eye(2, dtype=D))
    prior = family.prior(torch.full((50,), 0.1, dtype=D), variances[:, None, None, None].expand(50, 1, 2, 2))
    weights, means, values = family.parameters(sums, prior)
    np.testing.assert_allclose(matrices(kind, values, 1, 2)[:, 0, 0, 0], variances, rtol=1e-9)
    assert family.coefficients(weights, means, values).isfinite().all()


class Objective:
    """The mean log likelihood less nu / n times the divergence of each component from a fixed covariance; by SciPy.

    That is the Kullback-Leibler divergence: up to a constant, the log likelihood of nu pseudo-samples.
    """

    def __init__(self, kind: str, x: np.ndarray, nu: float, covariance: np.ndarray) -> None:
        self.kind, self.x, self.nu, self.covariance = kind, x, nu, covariance

    def __call__(self, logits: np.ndarray, means: np.ndarray, covariances: np.ndarray) -> float:
        ratios = [np.linalg.solve(c, self.covariance) for c in covariances]
        divergences = [0.5 * (np.trace(r) - len(r) - np.linalg.slogdet(r)[1]) for r in ratios]
        return self.log_likelihood(logits, means, covariances) - self.nu / len(self.x) * sum(divergences)

    def log_likelihood(self, logits: np.ndarray, means: np.ndarray, covariances: np.ndarray) -> float:
        each = zip(logits - logsumexp(logits), means, covariances, strict=True)
        joint = np.stack([log_weight + multivariate_normal(m, c).logpdf(self.x) for log_weight, m, c in each])
        return float(logsumexp(joint, 0).mean())

    def steepest(self, *point: np.ndarray) -> float:
        """The largest slope along random directions of all parameters, by central differences."""
        g, slopes = np.random.default_rng(3), []
        k, d = point[1].shape
        for _ in range(10):
            half = g.normal(size=(k, d, d))
            symmetric = of_kind(self.kind, half + half.swapaxes(-1, -2), np.ones(k))
            step = [1e-4 * part for part in (g.normal(size=k), g.normal(size=(k, d)), symmetric)]
            ends = [self(*(a + sign * b for a, b in zip(point, step, strict=True))) for sign in (1, -1)]
            slopes.append(abs(ends[0] - ends[1]) / 2e-4)
        return max(slopes)


def overlapping(kind: str, strength: float) -> tuple[Data, torch.Tensor, Prior, Objective]:
    """Samples, a start as sums, the prior with fixed moments, and what steps with it maximise."""
    x, d = clusters(80, 3, 2, apart=2.5), 3
    data, responsibilities = data_of(kind, x), np.repeat([[0.8, 0.2], [0.2, 0.8]], len(x) // 2, 1)
    start = data.sums(torch.as_tensor(responsibilities[None]))
    prior = data.family.completed(data.family.shrinkage(torch.tensor([strength], dtype=D), len(x)), start)
    assert prior is not None
    counts, _, covariances = moments(x, responsibilities)
    shrunk_to = shrunk(kind, covariances, counts, INF)[0]
    return data, start, prior, Objective(kind, x, pseudo_samples(kind, strength, d), shrunk_to)


def point_of(data: Data, sums: torch.Tensor, prior: Prior) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    weights, means, values = data.family.parameters(sums, prior)
    covariances = matrices(data.family.kind.name, values, *means.shape[1:])
    return weights[0].log().numpy(), means[0].numpy(), covariances[0]


@pytest.mark.parametrize("strength", [0.3, 3.0])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_climb_and_end_where_the_gradient_vanishes(kind: str, strength: float) -> None:
    data, sums, prior, objective = overlapping(kind, strength)
    values = [objective(*point_of(data, sums, prior))]
    for _ in range(30):
        sums, _ = data.step(sums, prior)
        values.append(objective(*point_of(data, sums, prior)))
    assert min(np.diff(values)) > -1e-12
    assert values[-1] > values[0] + 0.01
    end = point_of(data, maximize(data, sums, 20_000, 1e-15, prior).sums, prior)
    assert objective.steepest(*end) < 1e-4
    assert objective.steepest(end[0], end[1] + 0.05, end[2]) > 1e-2
    assert objective.steepest(end[0], end[1], 1.05 * end[2]) > 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_polishing_climbs_to_the_same_optimum(kind: str) -> None:
    """The log likelihood with that of the pseudo-samples rises with the number of steps; without it is reported."""
    data, start, prior, objective = overlapping(kind, 1.0)
    ends = [polish(data, start, steps, 1e-15, prior=prior) for steps in (*range(1, 20), 20_000)]
    values = [objective(*point_of(data, end.sums, prior)) for end in ends]
    assert min(np.diff(values)) > -1e-12
    assert ends[-1].converged
    assert objective.steepest(*point_of(data, ends[-1].sums, prior)) < 1e-4
    alone = objective.log_likelihood(*point_of(data, ends[-1].sums, prior))
    assert ends[-1].log_likelihood.item() == pytest.approx(alone, abs=1e-9)


@pytest.mark.parametrize("kind", OWN)
def test_infinite_shrinkage_is_one_covariance_for_all(kind: str) -> None:
    """scikit-learn has that model for full covariances: its optimum from the same start."""
    x = standardised(clusters(240, 5, 3, apart=4.0))
    found = fit(x, 3, covariance_type=kind, shrinkage=INF, generator=seeded(), method=EXACT)
    assert found.shrinkage == INF
    covariances = found.mixture.covariances
    torch.testing.assert_close(covariances, covariances[:1].expand_as(covariances), rtol=0, atol=1e-12)
    if kind != "full":
        return
    mixture, precision = found.mixture, np.linalg.inv(covariances[0].numpy())
    start = {"weights_init": mixture.weights.numpy(), "means_init": mixture.means.numpy(), "precisions_init": precision}
    peer = GaussianMixture(3, covariance_type="tied", tol=1e-12, max_iter=10_000, **start).fit(x)
    assert found.log_likelihood == pytest.approx(peer.score(x), abs=1e-6)
    np.testing.assert_allclose(covariances[0], peer.covariances_, atol=1e-3)


def test_infinite_shrinkage_of_a_tied_covariance_is_its_diagonal() -> None:
    x = standardised(clusters(240, 5, 3, apart=4.0))
    found = fit(x, 3, covariance_type="tied", shrinkage=INF, generator=seeded(), method=EXACT)
    plain = fit(x, 3, covariance_type="diag", shrinkage=INF, generator=seeded(), method=EXACT)
    torch.testing.assert_close(found.mixture.covariances, plain.mixture.covariances, rtol=0, atol=1e-4)
    assert found.log_likelihood == pytest.approx(plain.log_likelihood, abs=1e-6)


@pytest.mark.parametrize("strength", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("kind", OWN)
def test_a_fit_is_a_fixed_point_of_the_formula(kind: str, strength: float) -> None:
    """With responsibilities by SciPy.

    Polishing keeps the pooled covariance that the search has ended with: what each component was shrunk to, according
    to the formula, is therefore the same matrix, but only about the pooled one at the end.
    """
    x = standardised(clusters(150, 5, 3, apart=4.0))
    found = fit(x, 3, covariance_type=kind, shrinkage=strength, generator=seeded(), method=EXACT)
    assert found.shrinkage == strength
    mixture, nu = found.mixture, pseudo_samples(kind, strength, 5)
    counts, means, covariances = moments(x, responsibilities_of(mixture, x))
    np.testing.assert_allclose(mixture.weights, counts / len(x), atol=1e-5)
    np.testing.assert_allclose(mixture.means, means, atol=1e-5)
    own, n_each = of_kind(kind, covariances, counts), counts[:, None, None]
    ended = mixture.covariances.numpy() - 1e-6 * np.eye(5)
    shrunk_to = ((n_each + nu) * ended - n_each * own) / nu
    np.testing.assert_allclose(shrunk_to, np.broadcast_to(shrunk_to[0], shrunk_to.shape), atol=1e-3)
    np.testing.assert_allclose(shrunk_to[0], np.average(own, axis=0, weights=counts), atol=0.02)
    assert np.abs(own - ended).max() > 1e-3


@pytest.mark.parametrize("strength", [0.1, 1.0, 10.0])
def test_a_tied_fit_is_a_fixed_point_of_the_formula(strength: float) -> None:
    x = standardised(clusters(150, 5, 3, apart=4.0))
    found = fit(x, 3, covariance_type="tied", shrinkage=strength, generator=seeded(), method=EXACT)
    counts, _, covariances = moments(x, responsibilities_of(found.mixture, x))
    expected = shrunk("tied", covariances, counts, strength)[0] + 1e-6 * np.eye(5)
    ended, off = found.mixture.covariances[0].numpy(), ~np.eye(5, dtype=bool)
    np.testing.assert_allclose(ended[off], expected[off], atol=1e-4)  # the diagonal that polishing keeps has no part
    np.testing.assert_allclose(ended, expected, atol=0.02)


def test_the_pooled_covariance_has_no_rounding_of_float32() -> None:
    """In directions with 1e-4 of the variance of the data, rounding errors of the search must not widen components."""
    g, d, strength = np.random.default_rng(0), 30, 10.0
    basis = np.linalg.qr(g.normal(size=(d, d)))[0]
    noise = g.normal(size=(400, d)) * np.geomspace(1, 3e-5, d) ** 0.5
    noise[200:, 0] += 6
    x = standardised(noise @ basis.T)
    found = fit(x, 2, shrinkage=strength, generator=seeded(), method=EXACT)
    counts, _, own = moments(x, responsibilities_of(found.mixture, x))
    pooled, n_each, nu = np.average(own, axis=0, weights=counts), counts[:, None, None], strength * (d + 2)
    shrunk_to = ((n_each + nu) * (found.mixture.covariances.numpy() - 1e-6 * np.eye(d)) - n_each * own) / nu
    assert np.linalg.eigvalsh(pooled)[0] < 3e-4
    ratios = np.linalg.eigvals(np.linalg.solve(pooled, shrunk_to[0])).real
    assert ratios.min() > 0.9
    assert ratios.max() < 1.1


def test_a_search_with_some_samples_shrinks_to_the_covariance_of_all() -> None:
    x = clusters(240, 5, 3, apart=12.0)
    found, other = (
        fit(x, 3, shrinkage=10.0, generator=seeded(), method=MergeDown(rows=rows, tol=1e-12)) for rows in (60, 240)
    )
    assert found.log_likelihood == pytest.approx(other.log_likelihood, abs=1e-3)


def test_linear_combinations_of_columns_are_reported() -> None:
    x = clusters(150, 4, 3)
    x = np.concatenate((x, x[:, :1] + x[:, 1:2]), 1)
    with pytest.warns(ConvergenceWarning, match="Some columns are linear combinations of others"):
        assert fit(x, 3, shrinkage=1.0, generator=seeded()).collapsed == 3


@pytest.mark.parametrize("kind", KINDS)
def test_whole_weights_are_repetitions(kind: str) -> None:
    """Shrinkage is relative to their sum. As if they were relative, its effect would be several times as large."""
    x = clusters(90, 4, 3, apart=12.0)
    counts = np.random.default_rng(4).integers(0, 8, len(x))
    options: dict[str, Any] = {"covariance_type": kind, "shrinkage": 1.0, "method": EXACT}
    found = fit(x, 3, sample_weight=counts, generator=seeded(), **options)
    repeated = fit(np.repeat(x, counts, 0), 3, generator=seeded(), **options)
    relative = fit(x, 3, sample_weight=counts / math.pi, generator=seeded(), **options)
    assert found.log_likelihood == pytest.approx(repeated.log_likelihood, abs=1e-5)
    assert found.log_likelihood > relative.log_likelihood + 1e-4
    order, other = (r.mixture.means[:, 0].argsort() for r in (found, repeated))
    torch.testing.assert_close(
        found.mixture.covariances[order], repeated.mixture.covariances[other], rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("shrinkage", [0.5, INF, "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_units_do_not_matter(kind: str, shrinkage: float | str) -> None:
    """Powers of two, so that nothing is rounded; spherical covariances have one unit for all columns."""
    x = clusters(90, 4, 3)
    units = np.array([2.0**-20, 1.0, 2.0**5, 2.0**30]) if kind != "spherical" else np.full(4, 2.0**20)
    plain = fit(x, 3, covariance_type=kind, shrinkage=shrinkage, generator=seeded())
    found = fit(x * units, 3, covariance_type=kind, shrinkage=shrinkage, generator=seeded())
    assert found.shrinkage == plain.shrinkage
    assert found.log_likelihood == pytest.approx(plain.log_likelihood - np.log(units).sum(), abs=1e-8)
    means, covariances = found.mixture.means.numpy() / units, found.mixture.covariances.numpy() / units / units[:, None]
    np.testing.assert_allclose(means, plain.mixture.means, atol=1e-8)
    np.testing.assert_allclose(covariances, plain.mixture.covariances, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_chosen_with_few_samples_only(kind: str) -> None:
    """The clusters have the covariance that shrinkage leads to; the same seed leads to the same choice."""
    g = np.random.default_rng(0)
    x = np.concatenate([g.normal(size=(2_000, 8)) + 4 * j for j in range(2)])
    few = fit(x[::80], 2, covariance_type=kind, generator=seeded())
    again = fit(x[::80], 2, covariance_type=kind, generator=seeded())
    ample = fit(x, 2, covariance_type=kind, generator=seeded())
    assert few.shrinkage > 0
    assert few.shrinkage == again.shrinkage
    assert torch.equal(few.mixture.covariances, again.mixture.covariances)
    assert ample.shrinkage == 0
    assert not held_out_steps(ample)
    assert CramerMixture(2, covariance_type=kind, random_state=0).fit(x).shrinkage_ == 0


def test_weights_decide_what_is_few() -> None:
    """Counts of 50 are ample samples; relative weights stand for the rows."""
    x = np.concatenate([np.random.default_rng(0).normal(size=(30, 4)) + 4 * j for j in range(2)])
    assert fit(x, 2, sample_weight=np.full(60, 50), generator=seeded()).shrinkage == 0
    assert fit(x, 2, sample_weight=np.full(60, 0.5), generator=seeded()).shrinkage > 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_history_says_why(kind: str) -> None:
    """The strength with the best held-out score is the one reported, where it is not limited."""
    x = clusters(60, 6, 2)
    found = fit(x, 2, covariance_type=kind, generator=seeded())
    steps = held_out_steps(found)
    assert len(steps) > 4
    assert found.shrinkage == min(steps, key=lambda step: step[1])[0]
    losses = [loss for _, loss in steps]
    assert all(math.isfinite(loss) for loss in losses)
    # In the units of the data: near the loss of the fit itself, above it as a rule.
    assert -found.log_likelihood - 0.5 < min(losses) < -found.log_likelihood + 5


def test_held_out_scores_are_those_of_new_samples() -> None:
    """The best one is about the score of the fit on new samples, within what 200 of them tell."""
    x = clusters(8_000, 6, 2, apart=5.0)
    rows = np.random.default_rng(1).permutation(len(x))
    found = fit(x[rows[:200]], 2, generator=seeded())
    best = -min(loss for _, loss in held_out_steps(found))
    new = found.mixture.log_prob(torch.as_tensor(x[rows[200:]])).numpy()
    assert best == pytest.approx(new.mean(), abs=4 * new.std() / math.sqrt(200))
    assert best < found.log_likelihood


def test_nothing_jumps_where_samples_become_ample() -> None:
    """Two components in the plane have 11 parameters: 110 samples are ample.

    The clusters have one covariance, which calls for shrinkage. It fades out, and so does its effect.
    """
    g = np.random.default_rng(0)
    x = (g.normal(size=(110, 2)) + np.where(np.arange(110)[:, None] % 2, 5, 0)).tolist()
    found = {n: fit(x[:n], 2, generator=seeded()) for n in (50, 80, 100, 106, 109, 110)}
    strengths = [result.shrinkage for result in found.values()]
    assert strengths == sorted(strengths, reverse=True)
    assert strengths[0] > 3
    assert 0 < strengths[-2] < 0.5
    assert strengths[-1] == 0
    plain = fit(x[:109], 2, shrinkage=0, generator=seeded())
    assert found[109].log_likelihood == pytest.approx(plain.log_likelihood, abs=1e-3)
    means, others = (result.mixture.means.sort(0).values for result in (found[109], plain))
    torch.testing.assert_close(means, others, rtol=0, atol=0.02)


@pytest.mark.parametrize("value", ["some", "", -1, -0.1, -INF, math.nan, True, False, None, [1.0], 1j])
def test_bad_values(value: Any) -> None:
    with pytest.raises(ValueError, match=r'shrinkage must be "auto" or a number >= 0; got '):
        fit(clusters(30, 2, 2), 2, shrinkage=value)


@pytest.mark.parametrize("value", [0, 1, np.float32(0.5), np.int64(2), np.float64(INF)])
def test_numbers_of_all_types(value: Any) -> None:
    assert fit(clusters(60, 2, 2), 2, shrinkage=value, generator=seeded()).shrinkage == float(value)


@pytest.mark.parametrize("method", ["descent", "sc2", "nll", "sc2+nll", "kmeans", "sliced-wasserstein", "wfr"])
def test_methods_that_do_not_shrink(method: str) -> None:
    with pytest.raises(ValueError, match=f'shrinkage has no effect with method="{re.escape(method)}"; got 0.5'):
        fit(clusters(30, 2, 2), 2, method=method, shrinkage=0.5)


def three_clusters(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    g = np.random.default_rng(seed)
    return np.concatenate([g.normal(i, 1, (n, 30)) for i in range(3)]), np.repeat(range(3), n)


@pytest.mark.parametrize("seed", range(3))
def test_three_clusters_in_30_dimensions(seed: int) -> None:
    (x, labels), (new, _) = three_clusters(seed, 166), three_clusters(100 + seed, 1_000)
    found = CramerMixture(3, random_state=seed).fit(x)
    peer = GaussianMixture(3, n_init=10, random_state=seed).fit(x)
    assert adjusted_rand_score(labels, found.predict(x)) > 0.9
    assert found.score(new) > peer.score(new)
    assert found.shrinkage_ > 0


def test_two_clusters_in_100_dimensions() -> None:
    """The optimal classifier, which knows the means, has an index of about 0.9."""
    g = np.random.default_rng(0)
    labels = np.repeat([0, 1], 1_000)
    x = g.normal(size=(2_000, 100)) + 0.4 * labels[:, None]
    optimal = adjusted_rand_score(labels, x.mean(1) > 0.2)
    assert 0.85 < optimal < 0.95
    assert adjusted_rand_score(labels, CramerMixture(2, random_state=0).fit_predict(x)) > optimal - 0.05


@pytest.mark.parametrize("seed", range(3))
def test_wine(seed: int) -> None:
    x, labels = load_wine(return_X_y=True)
    found = CramerMixture(3, random_state=seed).fit_predict(standardised(x))
    assert adjusted_rand_score(labels, found) > 0.85


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_iris_has_no_warning(seed: int, kind: str) -> None:
    x, labels = load_iris(return_X_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = CramerMixture(3, covariance_type=kind, random_state=seed).fit(x)
    if kind == "full":
        assert adjusted_rand_score(labels, found.predict(x)) > 0.85


def test_columns_that_almost_depend_on_each_other_are_not_shrunk_apart() -> None:
    """In float32 their narrow directions would look collapsed, and a shrinkage that widens them would be chosen."""
    g = np.random.default_rng(0)
    base = g.normal(size=(2600, 20))
    x = np.concatenate((base, base + 0.03 * g.normal(size=(2600, 20))), 1)
    x[::20] += 4.0
    train, held_out = x[:1300], x[1300:]
    plain = CramerMixture(2, covariance_type="tied", shrinkage=0, random_state=0).fit(train)
    chosen = CramerMixture(2, covariance_type="tied", random_state=0).fit(train)
    assert chosen.score(held_out) > plain.score(held_out) - 0.05
