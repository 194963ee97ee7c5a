"""Constant mixtures as targets of the exact distance: one covariance for all, self energies known or left out.

The truth is the sum over all pairs, which a target that requires a gradient still takes, and oracles from outside.
"""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from cramix import (
    Diagonal,
    Factor,
    Full,
    MultivariateNormalMixture,
    NormalMixture,
    PreparedTarget,
    Spherical,
    Tied,
    cramer_loss,
    energy_score_loss,
    nll_loss,
    sliced_cramer_distance,
    sliced_cramer_loss,
)
from cramix.distance.energy.autograd import Operand, energy_distance
from tests import oracle
from tests.refusals import refuses
from tests.sliced_oracle import (
    KINDS,
    circle,
    factor_of,
    over_slices,
    plane_loss,
    randn,
    random_mixture,
    random_values,
    sliced_loss,
)

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


def distance(p, q, tolerance: float, **options) -> Tensor:
    """The energy distance of mixtures or prepared targets."""
    p, q = (
        Operand(x.mixture, x.self_energy(tolerance)) if isinstance(x, PreparedTarget) else Operand(x) for x in (p, q)
    )
    return energy_distance(p, q, tolerance, **options)


def value_and_gradients(p: MultivariateNormalMixture, q, **options) -> list[Tensor]:
    kind = p.covariance_kind
    leaves = [x.detach().clone().requires_grad_() for x in (p.weights, p.means, kind.values)]
    value = distance(MultivariateNormalMixture(*leaves[:2], kind.like(leaves[2])), q, TIGHT, **options)
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
    prepared = PreparedTarget(q)
    for target_ in (q, prepared, prepared):  # the last time with a known self energy
        assert equal(value_and_gradients(p, target_), expected, 1e-7)
    # The same target in a distance with another batch.
    alone = random_mixture(k=3, seed=5)
    assert equal(value_and_gradients(alone, prepared), value_and_gradients(alone, moving(q)), 1e-7)


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
def test_blocks_change_nothing(kind: str) -> None:
    p, q = random_mixture(2, k=3, seed=8), target(kind)
    assert equal(value_and_gradients(p, q, block=6000), value_and_gradients(p, q), 1e-12)


# From outside


@pytest.mark.parametrize("tolerance", [1e-5, 1e-7, 1e-10])
@pytest.mark.parametrize("kind", [*SHARED, "different"])
def test_the_tolerance_is_kept(kind: str, tolerance: float) -> None:
    """Three mean distances make a loss: with weights 1, 1/2 and 1/2 their errors are 2 tolerances at most."""
    p, q = random_mixture(k=4, seed=9), target(kind)
    truth = plane_loss(p, q)
    size = (p.covariance.trace() + q.covariance.trace() + (p.mean - q.mean).square().sum()).sqrt().item()
    value = sliced_loss(p, q, tolerance=tolerance).item()
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
def test_with_covariance_zero_it_is_points(kind: str) -> None:
    p, q = random_mixture(k=4, seed=11), target(kind)
    flat = MultivariateNormalMixture(q.weights, q.means, q.covariance_kind.like(0 * q.covariance_kind.values))
    points = MultivariateNormalMixture.from_samples(q.means, q.weights)
    assert equal(value_and_gradients(p, flat), value_and_gradients(p, points), 1e-8)


def test_points_among_components() -> None:
    """Of the pairs of q some have covariance 0, so their plain length counts."""
    p, q = random_mixture(k=4, seed=12), target("different")
    matrices = q.covariances * (torch.arange(N) % 3 > 0).view(-1, 1, 1)
    q = MultivariateNormalMixture(q.weights, q.means, matrices)
    assert equal(value_and_gradients(p, q), value_and_gradients(p, moving(q)), 1e-12)
    assert distance(p, q, 1e-5).item() * factor_of(2) == pytest.approx(plane_loss(p, q), abs=1e-4)


# Laws, with known self energies for the smallest mixtures too


