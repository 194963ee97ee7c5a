"""The sliced Cramér distance without slices, against slices, closed forms and other libraries."""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys

import geomloss
import pytest
import scipy.stats
import torch

from cramix import (
    Diagonal,
    Factor,
    MultivariateNormalMixture,
    NormalMixture,
    SlicedCramerLoss,
    Spherical,
    Tied,
    cramer_loss,
    directions,
    sliced_cramer_distance,
    sliced_cramer_loss,
)
from tests.sliced_oracle import (
    KINDS,
    ball,
    circle,
    factor_of,
    over_slices,
    plane_loss,
    randn,
    random_mixture,
    single,
    sliced_loss,
)
from tests.test_mean_norm import isotropic

PAIRS = [
    ("full", "full"),
    ("full", "points"),
    ("spherical", "diagonal"),
    ("spherical", "spherical"),
    ("tied", "factor"),
]


def side(kind: str, d: int, seed: int, *batch: int) -> MultivariateNormalMixture:
    if kind == "points":
        return MultivariateNormalMixture.from_samples(randn(*batch, 6, d, seed=seed), randn(*batch, 6, seed=seed).exp())
    # A factor of rank d - 1 has flat slices, around which rules over the sphere converge slowly.
    p = random_mixture(*batch, d=d, kind="full" if kind == "factor" else kind, seed=seed)
    if kind != "factor":
        return p
    return MultivariateNormalMixture(p.weights, p.means, Factor(torch.linalg.cholesky(p.covariances).mT))


# The exact distance against slices


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_the_plane_against_dense_slices(kinds: tuple[str, str]) -> None:
    """Geometric convergence for mixtures; the self energy of points has kinks over the circle, so it is left out."""
    p, q = side(kinds[0], 2, 1), side(kinds[1], 2, 2)
    if not q.is_empirical:
        truth = over_slices(p, q, *circle(400)).item()
        value = sliced_loss(p, q, tolerance=1e-11).item()
    else:
        other = side("full", 2, 3)  # the self energy drops out of a difference
        truth = (over_slices(p, q, *circle(400)) - over_slices(other, q, *circle(400))).item()
        value = (sliced_loss(p, q, tolerance=1e-11) - sliced_loss(other, q, tolerance=1e-11)).item()
    assert value == pytest.approx(truth, abs=1e-9)
    assert value * 1.01 != pytest.approx(truth, abs=1e-9), "one percent would not be noticed"


@pytest.mark.parametrize("kinds", [pair for pair in PAIRS if "points" not in pair], ids="-".join)
def test_space_against_a_product_rule(kinds: tuple[str, str]) -> None:
    p, q = side(kinds[0], 3, 4), side(kinds[1], 3, 5)
    truth = over_slices(p, q, *ball(120)).item()
    value = sliced_loss(p, q, tolerance=1e-11).item()
    assert value == pytest.approx(truth, abs=1e-9)
    assert value * 1.01 != pytest.approx(truth, abs=1e-9)


