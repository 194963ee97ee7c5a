"""The Triton kernels of the energy distance against plain torch in float64: on a GPU, or interpreted on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cramix import MultivariateNormalMixture, sliced_cramer_loss
from cramix.accelerator import has_triton, is_interpreted
from cramix.distance.energy import blocked, component_pairs, reference
from cramix.distance.energy.flat_mixtures import Components, Points, Side
from cramix.distance.energy.ladder import IMPLEMENTATIONS, takes_triton
from cramix.distance.energy.signature import Evaluation, KnownEnergy, Problem, no_energy

pytestmark = [
    pytest.mark.skipif(
        not has_triton() or not (torch.cuda.is_available() or is_interpreted()),
        reason="needs Triton, and a GPU or TRITON_INTERPRET=1",
    ),
    # Under the interpreter NumPy warns of overflow, and of numbers in lanes that are not used.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = torch.finfo(torch.float32).eps
TOLERANCE, FEW_NODES = 1e-6, 1e-3


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what is not initialised with NaN."""

    def poisoned(empty: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def filled(*args: Any, **kwargs: Any) -> Tensor:
            made = empty(*args, **kwargs)
            return made.fill_(torch.nan) if made.is_floating_point() else made

        return filled

    monkeypatch.setattr(Tensor, "new_empty", poisoned(Tensor.new_empty))


@pytest.fixture
def in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute few lengths as many: in float32."""
    from cramix.distance.energy import triton

    monkeypatch.setattr(component_pairs, "FEW_LENGTHS", 0)
    monkeypatch.setattr(triton, "FEW_LENGTHS", 0)


def components(batch: int, k: int, d: int, seed: int, scale: float = 1.0, form: str = "full") -> Components:
    g = torch.Generator().manual_seed(seed)
    factors = torch.randn(batch, k, d, d, generator=g)
    covariances = scale**2 * (factors @ factors.mT / d + 0.05 * torch.eye(d))
    variances = covariances.diagonal(dim1=-2, dim2=-1)
    covariances = {"full": covariances, "diag": variances, "spherical": variances[..., :1]}[form]
    parts = torch.rand(batch, k, generator=g) + 0.1, 2 * torch.randn(batch, k, d, generator=g), covariances
    return Components(*(x.to(DEVICE) for x in parts))


def cloud(batch: int, n: int, d: int, seed: int, weighted: bool = True) -> Points:
    g = torch.Generator().manual_seed(seed)
    weights = torch.rand(batch, n, generator=g) if weighted else torch.ones(1, 1).expand(batch, n)
    return Points(weights.to(DEVICE), 2 * torch.randn(batch, n, d, generator=g).to(DEVICE))


def in_float64(side: Side) -> Any:
    return type(side)(*(None if x is None else x.double() for x in side))


def problem(
    p: Components, q: Side, grad: bool = True, self_energy: bool = True, tolerance: float = TOLERANCE
) -> Problem:
    known = None if self_energy else no_energy(torch.Size((len(p.weights),)), p.means)
    return Problem(p, q, None, known, tolerance, grad, grad)


def numbers(found: Evaluation) -> list[Tensor]:
    return [torch.as_tensor(x) for x in (found.distances, *found.at_p, *found.at_q)]


def size_of(side: Side) -> float:
    """Return the root of a mean square, up to a small factor."""
    spread = side.means.flatten(0, 1).var(0, correction=0).sum()
    return (spread if side.covariances is None else spread + side.covariances.amax()).sqrt().item()


def one_by_one(given: Problem) -> list[Tensor]:
    """Evaluate by plain torch, each batch element for itself: together they would get more nodes than they need."""
    found = []
    for i in range(len(given.p.weights)):
        p, q = (type(x)(*(None if y is None else y[i : i + 1] if len(y) > 1 else y for y in x)) for x in given[:2])
        energies = [
            x and KnownEnergy((x.energy if x.rows is None else x.energy[x.rows])[i : i + 1], None) for x in given[2:4]
        ]
        found.append(numbers(blocked.evaluate(Problem(p, q, *energies, *given[4:]))))
    return [torch.cat(x) for x in zip(*found, strict=True)]


def check(given: Problem) -> None:
    """Compare with float64: errors of the kernels are at most twice those of plain torch, up to a few roundings."""
    assert takes_triton(given)
    exact = given._replace(p=in_float64(given.p), q=in_float64(given.q), tolerance=1e-12)
    truth, plain, found = one_by_one(exact), one_by_one(given), numbers(IMPLEMENTATIONS["triton"](given))
    spread = max(map(size_of, (given.p, given.q)))
    for i, (true, torchs, kernels) in enumerate(zip(truth, plain, found, strict=True)):
        assert kernels.shape == true.shape
        size = true.abs().amax().item()
        if i == 0 or (i == 1 and given.grad_p):  # distances and gradients of weights: differences of mean lengths
            size = max(size, spread)
        error = (torchs.double() - true).abs().amax().item()
        assert (kernels.double() - true).abs().amax().item() <= 2 * error + 8 * EPS * size


SIZES = [(1, 1, 1, 1), (2, 3, 2, 301), (1, 7, 3, 130), (1, 2, 8, 259), (1, 2, 17, 67)]


@pytest.mark.usefixtures("in_float32")
@pytest.mark.parametrize(("batch", "k", "d", "n"), SIZES)
def test_components_to_points(batch: int, k: int, d: int, n: int) -> None:
    check(problem(components(batch, k, d, seed=k), cloud(batch, n, d, seed=d), self_energy=n < 200))


@pytest.mark.usefixtures("in_float32")
def test_many_components() -> None:
    energies = KnownEnergy(torch.ones(1, dtype=torch.float64, device=DEVICE), None)
    many = components(1, 33, 1, seed=1)
    check(Problem(many, cloud(1, 40, 1, seed=2), energies, energies, FEW_NODES, False, True))
    check(Problem(components(1, 1, 1, seed=3), many, None, energies, FEW_NODES, True, True))


@pytest.mark.parametrize(("k", "d", "n"), [(1, 2, 1), (3, 3, 50), (2, 9, 33)])
def test_few_points_in_float64(k: int, d: int, n: int) -> None:
    check(problem(components(1, k, d, seed=k), cloud(1, n, d, seed=n), self_energy=False))


@pytest.mark.parametrize(
    ("batch", "k", "n", "d"), [(1, 1, 1, 1), (2, 3, 2, 3), (1, 2, 2, 8), (1, 1, 2, 17), (1, 4, 3, 1)]
)
def test_components_to_components(batch: int, k: int, n: int, d: int) -> None:
    check(problem(components(batch, k, d, seed=k), components(batch, n, d, seed=n + 100)))


@pytest.mark.usefixtures("in_float32")
@pytest.mark.parametrize("form", ["diag", "spherical"])
@pytest.mark.parametrize("d", [3, 9])
def test_covariances_along_the_axes(form: str, d: int) -> None:
    p = components(2, 2, d, seed=1, form=form)
    check(problem(p, cloud(2, 90, d, seed=2), self_energy=False))
    check(problem(p, components(2, 3, d, seed=3, form=form)))


@pytest.mark.usefixtures("in_float32")
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 0.0])
def test_scales(scale: float) -> None:
    p, q = components(1, 2, 3, seed=1, scale=scale), components(1, 2, 3, seed=2, scale=scale)
    check(problem(p, q))
    check(problem(p, cloud(1, 90, 3, seed=3), self_energy=False))


@pytest.mark.usefixtures("in_float32")
@pytest.mark.parametrize("d", [2, 9])
def test_a_component_without_covariance_among_others(d: int) -> None:
    p = components(1, 3, d, seed=1)
    p.covariances[:, 1] = 0
    points = cloud(1, 70, d, seed=2)
    points.means[:, 5] = p.means[:, 1]
    check(problem(p, points, self_energy=False))
    check(problem(p, components(1, 2, d, seed=3)))


@pytest.mark.usefixtures("in_float32")
@pytest.mark.parametrize("gap", [0.0, 1e-6, 1e-2])
def test_axes_of_equal_length(gap: float) -> None:
    p = components(1, 2, 3, seed=1)
    isotropic = (torch.eye(3) + gap * torch.diag(torch.arange(3.0))).to(DEVICE)
    check(problem(p._replace(covariances=isotropic.expand(1, 2, 3, 3)), cloud(1, 250, 3, seed=2), self_energy=False))


@pytest.mark.usefixtures("in_float32")
def test_far_from_the_origin() -> None:
    p, q = components(1, 2, 3, seed=1), cloud(1, 200, 3, seed=2)
    q.means[0, 0] += 1e4  # one point far away
    check(problem(p, q, self_energy=False))
    shifted = problem(p._replace(means=p.means + 1e5), q._replace(means=q.means + 1e5), self_energy=False)
    check(shifted)


def test_the_plainest_formula() -> None:
    given = problem(components(1, 2, 3, seed=1), cloud(1, 40, 3, seed=2))
    truth, found = reference.evaluate(given), IMPLEMENTATIONS["triton"](given)
    for a, b in zip(numbers(found), numbers(truth), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=3e-5, atol=1e-6)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(1.01 * found.distances, truth.distances, rtol=3e-5, atol=1e-6)


@pytest.mark.usefixtures("in_float32")
@pytest.mark.parametrize(("d", "weighted"), [(3, False), (9, True)])
def test_many_programs(d: int, weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from cramix.distance.energy import triton

    for name, value in (
        ("_CHUNK", 128),
        ("_SUMMARY", 64),
        ("_LANES", 32),
        ("_TILE", 16),
        ("_PAIRS", 2),
        ("_NODES", 16),
    ):
        monkeypatch.setattr(triton, name, value)
    check(
        problem(
            components(2, 2, d, seed=1),
            cloud(2, 150, d, seed=2, weighted=weighted),
            self_energy=False,
            tolerance=FEW_NODES,
        )
    )


def test_equal_mixtures() -> None:
    p = components(2, 3, 3, seed=1)
    found = IMPLEMENTATIONS["triton"](problem(p, p)).distances
    assert (found.abs() < 1e-13).all()


def test_known_energies() -> None:
    p, q, points = components(2, 2, 3, seed=1), components(2, 3, 3, seed=2), cloud(1, 30, 3, seed=3)
    energies = torch.tensor([0.7, 0.2], dtype=torch.float64, device=DEVICE)
    rows = torch.tensor([1, 0], device=DEVICE)
    for side in (q, points):
        check(Problem(p, side, KnownEnergy(energies, rows), KnownEnergy(energies, None), FEW_NODES, False, True))
        check(Problem(p, side, None, KnownEnergy(energies, rows), FEW_NODES, True, False))
        check(Problem(p, side, KnownEnergy(energies, None), KnownEnergy(energies, None), FEW_NODES, False, False))


def test_shared_strided_and_expanded_input() -> None:
    p = components(3, 2, 3, seed=1)
    p = Components(*(torch.stack((x, x), -1)[..., 0] for x in p))
    wide = cloud(1, 80, 6, seed=2)
    points = Points(torch.stack((wide.weights, wide.weights), -1)[..., 1], wide.means[..., ::2])
    check(problem(p, points, self_energy=False, tolerance=FEW_NODES))
    check(
        problem(
            p, Points(points.weights, wide.means[:, :, :3].mT.contiguous().mT), self_energy=False, tolerance=FEW_NODES
        )
    )
    shared = Components(*(x[:1].expand(3, *x.shape[1:]) for x in p))
    check(problem(shared, components(3, 2, 3, seed=3), tolerance=FEW_NODES))


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("d", [1, 2, 5, *(pytest.param(d, marks=pytest.mark.slow) for d in (3, 8, 9, 17, 32))])
def test_axes_by_rotations(d: int, pairs: bool) -> None:
    from cramix.distance.energy import triton_axes

    p = components(1, 2, d, seed=d)
    p.covariances[0, 1] = torch.eye(d)
    p.covariances[0, 1, 0, 0] += 1e-6

    def empty(*shape: int) -> Tensor:
        return torch.full((1, 2, *shape), torch.nan, dtype=torch.float64, device=DEVICE)

    of_pairs = triton_axes.Shapes(empty(2, d), empty(2, d, d)) if pairs else None
    own = triton_axes.Own(empty(d), empty(d, d), empty(d, d).float())
    triton_axes.decomposed(p.covariances, of_pairs, own)
    doubled = 0.5 * (p.covariances.double() + p.covariances.double().mT)
    identity = torch.eye(d, dtype=torch.float64, device=DEVICE)
    found = [(own.variances[0, i], own.axes[0, i], 2 * doubled[0, i]) for i in range(2)]
    if of_pairs is not None:
        variances, axes = of_pairs
        found += [
            (variances[0, i, j], axes[0, i, j], doubled[0, i] + doubled[0, j]) for i, j in ((0, 0), (0, 1), (1, 1))
        ]
        assert axes[0, 1, 0].isnan().all()
    for variance, turn, matrix in found:
        torch.testing.assert_close(turn @ variance.diag() @ turn.mT, matrix, rtol=0, atol=1e-13 * d)
        torch.testing.assert_close(turn.mT @ turn, identity, rtol=0, atol=1e-13)
    torch.testing.assert_close(own.turns, own.axes.float(), rtol=0, atol=0)


def loss_and_gradients(backend: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    monkeypatch.setattr("cramix.distance.energy.ladder.choose", lambda *_: backend)
    p, q = components(1, 3, 2, seed=1), cloud(1, 40, 2, seed=2)
    p = p._replace(weights=p.weights / p.weights.sum())
    leaves = [x.squeeze(0).to(dtype).requires_grad_() for x in (*p, q.means)]
    loss = sliced_cramer_loss(MultivariateNormalMixture(*leaves[:3]), leaves[3], directions="exact")
    return [loss, *torch.autograd.grad(-2.5 * loss, leaves)]


def test_gradients_by_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = loss_and_gradients("blocked", torch.float64, monkeypatch)
    for a, b in zip(loss_and_gradients("triton", torch.float32, monkeypatch), expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-6)


def test_under_the_compiler_and_transforms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cramix.distance.energy.ladder.choose", lambda *_: "triton")
    p, q = components(2, 2, 2, seed=1), cloud(1, 20, 2, seed=2).means[0]
    weights, covariances = p.weights[0] / p.weights[0].sum(), p.covariances[0]

    def loss(means: Tensor) -> Tensor:
        mixture = MultivariateNormalMixture(weights, means, covariances, validate_args=False)
        return sliced_cramer_loss(mixture, q, directions="exact", target_self_energy=False)

    expected = torch.stack([loss(m) for m in p.means])
    torch.testing.assert_close(torch.vmap(loss)(p.means), expected)
    means = p.means[0].clone().requires_grad_()
    found = torch.compile(loss, fullgraph=True, backend="aot_eager")(means)
    torch.testing.assert_close(found, loss(means))
    torch.testing.assert_close(*(torch.autograd.grad(x, means)[0] for x in (found, loss(means))))


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("d", [3, 8, 12])
def test_on_a_gpu(d: int) -> None:
    p, x = components(1, 3, d, seed=1), cloud(1, 3000, d, seed=2).means[0]
    leaves = [v.squeeze(0).clone().requires_grad_() for v in p]
    q = MultivariateNormalMixture(*(v.squeeze(0) for v in components(1, 2, d, seed=3)), validate_args=False)

    def step() -> tuple[Tensor, ...]:
        mixture = MultivariateNormalMixture(*leaves, validate_args=False)
        to_points = sliced_cramer_loss(mixture, x, directions="exact", target_self_energy=False)
        return torch.autograd.grad(to_points + sliced_cramer_loss(mixture, q, directions="exact"), leaves)

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
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    for other in (again, elsewhere, captured):
        assert all(torch.equal(a, b) for a, b in zip(other, expected, strict=True))


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_compiled_and_under_autocast_on_a_gpu() -> None:
    p, x = components(1, 3, 3, seed=1), cloud(1, 3000, 3, seed=2).means[0]
    means = p.means[0].clone().requires_grad_()

    def loss(means: Tensor) -> Tensor:
        mixture = MultivariateNormalMixture(p.weights[0], means, p.covariances[0], validate_args=False)
        return sliced_cramer_loss(mixture, x, directions="exact", target_self_energy=False)

    expected = torch.autograd.grad(loss(means), means)[0]
    compiled = torch.compile(loss, fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(means), means)[0], expected)
    with torch.autocast("cuda"):
        torch.testing.assert_close(torch.autograd.grad(loss(means), means)[0], expected)
