"""The Triton kernels of the Cramér loss against plain torch: on a GPU, or interpreted on the CPU."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cramix import MultivariateNormalMixture, NormalMixture, cramer_loss, crps, sliced_cramer_loss
from cramix.distance.cramer import atoms, blocked, projections
from cramix.distance.cramer.ladder import IMPLEMENTATIONS
from cramix.distance.cramer.signature import Evaluation, Operand, Problem

pytest.importorskip("triton")
from cramix.distance.cramer import triton as kernels

# Under the interpreter NumPy warns of overflow, and of numbers in lanes that are not used.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = torch.finfo(torch.float32).eps


@pytest.fixture
def _in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute few pairs as many: in float32."""
    monkeypatch.setattr(blocked, "FEW_PAIRS", 0)
    monkeypatch.setattr(kernels, "FEW_PAIRS", 0)


def mixtures(*shape: int, seed: int, scale: float = 1.0) -> Operand:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(shape, generator=generator) + 0.05
    means = 3 * torch.randn(shape, generator=generator)
    scales = scale * (0.1 + torch.rand(shape, generator=generator))
    return Operand(*(x.to(DEVICE) for x in (weights / weights.sum(-1, keepdim=True), means, scales)))


def points(*shape: int, seed: int, weighted: bool = False) -> Operand:
    generator = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(shape, generator=generator).to(DEVICE)
    weights = torch.rand(shape, generator=generator).to(DEVICE) if weighted else torch.ones((), device=DEVICE)
    return Operand(weights.expand(shape), x)


def in_float64(side: Operand) -> Operand:
    return Operand(*(None if x is None else x.double() for x in side))


def evaluate(name: str, p: Operand, q: Operand, each: float = 1.0) -> Evaluation:
    energy = atoms.self_energy(q.means, q.weights) if q.scales is None else None
    return IMPLEMENTATIONS[name](Problem(p, q, energy, True, True, None, each))


def check(p: Operand, q: Operand, each: float = 1.0) -> None:
    """Compare with float64: errors of the kernels are at most twice those of plain torch, up to a few roundings."""
    truth, plain = evaluate("blocked", in_float64(p), in_float64(q), each), evaluate("blocked", p, q, each)
    for true, torchs, found in zip(truth, plain, evaluate("triton", p, q, each), strict=True):
        assert found.shape == true.shape
        assert found.dtype == torch.float32
        size = true.abs().amax().item()
        error = (torchs.double() - true).abs().amax().item()
        assert (found.double() - true).abs().amax().item() <= 2 * error + 8 * EPS * size


COMPONENTS = (1, 1), (2, 2), (3, 3), (7, 3), (32, 1), (33, 7), (64, 64)


@pytest.mark.parametrize(("n", "m"), COMPONENTS)
def test_batches_in_float64(n: int, m: int) -> None:
    check(mixtures(5, n, seed=n), mixtures(5, m, seed=m + 100), each=0.3)


@pytest.mark.usefixtures("_in_float32")
@pytest.mark.parametrize(("n", "m"), COMPONENTS)
def test_batches_in_float32(n: int, m: int) -> None:
    check(mixtures(5, n, seed=n), mixtures(5, m, seed=m + 100), each=0.3)


