"""Mixtures that need no gradient as targets of the exact distance: one covariance for all, own terms known or left out.

The truth is the list of all pairs, which a target that requires a gradient still takes, and oracles from outside.
"""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from cramix import Diagonal, Factor, Full, MultivariateNormalMixture, Spherical, Tied, sliced_cramer_loss
from cramix.distance.multivariate import energy
from cramix.distance.multivariate.component_pairs import Result, between_components
from cramix.distance.multivariate.energy import energy_distance
from cramix.distance.multivariate.own_term import OwnTerm
from cramix.distance.multivariate.sides import Components
from tests.sliced_oracle import KINDS, circle, factor_of, over_slices, plane_loss, randn, random_mixture, random_values

TIGHT = 1e-11
N = 24  # more than are counted as few


def shared(kind: str, d: int, *batch: int, seed: int = 70) -> Full | Tied | Diagonal | Spherical | Factor:
    """One covariance for all components, in the ways to say so."""
    matrix = 0.2 * random_values("tied", *batch, k=1, d=d, seed=seed)
    variances = matrix.diagonal(dim1=-2, dim2=-1)
    return {
        "tied": lambda: Tied(matrix),
        "full": lambda: Full(matrix.unsqueeze(-3)),
        "expanded": lambda: Full(matrix.unsqueeze(-3).expand(*batch, N, d, d)),
        "diagonal": lambda: Diagonal(variances.unsqueeze(-2)),
        "spherical": lambda: Spherical(variances[..., :1]),
        "factor": lambda: Factor(torch.linalg.cholesky(matrix).mT.unsqueeze(-3)),
        "singular": lambda: Factor(randn(*batch, 1, 1, d, seed=seed)),
        "zero": lambda: Tied(0 * matrix),
    }[kind]()


SHARED = ["tied", "full", "expanded", "diagonal", "spherical", "factor", "singular", "zero"]


def target(kind: str, d: int = 2, *batch: int, seed: int = 1) -> MultivariateNormalMixture:
    """N components with one covariance, or with different ones."""
    if kind == "different":
        return random_mixture(*batch, k=N, d=d, seed=seed)
    weights, means = randn(*batch, N, seed=seed).softmax(-1), 1.5 * randn(*batch, N, d, seed=seed + 1)
    return MultivariateNormalMixture(weights, means, shared(kind, d, *batch))


def moving(q: MultivariateNormalMixture) -> MultivariateNormalMixture:
    """The same as a variable, for which all pairs are in one list, each with a covariance of its own."""
    return MultivariateNormalMixture(q.weights, q.means.clone().requires_grad_(), q.covariances.contiguous())


def value_and_gradients(p: MultivariateNormalMixture, q: MultivariateNormalMixture, **options) -> list[Tensor]:
    kind = p.covariance_kind
    leaves = [x.detach().clone().requires_grad_() for x in (p.weights, p.means, kind.values)]
    value = energy_distance(MultivariateNormalMixture(*leaves[:2], kind.like(leaves[2])), q, TIGHT, **options)
    return [value.detach(), *torch.autograd.grad(value.sum(), leaves)]


def equal(found: list[Tensor], expected: list[Tensor], tolerance: float) -> bool:
    return all(
        a.shape == b.shape and (a.double() - b.double()).abs().max() <= tolerance * max(1.0, b.abs().max().item())
        for a, b in zip(found, expected, strict=True)
    )


# Against all pairs


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("p_kind", KINDS)
@pytest.mark.parametrize("kind", [*SHARED, "different"])
def test_value_and_gradients_are_those_of_all_pairs(kind: str, p_kind: str, d: int) -> None:
    p, q = random_mixture(k=4, d=d, kind=p_kind, seed=3), target(kind, d)
    found, expected = value_and_gradients(p, q), value_and_gradients(p, moving(q))
    assert equal(found, expected, 1e-10)
    assert not equal([1.01 * x for x in found], expected, 1e-10)


