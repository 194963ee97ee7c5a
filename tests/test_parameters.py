"""Maps between free and valid tensors: round trips over many orders of magnitude, and derivatives."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

from cramix.parameters import LOG_POSITIVE, POSITIVE, WEIGHTS

POSITIVE_VALUES = torch.logspace(-12, 3, 40, dtype=torch.float64)


@pytest.mark.parametrize("mapping", [POSITIVE, LOG_POSITIVE])
def test_positive_round_trips(mapping: object) -> None:
    torch.testing.assert_close(mapping.valid(mapping.free(POSITIVE_VALUES)), POSITIVE_VALUES, rtol=1e-12, atol=0)
    free = torch.linspace(-25, 25, 51, dtype=torch.float64)
    torch.testing.assert_close(mapping.free(mapping.valid(free)), free, rtol=1e-9, atol=1e-9)
    assert (mapping.valid(free) > 0).all()


def test_weights_round_trip() -> None:
    free = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = WEIGHTS.valid(free)
    torch.testing.assert_close(weights.sum(-1), torch.ones(5, dtype=torch.float64))
    torch.testing.assert_close(WEIGHTS.valid(WEIGHTS.free(weights)), weights, rtol=1e-14, atol=0)
    torch.testing.assert_close(WEIGHTS.free(weights), free - free.mean(-1, keepdim=True))


@pytest.mark.parametrize("mapping", [POSITIVE, LOG_POSITIVE, WEIGHTS])
def test_derivatives_of_both_directions(mapping: object) -> None:
    valid = WEIGHTS.valid(torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    assert gradcheck(mapping.free, (valid.clone().requires_grad_(),))
    assert gradcheck(mapping.valid, (mapping.free(valid).requires_grad_(),))
