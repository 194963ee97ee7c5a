"""The sliced Cramér distance without slices, against slices, closed forms and other libraries."""

from __future__ import annotations

import pytest
import torch

from cramix import MultivariateNormalMixture, sliced_cramer_loss
from tests.sliced_oracle import factor_of, randn, random_mixture


def test_batches_of_points_and_of_mixtures_broadcast() -> None:
    p, x = random_mixture(3, seed=1), randn(2, 1, 7, 2, seed=2)
    together = sliced_cramer_loss(p, x, reduction="none")
    assert together.shape == (2, 3)
    for i in range(2):
        torch.testing.assert_close(together[i], sliced_cramer_loss(p, x[i, 0], reduction="none"))
    y = randn(3, 7, 2, seed=3)
    p = random_mixture(2, 3, seed=4)
    together = sliced_cramer_loss(p, y, reduction="none")
    for i in range(3):
        alone = sliced_cramer_loss(random_mixture(2, 3, seed=4), y[i], reduction="none")
        torch.testing.assert_close(together[:, i], alone[:, i])


@pytest.mark.parametrize("d", [1, 2, 5])
def test_without_the_target_term_the_own_energy_of_the_points_is_left_out(d: int) -> None:
    p, x, w = random_mixture(d=d, seed=5), randn(40, d, seed=6), randn(40, seed=7).exp()
    w = w / w.sum()
    own = 0.5 * torch.einsum("i,ij,j->", w, torch.cdist(x, x), w)
    q = MultivariateNormalMixture.from_samples(x, w)
    without = sliced_cramer_loss(p, q, target_term=False)
    assert without.item() - factor_of(d) * own.item() == pytest.approx(sliced_cramer_loss(p, q).item(), abs=3e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1e-30, 1e-3, 7.0, 1e30])
def test_directions_of_any_length(length: float, dtype: torch.dtype) -> None:
    p, x = random_mixture(d=3, seed=8, dtype=dtype), randn(20, 3, seed=9, dtype=dtype)
    directions = randn(5, 3, seed=10, dtype=dtype)
    expected = sliced_cramer_loss(p, x, directions)
    torch.testing.assert_close(sliced_cramer_loss(p, x, length * directions), expected)
