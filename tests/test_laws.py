"""Laws of the Cramér distance, tried by hypothesis on mixtures of all shapes, atoms included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cramix import NormalMixture, cramer_distance, cramer_loss
from tests import oracle

MEANS = st.floats(-100, 100)
SCALES = st.one_of(st.just(0.0), st.floats(1e-3, 50))
WEIGHTS = st.floats(0.01, 1)


@st.composite
def mixtures(draw: st.DrawFn, max_components: int = 4) -> NormalMixture:
    k = draw(st.integers(1, max_components))
    weights, means, scales = (
        torch.tensor(draw(st.lists(values, min_size=k, max_size=k)), dtype=torch.float64)
        for values in (WEIGHTS, MEANS, SCALES)
    )
    return NormalMixture(weights / weights.sum(), means, scales)


def size(*mixtures: NormalMixture) -> float:
    """A length of the mixtures, to measure absolute errors with."""
    return sum(float(m.stddev + (m.mean - mixtures[0].mean).abs()) for m in mixtures) + 1e-300


def convolve(p: NormalMixture, q: NormalMixture) -> NormalMixture:
    """The distribution of an independent sum."""
    weights = p.weights.unsqueeze(-1) * q.weights
    means = p.means.unsqueeze(-1) + q.means
    scales = (p.scales.square().unsqueeze(-1) + q.scales.square()).sqrt()
    return NormalMixture(weights.flatten(), means.flatten(), scales.flatten())


@given(mixtures(), mixtures())
def test_equals_the_formula_at_60_digits(p: NormalMixture, q: NormalMixture) -> None:
    truth, scale = oracle.parts(p, q)
    assert cramer_loss(p, q).item() == pytest.approx(float(truth), rel=1e-10, abs=float(1e-22 * scale))


@given(mixtures())
def test_zero_on_itself_and_on_a_permutation(p: NormalMixture) -> None:
    assert cramer_loss(p, p).item() == 0
    order = torch.arange(p.n_components - 1, -1, -1)
    turned = NormalMixture(p.weights[order], p.means[order], p.scales[order])
    assert cramer_loss(p, turned).item() <= 1e-30 * size(p)


@given(mixtures(), mixtures())
def test_symmetry(p: NormalMixture, q: NormalMixture) -> None:
    assert cramer_loss(p, q).item() == pytest.approx(cramer_loss(q, p).item(), rel=1e-10)


@given(mixtures(), mixtures(), mixtures())
def test_triangle_inequality(p: NormalMixture, q: NormalMixture, r: NormalMixture) -> None:
    pq, qr, pr = (cramer_distance(a, b).item() for a, b in ((p, q), (q, r), (p, r)))
    assert pr <= (pq + qr) * (1 + 1e-10)


@given(mixtures(), mixtures(), st.floats(-1e3, 1e3))
def test_shift_invariance(p: NormalMixture, q: NormalMixture, shift: float) -> None:
    # Adding the shift rounds the means, by 1e-13 at most: the distance moves by no more than that at the slope's bound.
    moved = cramer_loss(p.affine(shift, 1.0), q.affine(shift, 1.0)).item()
    assert moved == pytest.approx(cramer_loss(p, q).item(), rel=1e-9, abs=1e-12)


@given(mixtures(), mixtures(), st.sampled_from([-1.0, 1.0]), st.floats(1e-8, 1e8))
def test_scaling(p: NormalMixture, q: NormalMixture, sign: float, factor: float) -> None:
    """Theorem 5: C2^2(cX, cY) = |c| C2^2(X, Y)."""
    scaled = cramer_loss(p.affine(0.0, sign * factor), q.affine(0.0, sign * factor)).item()
    assert scaled / factor == pytest.approx(cramer_loss(p, q).item(), rel=1e-8, abs=1e-13 * size(p, q))


@given(mixtures(), mixtures(), mixtures(3))
def test_independent_sum_contracts(p: NormalMixture, q: NormalMixture, a: NormalMixture) -> None:
    """Theorem 5: C2(A + X, A + Y) <= C2(X, Y)."""
    with_a = cramer_loss(convolve(a, p), convolve(a, q)).item()
    # Adding the means of a rounds: the sums are off by 1e-15 of the size, and the loss by no more.
    assert with_a <= cramer_loss(p, q).item() * (1 + 1e-10) + 1e-15 * size(p, q, a)


@given(mixtures(), mixtures(), st.floats(0.01, 0.99))
def test_splitting_a_component_changes_nothing(p: NormalMixture, q: NormalMixture, share: float) -> None:
    parts = torch.tensor([share, 1 - share], dtype=torch.float64) * p.weights[0]
    split = NormalMixture(
        torch.cat((parts, p.weights[1:])), torch.cat((p.means[:1], p.means)), torch.cat((p.scales[:1], p.scales))
    )
    assert cramer_loss(split, q).item() == pytest.approx(cramer_loss(p, q).item(), rel=1e-10, abs=1e-24 * size(p, q))


@given(mixtures(), mixtures(), MEANS, SCALES)
def test_a_component_without_weight_is_invisible(p: NormalMixture, q: NormalMixture, mean: float, scale: float) -> None:
    one = torch.ones(1, dtype=torch.float64)
    more = NormalMixture(
        *(torch.cat((t, c * one)) for t, c in zip((p.weights, p.means, p.scales), (0, mean, scale), strict=True))
    )
    assert cramer_loss(more, q).item() == pytest.approx(cramer_loss(p, q).item(), rel=1e-10, abs=1e-24 * size(p, q))
    assert cramer_loss(more, p).item() <= 1e-24 * (size(p) + abs(mean) + scale)


@given(mixtures(), mixtures())
def test_gradients_are_bounded_by_the_weight(p: NormalMixture, q: NormalMixture) -> None:
    means, scales = p.means.clone().requires_grad_(), p.scales.clone().requires_grad_()
    loss = cramer_loss(NormalMixture(p.weights, means, scales), q)
    for_means, for_scales = torch.autograd.grad(loss, (means, scales))
    assert (for_means.abs() <= (2 - p.weights) * p.weights * (1 + 1e-12)).all()
    assert (for_scales.abs() <= (2 / torch.pi) ** 0.5 * p.weights * (1 + 1e-12)).all()


@given(mixtures(), mixtures(), st.floats(0, 1))
def test_convex_in_mixtures(p: NormalMixture, q: NormalMixture, share: float) -> None:
    """C2(p, share p + (1 - share) q) = (1 - share) C2(p, q): the difference of the distribution functions scales."""
    blend = NormalMixture.mix([p, q], torch.tensor([share, 1 - share], dtype=torch.float64))
    expected = (1 - share) ** 2 * cramer_loss(p, q).item()
    assert cramer_loss(p, blend).item() == pytest.approx(expected, rel=1e-8, abs=1e-22 * size(p, q))
