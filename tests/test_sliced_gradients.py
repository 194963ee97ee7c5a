"""Hand-written gradients of the sliced distance: gradcheck, slices, bounds, singular covariances, precision."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from cramix import (
    Diagonal,
    Factor,
    Full,
    MultivariateNormalMixture,
    Spherical,
    Tied,
    directions,
)
from cramix.distance.energy.autograd import Operand, energy_distance
from cramix.mixture.covariance import Covariance
from tests.sliced_oracle import (
    KINDS,
    ball,
    circle,
    factor_of,
    over_slices,
    randn,
    random_mixture,
    random_values,
    sliced_loss,
)

TIGHT = 1e-12


def leaves(kind: str, *batch: int, k: int = 2, d: int = 2, seed: int) -> list[Tensor]:
    """Free tensors of a mixture: log weights, means, values of the covariances; for points log weights and places."""
    if kind == "points":
        return [t.requires_grad_() for t in (0.5 * randn(*batch, 4, seed=seed), randn(*batch, 4, d, seed=seed + 1))]
    values = random_values(kind, *batch, k=k, d=d, seed=seed + 2)
    return [t.requires_grad_() for t in (randn(*batch, k, seed=seed), randn(*batch, k, d, seed=seed + 1), values)]


def build(kind: str, tensors: list[Tensor]) -> MultivariateNormalMixture:
    weights = tensors[0].softmax(-1)
    if kind == "points":
        return MultivariateNormalMixture.from_samples(tensors[1], weights)
    # Differences step off the symmetric matrices, which the loss takes as their symmetric parts.
    return MultivariateNormalMixture(weights, tensors[1], KINDS[kind](tensors[2]), validate_args=False)


def check(p_kind: str, q_kind: str, a: list[Tensor], b: list[Tensor]) -> bool:
    def f(*t: Tensor) -> Tensor:
        p, q = build(p_kind, list(t[: len(a)])), build(q_kind, list(t[len(a) :]))
        return sliced_loss(p, q, tolerance=TIGHT, reduction="none")

    return gradcheck(f, (*a, *b), eps=1e-5, atol=1e-8, rtol=1e-6)


# Differences


@pytest.mark.parametrize("other", ["points", "mixture"])
@pytest.mark.parametrize("kind", [*KINDS, "points"])
def test_differences(kind: str, other: str) -> None:
    q_kind = kind if other == "mixture" else other
    a, b = leaves(kind, d=3, seed=1), leaves(q_kind, d=3, seed=11)
    assert check(kind, q_kind, a, b)
    if kind != q_kind:
        assert check(q_kind, kind, b, a)


@pytest.mark.parametrize(
    ("p_kind", "q_kind"), [("spherical", "diagonal"), ("diagonal", "full"), ("tied", "spherical"), ("factor", "tied")]
)
def test_differences_across_kinds(p_kind: str, q_kind: str) -> None:
    assert check(p_kind, q_kind, leaves(p_kind, d=2, seed=2), leaves(q_kind, d=2, seed=12))


@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("full", (2,), (2,)),
        ("tied", (2, 1), (2,)),
        ("factor", (2,), ()),
        ("spherical", (), (2,)),
        ("diagonal", (2,), (1, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("other", ["points", "full"])
def test_differences_in_batches(kind: str, other: str, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    assert check(kind, other, leaves(kind, *first, seed=3), leaves(other, *second, seed=13))


@pytest.mark.parametrize("d", [1, 5])
def test_differences_in_other_dimensions(d: int) -> None:
    for other in ("points", "full"):
        assert check("full", other, leaves("full", d=d, seed=4), leaves(other, d=d, seed=14))


def test_differences_without_the_target_self_energy() -> None:
    a, b = leaves("full", seed=8), leaves("points", seed=15)

    def f(*t: Tensor) -> Tensor:
        return sliced_loss(build("full", t[:3]), build("points", t[3:]), target_self_energy=False, tolerance=TIGHT)

    assert gradcheck(f, (*a, *b), eps=1e-5, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("q", [randn(9, 2, seed=55), random_mixture(seed=56)], ids=["points", "mixture"])
def test_derivatives_of_raw_weights_are_those_of_the_normalised_ones(q) -> None:
    p = random_mixture(seed=57)
    weights = p.weights.clone().requires_grad_()

    def of_raw(w: Tensor) -> Tensor:
        mixture = MultivariateNormalMixture(w, p.means, p.covariances, validate_args=False)
        return sliced_loss(mixture, q, tolerance=TIGHT)

    assert gradcheck(of_raw, (weights,), eps=1e-5, atol=1e-8)
    (grad,) = torch.autograd.grad(of_raw(weights), weights)
    assert (weights * grad).sum().abs() < 1e-14


def test_differences_notice_one_percent() -> None:
    a, b = leaves("full", seed=6), leaves("points", seed=16)

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return 1.01 * grad

    def f(means: Tensor) -> Tensor:
        p = build("full", [a[0], Wrong.apply(means), a[2]])
        return sliced_loss(p, build("points", b), tolerance=TIGHT)

    assert not gradcheck(f, (a[1],), eps=1e-5, atol=1e-8, rtol=1e-6, raise_exception=False)


@pytest.mark.parametrize("wanted", range(5))
def test_some_tensors_alone_have_the_same_gradients(wanted: int) -> None:
    tensors = [*leaves("full", seed=7), *leaves("points", seed=17)]

    def f(t: list[Tensor]) -> Tensor:
        return sliced_loss(build("full", t[:3]), build("points", t[3:]))

    expected = torch.autograd.grad(f(tensors), tensors)[wanted]
    some = [t if i == wanted else t.detach() for i, t in enumerate(tensors)]
    torch.testing.assert_close(torch.autograd.grad(f(some), some[wanted])[0], expected)
    with torch.no_grad():
        value = f(some)
    assert not value.requires_grad
    torch.testing.assert_close(value, f(tensors).detach(), rtol=0, atol=1e-12)


# Against the derivatives of slices: covariances with repeated, nearly repeated, tiny and no eigenvalues


def slice_gradients(p: MultivariateNormalMixture, q: MultivariateNormalMixture, tensors: list[Tensor]) -> list[Tensor]:
    rule = circle(3000) if p.dim == 2 else ball(150)
    return list(torch.autograd.grad(over_slices(p, q, *rule), tensors))


def agree(ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> bool:
    """Whether gradients are within the tolerance of the largest of each kind, covariances as symmetric ones."""
    for a, b in zip(ours, theirs, strict=True):
        a, b = ((t + t.mT) / 2 if t.ndim == 3 and t.shape[-1] == t.shape[-2] else t for t in (a, b))
        if not a.isfinite().all() or (a - b).abs().max() > tolerance * max(1e-3, b.abs().max().item()):
            return False
    return True


def thin(gap: float) -> Tensor:
    """Covariances in the plane, turned, with eigenvalues 1 and 1 + gap."""
    turn = torch.tensor([[0.8, -0.6], [0.6, 0.8]], dtype=torch.float64)
    return turn @ torch.diag(torch.tensor([1.0, 1.0 + gap], dtype=torch.float64)) @ turn.T


@pytest.mark.parametrize("to", ["points", "mixture"])
@pytest.mark.parametrize("gap", [0.0, 1e-15, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1.0])
def test_nearly_repeated_eigenvalues(gap: float, to: str) -> None:
    matrices = torch.stack((thin(gap), 0.3 * thin(3 * gap))).requires_grad_()
    weights, means = torch.tensor([0.4, 0.6], dtype=torch.float64), randn(2, 2, seed=20).requires_grad_()
    p = MultivariateNormalMixture(weights, means, matrices)
    q = random_mixture(seed=21) if to == "mixture" else MultivariateNormalMixture.from_samples(randn(30, 2, seed=22))
    ours = list(torch.autograd.grad(sliced_loss(p, q, tolerance=1e-13), (means, matrices)))
    theirs = slice_gradients(p, q, [means, matrices])
    assert agree(ours, theirs, 1e-8)
    assert not agree([1.01 * t for t in ours], theirs, 1e-8), "one percent would not be noticed"


@pytest.mark.parametrize("gap", [0.0, 1e-12, 1e-6, 1e-3])
def test_nearly_repeated_eigenvalues_in_space(gap: float) -> None:
    matrices = torch.diag_embed(torch.tensor([[1.0, 1 + gap, 1 - 2 * gap]], dtype=torch.float64)).requires_grad_()
    means = torch.tensor([[0.5, -0.2, 0.1]], dtype=torch.float64).requires_grad_()
    p = MultivariateNormalMixture(torch.ones(1, dtype=torch.float64), means, matrices)
    q = random_mixture(d=3, seed=23)
    ours = list(torch.autograd.grad(sliced_loss(p, q, tolerance=1e-13), (means, matrices)))
    assert agree(ours, slice_gradients(p, q, [means, matrices]), 1e-7)


@pytest.mark.parametrize("ratio", [1.001, 1.03, 1.3, 6.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_narrow_component_among_points_near_and_far(ratio: float, dtype: torch.dtype) -> None:
    """Slopes of the near ones change fast with the variance, those of the far ones hardly: which shall decide?"""
    x = torch.cat((0.01 * randn(20, 2, seed=50), 10 * randn(20, 2, seed=51)))
    n = 40
    if dtype == torch.float32:
        x, n = x.float().double().repeat(450, 1), 40 * 450
    matrices = (1e-3 * thin(ratio - 1)).to(dtype).unsqueeze(0).requires_grad_()
    means = torch.full((1, 2), 0.125, dtype=dtype)
    p = MultivariateNormalMixture(torch.ones(1, dtype=dtype), means, matrices)
    ours = torch.autograd.grad(sliced_loss(p, x.to(dtype), tolerance=1e-12, target_self_energy=False), matrices)
    same = matrices.detach().double().requires_grad_()
    p = MultivariateNormalMixture(torch.ones(1, dtype=torch.float64), means.double(), same)
    q = MultivariateNormalMixture.from_samples(x[:40])
    theirs = torch.autograd.grad(over_slices(p, q, *circle(20_000)), same)
    assert len(x) == n
    assert agree([ours[0].double()], list(theirs), 1e-7 if dtype == torch.float64 else 3e-4)


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("to", ["points", "mixture"])
def test_factors_of_low_rank(rank: int, to: str) -> None:
    """In the plane rank 1 has flat slices: there the rule of slices converges slowly, to 2e-3 here."""
    factors, means = randn(2, rank, 2, seed=24).requires_grad_(), randn(2, 2, seed=25).requires_grad_()
    p = MultivariateNormalMixture(torch.tensor([0.3, 0.7], dtype=torch.float64), means, Factor(factors))
    q = random_mixture(seed=26) if to == "mixture" else MultivariateNormalMixture.from_samples(randn(30, 2, seed=27))
    ours = list(torch.autograd.grad(sliced_loss(p, q, tolerance=1e-13), (means, factors)))
    theirs = slice_gradients(p, q, [means, factors])
    assert agree(ours, theirs, 2e-3 if rank == 1 else 1e-8)
    assert not agree([1.01 * t for t in ours], theirs, 2e-3)


@pytest.mark.parametrize("kind", ["full", "factor", "spherical", "diagonal"])
def test_no_covariance(kind: str) -> None:
    """dE|delta + Z| / dA = (I - delta delta^T / |delta|^2) / (2 |delta|), which the slices have in the mean too."""
    places = torch.tensor([[1.0, 0.5], [-2.0, 1.0], [0.3, -0.4]], dtype=torch.float64)
    zero = {"full": (1, 2, 2), "factor": (1, 2, 2), "spherical": (1,), "diagonal": (1, 2)}[kind]
    values = torch.zeros(zero, dtype=torch.float64, requires_grad=True)
    means = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    p = MultivariateNormalMixture(torch.ones(1, dtype=torch.float64), means, KINDS[kind](values))
    for_values, for_means = torch.autograd.grad(sliced_loss(p, places, tolerance=1e-10), (values, means))
    length = places.norm(dim=-1)
    unit = places / length.unsqueeze(-1)
    matrices = (torch.eye(2).double() - unit.unsqueeze(-1) * unit.unsqueeze(-2)) / (2 * length[:, None, None])
    # A component's energy grows with the root of its variance, which has no derivative at 0; its convention is 0.
    expected = factor_of(2) * matrices.mean(0)
    expected = {
        "full": expected,
        "factor": 0 * expected,
        "spherical": expected.trace(),
        "diagonal": expected.diagonal(),
    }[kind]
    torch.testing.assert_close(for_means[0], -factor_of(2) * unit.mean(0))
    torch.testing.assert_close(for_values[0], expected)


AWKWARD: dict[str, Covariance] = {
    "isotropic": Full(torch.eye(3).expand(2, 3, 3)),
    "zero": Full(torch.zeros(2, 3, 3)),
    "tiny": Full(1e-30 * torch.eye(3).expand(2, 3, 3)),
    "narrow": Full(torch.stack((torch.eye(3), 1e-12 * torch.eye(3)))),
    "flat": Full(torch.diag_embed(torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]))),
    "tied": Tied(torch.ones(3, 3)),
    "rank one": Factor(torch.ones(2, 1, 3)),
    "no factor": Factor(torch.zeros(2, 3, 3)),
    "wide and thin": Diagonal(torch.tensor([[1e-8, 1.0, 1e3], [0.0, 1e3, 1e-6]])),
    "points": Spherical(torch.zeros(2)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("blocks", [False, True])
def test_awkward_covariances_have_finite_bounded_gradients(name: str, dtype: torch.dtype, blocks: bool) -> None:
    """Against points of which one lies on a mean, another nearly, and against the mixture itself.

    With blocks of 300 numbers, 301 points are too many to be computed in float64.
    """
    n, block = 301, 300 if blocks else None
    kind = AWKWARD[name]
    values = kind.values.to(dtype).clone().requires_grad_()
    weights = torch.tensor([0.25, 0.75], dtype=dtype, requires_grad=True)
    means = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]], dtype=dtype, requires_grad=True)
    x = randn(n, 3, seed=28, dtype=dtype)
    x[0], x[1], x[2] = means[0].detach(), means[1].detach(), means[1].detach() + 1e-7
    x.requires_grad_()
    p = MultivariateNormalMixture(weights, means, kind.like(values))
    same = MultivariateNormalMixture(weights.detach(), means.detach(), kind.like(values.detach()))
    for q, tensors in ((x, (weights, means, values, x)), (same, (weights, means, values))):
        loss = sliced_loss(p, q, block=block)
        grads = torch.autograd.grad(loss, tensors)
        assert loss.isfinite()
        assert all(g.isfinite().all() for g in grads)
        assert (grads[1].norm(dim=-1) <= 2 * factor_of(3) * weights * (1 + 1e-4)).all()
        if q is x:
            assert (grads[3].norm(dim=-1) <= 2 * factor_of(3) / n * (1 + 1e-3)).all()


# Float32, blocks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("k", "n", "d"), [(3, 50, 2), (7, 3001, 2), (4, 5003, 5), (130, 129, 3)])
def test_float32_gradients(kind: str, k: int, n: int, d: int) -> None:
    """Against float64, in one piece and in several blocks of odd sizes."""
    grads = []
    for dtype in (torch.float32, torch.float64):
        p, x = random_mixture(k=k, d=d, kind=kind, seed=29, dtype=torch.float32), randn(n, d, seed=30).float()
        tensors = [t.to(dtype).requires_grad_() for t in (p.weights, p.means, p.covariance_kind.values, x)]
        mixture = MultivariateNormalMixture(*tensors[:2], KINDS[kind](tensors[2]))
        grads.append(torch.autograd.grad(sliced_loss(mixture, tensors[3], tolerance=1e-6), tensors))
    for a, b in zip(*grads, strict=True):
        assert (a - b).abs().max() <= 1e-4 * b.abs().max()


@pytest.mark.parametrize("kind", ["full", "spherical"])
def test_blocks_change_nothing(kind: str) -> None:
    p, x, q = (
        random_mixture(2, k=5, d=3, kind=kind, seed=31),
        randn(2, 601, 3, seed=32),
        random_mixture(2, d=3, seed=33),
    )

    def results(block: int | None = None) -> list[Tensor]:
        found = []
        for other in (x, q):
            tensors = [t.clone().requires_grad_() for t in (p.weights, p.means, p.covariance_kind.values)]
            y = other.clone().requires_grad_() if isinstance(other, Tensor) else other
            loss = sliced_loss(MultivariateNormalMixture(*tensors[:2], KINDS[kind](tensors[2])), y, block=block)
            found += [loss, *torch.autograd.grad(loss, [*tensors, y] if isinstance(y, Tensor) else tensors)]
        return found

    whole = results()
    for a, b in zip(results(block=10_007), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


# Bounds


@pytest.mark.parametrize("normalization", ["mean", "integral", "sum"])
@pytest.mark.parametrize("spread", [0.1, 1.0, 1e3])
@pytest.mark.parametrize("d", [2, 6])
def test_gradients_are_bounded_by_the_weight(d: int, spread: float, normalization: str) -> None:
    """Theorem 6, tighter: a slice has |d/dm| <= (2 - w) w and |d/ds| <= sqrt(2 / pi) w, and means turn with |cos|.

    The mean over directions e of |<g, e>| is |g| c_d; m = <mean, e> and s = |S e|, so ds / dS = u e^T with |u| = 1.
    """
    p = random_mixture(20, k=4, d=d, kind="factor", seed=34)
    w = p.weights
    means, factors = (spread * p.means).requires_grad_(), p.covariance_kind.values.clone().requires_grad_()
    mixture = MultivariateNormalMixture(w, means, Factor(factors))
    chosen = directions.random(50, d, generator=torch.Generator().manual_seed(35), dtype=torch.float64)
    area = 2 * math.pi ** (d / 2) / math.gamma(d / 2)
    slices = normalization == "sum"
    total = {"mean": 1.0, "integral": area, "sum": 50.0}[normalization]
    for q in (spread * randn(30, d, seed=36), random_mixture(20, d=d, seed=37)):
        loss = sliced_loss(mixture, q, chosen if slices else "exact", normalization, reduction="sum")
        for_means, for_factors = torch.autograd.grad(loss, (means, factors))
        bound = total * w * (1 + 1e-6) * (1 if slices else factor_of(d))
        assert (for_means.norm(dim=-1) <= 2 * bound).all()
        assert (for_factors.flatten(-2).norm(dim=-1) <= (2 / math.pi) ** 0.5 * total * w * (1 + 1e-6)).all()
        assert max(for_means.norm(dim=-1).max(), for_factors.flatten(-2).norm(dim=-1).max()) <= 4 * total


def test_the_bound_for_means_is_reached() -> None:
    """A light component between the rest of its mixture and a far target: both pull it the same way, by w c_d each."""
    w = 1e-6
    means = torch.tensor([[0.0, 0.0], [0.0, 50.0]], dtype=torch.float64, requires_grad=True)
    p = MultivariateNormalMixture(
        torch.tensor([w, 1 - w], dtype=torch.float64), means, Spherical(torch.full((2,), 1e-4, dtype=torch.float64))
    )
    (grad,) = torch.autograd.grad(sliced_loss(p, torch.tensor([[0.0, -100.0]], dtype=torch.float64)), means)
    assert grad[0, 1].item() == pytest.approx(2 * w * factor_of(2), rel=1e-5)


def test_unbiased_sample_gradients() -> None:
    """The mean gradient to samples of Q is the gradient to Q.

    400 independent batches of 6; each of the 14 coordinates is off by more than 4.5 standard errors with probability
    7e-6, so a right gradient fails for one seed in 10,000. The seed is fixed.
    """
    tensors, q = leaves("full", seed=38), random_mixture(seed=39)
    truth = torch.autograd.grad(sliced_loss(build("full", tensors), q, tolerance=1e-9), tensors)
    y = q.sample((400, 6), generator=torch.Generator().manual_seed(40))
    spread = [t.expand(400, *t.shape) for t in tensors]
    grown = [t.detach().clone().requires_grad_() for t in spread]
    each = torch.autograd.grad(sliced_loss(build("full", grown), y, reduction="sum"), grown)
    for g, t in zip(each, truth, strict=True):
        error = g.std(0) / 400**0.5
        assert ((g.mean(0) - t).abs() <= 4.5 * error + 1e-12).all()
    # A factor like 1 - 1/n would be seen.
    assert (truth[1] / 6).abs().max() > 4.5 * (each[1].std(0) / 400**0.5).min()


@pytest.mark.parametrize("directions", ["exact", 3])
def test_an_empty_batch_has_empty_gradients(directions: str | int) -> None:
    p = random_mixture(0, seed=1)
    tensors = [t.clone().requires_grad_() for t in (p.weights, p.means, p.covariances)]
    for q in (random_mixture(seed=2), randn(5, 2, seed=3)):
        value = sliced_loss(MultivariateNormalMixture(*tensors), q, directions, reduction="sum")
        assert value.item() == 0
        assert [g.shape for g in torch.autograd.grad(value, tensors)] == [t.shape for t in tensors]


@pytest.mark.parametrize("q", [randn(9, 2, seed=53), random_mixture(seed=54)], ids=["points", "mixture"])
def test_a_loss_below_zero_by_rounding_keeps_its_gradient(q) -> None:
    """A self energy that is too large by 100 takes the distance below zero."""
    p = random_mixture(seed=52)
    means = p.means.clone().requires_grad_()
    moving = Operand(MultivariateNormalMixture(p.weights, means, p.covariances))
    q = MultivariateNormalMixture.from_samples(q) if isinstance(q, Tensor) else q
    expected = torch.autograd.grad(energy_distance(moving, Operand(q), 1e-7), means)[0]
    value = energy_distance(moving, Operand(q, torch.full((1,), 100.0, dtype=torch.float64)), 1e-7)
    assert value == 0
    torch.testing.assert_close(torch.autograd.grad(value, means)[0], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("points", [False, True])
def test_a_second_derivative_is_refused(points: bool) -> None:
    """Not left out in silence, as in a gradient penalty on top of the loss."""
    p, q = random_mixture(seed=5), randn(9, 2, seed=6) if points else random_mixture(seed=6)
    means = p.means.clone().requires_grad_()
    value = sliced_loss(MultivariateNormalMixture(p.weights, means, p.covariances), q)
    (grad,) = torch.autograd.grad(value, means, create_graph=True)
    torch.testing.assert_close(grad, torch.autograd.grad(value, means, retain_graph=True)[0])
    with pytest.raises(RuntimeError, match="first derivatives only"):
        (value + grad.square().sum()).backward()


def test_second_derivatives_are_refused_however_they_are_asked_for() -> None:
    x, m = randn(40, 2, seed=50), randn(2, 2, seed=51)
    weights, spread = torch.tensor([0.5, 0.5], dtype=torch.float64), Diagonal(torch.ones(1, 2, dtype=torch.float64))

    def loss(means: Tensor) -> Tensor:
        return sliced_loss(MultivariateNormalMixture(weights, means, spread), x)

    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.functional.hessian(loss, m)
    means = m.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(means), means, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(gradient.sum(), means)
