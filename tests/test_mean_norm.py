"""Mean lengths of normal vectors, against closed forms and integrals from outside."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import scipy.integrate
import torch

from cramix.distance.energy.flat_mixtures import Ellipsoids
from cramix.distance.energy.mean_norm import Rows
from cramix.distance.energy.nodes import choose_nodes, lattice, low_end
from tests.sliced_oracle import randn

TOLERANCES = [1e-5, 1e-7, 1e-10]


def length(
    offsets: torch.Tensor, variances: torch.Tensor, tolerance: float, radius: float | None = None
) -> list[float]:
    """E|Z| for Z ~ N(offset, diag(variances)), offsets `(n, d)`, by the rule."""
    d, g = offsets.shape[-1], len(variances)
    variances = variances.view(1, 1, g)
    reach = max(1.0, offsets.norm(dim=-1).max().item(), (d // g * variances.sum()).sqrt().item())
    nodes = choose_nodes(variances, d // g, torch.tensor([2.7 * (radius or reach)], dtype=torch.float64), tolerance)
    rows = Rows(nodes, Ellipsoids(variances, None), d // g, torch.float64, False)
    return rows.at(offsets.T.unsqueeze(0)).mean[0].tolist()


def isotropic(distance: float, scale: float, d: int) -> float:
    """E|delta + s Z| in closed form, at 50 digits."""
    with mpmath.workdps(50):
        d, x = mpmath.mpf(d), mpmath.mpf(distance) / mpmath.mpf(scale)
        half = mpmath.gamma((d + 1) / 2) / mpmath.gamma(d / 2)
        return float(scale * mpmath.sqrt(2) * half * mpmath.hyp1f1(-0.5, d / 2, -x * x / 2))


def close(values: list[float], truth: list[float], tolerance: float) -> bool:
    """Whether errors keep to the tolerance, absolute or, for long vectors, relative."""
    return all(abs(v - t) <= tolerance * max(1.0, abs(t)) for v, t in zip(values, truth, strict=True))


def test_the_comparison_notices_one_percent_and_little_more_than_the_tolerance() -> None:
    truth = [isotropic(0.5, 1.0, 3)]
    values = length(torch.tensor([[0.5, 0, 0]], dtype=torch.float64), torch.ones(1, dtype=torch.float64), 1e-7)
    assert close(values, truth, 1e-7)
    assert not close([1.01 * v for v in values], truth, 1e-5)
    assert not close([v + 4e-7 for v in values], truth, 1e-7)


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("d", [2, 3, 10, 64, 200])
def test_isotropic_closed_form(d: int, tolerance: float) -> None:
    """From the centre of a component to a thousand widths away, and for widths down to a millionth."""
    distances = [0.0, 1e-9, 1e-4, 0.1, 0.7, 1.0, 3.0]
    offsets = torch.nn.functional.pad(torch.tensor(distances, dtype=torch.float64).unsqueeze(-1), (0, d - 1))
    for scale in (1e-6, 1e-3, 0.1, 1.0):
        truth = [isotropic(x, scale, d) for x in distances]
        one = torch.full((1,), scale**2, dtype=torch.float64)
        assert close(length(offsets, one, tolerance), truth, tolerance)
        assert close(length(offsets, one.expand(d), tolerance), truth, tolerance)
        assert close(
            length(1e3 * offsets, one, tolerance), [isotropic(1e3 * x, scale, d) for x in distances], tolerance
        )


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("gap", [0.0, 1e-3, 0.3, 2.0])
def test_rank_one(gap: float, tolerance: float) -> None:
    """Along a line beside the origin: E sqrt(gap^2 + (b + s x)^2) by adaptive quadrature."""
    for along in (0.0, 0.5, 2.0):
        for scale in (1e-3, 1.0):

            def density(x: float, along: float = along, scale: float = scale) -> float:
                return math.hypot(gap, along + scale * x) * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

            kink = min(max(-along / scale, -12.0), 12.0)
            truth = sum(
                scipy.integrate.quad(density, *ends, epsabs=1e-13, epsrel=1e-13, limit=500)[0]
                for ends in ((-12, kink), (kink, 12))
            )
            offset = torch.tensor([[along, gap, 0.0]], dtype=torch.float64)
            values = length(offset, torch.tensor([scale**2, 0, 0], dtype=torch.float64), tolerance)
            assert close(values, [truth], tolerance + 1e-12)


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize("condition", [1.0, 1e3, 1e7, 1e11])
def test_condition_numbers(condition: float, tolerance: float) -> None:
    """In the plane, around the origin: E|Z| = sqrt(2 / pi) E(m), an elliptic integral at m = 1 - 1 / condition."""
    variances = torch.tensor([1.0, 1 / condition], dtype=torch.float64)
    with mpmath.workdps(40):
        truth = float(mpmath.sqrt(2 / mpmath.pi) * mpmath.ellipe(1 - 1 / mpmath.mpf(condition)))
    assert close(length(torch.zeros(1, 2, dtype=torch.float64), variances, tolerance), [truth], tolerance)


@pytest.mark.parametrize("condition", [10.0, 1e5, 1e11])
def test_off_centre_with_condition_numbers(condition: float) -> None:
    """The angle integrated first: E|Z| is the mean of pi / 2 E|<Z, e>| over the circle, in closed form along each e."""
    offset, small = (0.3, -0.2), 1 / condition

    def along(angle: float) -> float:
        c, s = math.cos(angle), math.sin(angle)
        m, v = offset[0] * c + offset[1] * s, math.sqrt(c * c + small * s * s)
        return m * math.erf(m / (v * math.sqrt(2))) + v * math.sqrt(2 / math.pi) * math.exp(-((m / v) ** 2) / 2)

    truth = 0.5 * scipy.integrate.quad(along, 0, math.pi, points=[math.pi / 2], limit=5000, epsabs=1e-12)[0]
    variances = torch.tensor([1.0, small], dtype=torch.float64)
    for tolerance in TOLERANCES:
        values = length(torch.tensor([offset], dtype=torch.float64), variances, tolerance)
        assert close(values, [truth], tolerance + 1e-11)


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6, *TOLERANCES, 1e-13])
def test_the_low_end_stands_for_the_lattice_below(tolerance: float) -> None:
    """Against the sum over the lattice, for a normal variable as long as it may be, and for one three times as long."""
    end, one = low_end(0.8 * tolerance), torch.ones(1, dtype=torch.float64)
    t = lattice(-300, 301, tolerance, one)[0].numpy()
    step = 0.5 * math.log(t[-1] / t[-2])
    errors = []
    for length in (end.longest, 3 * end.longest):
        rises, few = (-np.expm1(-0.5 * np.log1p(2 * nodes * length**2)) for nodes in (t, end.t))
        errors.append(step / math.sqrt(math.pi) * abs((rises / np.sqrt(t)).sum() - end.weights @ few) / length)
    assert errors[0] <= 0.8 * tolerance + 1e-14
    assert errors[1] > tolerance


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_vectors_without_spread_have_their_length(tolerance: float) -> None:
    offsets = randn(40, 3, seed=1) * torch.logspace(-14, 3, 40, dtype=torch.float64).unsqueeze(-1)
    values = length(offsets, torch.zeros(3, dtype=torch.float64), tolerance)
    assert values == pytest.approx(offsets.norm(dim=-1).tolist(), rel=1e-14)


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_a_radius_that_is_too_large_does_no_harm(tolerance: float) -> None:
    """Nodes for outliers serve the others."""
    offsets = torch.tensor([[0.0, 0, 0], [0.3, 0, 0], [1.0, 0, 0]], dtype=torch.float64)
    truth = [isotropic(x, 0.5, 3) for x in (0.0, 0.3, 1.0)]
    for radius in (1.0, 1e2, 1e3, 1e4):
        assert close(length(offsets, torch.full((1,), 0.25, dtype=torch.float64), tolerance, radius), truth, tolerance)


@pytest.mark.parametrize("tolerance", TOLERANCES)
def test_no_vector_is_off_by_more_than_the_tolerance(tolerance: float) -> None:
    """Against a rule a million times finer: axes from 1 to 1e-8 and flat ones, vectors from 1e-8 to 3, all at once."""
    g = torch.Generator().manual_seed(2)
    for _ in range(300):
        d = int(torch.randint(1, 5, (1,), generator=g))
        axes = 10 ** (-16 * torch.rand(d, generator=g, dtype=torch.float64))
        axes[1:] *= torch.rand(d - 1, generator=g) < 0.8
        sizes = 10 ** (-8 + 8.5 * torch.rand(40, 1, generator=g, dtype=torch.float64))
        offsets = sizes * torch.randn(40, d, generator=g, dtype=torch.float64)
        offsets[0] = 0
        assert close(length(offsets, axes, tolerance), length(offsets, axes, 1e-14), tolerance)
