"""Hand-written gradients of the sliced distance: gradcheck, slices, bounds, singular covariances, precision."""

from __future__ import annotations

import pytest
import torch

from cramix import MultivariateNormalMixture, Spherical, sliced_cramer_loss
from tests.sliced_oracle import randn, random_mixture


@pytest.mark.parametrize("directions", ["exact", 3])
def test_an_empty_batch_has_empty_gradients(directions: str | int) -> None:
    p = random_mixture(0, seed=1)
    tensors = [t.clone().requires_grad_() for t in (p.weights, p.means, p.covariances)]
    for q in (random_mixture(seed=2), randn(5, 2, seed=3)):
        value = sliced_cramer_loss(MultivariateNormalMixture(*tensors), q, directions, reduction="sum")
        assert value.item() == 0
        assert [g.shape for g in torch.autograd.grad(value, tensors)] == [t.shape for t in tensors]


def test_a_loss_below_zero_by_rounding_keeps_its_gradient() -> None:
    """Components far narrower than the tolerance on the points: the rule may be off by more than the loss."""
    x, weights = randn(300, 2, seed=0), torch.full((300,), 1 / 300, dtype=torch.float64)
    means = (x + 1e-6).requires_grad_()
    p = MultivariateNormalMixture(weights, means, Spherical(torch.full((300,), 1e-24, dtype=torch.float64)))
    value = sliced_cramer_loss(p, x, tolerance=1e-5)
    assert value == 0, "it is above zero, so nothing is tested here"
    (grad,) = torch.autograd.grad(value, means)
    assert grad.abs().max() > 1e-8


@pytest.mark.parametrize("points", [False, True])
def test_a_second_derivative_is_refused(points: bool) -> None:
    """Not left out in silence, as in a gradient penalty on top of the loss."""
    p, q = random_mixture(seed=5), randn(9, 2, seed=6) if points else random_mixture(seed=6)
    means = p.means.clone().requires_grad_()
    value = sliced_cramer_loss(MultivariateNormalMixture(p.weights, means, p.covariances), q)
    (grad,) = torch.autograd.grad(value, means, create_graph=True)
    torch.testing.assert_close(grad, torch.autograd.grad(value, means, retain_graph=True)[0])
    with pytest.raises(RuntimeError, match="second derivative"):
        (value + grad.square().sum()).backward()
