"""The cancellation the paper leaves open: relative accuracy down to 1e-12 of the scale, for all shapes."""

from __future__ import annotations

import math

import pytest
import torch

from cramix import NormalMixture, cramer_loss
from cramix.distance.cramer.cancellation import THRESHOLD
from tests import oracle


def perturbed(p: NormalMixture, size: float, seed: int, what: str = "all") -> NormalMixture:
    """p moved by about `size`; weights by a relative amount, means and scales in units of the scales."""
    g = torch.Generator().manual_seed(seed)
    noise = [torch.randn(p.means.shape, generator=g, dtype=torch.float64) for _ in range(3)]
    weights, means, scales = (t.double() for t in (p.weights, p.means, p.scales))
    if what in ("all", "weights"):
        weights = weights * (1 + size * noise[0]).abs()
    if what in ("all", "means"):
        means = means + size * torch.where(scales > 0, scales, 1) * noise[1]
    if what in ("all", "scales"):
        scales = scales * (1 + size * noise[2]).abs()
    return cast(NormalMixture(weights / weights.sum(), means, scales), p.means.dtype)


def cast(p: NormalMixture, dtype: torch.dtype) -> NormalMixture:
    weights = p.weights.to(dtype)
    return NormalMixture(weights / weights.sum(), p.means.to(dtype), p.scales.to(dtype))


def mixture(weights: list[float], means: list[float], scales: list[float]) -> NormalMixture:
    return NormalMixture(*(torch.tensor(x, dtype=torch.float64) for x in (weights, means, scales)))


SHAPES = {
    "one": mixture([1.0], [0.3], [1.0]),
    "three, spread 30": oracle.random_mixture(3, seed=1, spread=30.0),
    "overlapping": oracle.random_mixture(6, seed=2, spread=0.3),
    "many": oracle.random_mixture(40, seed=3, spread=5.0),
    "very different scales": mixture([0.2, 0.5, 0.3], [0.0, 1.0, -300.0], [1e-8, 1.0, 1e4]),
    "far apart": mixture([0.3, 0.3, 0.4], [0.0, 1e6, -1e6], [1.0, 2.0, 0.5]),
    "large offset": oracle.random_mixture(4, seed=4).affine(1e6, 1.0),
    "tiny": oracle.random_mixture(4, seed=5).affine(0.0, 1e-8),
    "huge": oracle.random_mixture(4, seed=6).affine(0.0, 1e8),
    "atoms and normals": mixture([0.2, 0.3, 0.1, 0.4], [0.0, 1.0, 2.0, -1.0], [0.0, 1.0, 0.0, 0.3]),
    "narrow, far from 0": mixture([0.5, 0.5], [1697.1, 4710.6], [1e-6, 3e-6]),
    "narrow with a light broad one": mixture([4e-4, 1 - 4e-4], [0.0, 0.0], [2721.0, 5e-4]),
    "unequal weights": mixture([1 - 2e-6, 1e-6, 1e-6], [0.0, 50.0, -30.0], [1.0, 3.0, 0.1]),
}
SIZES = [1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7]


@pytest.mark.parametrize("what", ["all", "weights", "means", "scales"])
@pytest.mark.parametrize("name", SHAPES)
def test_float64_is_right_to_1e10_above_1e12_of_the_scale(name: str, what: str) -> None:
    p = SHAPES[name]
    checked = 0
    for k, size in enumerate(SIZES):
        q = perturbed(p, size, seed=k, what=what)
        truth, scale = oracle.parts(p, q)
        if truth > 1e-12 * scale:
            checked += 1
            assert abs(cramer_loss(p, q).item() / truth - 1) < 1e-10, (size, float(truth / scale))
    assert checked or (name, what) == ("one", "weights")


@pytest.mark.parametrize("name", SHAPES)
def test_float32_is_right_to_1e3_above_1e10_of_the_scale(name: str) -> None:
    p = cast(SHAPES[name], torch.float32)
    checked = 0
    for k, size in enumerate(SIZES):
        q = perturbed(p, size, seed=k)
        truth, scale = oracle.parts(p, q)
        if truth > 1e-10 * scale:
            checked += 1
            assert abs(cramer_loss(p, q).item() / truth - 1) < 1e-3, (size, float(truth / scale))
    assert checked >= 2


