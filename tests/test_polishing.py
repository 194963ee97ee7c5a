"""Polishing: the optimum of expectation maximisation, in fewer steps, never downhill."""

from __future__ import annotations

import pytest
import torch

from cramix.fitting.em import maximize, polish
from cramix.fitting.features import Data
from cramix.fitting.starts import STARTS
from cramix.mixture.covariance import FAMILIES

D = torch.float64


def overlapping(covariances: str, seed: int = 0) -> tuple[Data, torch.Tensor]:
    """Samples of two components two scales apart, on which steps are slow, and a start for two."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(600, 2, generator=g, dtype=D)
    x[:200] += torch.tensor([2.0, 0.0], dtype=D)
    data = Data(FAMILIES[covariances](2, 1e-6), x, torch.rand(600, generator=g, dtype=D))
    return data, STARTS["random_from_data"](data, 2, 1, g)


@pytest.mark.parametrize("covariances", FAMILIES)
def test_the_optimum_of_plain_steps_in_fewer(covariances: str) -> None:
    data, start = overlapping(covariances)
    plain = maximize(data, start, 20_000, 1e-10)
    seen: list[float] = []
    found = polish(data, start, 20_000, 1e-10, seen.append)
    assert plain.converged
    assert found.converged
    assert found.n_iter == len(seen) < 0.7 * plain.n_iter
    assert found.log_likelihood.item() >= plain.log_likelihood.item() - 1e-6
    assert found.log_likelihood.item() == pytest.approx(data.step(found.sums)[1].item(), abs=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_the_end_is_never_below_the_start(seed: int) -> None:
    """However few steps there are; a leap that loses is taken back."""
    data, start = overlapping("full", seed)
    last = data.step(start)[1].item()
    for iterations in range(1, 25):
        found = polish(data, start, iterations, 1e-12)
        assert found.n_iter <= iterations
        assert found.log_likelihood.item() >= last - 1e-12
        last = max(last, found.log_likelihood.item())


def test_out_of_steps_is_said() -> None:
    data, start = overlapping("full")
    found = polish(data, start, 5, 1e-12)
    assert not found.converged
    assert found.n_iter == 5