@pytest.mark.parametrize("kinds", [("full", "points"), ("diagonal", "tied")], ids="-".join)
@pytest.mark.parametrize("d", [8, 32])
def test_many_orthogonal_slices(d: int, kinds: tuple[str, str]) -> None:
    """Blocks of d orthogonal directions are independent: z above 5 has probability 6e-7, for each of 4 fixed seeds."""
    p, q = side(kinds[0], d, 6), side(kinds[1], d, 7)
    blocks = 40_000 // d
    chosen = directions.orthogonal(blocks * d, d, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    each = cramer_loss(p.project(chosen), q.project(chosen), reduction="none").view(blocks, d).mean(-1)
    error = each.std() / blocks**0.5
    value = sliced_loss(p, q)
    assert (value - each.mean()).abs() <= 5 * error
    assert 5 * error < 0.01 * value, "one percent would not be noticed"


# Closed forms and other libraries


@pytest.mark.parametrize("d", [2, 3, 10, 64, 200])
def test_isotropic_mixtures(d: int) -> None:
    """E|X - Y| of single normal vectors is Kummer's function of their distance."""
    a, b, gap = 0.8, 1.7, 1.3
    p = single(Spherical(torch.tensor([a * a], dtype=torch.float64)), torch.zeros(d))
    eye = torch.eye(d, dtype=torch.float64)
    q = single(b * b * eye.unsqueeze(0), gap * eye[0])
    lengths = [isotropic(gap, math.hypot(a, b), d), isotropic(0, 2**0.5 * a, d), isotropic(0, 2**0.5 * b, d)]
    truth = factor_of(d) * (lengths[0] - 0.5 * lengths[1] - 0.5 * lengths[2])
    value = sliced_loss(p, q, tolerance=1e-11).item()
    assert value == pytest.approx(truth, abs=1e-10)
    assert value * 1.01 != pytest.approx(truth, abs=1e-10)


@pytest.mark.parametrize("d", [1, 2, 7])
def test_points_to_points_against_geomloss(d: int) -> None:
    """Their constant is 1 to our c_d; their lengths are sqrt(max(|x|^2, 1e-8)), so points have 1e-4 to themselves."""
    x, y, a, b = randn(40, d, seed=9), randn(60, d, seed=10) + 1, randn(40, seed=11).exp(), randn(60, seed=12).exp()
    a, b = a / a.sum(), b / b.sum()
    theirs = geomloss.SamplesLoss("energy", backend="tensorized")(a, x, b, y).item()
    p, q = (MultivariateNormalMixture.from_samples(*side) for side in ((x, a), (y, b)))
    value = sliced_loss(p, q).item()
    assert value == pytest.approx(factor_of(d) * theirs, abs=1e-5)
    assert value * 1.01 != pytest.approx(factor_of(d) * theirs, abs=1e-5)


def test_points_on_a_line_against_scipy() -> None:
    """scipy.stats.energy_distance is the root of twice the Cramér loss; a line in space sees |cos| of it."""
    x, y = randn(40, seed=13), 2 * randn(30, seed=14)
    truth = scipy.stats.energy_distance(x, y) ** 2 / 2
    assert sliced_loss(x.unsqueeze(-1), y.unsqueeze(-1)).item() == pytest.approx(truth, rel=1e-12)
    for d in (2, 3, 9):
        direction = torch.nn.functional.normalize(randn(d, seed=15), dim=0)
        value = sliced_loss(x.unsqueeze(-1) * direction, y.unsqueeze(-1) * direction).item()
        assert value == pytest.approx(factor_of(d) * truth, rel=1e-9)
        assert value * 1.01 != pytest.approx(factor_of(d) * truth, rel=1e-9)


@pytest.mark.parametrize("kind", [*KINDS, "points"])
def test_one_dimension_is_the_cramer_loss(kind: str) -> None:
    p, q = (side(kind, 1, seed) for seed in (16, 17))
    lines = [NormalMixture(m.weights, m.means[:, 0], m.covariances[:, 0, 0].sqrt()) for m in (p, q)]
    truth = cramer_loss(*lines).item()
    for chosen in ("exact", 3, torch.tensor([[-2.0]], dtype=torch.float64)):
        assert sliced_loss(p, q, chosen).item() == pytest.approx(truth, rel=1e-10)
    assert sliced_loss(p, q, normalization="integral").item() == pytest.approx(2 * truth, rel=1e-10)


def test_covariances_on_a_line_reduce_to_one_dimension() -> None:
    """Rank one along one direction: all slices are multiples of that one."""
    d = 4
    direction = torch.nn.functional.normalize(randn(d, seed=18), dim=0)
    weights, means, scales = randn(3, seed=19).softmax(-1), randn(3, seed=20), randn(3, seed=21).exp()
    y = randn(7, seed=22)
    truth = factor_of(d) * cramer_loss(NormalMixture(weights, means, scales), y).item()
    factors = Factor((scales.unsqueeze(-1) * direction).unsqueeze(-2))
    p = MultivariateNormalMixture(weights, means.unsqueeze(-1) * direction, factors)
    value = sliced_loss(p, y.unsqueeze(-1) * direction, tolerance=1e-11).item()
    assert value == pytest.approx(truth, abs=1e-9)
    full = MultivariateNormalMixture(weights, p.means, p.covariances)
    assert sliced_loss(full, y.unsqueeze(-1) * direction, tolerance=1e-11).item() == pytest.approx(truth, abs=1e-9)


# The tolerance


def hard_cases() -> dict[str, tuple[MultivariateNormalMixture, MultivariateNormalMixture]]:
    eye = torch.eye(2, dtype=torch.float64)
    turn = torch.tensor([[0.8, -0.6], [0.6, 0.8]], dtype=torch.float64)
    p, points = random_mixture(seed=23), MultivariateNormalMixture.from_samples(randn(50, 2, seed=24))
    thin = {c: turn @ torch.diag(torch.tensor([1.0, 1 / c], dtype=torch.float64)) @ turn.T for c in (1e4, 1e8, 1e11)}
    outliers = points.means.clone()
    outliers[0] *= 1e3
    narrow = torch.stack((eye, 1e-12 * eye, 0.5 * eye))
    return {
        **{f"condition {c:.0e}": (single(m.unsqueeze(0), [0.3, 0.1]), points) for c, m in thin.items()},
        "conditions": (single(thin[1e11].unsqueeze(0), [0.3, 0.1]), single(thin[1e4].unsqueeze(0), [0.0, 0.0])),
        "outlier": (p, MultivariateNormalMixture.from_samples(outliers)),
        "narrow": (MultivariateNormalMixture(p.weights, p.means, narrow), points),
        "narrow to mixture": (MultivariateNormalMixture(p.weights, p.means, narrow), random_mixture(seed=25)),
        "on centres": (p, MultivariateNormalMixture.from_samples(p.means.clone())),
        "narrow on centres": (
            MultivariateNormalMixture(p.weights, p.means, narrow),
            MultivariateNormalMixture.from_samples(p.means.clone()),
        ),
        "points among components": (MultivariateNormalMixture(p.weights, p.means, 0 * narrow), random_mixture(seed=25)),
    }


CASES = hard_cases()


@pytest.mark.parametrize("tolerance", [1e-5, 1e-7, 1e-10])
@pytest.mark.parametrize("name", CASES)
def test_the_tolerance_is_kept(name: str, tolerance: float) -> None:
    """Three mean distances make a loss: with weights 1, 1/2 and 1/2 their errors are 2 tolerances at most."""
    p, q = CASES[name]
    size = (p.covariance.trace() + q.covariance.trace() + (p.mean - q.mean).square().sum()).sqrt().item()
    truth = plane_loss(p, q)
    value = sliced_loss(p, q, tolerance=tolerance).item()
    assert abs(value - truth) <= 2 * factor_of(2) * tolerance * size
    assert abs(1.01 * value - truth) > 2 * factor_of(2) * tolerance * size


def test_the_truth_in_the_plane_agrees_with_slices() -> None:
    p, q = side("full", 2, 1), side("full", 2, 2)
    assert plane_loss(p, q) == pytest.approx(over_slices(p, q, *circle(400)).item(), abs=1e-13)


# Normalisation, directions


def test_normalizations() -> None:
    p, x = random_mixture(d=3, seed=26), randn(20, 3, seed=27)
    mean = sliced_loss(p, x)
    assert sliced_loss(p, x, normalization="integral").item() == pytest.approx(4 * math.pi * mean.item())
    chosen = directions.random(6, 3, generator=torch.Generator().manual_seed(28), dtype=torch.float64)
    each = cramer_loss(p.project(chosen), MultivariateNormalMixture.from_samples(x).project(chosen), reduction="none")
    for normalization, truth in (("sum", each.sum()), ("mean", each.mean()), ("integral", 4 * math.pi * each.mean())):
        torch.testing.assert_close(sliced_loss(p, x, chosen, normalization), truth)


def test_random_slices_come_from_the_generator() -> None:
    p, x = random_mixture(seed=29), randn(20, 2, seed=30)
    state = torch.get_rng_state()
    values = [sliced_loss(p, x, 5, generator=torch.Generator().manual_seed(s)).item() for s in (1, 1, 2)]
    assert values[0] == values[1] != values[2]
    assert torch.equal(state, torch.get_rng_state())
    loss = SlicedCramerLoss(directions=5, generator=torch.Generator().manual_seed(1))
    assert loss(p, x).item() == values[0] != loss(p, x).item()
    chosen = directions.random(5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert sliced_loss(p, x, chosen).item() == pytest.approx(values[0], rel=1e-14)


@pytest.mark.parametrize("scheme", ["random", "orthogonal", "sobol"])
def test_slices_converge_to_the_exact_distance(scheme: str) -> None:
    """2048 slices of each scheme, and the heptagon for a round pair: its error is below a percent."""
    p, q = side("full", 3, 31), side("full", 3, 32)
    seed = {"seed": 33} if scheme == "sobol" else {"generator": torch.Generator().manual_seed(33)}
    chosen = getattr(directions, scheme)(2048, 3, dtype=torch.float64, **seed)
    torch.testing.assert_close(chosen.norm(dim=-1), torch.ones(2048, dtype=torch.float64))
    each = cramer_loss(p.project(chosen), q.project(chosen), reduction="none")
    error = 5 * each.std().item() / 2048**0.5
    assert sliced_loss(p, q, chosen).item() == pytest.approx(sliced_loss(p, q).item(), abs=error)
    assert error < 0.2 * sliced_loss(p, q).item()


def test_equal_angles_converge_geometrically() -> None:
    p, q = side("full", 2, 34), side("full", 2, 35)
    truth = sliced_loss(p, q, tolerance=1e-12).item()
    errors = [abs(sliced_loss(p, q, directions.equispaced(t, dtype=torch.float64)).item() - truth) for t in (7, 30, 90)]
    assert errors[0] < 0.05 * truth
    assert errors[1] < 1e-2 * errors[0]
    assert errors[2] < 1e-10


def test_more_slices_than_a_block() -> None:
    p, x = random_mixture(2, d=3, seed=36), randn(50, 3, seed=37)
    chosen = directions.random(23, 3, generator=torch.Generator().manual_seed(38), dtype=torch.float64)
    whole = sliced_loss(p, x, chosen, reduction="none")
    torch.testing.assert_close(sliced_loss(p, x, chosen, reduction="none", block=250), whole)


def test_the_distance_is_the_root() -> None:
    p, x = random_mixture(4, seed=39), randn(20, 2, seed=40)
    root = sliced_cramer_distance(p, MultivariateNormalMixture.from_samples(x))
    torch.testing.assert_close(root.square(), sliced_loss(p, x, reduction="none"))
    y = x.clone().requires_grad_()
    same = sliced_cramer_distance(y, x)
    assert same.item() < 1e-5
    assert torch.autograd.grad(same, y)[0].isfinite().all()


# Modules


@pytest.mark.parametrize(
    "loss",
    [
        SlicedCramerLoss(),
        SlicedCramerLoss(normalization="integral", reduction="sum", tolerance=1e-9, target_self_energy=False),
        SlicedCramerLoss(directions=5, generator=torch.Generator().manual_seed(1)),
        SlicedCramerLoss(
            directions=directions.equispaced(7, dtype=torch.float64), normalization="sum", reduction="none"
        ),
    ],
    ids=["exact", "options", "random", "heptagon"],
)
def test_modules_copy_and_pickle(loss: SlicedCramerLoss) -> None:
    p, x = random_mixture(9, seed=41), randn(9, 2, seed=42)
    others = [copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))]
    value = loss(p, x)
    for other in others:
        assert torch.equal(other(p, x), value)
        assert repr(other) == repr(loss)


