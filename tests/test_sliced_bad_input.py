"""Bad input to the sliced distance: a ValueError with name, rule, value and cure."""

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
from tests.refusals import refuses
from tests.sliced_oracle import randn, random_mixture

P, X = random_mixture(seed=1), randn(9, 2, seed=2)
MOVING = MultivariateNormalMixture(P.weights, P.means.clone().requires_grad_(), P.covariances)
NAN, INF = math.nan, math.inf


def cured(call, name, got, cure):
    """Check the message to its last sentence."""
    refuses(call, name, got)
    with pytest.raises(ValueError, match="got") as caught:
        call()
    assert cure in str(caught.value).split("got", 1)[1].split(". ", 1)[1]


@pytest.mark.parametrize(
    "call",
    [sliced_cramer_loss, sliced_cramer_distance, lambda p, q, *rest: SlicedCramerLoss(*rest)(p, q)],
    ids=["loss", "distance", "module"],
)
@pytest.mark.parametrize(
    ("bad", "got", "cure"),
    [
        ("exactly", "'exactly'", "cramix.directions"),
        ("", "''", "cramix.directions"),
        (0, "0", "cramix.directions"),
        (-3, "-3", "cramix.directions"),
        (True, "True", "cramix.directions"),
        (2.0, "2.0", "cramix.directions"),
        (None, "None", "cramix.directions"),
        ([[1.0, 0.0]], "list", "cramix.directions"),
        (np.eye(2), "ndarray", "cramix.directions"),
        (torch.eye(3, dtype=torch.float64), "(3, 3)", "cramix.directions"),
        (torch.ones(2, dtype=torch.float64), "(2,)", "cramix.directions"),
        (torch.ones(1, 2, 2, dtype=torch.float64), "(1, 2, 2)", "cramix.directions"),
        (torch.ones(0, 2, dtype=torch.float64), "(0, 2)", "cramix.directions"),
        (torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64), "1 of length 0", "Drop"),
        (torch.tensor([[1.0, NAN]], dtype=torch.float64), "nan", "Drop"),
        (torch.tensor([[1.0, INF]], dtype=torch.float64), "inf", "Drop"),
        (torch.ones(3, 2, dtype=torch.int64), "torch.int64", "directions.double()"),
        (torch.ones(3, 2), "torch.float32", "Convert"),
        (torch.ones(3, 2, dtype=torch.float64, device="meta"), "meta", "Convert"),
    ],
)
def test_directions(call, bad, got, cure):
    cured(lambda: call(P, X, bad), "directions", got, cure)


@pytest.mark.parametrize("bad", ["mean ", "area", None, 1])
def test_normalization(bad):
    cured(lambda: sliced_cramer_loss(P, X, 3, bad), "normalization", repr(bad), '"mean"')


def test_the_sum_over_all_directions_is_no_number():
    cured(lambda: sliced_cramer_loss(P, X, normalization="sum"), "normalization", '"sum"', "directions")
    cured(lambda: sliced_cramer_loss(randn(3, 1, seed=0), randn(4, 1, seed=1), "exact", "sum"), "normalization", "", "")


@pytest.mark.parametrize("bad", [0, 0.0, -1e-7, NAN, INF, 0.5, "1e-7", None])
def test_tolerance(bad):
    cured(lambda: sliced_cramer_loss(P, X, tolerance=bad), "tolerance", repr(bad), "1e-7")


@pytest.mark.parametrize("bad", ["average", None])
def test_reduction(bad):
    refuses(lambda: sliced_cramer_loss(P, X, reduction=bad), "reduction", repr(bad))
    refuses(lambda: SlicedCramerLoss(reduction=bad), "reduction", repr(bad))


@pytest.mark.parametrize(
    ("p", "q", "options"),
    [(P, MOVING, {}), (X, P, {}), (X, X, {}), (P, X, {"directions": 3}), (P, X, {"directions": torch.eye(2).double()})],
    ids=["a variable", "points first", "points", "slices", "directions"],
)
def test_the_target_term_stays_where_the_target_may_move(p, q, options):
    cured(lambda: sliced_cramer_loss(p, q, target_term=False, **options), "target_term", "False", "Leave it out")


@pytest.mark.parametrize(
    ("p", "q", "name", "got", "cure"),
    [
        (P, randn(4, 3, seed=3), "q", "2 and 3", "marginal"),
        (random_mixture(d=5), P, "p", "5 and 2", "marginal"),
        (random_mixture(2, seed=0), randn(3, 4, 2, seed=3), "q", "(3,)", "Batch"),
        (random_mixture(2, seed=0), random_mixture(3, seed=0), "p", "(2,)", "Batch"),
        (P, X.float(), "q", "torch.float32", "Convert"),
        (P.to(torch.float32), X, "p", "torch.float64", "Convert"),
        (P, X.to("meta"), "q", "meta", "Convert"),
        (P, X.long(), "q", "torch.int64", "q.double()"),
        ([[0.0, 1.0]], X, "p", "list", "as_tensor"),
        (P, X.numpy(), "q", "ndarray", "as_tensor"),
        (P, None, "q", "NoneType", "as_tensor"),
        (P.project(torch.eye(2).double()), X, "p", "NormalMixture", "cramer_loss"),
        (P, X[:0], "q", "(0, 2)", "an axis"),
        (P, X[0, :1], "q", "(1,)", "an axis"),
        (X, torch.full((3, 2), NAN, dtype=torch.float64), "q", "nan", "Drop"),
        (torch.full((3, 2), -INF, dtype=torch.float64), P, "p", "-inf", "Drop"),
    ],
)
@pytest.mark.parametrize("slices", ["exact", 2])
def test_sides(p, q, name, got, cure, slices):
    cured(lambda: sliced_cramer_loss(p, q, slices), name, got, cure)


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
    refuses(lambda: sliced_cramer_loss(p, X, 3, "area"), "normalization", "area")
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("factor", [NAN, INF, 1e200])
@pytest.mark.parametrize("q", [X, P], ids=["points", "mixture"])
def test_sizes_that_are_no_numbers(factor, q):
    """Not looked at where validation is off, or finite without a finite square."""
    p = MultivariateNormalMixture(P.weights, factor * P.means, P.covariances, validate_args=False)
    cured(lambda: sliced_cramer_loss(p, q), "means", "inf or NaN", "Scale")


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
