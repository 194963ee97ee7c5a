"""Kummer's function against mpmath."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from cramix.distance.hypergeometric import gamma_ratio, kummer

X = [0.0, 1e-12, 1e-3, 0.5, 3.0, 20.0, 49.9, 50.0, 50.1, 60.0, 100.0, 400.0, 700.0, 2e3, 1e4, 1e6, 1e12]
DIMS = [1, 2, 3, 4, 5, 8, 17, 64, 250, 1000, 4000]


def truth(a: float, b: float, x: float) -> mpmath.mpf:
    with mpmath.workdps(40):
        return mpmath.hyp1f1(a, b, -mpmath.mpf(x))


def worst(a: float, b: float, values: list[float], xs: list[float]) -> float:
    """The largest relative error; what underflows float64 must be 0."""
    errors = []
    for x, value in zip(xs, values, strict=True):
        t = truth(a, b, x)
        errors.append(float(abs(value - t) / abs(t)) if abs(t) > 1e-300 else abs(value))
    return max(errors)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("a", [-0.5, 0.5])
def test_values(a: float, dim: int) -> None:
    x = torch.tensor(X, dtype=torch.float64)
    assert worst(a, dim / 2, kummer(a, dim / 2, x).tolist(), X) < 5e-14
    single = kummer(a, dim / 2, x.float())
    assert single.dtype == torch.float32
    at = x.float().tolist()
    normal = [i for i, t in enumerate(at) if truth(a, dim / 2, t) > 1e-30]
    assert worst(a, dim / 2, [single.tolist()[i] for i in normal], [at[i] for i in normal]) < 1e-6


def test_the_comparison_notices_an_error() -> None:
    values = kummer(0.5, 1.5, torch.tensor(X, dtype=torch.float64))
    assert worst(0.5, 1.5, (values * (1 + 1e-12)).tolist(), X) > 5e-13


@pytest.mark.parametrize("dim", [1, 2, 3, 10, 128, 1000])
@pytest.mark.parametrize("a", [-0.5, 0.5])
def test_first_and_second_derivatives(a: float, dim: int) -> None:
    x = torch.tensor(X, dtype=torch.float64, requires_grad=True)
    b = dim / 2
    (first,) = torch.autograd.grad(kummer(a, b, x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    # d^n/dx^n 1F1(a; b; -x) = (-1)^n (a)_n / (b)_n 1F1(a + n; b + n; -x), DLMF 13.3.16.
    assert worst(a + 1, b + 1, (first * (-b / a)).tolist(), X) < 5e-14
    factor = b * (b + 1) / (a * (a + 1))
    assert worst(a + 2, b + 2, (second * factor).tolist(), X) < 1e-13


def test_derivatives_are_those_of_the_values() -> None:
    x = torch.tensor([0.3, 7.0, 49.0, 51.0, 90.0], dtype=torch.float64, requires_grad=True)
    for a in (-0.5, 0.5):
        assert gradcheck(lambda x, a=a: kummer(a, 1.5, x), x)
        assert gradgradcheck(lambda x, a=a: kummer(a, 1.5, x), x)


@pytest.mark.parametrize("z", [0.5, 1.0, 1.5, 7.5, 15.5, 16.0, 40.0, 500.0, 5000.5])
def test_gamma_ratio(z: float) -> None:
    with mpmath.workdps(40):
        exact = mpmath.gamma(mpmath.mpf(z) + 0.5) / mpmath.gamma(mpmath.mpf(z))
    assert abs(gamma_ratio(z) / float(exact) - 1) < 1e-15


def test_shapes_and_vmap() -> None:
    x = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 100
    assert kummer(0.5, 2.0, x).shape == (2, 3, 4)
    assert kummer(0.5, 2.0, x[0, 0, 0]).item() == kummer(0.5, 2.0, x)[0, 0, 0].item()
    torch.testing.assert_close(torch.vmap(lambda x: kummer(-0.5, 2.0, x))(x), kummer(-0.5, 2.0, x), rtol=1e-15, atol=0)


@pytest.mark.parametrize(("a", "b"), [(0.25, 1.0), (-1.5, 1.0), (1.5, 1.0), (0.5, 0.25), (-0.5, 0.25)])
def test_bad_parameters(a: float, b: float) -> None:
    with pytest.raises(ValueError, match=rf"a must be half an odd number .*; got a = {a} and b = {b}"):
        kummer(a, b, torch.ones(1))