@pytest.mark.usefixtures("_in_float32")
@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 3), (3, 3), (4, 4), (5, 1)])
def test_lanes(n: int, m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_LANES", 1)
    check(mixtures(150, n, seed=n), mixtures(150, m, seed=m + 100), each=0.3)
    if m == 1:
        check(mixtures(150, n, seed=n), points(150, 1, seed=m), each=0.3)


@pytest.mark.usefixtures("_in_float32")
@pytest.mark.parametrize("m", [1, 2, 20])
def test_few_atoms(m: int) -> None:
    check(mixtures(6, 3, seed=1), points(6, m, seed=2, weighted=True))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("few", [False, True])
def test_many_points(weighted: bool, few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_CHUNK", 512)
    if not few:
        monkeypatch.setattr(blocked, "FEW_PAIRS", 0)
    check(mixtures(2, 3, seed=1), points(2, 1100, seed=2, weighted=weighted), each=0.5)
    check(mixtures(2, 9, seed=1), points(700, seed=3, weighted=weighted))


@pytest.mark.usefixtures("_in_float32")
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 0.0])
def test_scales(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = mixtures(4, 3, seed=1, scale=scale), mixtures(4, 3, seed=2, scale=scale)
    check(p, q)
    check(p, points(4, 60, seed=3))
    monkeypatch.setattr(kernels, "_LANES", 1)
    check(p, q)


@pytest.mark.usefixtures("_in_float32")
@pytest.mark.parametrize("lanes", [1, 1 << 30])
def test_small_losses_are_recomputed(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_LANES", lanes)
    p = mixtures(40, 3, seed=1)
    generator = torch.Generator().manual_seed(2)
    steps = 10.0 ** (-4 * torch.rand(40, 1, generator=generator)).to(DEVICE)
    q = p._replace(means=p.means + steps * torch.randn(40, 3, generator=generator).to(DEVICE))
    truth = evaluate("blocked", in_float64(p), in_float64(q)).losses
    found = evaluate("triton", p, q).losses.double()
    assert (found / truth - 1).abs().amax() < 2e-4
    assert (evaluate("triton", p, p).losses == 0).all()


@pytest.mark.usefixtures("_in_float32")
def test_small_losses_to_points_are_recomputed() -> None:
    x = 2 * torch.linspace(-1, 1, 500, dtype=torch.float64).erfinv().clamp(-3, 3).float().to(DEVICE)
    p = Operand(*(torch.tensor([[v, v]], device=DEVICE) for v in (0.5, 0.0, 2**0.5)))
    truth = evaluate("blocked", in_float64(p), in_float64(Operand(torch.ones_like(x), x))).losses
    found = evaluate("triton", p, Operand(torch.ones_like(x), x)).losses
    assert 0 < truth.item() < 1e-3
    assert found.item() == pytest.approx(truth.item(), rel=1e-5)


@pytest.mark.parametrize("few", [False, True])
def test_one_mixture_at_many_points(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not few:
        monkeypatch.setattr(blocked, "FEW_PAIRS", 0)
    p, y = mixtures(5, seed=1), points(900, 1, seed=2)
    p = p._replace(weights=torch.tensor([1.0, 1e-6, 1e-6, 1e-6, 1e-6], device=DEVICE), scales=0 * p.scales)
    y.means[7] = p.means[0]  # a small loss
    for side in (mixtures(5, seed=3), p):
        truth = IMPLEMENTATIONS["blocked"](
            Problem(in_float64(side), in_float64(y), torch.zeros(900, device=DEVICE).double(), False, True)
        )
        found = IMPLEMENTATIONS["triton"](Problem(side, y, torch.zeros(900, device=DEVICE).double(), False, True))
        assert found.at_p is None
        torch.testing.assert_close(found.losses.double(), truth.losses, rtol=3e-5, atol=1e-9)
        torch.testing.assert_close(found.at_q, truth.at_q.float(), rtol=0, atol=1e-6)


def test_outputs_are_written_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = kernels._empty

    def poisoned(problem: Problem, batch: torch.Size) -> Evaluation:
        return Evaluation(*(None if x is None else x.fill_(math.nan) for x in empty(problem, batch)))

    monkeypatch.setattr(kernels, "_empty", poisoned)
    for q in (mixtures(5, 3, seed=2), points(5, 2, seed=2), points(5, 45, seed=2)):
        for lanes in (1, 1 << 30):
            monkeypatch.setattr(kernels, "_LANES", lanes)
            assert all(x.isfinite().all() for x in evaluate("triton", mixtures(5, 4, seed=1), q))


@pytest.mark.parametrize("shapes", [((), ()), ((), (3,)), ((3,), ()), ((2, 1), (3,)), ((0,), ()), ((1, 1), ())])
def test_batch_shapes_broadcast(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    p, q = mixtures(*shapes[0], 3, seed=1), mixtures(*shapes[1], 2, seed=2)
    truth, found = evaluate("blocked", p, q), evaluate("triton", p, q)
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_strided_and_expanded_input() -> None:
    p = Operand(*(x.mT.contiguous().mT for x in mixtures(6, 3, seed=1)))
    q = mixtures(1, 3, seed=2)
    wide = Operand(*(torch.cat((x, x), -1)[:, :3].expand(6, -1) for x in q))
    apart = Operand(*(torch.stack((x, x), 1)[:, 0] for x in p))
    for a, b in ((p, wide), (apart, wide)):
        for x, y in zip(evaluate("triton", a, b), evaluate("blocked", a, b), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)


def loss_and_gradients(p: Operand, q: Operand, backend: str, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    monkeypatch.setattr("cramix.distance.cramer.ladder.choose", lambda *_: backend)
    leaves = [x.clone().requires_grad_() for x in (*p, *q)]
    loss = cramer_loss(NormalMixture(*leaves[:3]), NormalMixture(*leaves[3:]))
    gradients = torch.autograd.grad(2.5 * loss, leaves, create_graph=True)
    second = torch.autograd.grad(gradients[1].square().sum(), leaves)
    return [loss, *gradients, *second]


def test_gradients_of_both_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = mixtures(4, 3, seed=1), mixtures(4, 2, seed=2)
    expected = loss_and_gradients(p, q, "blocked", monkeypatch)
    for a, b in zip(loss_and_gradients(p, q, "triton", monkeypatch), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_under_the_compiler_and_transforms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cramix.distance.cramer.ladder.choose", lambda *_: "triton")
    p, q = mixtures(4, 3, seed=1), mixtures(4, 2, seed=2)

    def loss(means: Tensor, of: Operand) -> Tensor:
        return cramer_loss(NormalMixture(p.weights[0], means, p.scales[0], validate_args=False), NormalMixture(*of))

    expected = torch.stack([loss(m, Operand(*(x[i] for x in q))) for i, m in enumerate(p.means)])
    torch.testing.assert_close(torch.vmap(loss)(p.means, q), expected)
    gradients = torch.vmap(torch.func.grad(loss))(p.means, q)
    assert gradients.shape == p.means.shape
    means = p.means.clone().requires_grad_()

    def total(means: Tensor) -> Tensor:
        return cramer_loss(NormalMixture(p.weights, means, p.scales, validate_args=False), NormalMixture(*q))

    found = torch.compile(total, fullgraph=True, backend="aot_eager")(means)
    torch.testing.assert_close(found, total(means))
    torch.testing.assert_close(*(torch.autograd.grad(x, means)[0] for x in (found, total(means))))


def mixture_in_plane() -> MultivariateNormalMixture:
    generator = torch.Generator().manual_seed(5)
    factors = torch.randn(3, 2, 2, generator=generator)
    covariances = factors @ factors.mT + 0.1 * torch.eye(2)
    return MultivariateNormalMixture(torch.tensor([0.2, 0.3, 0.5]), torch.randn(3, 2, generator=generator), covariances)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("target_self_energy", [False, True])
def test_slices(weighted: bool, target_self_energy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    p = mixture_in_plane().to(DEVICE)
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(1000, 2, generator=generator).to(DEVICE)
    weight = torch.rand(1000, generator=generator).to(DEVICE) if weighted else None
    directions = torch.randn(5, 2, generator=generator).to(DEVICE)
    found = []
    for dtype, here in ((torch.float64, False), (torch.float32, True)):
        monkeypatch.setattr(projections, "applies", lambda *_, here=here: here)
        means = p.means.to(dtype).requires_grad_()
        mixture = MultivariateNormalMixture(p.weights.to(dtype), means, p.covariances.to(dtype))
        given = None if weight is None else weight.to(dtype)
        loss = sliced_cramer_loss(
            mixture, x.to(dtype), directions=directions, sample_weight=given, target_self_energy=target_self_energy
        )
        (gradient,) = torch.autograd.grad(3 * loss, means, create_graph=True)
        second = torch.autograd.grad(gradient.square().sum(), means)[0]
        found.append((loss.double(), gradient.double(), second.double()))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_on_a_gpu() -> None:
    p, q = mixtures(300, 3, seed=1), mixtures(300, 2, seed=2)
    means = p.means.clone().requires_grad_()
    y = torch.randn(300, device=DEVICE)

    def step() -> Tensor:
        a = NormalMixture(p.weights, means, p.scales, validate_args=False)
        b = NormalMixture(*q, validate_args=False)
        return torch.autograd.grad(cramer_loss(a, b) + cramer_loss(a, y) + crps(a, y).sum(), means)[0]

    expected = step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = step()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            elsewhere = step()
        torch.cuda.current_stream().wait_stream(stream)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(again, expected)
    assert torch.equal(elsewhere, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    assert torch.equal(captured, expected)
