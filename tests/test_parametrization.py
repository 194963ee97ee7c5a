"""From unconstrained outputs to weights, means and scales: the formulas, their range, and bounded gradients."""

from __future__ import annotations

import math

import pytest
import torch

import cramix
from cramix.nn.parametrization import mixture_parameters, precondition

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


def test_preconditioning_divides_gradients_by_weights_and_changes_no_value() -> None:
    raw, means, scales = outputs(0).requires_grad_(), outputs(1).requires_grad_(), outputs(2).exp().requires_grad_()
    weights = raw.softmax(-1)
    y = torch.linspace(-3, 3, 20, dtype=D)

    def loss(means: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return cramix.crps(cramix.NormalMixture(weights, means, scales), y).sum()

    plain = torch.autograd.grad(loss(means, scales), (raw, means, scales), retain_graph=True)
    moved = precondition(weights, means, scales)
    assert torch.equal(moved[0], means)
    assert torch.equal(moved[1], scales)
    found = torch.autograd.grad(loss(*moved), (raw, means, scales))
    torch.testing.assert_close(found[0], plain[0], rtol=1e-12, atol=0)
    assert (weights < 1 / 90).any()
    gain = [[1 / max(3 * w, 1 / 30) for w in row] for row in weights.tolist()]
    for x, y in zip(found[1:], plain[1:], strict=True):
        torch.testing.assert_close(x, y * torch.tensor(gain, dtype=D), rtol=1e-12, atol=0)