def test_directions_of_a_module_follow_its_dtype() -> None:
    loss = SlicedCramerLoss(directions=directions.equispaced(7))
    p, x = random_mixture(seed=43), randn(9, 2, seed=44)
    assert loss.double()(p, x).dtype == torch.float64
    assert list(loss.state_dict()) == ["directions"]
    assert "7, 2" in repr(loss)


# Batches, kinds


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_its_elements(kind: str) -> None:
    p, x, q = random_mixture(5, kind=kind, d=3, seed=45), randn(5, 8, 3, seed=46), random_mixture(5, d=3, seed=47)
    for other, alone in ((x, lambda i: x[i]), (x[0], lambda i: x[0]), (q, lambda i: element(q, i))):
        together = sliced_loss(p, other, reduction="none")
        for i in range(5):
            assert together[i].item() == pytest.approx(sliced_loss(element(p, i), alone(i)).item(), abs=1e-6)
    together = sliced_loss(element(p, 0), x, reduction="none")
    for i in range(5):
        assert together[i].item() == pytest.approx(sliced_loss(element(p, 0), x[i]).item(), abs=1e-6)
    both = sliced_loss(x, x[0] + 1, reduction="none")
    for i in range(5):
        assert both[i].item() == pytest.approx(sliced_loss(x[i], x[0] + 1).item(), abs=1e-12)


