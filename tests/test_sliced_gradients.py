"""Hand-written gradients of the sliced distance: gradcheck, slices, bounds, singular covariances, precision."""

from __future__ import annotations

import pytest
import torch

from cramix import MultivariateNormalMixture, sliced_cramer_loss
from tests.sliced_oracle import randn, random_mixture


@pytest.mark.parametrize("directions", ["exact", 3])
def test_an_empty_batch_has_empty_gradients(directions: str | int) -> None:
    p = random_mixture(0, seed=1)
    tensors = [t.clone().requires_grad_() for t in (p.weights, p.means, p.covariances)]
    for q in (random_mixture(seed=2), randn(5, 2, seed=3)):
        value = sliced_cramer_loss(MultivariateNormalMixture(*tensors), q, directions, reduction="sum")
        assert value.item() == 0
        assert [g.shape for g in torch.autograd.grad(value, tensors)] == [t.shape for t in tensors]