@pytest.mark.parametrize("size", [1e-150, 1e-3, 1.0, 1e150])
@pytest.mark.parametrize("kind", KINDS)
def test_zero_on_itself_and_the_same_from_both_sides(kind: str, size: float) -> None:
    p, q = random_mixture(k=3, kind=kind, seed=13), random_mixture(k=5, kind=kind, seed=14)
    p, q = (m.affine(0.0, size * torch.eye(2, dtype=torch.float64)) for m in (p, q))
    order = torch.tensor([2, 0, 1])
    turned = MultivariateNormalMixture(p.weights[order], p.means[order], p.covariances[order])
    p, q, turned = map(PreparedTarget, (p, q, turned))
    for tolerance in (1e-4, 1e-7):
        assert distance(p, turned, tolerance).item() <= 1e-13 * size
        there, back = (distance(*pair, tolerance).item() for pair in ((p, q), (q, p)))
        assert there == pytest.approx(back, abs=1e-13 * size, rel=0)
        assert there > 1e-3 * size


def test_gradients_from_the_other_side() -> None:
    p, q = random_mixture(k=4, seed=15), target("tied")
    means = p.means.clone().requires_grad_()
    value = sliced_loss(q, MultivariateNormalMixture(p.weights, means, p.covariances), tolerance=TIGHT)
    (grad,) = torch.autograd.grad(value, means)
    expected = value_and_gradients(p, q)
    torch.testing.assert_close(grad, factor_of(2) * expected[2])
    torch.testing.assert_close(value.detach(), factor_of(2) * expected[0])


@pytest.mark.parametrize("kind", ["tied", "different"])
def test_points_to_a_mixture_that_stays(kind: str) -> None:
    x, q = randn(30, 2, seed=16).requires_grad_(), target(kind)
    results = []
    for other in (q, moving(q)):
        value = sliced_loss(x, other)
        results.append([value.detach(), *torch.autograd.grad(value, x)])
    assert equal(*results, 1e-12)


# Without the self energy


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("kind", [*SHARED, "different"])
def test_without_the_self_energy_of_the_target(kind: str, d: int) -> None:
    """What is left out is half the mean distance of the target to itself, so that of its two distances to a point."""
    p, q = random_mixture(k=4, d=d, seed=17), target(kind, d)
    found, expected = value_and_gradients(p, q, target_self_energy=False), value_and_gradients(p, moving(q))
    assert equal(found[1:], expected[1:], 1e-10)
    zero = torch.zeros(1, d, dtype=torch.float64)
    point = MultivariateNormalMixture(torch.ones(1, dtype=torch.float64), zero, Spherical(zero[0, :1]))
    lengths = distance(point, q, TIGHT, target_self_energy=False)  # E|Y|
    own = lengths - distance(q, MultivariateNormalMixture.from_samples(zero), TIGHT)  # E|Y| - 1/2 E|Y - Y'|
    assert (found[0] - own).item() == pytest.approx(expected[0].item(), abs=1e-8)
    assert own.item() > 0.1


@pytest.mark.parametrize("kind", ["tied", "different", "points"])
def test_without_the_self_energy_the_pairs_of_the_target_are_not_visited(kind: str) -> None:
    """600 components of the target have 180,000 pairs, and 1,200 with the two of p."""
    n = 600
    means = randn(n, 2, seed=18).requires_grad_(kind == "points")
    if kind == "points":
        q = MultivariateNormalMixture.from_samples(means)
    else:
        values = random_values("full" if kind == "different" else "tied", k=n, d=2, seed=19)
        q = MultivariateNormalMixture(
            torch.full((n,), 1 / n, dtype=torch.float64),
            means,
            KINDS["full" if kind == "different" else "tied"](values),
        )
    p, flops = random_mixture(k=2, seed=18), []
    for wanted in (False, True):
        with FlopCounterMode(display=False) as counter:
            sliced_cramer_loss(p, q, target_self_energy=wanted)
        flops.append(counter.get_total_flops())
    assert 0 < 5 * flops[0] < flops[1]


def test_a_target_that_moves_keeps_its_self_energy() -> None:
    p, q = random_mixture(seed=19), target("tied")
    for leaf in range(3):
        tensors = [x.clone().requires_grad_(leaf == i) for i, x in enumerate((q.weights, q.means, q.covariances))]
        variable = MultivariateNormalMixture(*tensors)
        with pytest.raises(ValueError, match="target_self_energy must be True"):
            sliced_cramer_loss(p, variable, target_self_energy=False)
        with torch.no_grad():
            value = sliced_cramer_loss(p, variable, target_self_energy=False)
        torch.testing.assert_close(value, sliced_cramer_loss(p, q, target_self_energy=False), rtol=0, atol=1e-7)


# Prepared targets