def element(p: MultivariateNormalMixture, i: int) -> MultivariateNormalMixture:
    kind = p.covariance_kind
    return MultivariateNormalMixture(p.weights[i], p.means[i], kind.like(kind.values[i]))


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_are_their_matrices(kind: str) -> None:
    p, x = random_mixture(2, kind=kind, d=3, seed=48), randn(9, 3, seed=49)
    full = MultivariateNormalMixture(p.weights, p.means, p.covariances)
    for other in (x, *(random_mixture(d=3, kind=other, seed=50) for other in KINDS)):
        a, b = (sliced_loss(m, other, tolerance=1e-10, reduction="none") for m in (p, full))
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


@pytest.mark.parametrize("shared", [Tied(torch.eye(2).double() * 0.5), Diagonal(torch.full((1, 2), 0.5).double())])
def test_covariances_shared_by_components_and_batch(shared) -> None:
    p, x = random_mixture(4, seed=51), randn(9, 2, seed=52)
    own = MultivariateNormalMixture(p.weights, p.means, 0.5 * torch.eye(2).double().expand(4, 3, 2, 2))
    one = MultivariateNormalMixture(p.weights, p.means, shared)
    torch.testing.assert_close(
        sliced_loss(one, x, reduction="none"), sliced_loss(own, x, reduction="none"), rtol=0, atol=1e-7
    )
    batch = MultivariateNormalMixture(p.weights, p.means, shared.like(shared.values.expand(4, *shared.values.shape)))
    torch.testing.assert_close(sliced_loss(batch, x), sliced_loss(one, x))