def test_float32_in_large_batches_is_right_to_1e3() -> None:
    """Large batches take the float32 path with its own threshold, small ones float64 throughout."""
    p = oracle.random_mixture(3000, 4, seed=7, dtype=torch.float32)
    sizes = torch.logspace(-4.5, 0, 3000, dtype=torch.float64).unsqueeze(-1)
    g = torch.Generator().manual_seed(8)
    means = (p.means + sizes * torch.randn(p.means.shape, generator=g)).float()
    q = NormalMixture(p.weights, means, p.scales)
    loss = cramer_loss(p, q, reduction="none")
    for i in range(0, 3000, 60):
        a, b = (NormalMixture(m.weights[i], m.means[i], m.scales[i]) for m in (p, q))
        truth, scale = oracle.parts(a, b)
        if truth > 1e-10 * scale:
            assert abs(loss[i].item() / truth - 1) < 1e-3, float(truth / scale)


@pytest.mark.parametrize("n", [10, 300, 5000])
def test_mixture_near_its_own_sample(n: int) -> None:
    """Quantiles as a sample: as close to the mixture as n atoms come."""
    p = oracle.random_mixture(3, seed=9)
    y = p.icdf((torch.arange(n, dtype=torch.float64) + 0.5) / n)
    truth = oracle.cramer(p, NormalMixture.from_samples(y))
    assert cramer_loss(p, y).item() == pytest.approx(truth, rel=1e-10)
    assert cramer_loss(cast(p, torch.float32), y.float()).item() == pytest.approx(truth, rel=1e-3)


def test_split_components_are_the_same_mixture() -> None:
    """Equal distributions with different components: nothing but cancellation is left."""
    p = oracle.random_mixture(5, seed=10)
    q = NormalMixture.mix([p, p], torch.tensor([0.25, 0.75], dtype=torch.float64))
    assert 0 <= cramer_loss(p, q).item() < 1e-30
    assert 0 <= cramer_loss(cast(p, torch.float32), cast(q, torch.float32)).item() < 1e-13


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_mixtures_are_at_distance_zero(dtype: torch.dtype) -> None:
    for p in SHAPES.values():
        assert cramer_loss(cast(p, dtype), cast(p, dtype)).item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_never_negative(dtype: torch.dtype) -> None:
    p = oracle.random_mixture(4000, 3, seed=11, dtype=dtype)
    g = torch.Generator().manual_seed(12)
    for size in (0.0, 1e-9, 1e-6, 1e-3):
        q = NormalMixture(p.weights, (p.means + size * torch.randn(p.means.shape, generator=g)).to(dtype), p.scales)
        assert (cramer_loss(p, q, reduction="none") >= 0).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-4), (torch.float64, 5e-11)])
def test_no_jump_where_methods_switch(dtype: torch.dtype, tolerance: float) -> None:
    """On both sides of the threshold and of the end of the blend, the value is right to less than what is promised."""
    p = oracle.random_mixture(3, seed=13, dtype=dtype)
    truth, scale = oracle.parts(p, p.affine(1e-2, 1.0))
    at_threshold = 1e-2 * math.sqrt(THRESHOLD[dtype] / float(truth / scale))  # C2^2 goes with the shift squared
    shifts = (at_threshold * torch.linspace(0.7, 2.0, 4000, dtype=torch.float64)).to(dtype)
    q = p.expand((4000,)).affine(shifts, 1.0)
    loss = cramer_loss(p, q, reduction="none")
    near = [int(i) for f in (1.0, 2**0.5) for i in torch.argsort((shifts / at_threshold - f).abs())[:20]]
    for i in near:
        element = NormalMixture(q.weights[i], q.means[i], q.scales[i])
        assert loss[i].item() == pytest.approx(oracle.cramer(p, element), rel=tolerance)


def test_compiled_float32_in_large_batches_is_right_to_1e3() -> None:
    """The compiled formula has its own float32 sums; small values are computed anew as in eager mode."""
    p = oracle.random_mixture(3000, 4, seed=17, dtype=torch.float32)
    sizes = torch.logspace(-4.5, 0, 3000, dtype=torch.float64).unsqueeze(-1)
    g = torch.Generator().manual_seed(18)
    means = (p.means + sizes * torch.randn(p.means.shape, generator=g)).float()

    def losses(w, m, s, v, n, t):
        return cramer_loss(NormalMixture(w, m, s), NormalMixture(v, n, t), reduction="none")

    compiled = torch.compile(losses, fullgraph=True, backend="aot_eager")
    loss = compiled(p.weights, p.means, p.scales, p.weights, means, p.scales)
    assert (loss >= 0).all()
    for i in range(0, 3000, 100):
        a, b = (NormalMixture(p.weights[i], m[i], p.scales[i]) for m in (p.means, means))
        truth, scale = oracle.parts(a, b)
        if truth > 1e-10 * scale:
            assert abs(loss[i].item() / truth - 1) < 1e-3, float(truth / scale)
    same = compiled(p.weights, p.means, p.scales, p.weights, p.means, p.scales)
    assert (same == 0).all()
