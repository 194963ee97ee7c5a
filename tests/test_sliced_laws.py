"""Laws of the sliced Cramér distance, tried by hypothesis on mixtures of all kinds, points and flat ones included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cramix import MultivariateNormalMixture, sliced_cramer_distance
from tests.sliced_oracle import KINDS, factor_of, randn, random_values, sliced_loss

TOLERANCE = 1e-9
EXAMPLES = settings(max_examples=settings().max_examples * 2 // 5)


@st.composite
def mixtures(draw: st.DrawFn, d: int | None = None, points: bool = True) -> MultivariateNormalMixture:
    """Any kind, with sizes over six orders of magnitude, from a seed; some covariances are 0."""
    d = 2 if d is None else d
    kind = draw(st.sampled_from([*KINDS, "points"] if points else list(KINDS)))
    k, seed = draw(st.integers(1, 4)), draw(st.integers(0, 10**6))
    weights, means = (
        randn(k, seed=seed).softmax(-1),
        draw(st.sampled_from([1e-3, 1.0, 30.0])) * randn(k, d, seed=seed + 1),
    )
    if kind == "points":
        return MultivariateNormalMixture.from_samples(means, weights)
    size = draw(st.sampled_from([0.0, 1e-3, 1.0, 1.0, 30.0]))
    values = random_values(kind, k=k, d=d, seed=seed + 2) * (size if kind == "factor" else size**2)
    return MultivariateNormalMixture(weights, means, KINDS[kind](values))


def pairs(count: int = 2, points: bool = True) -> st.SearchStrategy:
    """Mixtures in one space."""
    return st.integers(1, 4).flatmap(lambda d: st.tuples(*[mixtures(d, points)] * count))


def size(*mixtures: MultivariateNormalMixture) -> float:
    """A length of the mixtures, to measure absolute errors with."""
    first = mixtures[0].mean
    return sum((m.covariance.trace() + (m.mean - first).square().sum()).sqrt().item() for m in mixtures) + 1e-9


def loss(p: MultivariateNormalMixture, q: MultivariateNormalMixture) -> float:
    return sliced_loss(p, q, tolerance=TOLERANCE).item()


def rounding(*mixtures: MultivariateNormalMixture) -> float:
    """The error two losses may differ by."""
    return 4 * TOLERANCE * size(*mixtures)


def full(p: MultivariateNormalMixture) -> list[torch.Tensor]:
    return [p.weights, p.means, p.covariances]


@EXAMPLES
@given(pairs(1))
def test_zero_on_itself_and_on_a_permutation(one) -> None:
    (p,) = one
    order = torch.arange(p.n_components - 1, -1, -1)
    for q in (p, MultivariateNormalMixture(*(t[order] for t in full(p)))):
        assert loss(p, q) <= (1e-13 if not p.is_empirical else 4 * TOLERANCE) * size(p)


@EXAMPLES
@given(pairs())
def test_symmetry_and_sign(both) -> None:
    p, q = both
    assert loss(p, q) == pytest.approx(loss(q, p), abs=1e-13 * size(p, q))
    assert loss(p, q) >= 0


@EXAMPLES
@given(pairs(3))
def test_triangle_inequality(three) -> None:
    p, q, r = three
    pq, qr, pr = (sliced_cramer_distance(a, b, tolerance=TOLERANCE).item() for a, b in ((p, q), (q, r), (p, r)))
    assert pr <= pq + qr + 2 * rounding(p, q, r) ** 0.5
    # Where the loss is well above its error the inequality is to hold with that error alone.
    if min(pq, qr, pr) ** 2 > 1e3 * rounding(p, q, r):
        assert pr <= (pq + qr) * (1 + 1e-3)


@EXAMPLES
@given(pairs(), st.integers(0, 10**6), st.floats(1e-6, 1e6))
def test_rotation_shift_and_scaling(both, seed: int, factor: float) -> None:
    """Theorem 5: distances scale with the root of the factor, so losses with the factor."""
    p, q = both
    turn = torch.linalg.qr(randn(p.dim, p.dim, seed=seed)).Q
    offset = factor * size(p, q) * randn(p.dim, seed=seed + 1)
    moved = (m.affine(offset, factor * turn) for m in both)
    assert loss(*moved) / factor == pytest.approx(loss(p, q), abs=rounding(p, q))


@EXAMPLES
@given(pairs(), st.floats(0.01, 0.99))
def test_splitting_a_component_changes_nothing(both, share: float) -> None:
    p, q = both
    weights, means, matrices = full(p)
    parts = torch.tensor([share, 1 - share], dtype=torch.float64) * weights[0]
    split = MultivariateNormalMixture(
        torch.cat((parts, weights[1:])), torch.cat((means[:1], means)), torch.cat((matrices[:1], matrices))
    )
    assert loss(split, q) == pytest.approx(loss(p, q), abs=rounding(p, q))


@EXAMPLES
@given(pairs(3))
def test_a_component_without_weight_is_invisible(three) -> None:
    p, q, r = three
    share = torch.tensor([1.0, 0.0], dtype=torch.float64)
    more = MultivariateNormalMixture.mix([p, r], share)
    assert loss(more, q) == pytest.approx(loss(p, q), abs=rounding(p, q, r))
    assert loss(more, p) <= rounding(p, r)


@EXAMPLES
@given(pairs(3))
def test_independent_sum_contracts(three) -> None:
    """Theorem 5: the distance of A + X and A + Y is at most that of X and Y."""
    p, q, a = three

    def plus_a(m: MultivariateNormalMixture) -> MultivariateNormalMixture:
        weights = (m.weights.unsqueeze(-1) * a.weights).flatten()
        means = (m.means.unsqueeze(1) + a.means).flatten(0, 1)
        return MultivariateNormalMixture(weights, means, (m.covariances.unsqueeze(1) + a.covariances).flatten(0, 1))

    assert loss(plus_a(p), plus_a(q)) <= loss(p, q) + rounding(p, q, a)


@EXAMPLES
@given(pairs(), st.floats(0, 1))
def test_a_blend_is_as_far_as_its_share(both, share: float) -> None:
    """The difference of the distribution functions of p and of (1 - share) p + share q scales with the share."""
    p, q = both
    blend = MultivariateNormalMixture.mix([p, q], torch.tensor([1 - share, share], dtype=torch.float64))
    assert loss(p, blend) == pytest.approx(share**2 * loss(p, q), abs=rounding(p, q))


@EXAMPLES
@given(pairs())
def test_gradients_are_bounded_by_the_weight(both) -> None:
    p, q = both
    means = p.means.clone().requires_grad_()
    mixture = (
        MultivariateNormalMixture.from_samples(means, p.weights)
        if p.is_empirical
        else MultivariateNormalMixture(p.weights, means, p.covariance_kind)
    )
    (grad,) = torch.autograd.grad(sliced_loss(mixture, q), means)
    assert (grad.norm(dim=-1) <= 2 * factor_of(p.dim) * p.weights * (1 + 1e-6)).all()


def test_the_laws_notice_one_percent() -> None:
    """Losses are far above the rounding that the laws allow."""
    p, q = (
        MultivariateNormalMixture(
            randn(3, seed=s).softmax(-1), randn(3, 2, seed=s + 1), torch.eye(2).double().expand(3, 2, 2)
        )
        for s in (1, 5)
    )
    assert 0.01 * loss(p, q) > 10 * rounding(p, q)