@pytest.mark.parametrize(
    "batches", [((), (3,)), ((3,), ()), ((3,), (3,)), ((2, 1), (3,)), ((3,), (2, 1)), ((3,), (1,))]
)
@pytest.mark.parametrize("kind", ["tied", "diagonal", "different"])
def test_batches(kind: str, batches: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    p, q = random_mixture(*batches[0], k=3, seed=4), target(kind, 2, *batches[1])
    expected = value_and_gradients(p, moving(q))
    assert expected[0].shape == torch.broadcast_shapes(*batches)
    # To 10,000 tolerances, as a target for the whole batch has other nodes than one for each of its elements.
    for _ in range(2):  # the second time from memory
        assert equal(value_and_gradients(p, q), expected, 1e-7)
    # The same target in a distance with another batch.
    alone = random_mixture(k=3, seed=5)
    assert equal(value_and_gradients(alone, q), value_and_gradients(alone, moving(q)), 1e-7)


def test_one_matrix_for_a_batch_of_means() -> None:
    p, q = random_mixture(3, seed=4), target("tied", 2, 3)
    q = MultivariateNormalMixture(q.weights, q.means, Tied(q.covariance_kind.values[0]))
    assert equal(value_and_gradients(p, q), value_and_gradients(p, moving(q)), 1e-10)


@pytest.mark.parametrize("kind", ["tied", "spherical", "different"])
@pytest.mark.parametrize("copies", [1, 22], ids=["few", "many"])
def test_float32(kind: str, copies: int) -> None:
    """A few pairs are computed in float64 inside, many are not."""
    p, q = random_mixture(k=4, d=3, seed=6), target(kind, 3)
    values = q.covariance_kind.values
    means = q.means.repeat(copies, 1) + 1e-2 * randn(copies * N, 3, seed=7)
    if kind == "different":
        values = values.repeat(copies, 1, 1)
    q = MultivariateNormalMixture(q.weights.repeat(copies) / copies, means, q.covariance_kind.like(values))
    single = value_and_gradients(p.to(torch.float32), q.to(torch.float32))
    assert all(x.dtype == torch.float32 for x in single)
    wide = value_and_gradients(p, q)
    assert equal(single[:1], wide[:1], 2e-6)
    assert all(equal([a], [b], 1e-4 * b.abs().max().item()) for a, b in zip(single[1:], wide[1:], strict=True))


@pytest.mark.parametrize("kind", ["tied", "spherical", "different"])
def test_blocks_change_nothing(kind: str, monkeypatch) -> None:
    p, q = random_mixture(2, k=3, seed=8), target(kind)
    whole = value_and_gradients(p, q)
    monkeypatch.setattr("cramix.distance.multivariate.component_pairs._BLOCK", {"cpu": 3000})
    again = MultivariateNormalMixture(q.weights, q.means.clone(), q.covariance_kind)
    assert equal(value_and_gradients(p, again), whole, 1e-12)


# From outside


@pytest.mark.parametrize("tolerance", [1e-5, 1e-7, 1e-10])
@pytest.mark.parametrize("kind", [*SHARED, "different"])
def test_the_tolerance_is_kept(kind: str, tolerance: float) -> None:
    """Three mean distances make a loss: with weights 1, 1/2 and 1/2 their errors are 2 tolerances at most."""
    p, q = random_mixture(k=4, seed=9), target(kind)
    truth = plane_loss(p, q)
    size = (p.covariance.trace() + q.covariance.trace() + (p.mean - q.mean).square().sum()).sqrt().item()
    value = sliced_cramer_loss(p, q, tolerance=tolerance).item()
    assert abs(value - truth) <= 2 * factor_of(2) * tolerance * size
    assert abs(1.01 * value - truth) > 2 * factor_of(2) * tolerance * size


@pytest.mark.parametrize("kind", ["tied", "diagonal", "spherical", "different"])
def test_gradients_against_slices(kind: str) -> None:
    p, q = random_mixture(k=3, seed=10), target(kind)
    found = value_and_gradients(p, q)
    leaves = [x.clone().requires_grad_() for x in (p.weights, p.means, p.covariances)]
    theirs = torch.autograd.grad(over_slices(MultivariateNormalMixture(*leaves), q, *circle(500)), leaves)
    for ours, other in zip(found[1:], theirs, strict=True):
        torch.testing.assert_close(factor_of(2) * ours, other, rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", ["tied", "spherical"])
def test_without_spread_it_is_points(kind: str) -> None:
    p, q = random_mixture(k=4, seed=11), target(kind)
    flat = MultivariateNormalMixture(q.weights, q.means, q.covariance_kind.like(0 * q.covariance_kind.values))
    points = MultivariateNormalMixture.from_samples(q.means, q.weights)
    assert equal(value_and_gradients(p, flat), value_and_gradients(p, points), 1e-8)


def test_points_among_components() -> None:
    """Of the pairs of q some have no spread, so their plain length counts."""
    p, q = random_mixture(k=4, seed=12), target("different")
    matrices = q.covariances * (torch.arange(N) % 3 > 0).view(-1, 1, 1)
    q = MultivariateNormalMixture(q.weights, q.means, matrices)
    assert equal(value_and_gradients(p, q), value_and_gradients(p, moving(q)), 1e-12)
    assert energy_distance(p, q, 1e-5).item() * factor_of(2) == pytest.approx(plane_loss(p, q), abs=1e-4)


# Laws, with own terms for the smallest mixtures too


@pytest.mark.parametrize("size", [1e-150, 1e-3, 1.0, 1e150])
@pytest.mark.parametrize("kind", KINDS)
def test_zero_on_itself_and_the_same_from_both_sides(kind: str, size: float, monkeypatch) -> None:
    monkeypatch.setattr(energy, "_FEW", 0)
    p, q = random_mixture(k=3, kind=kind, seed=13), random_mixture(k=5, kind=kind, seed=14)
    p, q = (m.affine(0.0, size * torch.eye(2, dtype=torch.float64)) for m in (p, q))
    order = torch.tensor([2, 0, 1])
    turned = MultivariateNormalMixture(p.weights[order], p.means[order], p.covariances[order])
    for tolerance in (1e-4, 1e-7):
        assert energy_distance(p, turned, tolerance).item() <= 1e-13 * size
        there, back = (energy_distance(*pair, tolerance).item() for pair in ((p, q), (q, p)))
        assert there == pytest.approx(back, abs=1e-13 * size, rel=0)
        assert there > 1e-3 * size


def test_gradients_from_the_other_side() -> None:
    p, q = random_mixture(k=4, seed=15), target("tied")
    means = p.means.clone().requires_grad_()
    value = sliced_cramer_loss(q, MultivariateNormalMixture(p.weights, means, p.covariances), tolerance=TIGHT)
    (grad,) = torch.autograd.grad(value, means)
    expected = value_and_gradients(p, q)
    torch.testing.assert_close(grad, factor_of(2) * expected[2])
    torch.testing.assert_close(value.detach(), factor_of(2) * expected[0])


@pytest.mark.parametrize("kind", ["tied", "different"])
def test_points_to_a_mixture_that_stays(kind: str) -> None:
    x, q = randn(30, 2, seed=16).requires_grad_(), target(kind)
    results = []
    for other in (q, moving(q)):
        value = sliced_cramer_loss(x, other)
        results.append([value.detach(), *torch.autograd.grad(value, x)])
    assert equal(*results, 1e-12)


# Without the own term


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("kind", [*SHARED, "different"])
def test_without_the_target_term(kind: str, d: int) -> None:
    """What is left out is half the mean distance of the target to itself, so that of its two distances to a point."""
    p, q = random_mixture(k=4, d=d, seed=17), target(kind, d)
    found, expected = value_and_gradients(p, q, target_term=False), value_and_gradients(p, moving(q))
    assert equal(found[1:], expected[1:], 1e-10)
    zero = torch.zeros(1, d, dtype=torch.float64)
    point = MultivariateNormalMixture(torch.ones(1, dtype=torch.float64), zero, Spherical(zero[0, :1]))
    lengths = energy_distance(point, q, TIGHT, target_term=False)  # E|Y|
    own = lengths - energy_distance(q, MultivariateNormalMixture.from_samples(zero), TIGHT)  # E|Y| - 1/2 E|Y - Y'|
    assert (found[0] - own).item() == pytest.approx(expected[0].item(), abs=1e-8)
    assert own.item() > 0.1


def test_without_the_target_term_its_pairs_are_not_met(monkeypatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("pairs of the target")

    p = random_mixture(k=12, seed=18)
    means = p.means.clone().requires_grad_()
    monkeypatch.setattr(OwnTerm, "_meet", refuse)
    monkeypatch.setattr("cramix.distance.multivariate.exact.within_components", refuse)
    pairs: list[int] = []

    def counted(parts: Components, first: Tensor, *rest) -> Result:
        pairs.append(len(first))
        return between_components(parts, first, *rest)

    monkeypatch.setattr("cramix.distance.multivariate.exact.between_components", counted)
    sliced_cramer_loss(
        MultivariateNormalMixture(p.weights, means, p.covariances), target("different"), target_term=False
    ).backward()
    assert pairs == [12 * 13 // 2 + 12 * N]


def test_a_target_that_moves_keeps_its_term() -> None:
    p, q = random_mixture(seed=19), target("tied")
    for leaf in range(3):
        tensors = [x.clone().requires_grad_(leaf == i) for i, x in enumerate((q.weights, q.means, q.covariances))]
        variable = MultivariateNormalMixture(*tensors)
        with pytest.raises(ValueError, match="target_term must be True"):
            sliced_cramer_loss(p, variable, target_term=False)
        with torch.no_grad():
            value = sliced_cramer_loss(p, variable, target_term=False)
        torch.testing.assert_close(value, sliced_cramer_loss(p, q, target_term=False), rtol=0, atol=1e-7)


# Memory


@pytest.fixture
def met(monkeypatch) -> list[int]:
    """Count the nodes at which all pairs of a target were met."""
    counts: list[int] = []
    meet = OwnTerm._meet
    monkeypatch.setattr(OwnTerm, "_meet", lambda self, runs: counts.append(len(runs)) or meet(self, runs))
    return counts


@pytest.mark.parametrize("kind", ["tied", "different"])
def test_pairs_are_met_once(kind: str, met: list[int]) -> None:
    p, q = random_mixture(k=4, seed=20), target(kind)
    gc.collect()
    held = len(energy._known_terms)
    for step in range(4):
        moved = MultivariateNormalMixture(p.weights, p.means + 0.1 * step, p.covariances)
        sliced_cramer_loss(moved, MultivariateNormalMixture(q.weights, q.means, q.covariance_kind))
    assert met[0] > 0
    assert sum(met[1:]) <= 1  # a node more may be needed where the size of the problem grows
    assert len(energy._known_terms) == held + 1
    del q
    gc.collect()
    assert len(energy._known_terms) == held


def test_what_was_met_serves_other_nodes(met: list[int]) -> None:
    """Narrower, wider, farther: only the nodes that are new are met, and the values are those of a fresh target."""
    p, q = random_mixture(k=4, seed=21), target("tied")
    for factor, offset in ((1.0, 0.0), (1e-3, 0.0), (1e-6, 0.0), (1e3, 0.0), (1.0, 1e4), (1.0, 0.0)):
        other = MultivariateNormalMixture(p.weights, p.means + offset, factor * p.covariances)
        value = energy_distance(other, q, 1e-7)
        kept = met.copy()
        fresh = MultivariateNormalMixture(q.weights, q.means.clone(), q.covariance_kind)
        torch.testing.assert_close(value, energy_distance(other, fresh, 1e-7), rtol=1e-13, atol=1e-13)
        met[:] = kept
    assert 0 < met[1] + met[2] < met[0]
    assert met[-1] == 0


@pytest.mark.parametrize("changed", ["weights", "means", "covariances"])
@pytest.mark.parametrize("way", ["in place", "through data", "through numpy"])
def test_nothing_is_taken_from_memory_after_a_change(changed: str, way: str) -> None:
    p, q = random_mixture(seed=22), target("tied")
    before = sliced_cramer_loss(p, q)
    tensor = {"weights": q.weights, "means": q.means, "covariances": q.covariance_kind.values}[changed]
    change = tensor.flip(0) if changed == "weights" else 1.5 * tensor
    if way == "through numpy":
        tensor.numpy()[:] = change.numpy()
    else:
        (tensor.data if way == "through data" else tensor).copy_(change)
    after = sliced_cramer_loss(p, q)
    assert after != before
    fresh = MultivariateNormalMixture(q.weights.clone(), q.means.clone(), Tied(q.covariance_kind.values.clone()))
    assert after == sliced_cramer_loss(p, fresh)


def test_kinds_and_tolerances_have_memories_of_their_own() -> None:
    """Variances (1, 2) along the axes, or one factor (1, 1, 2): the same places, other distributions."""
    p, q = random_mixture(seed=23), target("tied")
    others = [
        MultivariateNormalMixture(q.weights, q.means, Factor(0.3 * torch.eye(2, dtype=torch.float64).unsqueeze(0))),
        MultivariateNormalMixture(q.weights, q.means, Full(0.3 * torch.eye(2, dtype=torch.float64).unsqueeze(0))),
    ]
    values = [sliced_cramer_loss(p, other).item() for other in (*others, *others)]
    assert values[:2] == values[2:]
    assert values[0] != pytest.approx(values[1], rel=1e-3)
    for other in others:
        loose, tight = (sliced_cramer_loss(p, other, tolerance=t).item() for t in (1e-3, 1e-11))
        assert loose != tight
        assert tight == pytest.approx(plane_loss(p, other), abs=1e-10)


def test_a_term_from_inference_serves_a_training_step() -> None:
    p, q = random_mixture(seed=24), target("tied")
    with torch.inference_mode():
        inside = sliced_cramer_loss(p, q)
    means = p.means.clone().requires_grad_()
    value = sliced_cramer_loss(MultivariateNormalMixture(p.weights, means, p.covariances), q)
    value.backward()
    assert value.item() == pytest.approx(inside.item(), rel=1e-14)
    assert means.grad is not None
    assert means.grad.abs().max() > 1e-3
