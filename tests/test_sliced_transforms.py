"""The exact distance under function transforms and the compiler is the one in plain eager mode."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cramix import Diagonal, Full, MultivariateNormalMixture, Spherical
from tests.sliced_oracle import sliced_loss

D = torch.float64
KINDS = {"diag": Diagonal, "spherical": Spherical, "full": Full}


def parts(kind: str, batch: int, k: int, seed: int) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    weights = torch.rand(batch, k, generator=g, dtype=D).softmax(-1)
    means = torch.randn(batch, k, 2, generator=g, dtype=D)
    root = torch.randn(batch, k, 2, 2, generator=g, dtype=D)
    spread = root @ root.mT + 0.1 * torch.eye(2, dtype=D)
    values = {"full": spread, "diag": spread.diagonal(dim1=-2, dim2=-1), "spherical": spread[..., 0, 0]}
    return [weights, means, values[kind].contiguous()]


def of_mixtures(kind: str) -> Callable[..., Tensor]:
    def loss(w: Tensor, m: Tensor, s: Tensor, v: Tensor, n: Tensor, t: Tensor) -> Tensor:
        p, q = (
            MultivariateNormalMixture(a, b, KINDS[kind](c), validate_args=False) for a, b, c in ((w, m, s), (v, n, t))
        )
        return sliced_loss(p, q, reduction="sum")

    return loss


def of_points(kind: str, target_self_energy: bool) -> Callable[..., Tensor]:
    def loss(w: Tensor, m: Tensor, s: Tensor, y: Tensor) -> Tensor:
        p = MultivariateNormalMixture(w, m, KINDS[kind](s), validate_args=False)
        return sliced_loss(p, y, reduction="sum", target_self_energy=target_self_energy)

    return loss


def between_points(x: Tensor, y: Tensor) -> Tensor:
    return sliced_loss(x, y, reduction="sum")


def cases() -> list:
    points = torch.randn(5, 4, 2, generator=torch.Generator().manual_seed(9), dtype=D)
    found = [pytest.param(between_points, [points[:, :1], points[:, 1:]], id="points")]
    for kind in KINDS:
        found.append(
            pytest.param(of_mixtures(kind), parts(kind, 5, 3, 0) + parts(kind, 5, 2, 1), id=f"{kind}-mixtures")
        )
        for target_self_energy in (True, False):
            name = f"{kind}-points-{'distance' if target_self_energy else 'score'}"
            found.append(pytest.param(of_points(kind, target_self_energy), [*parts(kind, 5, 3, 0), points], id=name))
    return found


def gradients(loss: Callable[..., Tensor], tensors: list[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    leaves = [x.clone().requires_grad_() for x in tensors]
    value = loss(*leaves)
    return value, torch.autograd.grad(value, leaves)


@pytest.mark.parametrize(("loss", "tensors"), cases())
def test_transforms(loss: Callable[..., Tensor], tensors: list[Tensor]) -> None:
    value, expected = gradients(loss, tensors)
    every = tuple(range(len(tensors)))
    whole = torch.func.grad(loss, every)(*tensors)
    each = torch.func.vmap(torch.func.grad(loss, every))(*tensors)
    columns = [x.movedim(0, 1).contiguous() for x in tensors]
    mapped = torch.func.vmap(loss, in_dims=1)(*columns)
    torch.testing.assert_close(mapped.sum(), value)
    for a, b, c in zip(whole, each, expected, strict=True):
        torch.testing.assert_close(a, c)
        torch.testing.assert_close(b, c, rtol=1e-6, atol=1e-7)
    # One side for all: its gradient adds up.
    fixed = [x[0] for x in tensors[:-1]]
    shared = torch.func.vmap(loss, in_dims=(*(None for _ in fixed), 0))(*fixed, tensors[-1])
    one_by_one = [loss(*fixed, last) for last in tensors[-1]]
    torch.testing.assert_close(shared, torch.stack(one_by_one))


@pytest.mark.parametrize(("loss", "tensors"), cases())
def test_one_graph(loss: Callable[..., Tensor], tensors: list[Tensor]) -> None:
    torch._dynamo.reset()
    value, expected = gradients(loss, tensors)
    compiled, got = gradients(torch.compile(loss, fullgraph=True, backend="aot_eager"), tensors)
    torch.testing.assert_close(compiled, value)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("loss", "tensors"), cases())
def test_one_graph_without_gradients(loss: Callable[..., Tensor], tensors: list[Tensor]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*tensors), loss(*tensors))
    moving = [x.clone().requires_grad_() for x in tensors]
    with torch.no_grad():
        torch.testing.assert_close(compiled(*moving), loss(*tensors))


def test_second_derivatives_are_refused() -> None:
    loss, tensors = of_points("diag", True), [*parts("diag", 1, 2, 0), torch.zeros(1, 1, 2, dtype=D)]
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.func.jacrev(torch.func.jacrev(loss, 1), 1)(*tensors)