def test_one_component_and_one_point() -> None:
    """E|X - y| - 1/2 E|X - X'| for a standard normal vector in the plane, at the origin and 2 away."""
    p = single(Spherical(torch.ones(1, dtype=torch.float64)), [0.0, 0.0])
    for gap in (0.0, 2.0):
        truth = factor_of(2) * (isotropic(gap, 1, 2) - 0.5 * isotropic(0, 2**0.5, 2))
        y = torch.tensor([[0.0, gap]], dtype=torch.float64)
        assert sliced_loss(p, y).item() == pytest.approx(truth, abs=1e-7)
        assert sliced_loss(y, p).item() == pytest.approx(truth, abs=1e-7)
    assert sliced_loss(y, y).item() == 0
    assert sliced_loss(y, 0 * y).item() == pytest.approx(2 * factor_of(2), rel=1e-15)


# Numbers


@pytest.mark.parametrize("size", [1e-150, 1e-40, 1e40, 1e150])
@pytest.mark.parametrize("kind", ["full", "spherical"])
def test_extreme_sizes(size: float, kind: str) -> None:
    p, x = random_mixture(kind=kind, seed=53), randn(9, 2, seed=54)
    scaled = MultivariateNormalMixture(p.weights, size * p.means, KINDS[kind](size**2 * p.covariance_kind.values))
    q = random_mixture(seed=55)
    scaled_q = MultivariateNormalMixture(q.weights, size * q.means, size**2 * q.covariances)
    for (a, b), (c, d) in (
        ((p, x), (scaled, size * x)),
        ((p, q), (scaled, scaled_q)),
        ((2 * x, x), (2 * size * x, size * x)),
    ):
        assert sliced_loss(c, d).item() / size == pytest.approx(sliced_loss(a, b).item(), abs=1e-6)


