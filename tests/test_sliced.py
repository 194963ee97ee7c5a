"""The sliced Cramér distance without slices, against slices, closed forms and other libraries."""

from __future__ import annotations

import torch

from cramix import sliced_cramer_loss
from tests.sliced_oracle import randn, random_mixture


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
