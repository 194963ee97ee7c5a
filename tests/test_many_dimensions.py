"""Sums and log densities of EM against plain NumPy and SciPy: features in memory, in blocks, and by matrix products."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from cramix.fitting.features import Data
from cramix.mixture.covariance import FAMILIES, Family

D = torch.float64
KINDS = list(FAMILIES)
DENSE = ("full", "tied")


class Size(NamedTuple):
    """Samples, dimensions, fits, components of each, and the number of responsibilities at a time."""

    n: int
    d: int
    batch: int
    k: int
    block: int = 1 << 20


# Above 2^25 bytes of features nothing is cached. In 150 dimensions dense kinds have 11,476 features, the others 301.
# Without features in memory, dense kinds use matrix products for up to a quarter as many components as dimensions.
SIZES = {
    "features": Size(300, 4, 3, 2),
    "features, in blocks": Size(301, 4, 3, 2, 120),
    "one dimension": Size(300, 1, 3, 2),
}
LARGE = {
    "features of each block": Size(750, 150, 13, 3),
    "matrices": Size(750, 150, 2, 3),
}
LARGE_ALIGNED = {"features of each block": Size(28_500, 150, 1, 2)}
CASES = [
    pytest.param(kind, size, id=f"{kind}, {name}")
    for kind in KINDS
    for name, size in (SIZES | (LARGE if kind in DENSE else LARGE_ALIGNED)).items()
]


class Setting(NamedTuple):
    """Samples `(n, d)` with weights `(n,)` or `(B, n)`, maybe covariances `(n or 1, d, d)`, and B mixtures."""

    x: np.ndarray
    sample_weight: np.ndarray
    within: np.ndarray | None
    weights: np.ndarray
    means: np.ndarray
    covariances: np.ndarray

    def data(self, kind: str, dtype: torch.dtype = D, block: int = 1 << 20) -> Data:
        family = FAMILIES[kind](self.x.shape[1], 1e-6, dtype)
        within = None if self.within is None else torch.as_tensor(self.within)
        return Data(family, torch.as_tensor(self.x), torch.as_tensor(self.sample_weight), within, dtype, block)

    def coefficients(self, family: Family) -> torch.Tensor:
        covariances = torch.as_tensor(self.covariances)
        values = {
            "full": covariances,
            "tied": covariances[:, 0],
            "diag": covariances.diagonal(dim1=-2, dim2=-1),
            "spherical": covariances[..., 0, 0],
        }[family.kind.name]
        return family.coefficients(torch.as_tensor(self.weights), torch.as_tensor(self.means), values)


def random_covariances(g: np.random.Generator, kind: str, batch: int, k: int, d: int) -> np.ndarray:
    """Covariances of a kind as matrices, `(batch, k, d, d)`."""
    if kind == "spherical":
        return g.uniform(0.5, 2, (batch, k, 1, 1)) * np.eye(d)
    if kind == "diag":
        return g.uniform(0.5, 2, (batch, k, d, 1)) * np.eye(d)
    factors = g.normal(size=(batch, 1 if kind == "tied" else k, d, d)) / np.sqrt(d)
    return np.repeat(factors @ factors.swapaxes(-1, -2) + 0.5 * np.eye(d), k if kind == "tied" else 1, 1)


def setting(kind: str, size: Size, *, own_weights: bool = False, within: str = "none", seed: int = 0) -> Setting:
    """Mixtures that overlap with the samples and with each other."""
    g = np.random.default_rng(seed)
    n, d, batch, k, _ = size
    shape = {"none": None, "shared": 1, "own": n}[within]
    factors = None if shape is None else 0.5 * g.normal(size=(shape, d, d)) / np.sqrt(d)
    weights = g.uniform(0.2, 1, (batch, k))
    return Setting(
        g.normal(size=(n, d)),
        g.uniform(size=(batch, n) if own_weights else n),
        None if factors is None else factors @ factors.swapaxes(-1, -2),
        weights / weights.sum(-1, keepdims=True),
        g.normal(size=(batch, k, d)) / np.sqrt(d),
        random_covariances(g, kind, batch, k, d),
    )


class Truth(NamedTuple):
    """For each fit: log densities `(B, n)`, responsibilities `(B, k, n)`, likelihoods `(B,)`, and moments."""

    log_densities: np.ndarray
    responsibilities: np.ndarray
    log_likelihood: np.ndarray
    moments: tuple[np.ndarray, np.ndarray, np.ndarray]


def computed(s: Setting) -> Truth:
    (batch, k), (n, d) = s.weights.shape, s.x.shape
    joint = np.empty((batch, k, n))
    for b, j in np.ndindex(batch, k):
        joint[b, j] = np.log(s.weights[b, j]) + multivariate_normal(s.means[b, j], s.covariances[b, j]).logpdf(s.x)
        if s.within is not None:  # the expected log density under a normal distribution around the sample
            joint[b, j] -= 0.5 * np.einsum("ij,nji->n", np.linalg.inv(s.covariances[b, j]), s.within)
    log_densities = logsumexp(joint, 1)
    responsibilities = np.exp(joint - log_densities[:, None])
    sample_weight = np.broadcast_to(s.sample_weight / s.sample_weight.sum(-1, keepdims=True), (batch, n))
    shares = sample_weight[:, None] * responsibilities
    second = np.empty((batch, k, d, d))
    for b, j in np.ndindex(batch, k):
        second[b, j] = (shares[b, j, :, None] * s.x).T @ s.x
        if s.within is not None:
            second[b, j] += np.einsum("n,nij->ij", shares[b, j], np.broadcast_to(s.within, (n, d, d)))
    likelihood = (sample_weight * log_densities).sum(-1)
    return Truth(log_densities, responsibilities, likelihood, (shares.sum(-1), shares @ s.x, second))


def moments(kind: str, sums: torch.Tensor, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The moments in sums of features; the second ones as matrices, or as their diagonal."""
    zeroth, first, products = (part.numpy() for part in sums.split((1, d, sums.shape[-1] - 1 - d), -1))
    if kind not in DENSE:
        return zeroth[..., 0], first, products
    second = np.zeros((*sums.shape[:-1], d, d))
    row, column = np.triu_indices(d)
    second[..., row, column] = second[..., column, row] = products
    return zeroth[..., 0], first, second


