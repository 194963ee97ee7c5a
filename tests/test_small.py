"""The NumPy path for few pairs against truth, against the general path, and where it must stand back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck

from cramix import NormalMixture, cramer_loss
from cramix.distance.univariate import evaluate, small
from tests import oracle


def results(p: list[torch.Tensor], q: list[torch.Tensor], reduction: str = "mean") -> list[torch.Tensor]:
    leaves = [t.clone().requires_grad_() for t in (*p, *q)]
    loss = cramer_loss(NormalMixture(*leaves[:3]), NormalMixture(*leaves[3:]), reduction)
    return [loss, *torch.autograd.grad(loss.sum(), leaves)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every evaluation that takes the path."""
    taken: list[int] = []

    def counted(*arguments):
        taken.append(1)
        return small.evaluate_small(*arguments)

    monkeypatch.setattr(evaluate, "evaluate_small", counted)
    return taken


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_values_are_those_of_mpmath(calls: list[int], k: int, dtype: torch.dtype, tolerance: float) -> None:
    p, q = oracle.random_mixture(4, k, seed=k, dtype=dtype), oracle.random_mixture(4, k, seed=k + 50, dtype=dtype)
    truth = [oracle.cramer(a, b) for a, b in zip(oracle.batch(p), oracle.batch(q), strict=True)]
    assert cramer_loss(p, q, reduction="none").tolist() == pytest.approx(truth, rel=tolerance)
    assert calls == [1]


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 2e-6)])
@pytest.mark.parametrize(
    "shapes", [((3,), (3,)), ((64, 3), (64, 3)), ((2, 1, 5), (3, 5)), ((1,), (9, 1)), ((0, 2), (2,))]
)
def test_agrees_with_the_general_path(
    monkeypatch: pytest.MonkeyPatch, shapes: tuple, dtype: torch.dtype, tolerance: float, reduction: str
) -> None:
    p, q = (oracle.random_parameters(*shape, seed=k, dtype=dtype) for k, shape in enumerate(shapes))
    here = results(p, q, reduction)
    monkeypatch.setattr(small, "SMALL", -1)
    for x, y in zip(here, results(p, q, reduction), strict=True):
        assert x.dtype == y.dtype
        torch.testing.assert_close(x, y, rtol=tolerance, atol=1e-7 if dtype == torch.float32 else 1e-15, equal_nan=True)


@pytest.mark.parametrize("batch", [454, 455, 456, 457])
def test_no_jump_at_the_threshold(calls: list[int], batch: int) -> None:
    """4 * 9 * 455 pairs are the last to fit."""
    p, q = oracle.random_parameters(batch, 3, seed=1), oracle.random_parameters(batch, 3, seed=2)
    here = results(p, q, "none")
    assert len(calls) == (batch <= 455)
    rows = [results([t[i] for t in p], [t[i] for t in q]) for i in (0, batch - 1)]
    for x, first, last in zip(here, *rows, strict=True):
        torch.testing.assert_close(x[[0, batch - 1]], torch.stack((first, last)), rtol=1e-11, atol=1e-15)


def test_atoms_are_exact_and_warn_of_nothing(calls: list[int]) -> None:
    """Atoms make z overflow on the way, which NumPy would tell."""
    w, x, y = (torch.tensor(t) for t in ([0.5, 0.5], [0.0, 3e18], [0.0, -1e18]))
    with np.errstate(all="raise"):
        loss, *grads = results([w, x, torch.zeros(2)], [w, y, torch.zeros(2)])
    assert calls == [1]
    assert loss.item() == pytest.approx(1e18, rel=1e-6)
    assert all(g.isfinite().all() for g in grads)
    assert results([w, x, torch.zeros(2)], [w, x, torch.zeros(2)])[0].item() == 0


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_second_derivatives_of_the_total(calls: list[int], reduction: str) -> None:
    leaves = [t.requires_grad_() for k in (3, 4) for t in oracle.random_parameters(2, 3, seed=k)]

    def loss(*t: torch.Tensor) -> torch.Tensor:
        a, b = NormalMixture(*t[:3], validate_args=False), NormalMixture(*t[3:], validate_args=False)
        return cramer_loss(a, b, reduction)

    assert gradcheck(loss, leaves)
    assert gradgradcheck(loss, leaves)
    assert calls


def test_gradients_of_many_losses_at_once() -> None:
    p = [t.requires_grad_() for t in oracle.random_parameters(4, 3, seed=5)]
    losses = cramer_loss(NormalMixture(*p), oracle.random_mixture(4, 3, seed=6), "none")
    rows = torch.autograd.grad(losses, p, torch.eye(4, dtype=torch.float64), retain_graph=True, is_grads_batched=True)
    for i in range(4):
        for x, row in zip(torch.autograd.grad(losses[i], p, retain_graph=True), rows, strict=True):
            torch.testing.assert_close(x, row[i])


def test_stands_back_where_numpy_must_not_look(calls: list[int]) -> None:
    p, q = (oracle.random_parameters(4, 3, seed=k, dtype=torch.float32) for k in (7, 8))

    def loss(*t: torch.Tensor) -> torch.Tensor:
        return cramer_loss(NormalMixture(*t[:3], validate_args=False), NormalMixture(*t[3:], validate_args=False))

    torch.compile(loss, fullgraph=True, backend="aot_eager")(*p, *q)
    with FakeTensorMode() as mode:
        assert loss(*(mode.from_tensor(t) for t in (*p, *q))).shape == ()
    assert not calls
    loss(*p, *q)
    assert calls == [1]
