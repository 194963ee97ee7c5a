"""Maps between free and valid tensors: round trips over many orders of magnitude, and derivatives."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

from cramix.parameters import CHOLESKY, GRAM, LOG_POSITIVE, POSITIVE, WEIGHTS

POSITIVE_VALUES = torch.logspace(-12, 3, 40, dtype=torch.float64)


@pytest.mark.parametrize("mapping", [POSITIVE, LOG_POSITIVE])
def test_positive_round_trips(mapping: object) -> None:
    torch.testing.assert_close(
        mapping.constrain(mapping.unconstrain(POSITIVE_VALUES)), POSITIVE_VALUES, rtol=1e-12, atol=0
    )
    free = torch.linspace(-25, 25, 51, dtype=torch.float64)
    torch.testing.assert_close(mapping.unconstrain(mapping.constrain(free)), free, rtol=1e-9, atol=1e-9)
    assert (mapping.constrain(free) > 0).all()


def test_weights_round_trip() -> None:
    free = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = WEIGHTS.constrain(free)
    torch.testing.assert_close(weights.sum(-1), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(WEIGHTS.constrain(WEIGHTS.unconstrain(weights)), weights, rtol=1e-14, atol=0)
    torch.testing.assert_close(WEIGHTS.unconstrain(weights), free - free.mean(-1, keepdim=True))


@pytest.mark.parametrize("mapping", [POSITIVE, LOG_POSITIVE, WEIGHTS])
def test_derivatives_of_both_directions(mapping: object) -> None:
    valid = WEIGHTS.constrain(torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    assert gradcheck(mapping.unconstrain, (valid.clone().requires_grad_(),))
    assert gradcheck(mapping.constrain, (mapping.unconstrain(valid).requires_grad_(),))


def matrices(*shape: int, seed: int = 2) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("rows", [3, 7])
def test_gram_round_trips(rows: int, size: float) -> None:
    free = size * matrices(2, 5, rows, 3)
    covariance = GRAM.constrain(free)
    for i in range(2):
        for j in range(5):
            factor = free[i, j].numpy()
            torch.testing.assert_close(covariance[i, j], torch.tensor(factor.T @ factor), rtol=1e-13, atol=0)
    back = GRAM.unconstrain(covariance)
    assert back.shape == (2, 5, 3, 3)
    torch.testing.assert_close(GRAM.constrain(back), covariance, rtol=1e-11, atol=1e-13 * size**2)
    # The inverse takes an upper triangular factor with a positive diagonal, which is its own round trip.
    assert torch.equal(back, back.triu())
    assert (back.diagonal(dim1=-2, dim2=-1) > 0).all()
    torch.testing.assert_close(GRAM.unconstrain(GRAM.constrain(back)), back, rtol=1e-8, atol=1e-9 * size)


def test_gram_of_few_rows_is_singular_and_semi_definite() -> None:
    covariance = GRAM.constrain(matrices(4, 1, 3))
    eigenvalues = torch.linalg.eigvalsh(covariance)
    torch.testing.assert_close(eigenvalues[:, :2], torch.zeros(4, 2, dtype=torch.float64), rtol=0, atol=1e-14)
    assert (eigenvalues[:, 2] > 0.1).all()


def test_cholesky_round_trips() -> None:
    free = 3 * matrices(2, 5, 3, 3)
    lower = CHOLESKY.constrain(free)
    assert torch.equal(lower, lower.tril())
    torch.testing.assert_close(lower.diagonal(dim1=-2, dim2=-1), free.diagonal(dim1=-2, dim2=-1).exp())
    torch.testing.assert_close(CHOLESKY.unconstrain(lower), free.tril(), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(CHOLESKY.constrain(CHOLESKY.unconstrain(lower)), lower, rtol=1e-14, atol=0)
    # Any covariance has such a factor, and no other.
    covariance = GRAM.constrain(matrices(5, 4, 3))
    factor = torch.linalg.cholesky(covariance)
    torch.testing.assert_close(CHOLESKY.constrain(CHOLESKY.unconstrain(factor)), factor, rtol=1e-14, atol=0)
    torch.testing.assert_close(factor @ factor.mT, covariance)


def test_derivatives_of_both_directions_of_matrices() -> None:
    free = matrices(2, 4, 3)
    assert gradcheck(GRAM.constrain, (free.clone().requires_grad_(),))
    # Through a map onto symmetric matrices, as a step of gradcheck off them is no covariance.
    assert gradcheck(lambda s: GRAM.unconstrain(s.mT @ s), (free.clone().requires_grad_(),))
    square = matrices(2, 3, 3)
    assert gradcheck(CHOLESKY.constrain, (square.clone().requires_grad_(),))
    assert gradcheck(CHOLESKY.unconstrain, (CHOLESKY.constrain(square).requires_grad_(),))
