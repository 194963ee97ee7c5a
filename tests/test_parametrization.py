"""From unconstrained outputs to weights, means and scales: the formulas, their range, and bounded gradients."""

from __future__ import annotations

import math

import pytest
import torch

from cramix.nn.parametrization import mixture_parameters

D = torch.float64


def outputs(seed: int) -> torch.Tensor:
    return 5 * torch.randn(20, 3, generator=torch.Generator().manual_seed(seed), dtype=D)


def test_the_formulas() -> None:
    logits, means, raw = outputs(0), outputs(1), outputs(2)
    weights, same, scales = mixture_parameters(logits, means, raw, min_scale=0.25)
    assert same is means
    for i in range(20):
        total = sum(math.exp(x) for x in logits[i].tolist())
        assert weights[i].tolist() == pytest.approx([math.exp(x) / total for x in logits[i].tolist()], rel=1e-12)
        assert scales[i].tolist() == pytest.approx([0.25 + math.log1p(math.exp(x)) for x in raw[i].tolist()], rel=1e-12)


def test_other_maps_to_positive_numbers() -> None:
    raw = outputs(0)
    *_, scales = mixture_parameters(raw, raw, raw, positive=torch.abs)
    assert torch.equal(scales, raw.abs())


def test_gradients_of_scales_are_at_most_one() -> None:
    raw = torch.linspace(-800, 800, 3001, dtype=D).requires_grad_()
    *_, scales = mixture_parameters(raw, raw, raw)
    assert torch.isfinite(scales).all()
    assert (scales >= 0).all()
    (slopes,) = torch.autograd.grad(scales.sum(), raw)
    assert slopes.min() >= 0
    assert slopes.max() <= 1
