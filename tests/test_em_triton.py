"""EM steps by Triton kernels against steps of plain torch in float64: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from cramix.accelerator import has_triton, is_interpreted
from cramix.fitting.em import polish
from cramix.fitting.features import LEAST_WEIGHT, Data
from cramix.fitting.starts import STARTS
from cramix.fitting.tiles import Tiles
from cramix.mixture.covariance import FAMILIES, Family, Prior

pytestmark = [
    pytest.mark.skipif(
        not has_triton() or not (torch.cuda.is_available() or is_interpreted()),
        reason="needs Triton, and a GPU or TRITON_INTERPRET=1",
    ),
    # NumPy's, where the interpreter divides by a weight of 0 as a GPU does.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
D = torch.float64


class Size(NamedTuple):
    """Numbers of samples, dimensions, components and fits."""

    n: int
    d: int
    k: int
    batch: int


SIZES = [
    Size(257, 1, 1, 1),
    Size(203, 3, 7, 1),
    Size(97, 8, 3, 2),
    Size(75, 2, 33, 1),
    Size(66, 16, 2, 2),
    Size(97, 17, 3, 1),
]
# In the interpreter a covariance that many components share takes long.
CASES = [
    pytest.param(kind, size, marks=[pytest.mark.slow] if kind == "tied" and size.k > 30 else [])
    for kind in FAMILIES
    for size in SIZES
]


class Drawn(NamedTuple):
    """A family, samples, weights of the fits' own or shared, and sums to start from."""

    family: Family
    x: Tensor
    weights: Tensor
    sums: Tensor

    @property
    def data(self) -> Data:
        return Data(self.family, self.x, self.weights)


def drawn(kind: str, size: Size, seed: int = 0, each: bool = False) -> Drawn:
    """Clustered samples, a few of them far out or without weight."""
    g = torch.Generator().manual_seed(seed)
    n, d, k, batch = size
    x = torch.randn(n, d, generator=g, dtype=D) + 2 * torch.randn(4, d, generator=g, dtype=D)[torch.arange(n) % 4]
    x[1] *= 8
    weights = torch.rand(batch, n, generator=g, dtype=D) if each else torch.rand(n, generator=g, dtype=D)
    weights[..., ::7] = 0
    weights = weights / weights.sum(-1, keepdim=True)
    family = FAMILIES[kind](d, torch.linspace(1, 2, d, dtype=D) * 1e-3)
    shares = torch.rand(batch, k, n, generator=g, dtype=D) ** 3
    return Drawn(family, x, weights, Data(family, x, weights).sums(shares / shares.sum(1, keepdim=True)))


