"""Bad input to the sliced distance: a ValueError with name, rule and value."""

import math

import numpy as np
import pytest
import torch

from cramix import (
    Diagonal,
    MultivariateNormalMixture,
    SlicedCramerLoss,
    directions,
    sliced_cramer_distance,
    sliced_cramer_loss,
)
from cramix.distance.sliced import sliced_cramer_squared
from tests.refusals import refuses
from tests.sliced_oracle import randn, random_mixture

P, X = random_mixture(seed=1), randn(9, 2, seed=2)
MOVING = MultivariateNormalMixture(P.weights, P.means.clone().requires_grad_(), P.covariances)
POINTS = MultivariateNormalMixture.from_samples(X)
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    "call",
    [
        lambda p, q, directions: sliced_cramer_loss(p, q, directions=directions),
        sliced_cramer_distance,
        lambda p, q, directions: SlicedCramerLoss(directions=directions)(p, q),
    ],
    ids=["loss", "distance", "module"],
)
@pytest.mark.parametrize(
    ("bad", "got"),
    [
        ("exactly", "'exactly'"),
        ("", "''"),
        (0, "0"),
        (-3, "-3"),
        (True, "True"),
        (2.0, "2.0"),
        (None, "None"),
        ([1.0, 0.0], "(2,)"),
        (np.eye(3), "(3, 3)"),
        (torch.eye(3, dtype=torch.float64), "(3, 3)"),
        (torch.ones(2, dtype=torch.float64), "(2,)"),
        (torch.ones(1, 2, 2, dtype=torch.float64), "(1, 2, 2)"),
        (torch.ones(0, 2, dtype=torch.float64), "(0, 2)"),
        (torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64), "1 of length 0"),
        (torch.tensor([[1.0, NAN]], dtype=torch.float64), "nan"),
        (torch.tensor([[1.0, INF]], dtype=torch.float64), "inf"),
        (torch.ones(3, 2, dtype=torch.float64, device="meta"), "meta"),
    ],
)
def test_directions(call, bad, got):
    refuses(lambda: call(P, X, bad), "directions", got)


@pytest.mark.parametrize("same", [torch.eye(2), np.eye(2), [[1, 0], [0, 1]], torch.eye(2, dtype=torch.int64)])
def test_directions_of_any_kind(same):
    expected = sliced_cramer_loss(P, X, directions=torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(sliced_cramer_loss(P, X, directions=same), expected)


@pytest.mark.parametrize("bad", ["mean ", "area", None, 1])
def test_normalization(bad):
    refuses(lambda: sliced_cramer_loss(P, X, directions=3, normalization=bad), "normalization", repr(bad))


def test_the_sum_over_all_directions_is_no_number():
    refuses(lambda: sliced_cramer_loss(P, X, normalization="sum"), "normalization", '"sum"')
    line = random_mixture(d=1)
    refuses(lambda: sliced_cramer_loss(line, randn(4, 1, seed=1), normalization="sum"), "normalization", '"sum"')


@pytest.mark.parametrize("bad", [0, 0.0, -1e-7, NAN, INF, 0.5, "1e-7", None])
def test_tolerance(bad):
    refuses(lambda: sliced_cramer_loss(P, X, tolerance=bad), "tolerance", repr(bad))


@pytest.mark.parametrize("bad", ["average", None])
def test_reduction(bad):
    refuses(lambda: sliced_cramer_loss(P, X, reduction=bad), "reduction", repr(bad))
    refuses(lambda: SlicedCramerLoss(reduction=bad), "reduction", repr(bad))


@pytest.mark.parametrize("bad", ["numpy", "", None])
def test_backend(bad):
    refuses(lambda: sliced_cramer_squared(P, X, backend=bad), "backend", repr(bad))


@pytest.mark.parametrize(
    ("p", "q", "options"),
    [
        (P, MOVING, {}),
        (POINTS, P, {}),
        (POINTS, X, {}),
        (P, P, {"directions": 3}),
        (POINTS, X, {"directions": torch.eye(2).double()}),
    ],
    ids=["a variable", "points first", "points", "slices", "directions"],
)
def test_the_self_energy_stays_where_the_target_may_move(p, q, options):
    refuses(lambda: sliced_cramer_loss(p, q, target_self_energy=False, **options), "target_self_energy", "False")


@pytest.mark.parametrize(
    ("p", "q", "name", "got"),
    [
        (P, randn(4, 3, seed=3), "p and q", "(2,) and (3,)"),
        (random_mixture(d=5), P, "p and q", "(5,) and (2,)"),
        (random_mixture(2, seed=0), randn(3, 4, 2, seed=3), "q", "(3, 4, 2)"),
        (random_mixture(2, seed=0), random_mixture(3, seed=0), "p and q", "(2,)"),
        (random_mixture(2, seed=0), X, "q", "(9, 2)"),
        (P, X.to("meta"), "q", "meta"),
        (P, None, "q", "NoneType"),
        (P.project(torch.eye(2).double()), X, "p", "NormalMixture"),
        (P, X[:0], "q", "(0, 2)"),
        (P, X[0, :1], "q", "(1,)"),
        (X, torch.full((3, 2), NAN, dtype=torch.float64), "q", "nan"),
        (torch.full((3, 2), -INF, dtype=torch.float64), P, "p", "-inf"),
    ],
)
@pytest.mark.parametrize("slices", ["exact", 2])
def test_sides(p, q, name, got, slices):
    refuses(lambda: sliced_cramer_distance(p, q, slices), name, got)


@pytest.mark.parametrize(
    ("name", "arguments"), [("count", (0, 2)), ("count", (2.5, 2)), ("dim", (3, 0)), ("dim", (3, "2"))]
)
@pytest.mark.parametrize("scheme", [directions.random, directions.orthogonal, directions.sobol])
def test_schemes(scheme, name, arguments):
    refuses(lambda: scheme(*arguments), name, repr(arguments[name == "dim"]))


def test_nothing_changes_in_a_refused_call():
    values = Diagonal(torch.ones(1, 2, dtype=torch.float64))
    p = MultivariateNormalMixture(torch.ones(1).double(), torch.zeros(1, 2).double(), values)
    state = torch.get_rng_state()
    refuses(lambda: sliced_cramer_loss(p, X, directions=3, normalization="area"), "normalization", "area")
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("factor", [NAN, INF, 1e200])
@pytest.mark.parametrize("q", [X, P], ids=["points", "mixture"])
def test_sizes_that_are_no_numbers(factor, q):
    """Not looked at where validation is off, or finite without a finite square."""
    p = MultivariateNormalMixture(P.weights, factor * P.means, P.covariances, validate_args=False)
    refuses(lambda: sliced_cramer_loss(p, q), "means", "inf or NaN")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"normalization": "median"}, "normalization must be"),
        ({"normalization": "sum"}, "without slices"),
        ({"tolerance": 0.0}, "tolerance must be"),
        ({"reduction": "max"}, "reduction must be"),
    ],
)
def test_the_module_refuses_when_it_is_made(options: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        SlicedCramerLoss(**options)
