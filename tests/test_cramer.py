"""The Cramér loss, distance and CRPS against mpmath, scipy and scoringrules."""

from __future__ import annotations

import pytest
import scipy.integrate
import scipy.stats
import scoringrules
import torch

from cramix import CramerLoss, NormalMixture, cramer_distance, cramer_loss, crps
from cramix.distance.cramer.atoms import self_energy
from cramix.distance.cramer.distance import cramer_squared
from cramix.distance.cramer.ladder import IMPLEMENTATIONS
from cramix.distance.cramer.signature import Operand, Problem
from tests import oracle


def test_closed_form_is_the_integral_of_the_squared_difference() -> None:
    p, q = oracle.random_mixture(3, seed=0), oracle.random_mixture(5, seed=1)

    def squared(x: float) -> float:
        at = torch.tensor(x, dtype=torch.float64)
        return (p.cdf(at) - q.cdf(at)).item() ** 2

    integral = scipy.integrate.quad(squared, -60, 60, limit=1000, epsabs=1e-13, epsrel=1e-13)[0]
    assert cramer_loss(p, q).item() == pytest.approx(integral, rel=1e-10)
    assert oracle.cramer(p, q) == pytest.approx(integral, rel=1e-10)


def test_the_comparison_with_the_oracle_notices_one_percent() -> None:
    p, q = oracle.random_mixture(3, seed=0), oracle.random_mixture(5, seed=1)
    wrong = NormalMixture(q.weights, q.means * 1.01, q.scales)
    assert cramer_loss(p, wrong).item() != pytest.approx(oracle.cramer(p, q), rel=1e-10)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 3), (2, 9), (40, 7)])
def test_mixture_to_mixture(n: int, m: int, dtype: torch.dtype, tolerance: float) -> None:
    p, q = oracle.random_mixture(5, n, seed=n, dtype=dtype), oracle.random_mixture(5, m, seed=m + 50, dtype=dtype)
    truth = [oracle.cramer(a, b) for a, b in zip(oracle.batch(p), oracle.batch(q), strict=True)]
    loss = cramer_loss(p, q, reduction="none")
    assert loss.dtype == dtype
    assert loss.tolist() == pytest.approx(truth, rel=tolerance)