@pytest.mark.parametrize("size", [1e-15, 1e15])
@pytest.mark.parametrize("n", [9, 6001], ids=["small", "blocks"])
def test_extreme_sizes_in_float32(size: float, n: int) -> None:
    p, x = random_mixture(seed=56, dtype=torch.float32), randn(n, 2, seed=57, dtype=torch.float32)
    scaled = MultivariateNormalMixture(p.weights, size * p.means, size**2 * p.covariances)
    assert sliced_loss(scaled, size * x).item() / size == pytest.approx(sliced_loss(p, x).item(), rel=1e-5)


@pytest.mark.parametrize(("dtype", "offset"), [(torch.float64, 1e9), (torch.float32, 2.0**18)])
@pytest.mark.parametrize("n", [9, 6001], ids=["small", "blocks"])
def test_far_from_the_origin(dtype: torch.dtype, offset: float, n: int) -> None:
    """Points on a grid that the offset does not round, so that the loss is the same there."""
    p, x = random_mixture(seed=58, dtype=dtype), randn(n, 2, seed=59, dtype=dtype)
    means, x = (t.mul(16).round().div(16) for t in (p.means, x))
    here, there = (MultivariateNormalMixture(p.weights, means + o, p.covariances) for o in (0, offset))
    values = [sliced_loss(here, x).item(), sliced_loss(there, x + offset).item()]
    assert values[1] == pytest.approx(values[0], abs=1e-6 if dtype == torch.float64 else 5e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    p, x = random_mixture(seed=60, dtype=dtype, kind="factor"), randn(30, 2, seed=61, dtype=dtype)
    wide = MultivariateNormalMixture(
        p.weights.float(), p.means.float(), Factor(p.covariance_kind.values.float()), validate_args=False
    )
    for chosen in ("exact", directions.equispaced(5, dtype=dtype)):
        value = sliced_loss(p, x, chosen)
        assert value.dtype == torch.float32
        same = chosen if isinstance(chosen, str) else chosen.float()
        torch.testing.assert_close(value, sliced_loss(wide, x.float(), same))


@pytest.mark.parametrize("n", [30, 9000])
def test_autocast_changes_nothing(n: int) -> None:
    p, x = random_mixture(seed=62, dtype=torch.float32, kind="factor"), randn(n, 2, seed=63, dtype=torch.float32)
    for chosen in ("exact", directions.equispaced(5)):
        means = p.means.clone().requires_grad_()
        q = MultivariateNormalMixture(p.weights, means, p.covariance_kind)
        with torch.autocast("cpu", torch.bfloat16):
            inside = sliced_loss(q, x, chosen)
        (grad,) = torch.autograd.grad(inside, means)
        outside = sliced_loss(q, x, chosen)
        assert torch.equal(inside, outside)
        assert torch.equal(grad, torch.autograd.grad(outside, means)[0])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak of memory from /proc")
def test_memory_does_not_grow_with_the_pairs() -> None:
    """200,000 points and 8 components, 1.6 million pairs with 40 nodes: 256 MB for one array of them in float32."""
    script = """
import torch
from cramix import MultivariateNormalMixture, sliced_cramer_loss
def peak():
    return int(next(x for x in open("/proc/self/status") if x.startswith("VmHWM")).split()[1]) / 1024
def step(n):
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(0))
    means = torch.linspace(-2, 2, 16).view(8, 2).requires_grad_()
    p = MultivariateNormalMixture(torch.full((8,), 1 / 8), means, torch.eye(2).expand(8, 2, 2))
    sliced_cramer_loss(p, x, target_self_energy=False).backward()
step(1000)
before = peak()
step(200_000)
print(peak() - before)
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 1 < float(out.stdout) < 60


def test_batches_of_points_and_of_mixtures_broadcast() -> None:
    p, x = random_mixture(3, seed=1), randn(2, 1, 7, 2, seed=2)
    together = sliced_loss(p, x, reduction="none")
    assert together.shape == (2, 3)
    for i in range(2):
        torch.testing.assert_close(together[i], sliced_loss(p, x[i, 0], reduction="none"))
    y = randn(3, 7, 2, seed=3)
    p = random_mixture(2, 3, seed=4)
    together = sliced_loss(p, y, reduction="none")
    for i in range(3):
        alone = sliced_loss(random_mixture(2, 3, seed=4), y[i], reduction="none")
        torch.testing.assert_close(together[:, i], alone[:, i])


@pytest.mark.parametrize("d", [1, 2, 5])
def test_the_self_energy_of_points_can_be_left_out(d: int) -> None:
    p, x, w = random_mixture(d=d, seed=5), randn(40, d, seed=6), randn(40, seed=7).exp()
    w = w / w.sum()
    own = 0.5 * torch.einsum("i,ij,j->", w, torch.cdist(x, x), w)
    q = MultivariateNormalMixture.from_samples(x, w)
    without = sliced_loss(p, q, target_self_energy=False)
    assert without.item() - factor_of(d) * own.item() == pytest.approx(sliced_loss(p, q).item(), abs=3e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1e-30, 1e-3, 7.0, 1e30])
def test_directions_of_any_length(length: float, dtype: torch.dtype) -> None:
    p, x = random_mixture(d=3, seed=8, dtype=dtype), randn(20, 3, seed=9, dtype=dtype)
    directions = randn(5, 3, seed=10, dtype=dtype)
    expected = sliced_loss(p, x, directions)
    torch.testing.assert_close(sliced_loss(p, x, length * directions), expected)


def test_any_layout_in_memory() -> None:
    p, x = random_mixture(4, d=3, seed=14), randn(4, 20, 3, seed=15)
    weights, means, matrices = (
        t.permute(*reversed(range(t.ndim))).contiguous().permute(*reversed(range(t.ndim)))
        for t in (p.weights, p.means, p.covariances)
    )
    turned = MultivariateNormalMixture(weights, means, matrices)
    y = x.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert not y.is_contiguous()
    assert not means.is_contiguous()
    expected = sliced_loss(p, x, reduction="none")
    for a, b in ((turned, x), (p, y), (turned, y), (y, turned)):
        torch.testing.assert_close(sliced_loss(a, b, reduction="none"), expected)
    q = random_mixture(4, d=3, seed=16)
    torch.testing.assert_close(sliced_loss(turned, q), sliced_loss(p, q))
    torch.testing.assert_close(sliced_loss(y, x + 1), sliced_loss(x, x + 1))


def test_elements_of_a_batch_with_shared_points_do_not_disturb_each_other() -> None:
    """One far away, and one without any size: a point on the only point."""
    p, x = random_mixture(seed=17), randn(9, 2, seed=18)
    far = MultivariateNormalMixture(p.weights.expand(2, 3), torch.stack((p.means, p.means + 1e9)), p.covariances)
    values = sliced_loss(far, x, reduction="none").tolist()
    assert values[0] == pytest.approx(sliced_loss(p, x).item(), abs=1e-6)
    assert values[1] == pytest.approx(1e9 * 2**0.5 * factor_of(2), rel=1e-6)
    variances = torch.tensor([[0.0], [1e-18]], dtype=torch.float64)
    zeros = torch.zeros(2, 1, 2, dtype=torch.float64)
    none = MultivariateNormalMixture(torch.ones(2, 1, dtype=torch.float64), zeros, Spherical(variances))
    values = sliced_loss(none, zeros[0], reduction="none").tolist()
    # E|sZ| - 1/2 E|sqrt(2) sZ| with E|Z| = sqrt(pi / 2) in the plane
    assert values == pytest.approx([0, factor_of(2) * (math.pi / 2) ** 0.5 * (1 - 0.5**0.5) * 1e-9], abs=1e-15)


@pytest.mark.parametrize(
    ("k", "n", "outlier"), [*((k, n, x) for k, n in ((3, 100), (10, 2001)) for x in (0.0, 1e3, 1e5)), (1, 17_000, 1e3)]
)
def test_float32_keeps_one_in_a_million(k: int, n: int, outlier: float) -> None:
    p, x = random_mixture(k=k, seed=19, dtype=torch.float32), randn(n, 2, seed=20, dtype=torch.float32)
    x[0] += outlier
    truth = sliced_loss(p.to(torch.float64), x.double(), tolerance=1e-11).item()
    size = x.double().square().sum(-1).mean().sqrt().item()
    assert sliced_loss(p, x).item() == pytest.approx(truth, abs=1e-6 * size)


@pytest.mark.parametrize("d", [2, 5])
def test_many_equal_points_in_float32(d: int) -> None:
    """Half of them are one, whose distances to each other must come out as 0."""
    n = 17_000
    p, x = random_mixture(d=d, k=1, seed=70, dtype=torch.float32), randn(n, d, seed=71, dtype=torch.float32)
    x[: n // 2] = x[0]
    weights = torch.cat((torch.tensor([n / 2]), torch.ones(n // 2))).double()
    merged = MultivariateNormalMixture.from_samples(torch.cat((x[:1], x[n // 2 :])).double(), weights)
    truth = sliced_loss(p.to(torch.float64), merged, tolerance=1e-10).item()
    assert sliced_loss(p, x).item() == pytest.approx(truth, abs=1e-6)


def test_equal_points_feel_no_force_from_each_other() -> None:
    x = randn(40, 5, seed=72).requires_grad_()
    value = sliced_loss(x, x.detach()[torch.arange(39, -1, -1)])
    assert value < 1e-15
    assert torch.autograd.grad(value, x)[0].abs().max() < 1e-15


@pytest.mark.parametrize("weight", [0.0, 5e-324, 1e-200, 1e-40, 1e-12])
@pytest.mark.parametrize("kind", ["points", "full"])
def test_hardly_any_weight(weight: float, kind: str) -> None:
    """All but a far component of no weight is one point, so the far one alone gives the problem a size."""
    weights = torch.tensor([1 - weight, weight], dtype=torch.float64)
    means = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    p = MultivariateNormalMixture(weights, means, torch.zeros(2, 2, 2, dtype=torch.float64))
    q = means[:1] if kind == "points" else single(torch.zeros(1, 2, 2, dtype=torch.float64), [0.0, 0.0])
    # E|X - Y| - 1/2 E|X - X'| = 5 w - 5 w (1 - w)
    assert sliced_loss(p, q).item() == pytest.approx(factor_of(2) * 5 * weight**2, abs=1e-16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slices_without_the_self_energy_of_points(dtype: torch.dtype) -> None:
    """It is a constant for p: the loss is larger by the mean over slices, and has the same gradient."""
    p = random_mixture(seed=3, dtype=dtype)
    x = torch.randn(60, p.dim, dtype=dtype, generator=torch.Generator().manual_seed(1))
    directions = torch.randn(4, p.dim, dtype=dtype, generator=torch.Generator().manual_seed(2))
    lines = directions / directions.norm(dim=-1, keepdim=True) @ x.T
    energy = 0.5 * (lines.unsqueeze(-1) - lines.unsqueeze(-2)).abs().mean((-1, -2)).mean()
    means = p.means.clone().requires_grad_()
    moving = MultivariateNormalMixture(p.weights, means, p.covariances)
    whole, partial = (
        sliced_cramer_loss(moving, x, directions=directions, target_self_energy=wanted) for wanted in (True, False)
    )
    torch.testing.assert_close(partial, whole + energy)
    torch.testing.assert_close(*(torch.autograd.grad(loss, means)[0] for loss in (partial, whole)))