def check_sums(kind: str, sums: torch.Tensor, truth: Truth, d: int, tolerance: float) -> None:
    second = truth.moments[2]
    wanted = (*truth.moments[:2], second if kind in DENSE else second.diagonal(axis1=-2, axis2=-1))
    for found, expected in zip(moments(kind, sums, d), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def check_all(kind: str, size: Size, s: Setting, dtype: torch.dtype = D) -> None:
    """Compare everything that a fit computes from samples.

    In float32 a log density, about -1.4 d, is a sum of d (d + 1) / 2 rounded products. Its absolute error is the
    relative error of a responsibility; their sums have less of it.
    """
    truth, data = computed(s), s.data(kind, dtype, size.block)
    log_tolerance, each, tolerance = (1e-12, 1e-10, 1e-11) if dtype == D else (1e-5, 2e-3, 1e-4)
    coefficients = s.coefficients(data.family)
    found, likelihood = data.expect(coefficients)
    assert found.dtype == likelihood.dtype == D
    check_sums(kind, found, truth, size.d, tolerance)
    np.testing.assert_allclose(likelihood, truth.log_likelihood, rtol=log_tolerance)
    np.testing.assert_allclose(data.log_densities(coefficients), truth.log_densities, rtol=log_tolerance)
    np.testing.assert_allclose(data.responsibilities(coefficients), truth.responsibilities, atol=each, rtol=0)
    check_sums(kind, data.sums(torch.as_tensor(truth.responsibilities)), truth, size.d, tolerance)


@pytest.mark.parametrize("dtype", [D, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(("kind", "size"), CASES)
def test_sums_and_densities(kind: str, size: Size, dtype: torch.dtype) -> None:
    check_all(kind, size, setting(kind, size), dtype)


@pytest.mark.parametrize(("kind", "size"), CASES)
def test_weights_of_each_fit(kind: str, size: Size) -> None:
    check_all(kind, size, setting(kind, size, own_weights=True))


@pytest.mark.parametrize("own_weights", [False, True])
@pytest.mark.parametrize("within", ["shared", "own"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_mixture_as_the_target(kind: str, size: Size, within: str, own_weights: bool) -> None:
    check_all(kind, size, setting(kind, size, within=within, own_weights=own_weights))


@pytest.mark.parametrize("size", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("kind", DENSE)
@pytest.mark.slow
def test_a_mixture_in_many_dimensions_as_the_target(kind: str, size: Size) -> None:
    check_all(kind, size, setting(kind, size, within="shared"))


def test_a_large_mixture_as_the_target() -> None:
    """Each block of components has its own covariances."""
    size = Size(2_800_000, 2, 1, 2)
    check_all("full", size, setting("full", size, within="own"))


@pytest.mark.parametrize("size", [Size(300, 4, 3, 2), LARGE["matrices"]], ids=["features", "matrices"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_step_of_expectation_maximisation(kind: str, size: Size) -> None:
    """From the sums of a mixture to its responsibilities and to their sums, and the likelihood before that."""
    s = setting(kind, size)
    data = s.data(kind)
    start = data.family.sums(*(torch.as_tensor(part) for part in (s.weights, s.means, s.covariances)))
    found, likelihood = data.step(start)
    truth = computed(s._replace(covariances=s.covariances + 1e-6 * np.eye(size.d)))
    check_sums(kind, found, truth, size.d, 1e-9)
    np.testing.assert_allclose(likelihood, truth.log_likelihood, atol=1e-9, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_component_without_samples_keeps_its_shape(kind: str) -> None:
    s = setting(kind, Size(300, 4, 1, 2))
    s.means[0, 1] += 100
    data = s.data(kind)
    start = data.family.sums(*(torch.as_tensor(part) for part in (s.weights, s.means, s.covariances)))
    weights, means, values = data.family.parameters(data.step(start)[0])
    _, before, values_before = data.family.parameters(start)
    assert weights[0, 1].item() == pytest.approx(1e-12)
    torch.testing.assert_close(means[0, 1], before[0, 1])
    if kind != "tied":
        torch.testing.assert_close(values[0, 1], values_before[0, 1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("within", ["none", "shared", "own"])
@pytest.mark.parametrize("own_weights", [False, True])
def test_the_covariance_of_all_data(own_weights: bool, within: str) -> None:
    s = setting("full", Size(300, 4, 3, 2), own_weights=own_weights, within=within)
    found = s.data("full").covariance.numpy().reshape(-1, 4, 4)
    for covariance, weights in zip(found, s.sample_weight.reshape(-1, 300), strict=True):
        expected = np.cov(s.x.T, aweights=weights, bias=True)
        if s.within is not None:
            expected += np.average(np.broadcast_to(s.within, (300, 4, 4)), axis=0, weights=weights)
        np.testing.assert_allclose(covariance, expected, atol=1e-12)


def test_other_weights_for_the_same_samples() -> None:
    size = Size(300, 4, 3, 2)
    s = setting("full", size)
    other = s._replace(sample_weight=np.random.default_rng(1).uniform(size=(3, 300)))
    data = s.data("full")
    coefficients = s.coefficients(data.family)
    before = data.expect(coefficients)
    found = data.weighted(torch.as_tensor(other.sample_weight)).expect(coefficients)
    check_sums("full", found[0], computed(other), 4, 1e-10)
    np.testing.assert_allclose(found[1], computed(other).log_likelihood, atol=1e-10)
    torch.testing.assert_close(data.expect(coefficients), before)


# The peak of a fit above what imports and a first small fit take, in MB.
PEAK = """
import resource, sys
import torch
from cramix import fit

torch.set_num_threads(1)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
g = torch.Generator().manual_seed(0)
x = torch.randn(3_000, 150, generator=g, dtype=torch.float64)
x[:1_000] += 0.5
x[2_000:] -= 0.5
fit(x[:60, :3], 2, generator=g)
before = peak()
fit(x, 3, covariance_type=sys.argv[1], generator=g)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_memory_in_many_dimensions(kind: str) -> None:
    """All features would take 3,000 x 11,476 x 8 bytes, 275 MB, and as much again for a copy; the data are 3.6 MB."""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", PEAK, kind], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 150