@pytest.mark.parametrize("kind", ["tied", "different"])
def test_pairs_of_a_prepared_target_are_visited_once(kind: str) -> None:
    p, q = random_mixture(k=4, seed=20), PreparedTarget(target(kind))
    visited = []
    for step in range(4):
        moved = MultivariateNormalMixture(p.weights, p.means + 0.1 * step, p.covariances)
        value = sliced_cramer_loss(moved, q)
        torch.testing.assert_close(value, sliced_cramer_loss(moved, q.mixture), rtol=1e-12, atol=1e-13)
        visited.append(q.self_energy(1e-7).visited)
    assert visited[0] > 0
    assert visited[-1] - visited[0] <= 1  # a node more may be needed where the size of the problem grows


def test_what_was_visited_serves_other_nodes() -> None:
    """Narrower, wider, farther: only nodes that are new are visited, and the values are those of a fresh target."""
    p, q = random_mixture(k=4, seed=21), PreparedTarget(target("tied"))
    visited = []
    for factor, offset in ((1.0, 0.0), (1e-3, 0.0), (1e-6, 0.0), (1e3, 0.0), (1.0, 1e4), (1.0, 0.0)):
        other = MultivariateNormalMixture(p.weights, p.means + offset, factor * p.covariances)
        torch.testing.assert_close(distance(other, q, 1e-7), distance(other, q.mixture, 1e-7), rtol=1e-13, atol=1e-13)
        visited.append(q.self_energy(1e-7).visited)
    assert 0 < visited[2] - visited[0] < visited[0]
    assert visited[-1] == visited[-2]


@pytest.mark.parametrize("options", [{}, {"tolerance": 1e-3}, {"normalization": "integral"}, {"directions": 3}])
def test_prepared_samples_give_the_loss_of_the_samples(options: dict) -> None:
    x, w, p = randn(50, 2, seed=22), randn(50, seed=23).exp(), random_mixture(seed=24)
    if "directions" in options:
        options = {"directions": randn(3, 2, seed=25)}
    for weight in (None, w):
        expected = sliced_cramer_loss(p, x, sample_weight=weight, **options)
        q = PreparedTarget(x, weight)
        for _ in range(2):
            torch.testing.assert_close(sliced_cramer_loss(p, q, **options), expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(sliced_cramer_distance(p, q), sliced_cramer_distance(q, p), rtol=1e-12, atol=0)


def test_every_loss_takes_a_prepared_target() -> None:
    x, y, w = randn(40, seed=26), randn(40, 2, seed=27), randn(40, seed=28).exp()
    line, plane = oracle.random_mixture(3, seed=29), random_mixture(seed=30)
    for loss, p, samples in (
        (cramer_loss, line, x),
        (energy_score_loss, line, x),
        (nll_loss, line, x),
        (energy_score_loss, plane, y),
        (nll_loss, plane, y),
    ):
        prepared = PreparedTarget(samples, w)
        for _ in range(2):
            torch.testing.assert_close(loss(p, prepared), loss(p, samples, sample_weight=w), rtol=1e-12, atol=0)
        batch = p.expand((3,))
        each = loss(batch, prepared, reduction="none")
        torch.testing.assert_close(each, loss(p, prepared).expand(3), rtol=1e-9, atol=1e-12)
        weighted = loss(batch, prepared, sample_weight=[1, 2, 3])
        torch.testing.assert_close(weighted, loss(p, prepared), rtol=1e-9, atol=1e-12)


def test_gradients_of_losses_to_prepared_samples_on_the_line() -> None:
    w, m, s = oracle.random_parameters(3, seed=31)
    target_ = PreparedTarget(randn(20, seed=32))
    leaves = [t.requires_grad_() for t in (w.log(), m, s)]
    assert torch.autograd.gradcheck(lambda *t: cramer_loss(NormalMixture.from_logits(*t), target_), leaves)


@pytest.mark.parametrize("way", ["in place", "through data", "through numpy"])
@pytest.mark.parametrize("changed", ["weights", "means", "covariances"])
def test_a_prepared_target_does_not_follow_later_changes(changed: str, way: str) -> None:
    p, q = random_mixture(seed=22), target("tied")
    prepared, before = PreparedTarget(q), sliced_cramer_loss(p, q)
    tensor = {"weights": q.weights, "means": q.means, "covariances": q.covariance_kind.values}[changed]
    change = tensor.flip(0) if changed == "weights" else 1.5 * tensor
    if way == "through numpy":
        tensor.numpy()[:] = change.numpy()
    else:
        (tensor.data if way == "through data" else tensor).copy_(change)
    assert sliced_cramer_loss(p, prepared) == before
    after = sliced_cramer_loss(p, q)
    assert after != before
    assert after == sliced_cramer_loss(p, PreparedTarget(q))


def test_prepared_samples_do_not_follow_later_changes() -> None:
    p, x = random_mixture(seed=11), randn(30, 2, seed=12)
    prepared = PreparedTarget(x)
    before = sliced_cramer_loss(p, x)
    x.mul_(3)
    assert sliced_cramer_loss(p, prepared) == before != sliced_cramer_loss(p, x)


def test_tolerances_have_self_energies_of_their_own() -> None:
    p, q = random_mixture(seed=23), PreparedTarget(target("different"))
    for _ in range(2):
        loose, tight = (sliced_cramer_loss(p, q, tolerance=t).item() for t in (1e-3, 1e-11))
        assert loose != tight
        assert tight == pytest.approx(plane_loss(p, q.mixture), abs=1e-10)


def test_a_prepared_target_in_another_dtype() -> None:
    """Of samples in float32 and a mixture in float64, and the reverse: promoted, and the same as not prepared."""
    x, p = randn(30, 2, seed=33, dtype=torch.float32), random_mixture(seed=34)
    prepared = PreparedTarget(x)
    assert sliced_cramer_loss(p, prepared).dtype == torch.float64
    for _ in range(2):
        torch.testing.assert_close(sliced_cramer_loss(p, prepared), sliced_cramer_loss(p, x), rtol=1e-7, atol=0)
    wide = prepared.to(dtype=torch.float64)
    assert wide.mixture.means.dtype == torch.float64
    assert prepared.to(dtype=torch.float32) is prepared
    single = p.to(torch.float32)
    assert sliced_cramer_loss(single, prepared).dtype == torch.float32
    torch.testing.assert_close(sliced_cramer_loss(single, wide), sliced_cramer_loss(single, x.double()))
    assert prepared.to("meta").mixture.means.is_meta


def test_a_prepared_target_has_no_gradient_and_copies() -> None:
    p, q = random_mixture(seed=35), target("tied")
    variable = MultivariateNormalMixture(q.weights, q.means.clone().requires_grad_(), q.covariance_kind)
    prepared = PreparedTarget(variable)
    assert not prepared.mixture.means.requires_grad
    value = sliced_cramer_loss(p, prepared)
    for other in (copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared))):
        assert sliced_cramer_loss(p, other) == value
    assert repr(prepared).startswith("PreparedTarget(MultivariateNormalMixture(")


