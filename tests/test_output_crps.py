"""The CRPS of a head's outputs against the mixture's CRPS, and its gradient against differences."""

from __future__ import annotations

import pytest
import torch

from cramix import MixtureHead, crps
from cramix.nn.output_crps import crps_of_outputs


def problem(k: int, dtype: torch.dtype = torch.float64) -> tuple[MixtureHead, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(k)
    y = (100 + 20 * torch.randn(4, 7, generator=g)).to(dtype)
    head = MixtureHead(3, k, targets=y.flatten(), dtype=dtype)
    return head, torch.randn(4, 7, 3 * k, generator=g).to(dtype).requires_grad_(), y


@pytest.mark.parametrize("k", [1, 2, 5])
def test_it_is_the_crps_of_the_mixture_of_the_head(k: int) -> None:
    head, outputs, y = problem(k)
    scores = crps_of_outputs(head, outputs, y)
    expected = crps(head._mixture(outputs), y)
    torch.testing.assert_close(scores, expected, rtol=1e-12, atol=0)
    weights = torch.arange(28.0, dtype=torch.float64).reshape(4, 7)
    (got,) = torch.autograd.grad((weights * scores).sum(), outputs)
    (truth,) = torch.autograd.grad((weights * expected).sum(), outputs)
    torch.testing.assert_close(got, truth, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("k", [1, 3])
def test_the_gradient_is_the_derivative(k: int) -> None:
    head, outputs, y = problem(k)
    assert torch.autograd.gradcheck(lambda o: crps_of_outputs(head, o, y), (outputs,))


def test_far_and_narrow_mixtures_stay_finite() -> None:
    """Equal components, an observation at the mean or far away, and scales whose squares underflow in float32."""
    head = MixtureHead(3, 2, min_scale=1e-25)
    outputs = torch.tensor([0.0, 0.0, 1.0, 1.0, -100.0, -100.0]).repeat(3, 1).requires_grad_()
    scores = crps_of_outputs(head, outputs, torch.tensor([1.0, 1e6, -1e6]))
    torch.testing.assert_close(scores, torch.tensor([0.0, 1e6, 1e6]), rtol=1e-4, atol=1e-6)
    scores.sum().backward()
    assert outputs.grad.isfinite().all()
    assert outputs.grad.abs().max() <= 1  # each of the two means has half the weight


def test_second_derivatives_are_refused() -> None:
    head, outputs, y = problem(2)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(crps_of_outputs(head, outputs, y).sum(), outputs, create_graph=True)