def fused(
    problem: Drawn, dtype: torch.dtype, prior: Prior | None = None, tiles: Tiles | None = None, programs: int | None = 3
) -> tuple[Tensor, Tensor]:
    from cramix.fitting.fused_step import FusedStep

    family, x, weights, sums = problem
    if isinstance(family.floor, Tensor):
        family = type(family)(family.dim, family.floor.to(DEVICE))
    step = FusedStep(family, x.to(DEVICE), dtype, "ieee", tiles, programs)
    if prior is not None:
        prior = Prior(prior.weight.to(DEVICE), None if prior.moments is None else prior.moments.to(DEVICE))
    found, likelihood = step(sums.to(DEVICE), weights.to(DEVICE), prior)
    return found.cpu(), likelihood.cpu()


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what is not initialised with NaN."""

    def poisoned(empty: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def filled(*args: Any, **kwargs: Any) -> Tensor:
            made = empty(*args, **kwargs)
            return made.fill_(torch.nan) if made.is_floating_point() else made

        return filled

    monkeypatch.setattr(Tensor, "new_empty", poisoned(Tensor.new_empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))


def close(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor], tol: float) -> bool:
    """Whether sums and likelihoods differ by at most `tol`, relative to the largest sum, and to one nat."""
    sums, likelihood = (torch.as_tensor((a - b).abs().max()) for a, b in zip(found, wanted, strict=True))
    return bool((sums <= tol * wanted[0].abs().max()) & (likelihood <= tol * wanted[1].abs().max().clamp_min(1)))


@pytest.mark.parametrize(("kind", "size"), CASES)
def test_a_step_in_float64_is_that_of_torch(kind: str, size: Size) -> None:
    problem = drawn(kind, size)
    wanted = problem.data.step(problem.sums)
    assert close(fused(problem, D), wanted, 1e-11)
    assert not close((1.01 * wanted[0], wanted[1]), wanted, 1e-3)


@pytest.mark.parametrize(("kind", "size"), CASES)
def test_a_step_in_float32_is_as_accurate_as_that_of_torch(kind: str, size: Size) -> None:
    """At most twice its error, or a few units of rounding where that is luck."""
    problem = drawn(kind, size)
    wanted = problem.data.step(problem.sums)
    plain = Data(problem.family, problem.x, problem.weights, dtype=torch.float32).step(problem.sums)
    for found, rival, truth in zip(fused(problem, torch.float32), plain, wanted, strict=True):
        rounding = 4 * torch.finfo(torch.float32).eps * truth.abs().max()
        assert (found - truth).abs().max() <= 2 * (rival - truth).abs().max() + rounding


@pytest.mark.parametrize("kind", FAMILIES)
def test_fits_with_weights_of_their_own(kind: str) -> None:
    problem = drawn(kind, Size(130, 2, 2, 3), each=True)
    assert close(fused(problem, D), problem.data.step(problem.sums), 1e-11)


@pytest.mark.parametrize("kind", FAMILIES)
def test_priors(kind: str) -> None:
    """None, some and infinitely many pseudo-samples of the pooled covariance, of a given one, and of one for each."""
    problem = drawn(kind, Size(120, 3, 4, 3))
    family, strengths = problem.family, torch.tensor([0.0, 0.7, torch.inf], dtype=D)
    matrices = torch.eye(3, dtype=D) + 0.3
    priors = [
        family.shrinkage(strengths, 120.0),
        family.prior(strengths, matrices),
        family.prior(strengths, torch.arange(1.0, 4.0, dtype=D)[:, None, None, None] * matrices),
    ]
    for prior in priors:
        assert close(fused(problem, D, prior), problem.data.step(problem.sums, prior), 1e-11)
    one = problem._replace(sums=problem.sums[1:2])
    prior = priors[0]._replace(weight=priors[0].weight[1:2])
    assert close(fused(one, D, prior), one.data.step(one.sums, prior), 1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, D], ids=["float32", "float64"])
@pytest.mark.parametrize("kind", ["full", "tied"])
def test_many_dimensions(kind: str, dtype: torch.dtype) -> None:
    """Matrices in parts, features in several tiles; factors by torch."""
    problem = drawn(kind, Size(85, 70, 2, 1))
    wanted = problem.data.step(problem.sums)
    assert close(fused(problem, dtype), wanted, 1e-9 if dtype == D else 1e-5)


@pytest.mark.parametrize("programs", [1, 2, 50])
@pytest.mark.parametrize("rows", [16, 32])
def test_tiles_do_not_matter(rows: int, programs: int) -> None:
    for size, together in ((Size(130, 5, 6, 2), True), (Size(130, 5, 6, 2), False), (Size(70, 20, 2, 1), False)):
        problem = drawn("full", size)
        dims = 8 if together else 16 if size.d < 16 else 32
        width = max(dims, 16)
        tiles = Tiles(rows, 16, dims, width, 16, together, dims**2, 4)  # parts of 16 coordinates
        assert close(fused(problem, D, None, tiles, programs), problem.data.step(problem.sums), 1e-11)


def test_a_component_without_samples_keeps_its_shape() -> None:
    problem = drawn("full", Size(100, 2, 3, 1))
    problem.sums[0, 1, 1:] = 1e3 * problem.sums[0, 1, :1] * torch.tensor([1.0, 1.0, 1e3 + 1, 1e3, 1e3 + 1], dtype=D)
    wanted = problem.data.step(problem.sums)
    assert wanted[0][0, 1, 0] == LEAST_WEIGHT
    assert close(fused(problem, D), wanted, 1e-11)


def test_no_valid_mixture_has_no_likelihood() -> None:
    problem = drawn("full", Size(60, 2, 2, 2))
    problem.sums[1, 0, 3:] *= -1
    assert fused(problem, D)[1].isnan().tolist() == [False, True]


def test_the_same_input_gives_the_same_bits() -> None:
    problem = drawn("full", Size(300, 3, 5, 2))
    first, second = fused(problem, torch.float32), fused(problem, torch.float32)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


@pytest.mark.parametrize("kind", FAMILIES)
def test_narrow_components_keep_their_digits_in_float32(kind: str) -> None:
    """At a thousand standard deviations from the origin, where products of features have lost theirs."""
    g = torch.Generator().manual_seed(1)
    x = torch.tensor([[1.0, -2.0], [3.0, 1.5]], dtype=D)[torch.arange(400) % 2]
    x = x + 2e-3 * torch.randn(400, 2, generator=g, dtype=D)
    family = FAMILIES[kind](2, 1e-8)
    shares = torch.stack((x[:, 0] < 2, x[:, 0] >= 2)).unsqueeze(0).to(D)
    weights = torch.full((400,), 1 / 400, dtype=D)
    problem = Drawn(family, x, weights, Data(family, x, weights).sums(shares))
    _, wanted = problem.data.step(problem.sums)
    _, found = fused(problem, torch.float32)
    _, plain = Data(family, x, weights, dtype=torch.float32).step(problem.sums)
    assert (found - wanted).abs().item() < 1e-4 < (plain - wanted).abs().item()


@dataclass
class FusedData:
    """Samples as `polish` sees them, with steps by kernels in float32."""

    problem: Drawn
    is_large: bool = False

    @property
    def family(self) -> Family:
        return self.problem.family

    def step(self, sums: Tensor, prior: Prior | None = None) -> tuple[Tensor, Tensor]:
        return fused(self.problem._replace(sums=sums), torch.float32, prior)


@pytest.mark.parametrize("kind", FAMILIES)
def test_polishing_in_float32_ends_at_the_optimum_of_float64(kind: str) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(600, 2, generator=g, dtype=D)
    x[:200] += torch.tensor([4.0, 0.0], dtype=D)
    family = FAMILIES[kind](2, 1e-6)
    data = Data(family, x, torch.ones(600, dtype=D))
    start = STARTS["k-means++"](data, 2, 1, g)
    exact = polish(data, start, 1000, 1e-9)
    found = polish(FusedData(Drawn(family, x, data.weights, start)), start, 300, 1e-7)  # type: ignore[arg-type]
    assert exact.converged
    assert data.step(found.sums)[1].item() == pytest.approx(exact.log_likelihood.item(), abs=1e-6)