def test_a_self_energy_from_inference_serves_a_training_step() -> None:
    for q in (PreparedTarget(target("tied")), PreparedTarget(randn(30, 2, seed=36))):
        p = random_mixture(seed=24)
        with torch.inference_mode():
            inside = sliced_cramer_loss(p, q)
        means = p.means.clone().requires_grad_()
        value = sliced_cramer_loss(MultivariateNormalMixture(p.weights, means, p.covariances), q)
        value.backward()
        assert value.item() == pytest.approx(inside.item(), rel=1e-14)
        assert means.grad is not None
        assert means.grad.abs().max() > 1e-3


@pytest.mark.parametrize(
    ("call", "name", "got"),
    [
        (lambda: PreparedTarget(torch.zeros(2, 3, 4)), "target", "(2, 3, 4)"),
        (lambda: PreparedTarget(torch.tensor(1.0)), "target", "()"),
        (lambda: PreparedTarget(torch.zeros(3), torch.ones(2)), "sample_weight", "(2,)"),
        (lambda: PreparedTarget(random_mixture(), torch.ones(3)), "sample_weight", "Tensor"),
        (lambda: sliced_cramer_loss(random_mixture(), PreparedTarget(torch.zeros(3))), "target", "NormalMixture"),
        (
            lambda: sliced_cramer_loss(random_mixture(), PreparedTarget(torch.zeros(3, 2)), sample_weight=[1, 1, 1]),
            "sample_weight",
            "list",
        ),
    ],
)
def test_bad_prepared_targets(call, name: str, got: str) -> None:
    refuses(call, name, got)
