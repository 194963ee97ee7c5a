"""EM on a corrected sample: the optimum of all rows in a few steps over them, and never a loss where it misleads."""

from __future__ import annotations

import pytest
import torch

from cramix.fitting.corrected import Corrected, polish_large, refining_of
from cramix.fitting.em import driven, maximize, polish
from cramix.fitting.features import Data
from cramix.fitting.problem import Units
from cramix.fitting.starts import sums_with
from cramix.mixture.covariance import FAMILIES, Prior

D = torch.float64
N, SIZE = 30_000, 5_000


def overlapping(covariances: str, seed: int = 0) -> tuple[Data, Data, torch.Tensor]:
    """Rows with weights of two components three scales apart, a sample of them, and its optimum."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(N, 2, generator=g, dtype=D)
    x[: N // 3] += torch.tensor([3.0, 0.5], dtype=D)
    family = FAMILIES[covariances](2, 1e-6)
    data = Data(family, x, torch.rand(N, generator=g, dtype=D))
    sample = data.like(data.resample(SIZE, g))
    means = torch.tensor([[0.0, 0.0], [3.0, 0.5]], dtype=D)
    start = sums_with(family, torch.full((2,), 0.5, dtype=D), means, torch.eye(2, dtype=D).expand(2, 2, 2))
    return data, sample, polish(sample, start.unsqueeze(0), 10_000, 1e-12).sums


def test_the_correction_is_exact_where_all_rows_are_known():
    data, sample, point = overlapping("full")
    sums, likelihood = data.step(point)
    found = Corrected(sample, point, sums, likelihood).step(point)
    torch.testing.assert_close(found, (sums, likelihood), rtol=1e-12, atol=1e-12)
    near = 0.999 * point + 0.001 * sums
    predicted = Corrected(sample, point, sums, likelihood).step(near)[1] - likelihood
    actual = data.step(near)[1] - likelihood
    assert actual.item() > 0
    torch.testing.assert_close(predicted, actual, rtol=0.05, atol=0)  # the slope is that of all rows


@pytest.mark.parametrize("shrinkage", [0.0, 100.0])
@pytest.mark.parametrize("covariances", FAMILIES)
def test_the_optimum_of_all_rows_in_fewer_steps(covariances: str, shrinkage: float):
    data, sample, start = overlapping(covariances)
    prior: Prior | None = None
    if shrinkage:
        prior = data.family.completed(data.family.shrinkage(torch.tensor([shrinkage], dtype=D), N), start)
    best = polish(data, start, 10_000, 1e-13, prior=prior)
    plain = polish(data, start, 10_000, 1e-7, prior=prior)
    found = driven(data, refining_of(sample, start, 100, 1e-7, prior=prior), prior)
    assert found.converged
    assert found.n_iter == len(found.history) < plain.n_iter
    reached = data.step(found.sums, prior)[1] - data.step(best.sums, prior)[1]
    assert abs(reached.item()) < (1e-7 if prior is None else 1e-5)  # which a prior makes no maximum


def test_it_ends_with_fewer_steps_than_the_tolerance_of_plain_steps():
    """Plain steps end where each gains little, which may be far from the optimum; predictions end near it."""
    data, sample, start = overlapping("full")
    best = data.step(polish(data, start, 10_000, 1e-13).sums)[1]
    plain = maximize(data, start, 10_000, 1e-6)
    found = driven(data, refining_of(sample, start, 100, 1e-6))
    assert found.n_iter <= 3
    assert best - data.step(found.sums)[1] < best - data.step(plain.sums)[1]


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 10, 100])
def test_a_sample_of_something_else_does_no_harm(steps: int):
    data, _, start = overlapping("full")
    wrong = Data(data.family, 3 * data.x[:SIZE].flip(-1) + 1, data.weights[:SIZE])
    found = driven(data, refining_of(wrong, start, steps, 1e-9))
    assert found.n_iter <= steps
    reached = data.step(found.sums)[1].item()
    assert reached >= data.step(maximize(data, start, 1).sums)[1].item() - 1e-12
    assert reached >= max(found.history) - 1e-9
    if steps == 100:
        assert reached == pytest.approx(data.step(polish(data, start, 10_000, 1e-13).sums)[1].item(), abs=1e-6)


def test_a_correction_that_leaves_no_weight_is_not_used():
    """All rows have less of a component than the sample has too much of it at another point."""
    data, _, start = overlapping("full")
    one = data.x[: N // 3]  # of one component
    biased = Data(data.family, one, torch.ones(len(one), dtype=D))
    sums, likelihood = data.step(start)
    without = start * torch.tensor([[[1.0], [1e-6]]], dtype=D)
    with pytest.raises(torch.linalg.LinAlgError, match="weight"):
        Corrected(biased, start, sums, likelihood).step(without)
    found = driven(data, refining_of(biased, start, 200, 1e-9))
    assert data.step(found.sums)[1].item() >= data.step(maximize(data, start, 5).sums)[1].item()


def test_a_large_array_takes_few_steps():
    g = torch.Generator().manual_seed(1)
    x = torch.randn(400_000, 1, generator=g, dtype=D)
    x[::3] += 3.0
    data = Data(FAMILIES["full"](1, 1e-6), x, torch.ones(len(x), dtype=D))
    means, ones = torch.tensor([[0.0], [3.0]], dtype=D), torch.ones(2, 1, 1, dtype=D)
    start = sums_with(data.family, torch.full((2,), 0.5, dtype=D), means, ones).unsqueeze(0)
    found = polish_large(data, start, 100, 1e-7, lambda value: None, None, g)
    exact = polish(data, start, 1000, 1e-11)
    assert found.converged
    assert found.n_iter <= 3 < exact.n_iter
    assert 0 <= exact.log_likelihood.item() - data.step(found.sums)[1].item() < 1e-7


def test_float32_sums_have_the_likelihood_of_coefficients_that_are_not_rounded():
    """Gains of late passes are smaller than what the rounding of coefficients would change."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(200_000, 3, generator=g).double()
    family = FAMILIES["full"](3, 1e-6)
    weights, means = torch.full((4,), 0.25, dtype=D), torch.randn(4, 3, generator=g, dtype=D)
    coefficients = family.coefficients(weights, means, torch.eye(3, dtype=D).expand(4, 3, 3)).unsqueeze(0)
    ones = torch.ones(len(x), dtype=D)
    exact, single = Data(family, x, ones), Data(family, x, ones, dtype=torch.float32)
    for factor in (1.0, 1.0 + 1e-7, 1.0 - 3e-7):
        expected, found = (data.expect(factor * coefficients)[1] for data in (exact, single))
        assert abs(found.item() - expected.item()) < 3e-8


def test_units_from_float32_to_float32_are_as_exact_as_the_rows():
    """A centre far from 0, and no float64 on the way."""
    g = torch.Generator().manual_seed(0)
    x = (3e4 + torch.randn(1000, 2, generator=g, dtype=D)).float()
    units = Units(torch.tensor([3e4 + 1e-4, 3e4 - 1 / 3], dtype=D), torch.tensor([1 / 3, 3.0], dtype=D))
    found = units.of_in(x, torch.float32)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), units.of(x), rtol=3e-7, atol=3e-7)
    torch.testing.assert_close(units.of_in(x.double(), torch.float32), units.of(x).float(), rtol=0, atol=0)