@pytest.mark.parametrize("weighted", [False, True])
def test_mixture_to_samples(weighted: bool) -> None:
    p = oracle.random_mixture(4, 3, seed=2)
    y, w = torch.randn(2, 4, 50, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    atoms = NormalMixture.from_samples(y, w.exp() if weighted else None)
    truth = [oracle.cramer(a, b) for a, b in zip(oracle.batch(p), oracle.batch(atoms), strict=True)]
    assert cramer_loss(p, atoms, reduction="none").tolist() == pytest.approx(truth, rel=1e-10)
    assert cramer_loss(atoms, p, reduction="none").tolist() == pytest.approx(truth, rel=1e-10)


def test_samples_to_samples_is_half_the_squared_energy_distance() -> None:
    x, y = (torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in (40, 70))
    a, b = x.abs(), y.exp()
    plain = scipy.stats.energy_distance(x, y) ** 2 / 2
    weighted = scipy.stats.energy_distance(x, y, a, b) ** 2 / 2
    assert cramer_squared(x, y).item() == pytest.approx(plain, rel=1e-12)
    of_weighted = cramer_loss(NormalMixture.from_samples(x, a), NormalMixture.from_samples(y, b))
    assert of_weighted.item() == pytest.approx(weighted, rel=1e-12)


def test_atoms_by_zero_scales_and_by_samples_agree() -> None:
    x, y = (torch.randn(6, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in (1, 2))
    atoms = [NormalMixture(torch.full_like(z, 1 / 6), z, torch.zeros_like(z)) for z in (x, y)]
    assert cramer_loss(*atoms).item() == pytest.approx(cramer_squared(x, y).item(), rel=1e-12)
    assert cramer_loss(atoms[0], y).item() == pytest.approx(cramer_squared(x, y).item(), rel=1e-12)


@pytest.mark.parametrize(
    "batch", [((), ()), ((), (4,)), ((4,), ()), ((3, 1), (4,)), ((2, 3, 4), (3, 4)), ((0,), ()), ((1, 1), ())]
)
@pytest.mark.parametrize("kind", ["mixture", "samples"])
def test_batch_shapes_broadcast(batch: tuple[tuple[int, ...], tuple[int, ...]], kind: str) -> None:
    p, q = oracle.random_mixture(*batch[0], 3, seed=4), oracle.random_mixture(*batch[1], 5, seed=5)
    other = q if kind == "mixture" else NormalMixture.from_samples(q.means)
    loss = cramer_squared(p, other)
    shape = torch.broadcast_shapes(*batch)
    assert loss.shape == shape
    flat = [m.expand(shape) for m in (p, q)]
    for index in torch.cartesian_prod(*(torch.arange(n) for n in shape)).reshape(-1, len(shape)) if shape else [()]:
        at = tuple(index)
        a, b = (NormalMixture(m.weights[at], m.means[at], m.scales[at]) for m in flat)
        truth = oracle.cramer(a, b if kind == "mixture" else NormalMixture.from_samples(b.means))
        assert loss[at].item() == pytest.approx(truth, rel=1e-10)


@pytest.mark.parametrize("block", [28, 256, 4000])
@pytest.mark.parametrize("shapes", [((3,), (200,)), ((200,), (3,)), ((40, 3), (40, 4)), ((5, 3), (4,)), ((60,), (60,))])
def test_blocks_change_nothing(shapes: tuple, block: int) -> None:
    p = [t.requires_grad_() for t in oracle.random_parameters(*shapes[0], seed=6)]
    q = [t.requires_grad_() for t in oracle.random_parameters(*shapes[1], seed=7)]

    def results(block: int | None) -> list[torch.Tensor]:
        loss = cramer_squared(NormalMixture(*p), NormalMixture(*q), backend="blocked", block=block).mean()
        return [loss, *torch.autograd.grad(loss, [*p, *q])]

    for a, b in zip(results(None), results(block), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("backend", ["blocked", "small", "compiled"])
@pytest.mark.parametrize("atoms", [False, True])
def test_every_implementation_is_the_reference(backend: str, atoms: bool) -> None:
    """Losses and gradients of all tensors, with weights of any sum."""
    if backend == "small" and atoms:
        pytest.skip("it is for mixtures")
    p, q = ([2 * w, m, s] for w, m, s in (oracle.random_parameters(4, 3, seed=seed) for seed in (17, 18)))
    a, b = Operand(*p), Operand(*q[:2], None if atoms else q[2])
    energy = self_energy(b.means, b.weights) if atoms else None
    found, truth = (IMPLEMENTATIONS[name](Problem(a, b, energy, True, True)) for name in (backend, "reference"))
    for ours, theirs in zip(found, truth, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-14)
    assert IMPLEMENTATIONS[backend](Problem(a, b, energy, False, False))[1:] == (None, None)


def test_crps_equals_scoringrules() -> None:
    p = oracle.random_mixture(30, 4, seed=8)
    y = torch.randn(30, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    theirs = scoringrules.crps_mixnorm(y.numpy(), p.means.numpy(), p.scales.numpy(), p.weights.numpy(), backend="numpy")
    assert crps(p, y).tolist() == pytest.approx(theirs.tolist(), rel=1e-12)


def test_crps_of_many_observations_under_one_mixture() -> None:
    p = oracle.random_mixture(4, seed=10)
    y = torch.linspace(-5, 5, 7, dtype=torch.float64)
    each = [oracle.cramer(p, NormalMixture.from_samples(x.reshape(1))) for x in y]
    assert crps(p, y).tolist() == pytest.approx(each, rel=1e-12)


def test_reductions_and_module_twin() -> None:
    p, q = oracle.random_mixture(6, 3, seed=11), oracle.random_mixture(6, 3, seed=12)
    none = cramer_loss(p, q, reduction="none")
    for reduction, expected in {"none": none, "mean": none.mean(), "sum": none.sum()}.items():
        torch.testing.assert_close(cramer_loss(p, q, reduction=reduction), expected)
        torch.testing.assert_close(CramerLoss(reduction=reduction)(p, q), expected)
    assert repr(CramerLoss(reduction="sum")) == "CramerLoss(reduction='sum')"


def test_distance_is_the_root_with_derivative_zero_at_zero() -> None:
    w, m, s = oracle.random_parameters(3, seed=13)
    m.requires_grad_()
    p = NormalMixture(w, m, s)
    q = oracle.random_mixture(3, seed=14)
    assert cramer_distance(p, q).item() == pytest.approx(oracle.cramer(p, q) ** 0.5, rel=1e-10)
    (grad,) = torch.autograd.grad(cramer_distance(p, p), m)
    assert grad.tolist() == [0, 0, 0]


def test_weights_count_up_to_their_sum() -> None:
    """Float32 weights sum to one only up to rounding; the loss is that of the normalised measures."""
    p, q = oracle.random_mixture(3, seed=15), oracle.random_mixture(3, seed=16)
    scaled = NormalMixture(p.weights * (1 + 5e-7), p.means, p.scales)
    assert cramer_loss(scaled, q).item() == pytest.approx(cramer_loss(p, q).item(), rel=1e-12)


def test_nan_is_no_match() -> None:
    """Where values are not checked, a distance must not turn NaN into 0."""
    good = oracle.random_mixture(2, seed=20)
    bad = NormalMixture(good.weights, good.means * torch.nan, good.scales, validate_args=False)
    assert cramer_distance(bad, good).isnan()
    assert cramer_distance(good, good) == 0
