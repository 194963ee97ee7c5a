"""The NumPy implementation for few pairs against truth, against the general one, and where it must not be used."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck

from cramix import NormalMixture, cramer_loss
from cramix.distance.cramer.autograd import cramer_of_mixtures
from cramix.distance.cramer.distance import cramer_squared
from cramix.distance.cramer.ladder import choose
from cramix.distance.cramer.signature import operand_of
from tests import oracle


def results(
    p: list[torch.Tensor], q: list[torch.Tensor], reduction: str = "mean", backend: str = "small"
) -> list[torch.Tensor]:
    leaves = [t.clone().requires_grad_() for t in (*p, *q)]
    a, b = NormalMixture(*leaves[:3]), NormalMixture(*leaves[3:])
    loss = cramer_of_mixtures(a, b, reduction=reduction, backend=backend)
    return [loss, *torch.autograd.grad(loss.sum(), leaves)]


def chosen(p: list[torch.Tensor], q: list[torch.Tensor]) -> str:
    a, b = (operand_of(NormalMixture(*side, validate_args=False)) for side in (p, q))
    return choose(a, b)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_values_are_those_of_mpmath(k: int, dtype: torch.dtype, tolerance: float) -> None:
    p, q = oracle.random_mixture(4, k, seed=k, dtype=dtype), oracle.random_mixture(4, k, seed=k + 50, dtype=dtype)
    truth = [oracle.cramer(a, b) for a, b in zip(oracle.batch(p), oracle.batch(q), strict=True)]
    assert cramer_squared(p, q, backend="small").tolist() == pytest.approx(truth, rel=tolerance)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 2e-6)])
@pytest.mark.parametrize(
    "shapes", [((3,), (3,)), ((64, 3), (64, 3)), ((2, 1, 5), (3, 5)), ((1,), (9, 1)), ((0, 2), (2,))]
)
def test_agrees_with_the_general_implementation(
    shapes: tuple, dtype: torch.dtype, tolerance: float, reduction: str
) -> None:
    p, q = (oracle.random_parameters(*shape, seed=k, dtype=dtype) for k, shape in enumerate(shapes))
    here, there = (results(p, q, reduction, backend) for backend in ("small", "blocked"))
    for x, y in zip(here, there, strict=True):
        assert x.dtype == y.dtype
        torch.testing.assert_close(x, y, rtol=tolerance, atol=1e-7 if dtype == torch.float32 else 1e-15, equal_nan=True)


@pytest.mark.parametrize("batch", [454, 455, 456, 457])
def test_no_jump_at_the_threshold(batch: int) -> None:
    """4 * 9 * 455 pairs are the last to fit."""
    p, q = oracle.random_parameters(batch, 3, seed=1), oracle.random_parameters(batch, 3, seed=2)
    here = results(p, q, "none", "auto")
    assert chosen(p, q) == ("small" if batch <= 455 else "blocked")
    rows = [results([t[i] for t in p], [t[i] for t in q]) for i in (0, batch - 1)]
    for x, first, last in zip(here, *rows, strict=True):
        torch.testing.assert_close(x[[0, batch - 1]], torch.stack((first, last)), rtol=1e-11, atol=1e-15)


def test_atoms_are_exact_without_warnings() -> None:
    """Atoms make z overflow on the way, of which NumPy would warn."""
    w, x, y = (torch.tensor(t) for t in ([0.5, 0.5], [0.0, 3e18], [0.0, -1e18]))
    with np.errstate(all="raise"):
        loss, *grads = results([w, x, torch.zeros(2)], [w, y, torch.zeros(2)])
    assert loss.item() == pytest.approx(1e18, rel=1e-6)
    assert all(g.isfinite().all() for g in grads)
    assert results([w, x, torch.zeros(2)], [w, x, torch.zeros(2)])[0].item() == 0


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_second_derivatives_of_the_total(reduction: str) -> None:
    leaves = [t.requires_grad_() for k in (3, 4) for t in oracle.random_parameters(2, 3, seed=k)]

    def loss(*t: torch.Tensor) -> torch.Tensor:
        a, b = NormalMixture(*t[:3], validate_args=False), NormalMixture(*t[3:], validate_args=False)
        return cramer_of_mixtures(a, b, reduction=reduction, backend="small")

    assert gradcheck(loss, leaves)
    assert gradgradcheck(loss, leaves)


def test_gradients_of_many_losses_at_once() -> None:
    p = [t.requires_grad_() for t in oracle.random_parameters(4, 3, seed=5)]
    losses = cramer_loss(NormalMixture(*p), oracle.random_mixture(4, 3, seed=6), reduction="none")
    rows = torch.autograd.grad(losses, p, torch.eye(4, dtype=torch.float64), retain_graph=True, is_grads_batched=True)
    for i in range(4):
        for x, row in zip(torch.autograd.grad(losses[i], p, retain_graph=True), rows, strict=True):
            torch.testing.assert_close(x, row[i])


def test_is_not_used_where_numpy_must_not_look() -> None:
    p, q = (oracle.random_parameters(4, 3, seed=k, dtype=torch.float32) for k in (7, 8))

    def loss(*t: torch.Tensor) -> torch.Tensor:
        return cramer_loss(NormalMixture(*t[:3], validate_args=False), NormalMixture(*t[3:], validate_args=False))

    assert chosen(p, q) == "small"
    value = torch.compile(loss, fullgraph=True, backend="aot_eager")(*p, *q)
    torch.testing.assert_close(value, loss(*p, *q))
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(t) for t in (*p, *q)]
        assert chosen(fake[:3], fake[3:]) == "blocked"
        assert loss(*fake).shape == ()
    names = []
    torch.vmap(lambda *t: names.append(chosen(list(t[:3]), list(t[3:]))) or t[0])(*p, *q)
    assert names == ["blocked"]
