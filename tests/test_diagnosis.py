"""Each warning names the cause of what is wrong with a fit, and its remedy removes it."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from cramix import ConvergenceWarning, fit
from cramix.fitting.diagnosis import collapsed, warnings_of
from cramix.fitting.search import MergeDown
from cramix.fitting.solve import Options, prepare
from cramix.mixture.covariance import FAMILIES

D = torch.float64


def normal(n: int, d: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=D)


def clusters(n: int, k: int, d: int, distance: float = 8.0, seed: int = 0) -> Tensor:
    """k clusters of n samples each, along the diagonal."""
    return torch.cat([normal(n, d, seed + i) + distance * i for i in range(k)])


def texts(x: Tensor, k: int, **options: Any) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return list(fit(x, k, generator=torch.Generator().manual_seed(0), **options).warnings)


class Case(NamedTuple):
    """Data, how they are fitted, the whole of the cause and the remedy, and what the remedy changes."""

    x: Tensor
    k: int
    options: dict[str, Any]
    says: str
    cures: list[dict[str, Any]]


DIAG, SPHERICAL, TIED = ({"covariance_type": name} for name in ("diag", "spherical", "tied"))
ONES = torch.ones(120, 2, dtype=D)
BASE = clusters(60, 2, 2)
REPEATED = torch.cat((clusters(60, 2, 2), 30 * torch.ones(30, 2, dtype=D)))
GRID = torch.cartesian_prod(torch.arange(4.0, dtype=D), torch.arange(3.0, dtype=D))
FLAT = torch.tensor([1.0, 1.0, 1e-5], dtype=D)
PLANES = torch.cat((normal(50, 3) * FLAT, normal(50, 3, 1) * FLAT + 9))
LINE = normal(100, 1)

CASES = {
    "one constant column": Case(
        torch.cat((BASE, ONES[:, :1]), 1), 2, {}, "Column 2 is constant. Drop it.", [{"x": BASE}]
    ),
    "constant columns": Case(
        torch.cat((ONES, BASE), 1), 2, DIAG, "Columns 0, 1 are constant. Drop them.", [{"x": BASE}]
    ),
    "one sample": Case(
        normal(1), 1, {}, "All samples are equal, so that there is no variance to fit. Increase reg_covar.",
        [{"reg_covar": 1e-3}],
    ),
    "equal samples": Case(
        5 * ONES, 3, {}, "All samples are equal, so that there is no variance to fit. Increase reg_covar.",
        [{"reg_covar": 1e-3}],
    ),
    "dependent columns": Case(
        torch.cat((BASE, BASE.sum(1, keepdim=True)), 1), 2, {},
        'Some columns are linear combinations of others. Drop those, or use covariance_type="diag".',
        [{"x": BASE}, DIAG],
    ),
    "nearly dependent columns": Case(
        torch.cat((LINE, LINE + 1e-4 * normal(100, 1, 1)), 1), 1, {},
        'Some columns are nearly linear combinations of others. Drop those, or use covariance_type="diag".',
        [{"x": LINE}, DIAG],
    ),
    "a group far out": Case(
        torch.cat((BASE, 1e9 + normal(12, seed=3))), 2, {},
        "Columns 0, 1 have outliers, many standard deviations from the other samples. Remove or clip them.",
        [{"x": BASE}],
    ),
    "a sample far out": Case(
        torch.cat((BASE, torch.tensor([[0.0, 1e9]], dtype=D))), 2, {},
        "from the others in column 1, and was left out of the fit: row 120. Check or remove it.",
        [{"x": BASE}],
    ),
    "a repeated point": Case(
        REPEATED, 3, {},
        'They cover one point, which the data repeat. Use fewer components, covariance_type="tied" or shrinkage, or '
        "increase reg_covar.",
        [{"k": 1}, TIED, {"shrinkage": "auto"}, {"reg_covar": 1.0}],
    ),
    "repeated points, diagonal": Case(
        REPEATED, 3, DIAG,
        "They cover one point, which the data repeat. Use fewer components, or increase reg_covar.",
        [{"k": 1}, {"reg_covar": 1.0}],
    ),
    "as many components as samples": Case(
        normal(30), 30, {}, "They cover one point each. Use fewer components, or increase reg_covar.",
        [{"k": 3}, {"reg_covar": 1e-3}],
    ),
    "as many components as samples, one of them far out": Case(
        torch.cat((normal(14), 1e4 * torch.ones(1, 2, dtype=D))), 15, {},
        "They cover one point each. Use fewer components, or increase reg_covar.",
        [{"k": 1}, {"reg_covar": 1e6}],
    ),
    "as many components as samples, in more dimensions": Case(
        normal(8, 12), 8, {},
        '8 distinct samples in 12 dimensions have no invertible covariance. Use fewer components and '
        'covariance_type="diag" or "spherical", or increase reg_covar.',
        [{"k": 1, **DIAG}, {"k": 1, **SPHERICAL}, {"reg_covar": 1e-2}],
    ),
    "fewer samples than dimensions": Case(
        normal(4, 6), 1, {},
        '4 distinct samples in 6 dimensions have no invertible covariance. Use covariance_type="diag" or "spherical", '
        "or increase reg_covar.",
        [DIAG, SPHERICAL, {"reg_covar": 1e-2}],
    ),
    "components with few samples": Case(
        clusters(5, 8, 6, 30.0), 8, {},
        'They cover at most 5 distinct points each. Use fewer components, covariance_type="tied" or shrinkage, or '
        "increase reg_covar.",
        [{"k": 1}, TIED, {"shrinkage": "auto"}, {"reg_covar": 1e3}],
    ),
    "components with few samples, too few for one covariance": Case(
        clusters(4, 3, 10, 30.0), 3, {},
        'They cover at most 4 distinct points each. Use fewer components or covariance_type="diag", or increase '
        "reg_covar.",
        [{"k": 1}, DIAG, {"reg_covar": 1e3}],
    ),
    "a tied covariance of few samples": Case(
        clusters(4, 3, 10, 30.0), 3, TIED,
        'They cover at most 4 distinct points each. Use fewer components or covariance_type="diag", or increase '
        "reg_covar.",
        [{"k": 1}, DIAG, {"reg_covar": 1e3}],
    ),
    "planes": Case(
        PLANES, 2, {},
        'Their samples lie close to a line or a plane. Use fewer components or covariance_type="diag", or increase '
        "reg_covar.",
        [{"k": 1}, {"reg_covar": 1e-2}],
    ),
    "different planes": Case(
        torch.cat((normal(50, 3) * FLAT, normal(50, 3, 1) * FLAT.flip(0) + 9)), 2, {},
        'Their samples lie close to a line or a plane. Use fewer components, covariance_type="tied" or shrinkage, or '
        "increase reg_covar.",
        [{"k": 1}, TIED, {"shrinkage": "auto"}, {"reg_covar": 1e-2}],
    ),
    "equal in a column": Case(
        GRID.repeat(20, 1) + torch.tensor([0.1, 0.0], dtype=D) * normal(240), 3, DIAG,
        "Their samples are equal in some column, or nearly. Use fewer components, or increase reg_covar.",
        [{"k": 1}, {"reg_covar": 1e-3}],
    ),
    "close together": Case(
        torch.cat((normal(100, 1), 7 + 1e-5 * normal(100, 1, 1))), 2, {},
        'Their samples nearly coincide. Use fewer components, covariance_type="tied" or shrinkage, or increase '
        "reg_covar.",
        [{"k": 1}, TIED, {"shrinkage": 1.0}, {"reg_covar": 1e-2}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_named_and_the_remedy_removes_it(name: str) -> None:
    case = CASES[name]
    (text,) = texts(**{"x": case.x, "k": case.k, "shrinkage": 0} | case.options)
    assert text.endswith(case.says)
    for cure in case.cures:
        changed = {"x": case.x, "k": case.k, "shrinkage": 0} | case.options | cure
        assert texts(**changed) == [], f"after {cure}"


@pytest.mark.parametrize("covariance_type", FAMILIES)
@pytest.mark.parametrize(
    ("x", "k"),
    [
        (clusters(50, 3, 4), 3),  # the size of Fisher's iris data
        (clusters(59, 3, 13, 3.0), 3),  # that of the wine data
        (normal(20, 1), 2),
        (normal(40, 10), 1),
        (clusters(500, 10, 2), 10),
    ],
)
def test_no_warning_without_a_problem(x: Tensor, k: int, covariance_type: str) -> None:
    assert texts(x, k, covariance_type=covariance_type) == []


def diagnosed(x: Tensor, k: int, can_shrink: bool, covariance_type: str = "full", **options: Any) -> list[str]:
    options = Options(covariance_type, generator=torch.Generator().manual_seed(0), shrinkage=0, **options)
    problem = prepare(x, k, MergeDown(), options)
    with torch.no_grad():
        solution = MergeDown().run(problem)
        return list(warnings_of(problem, solution, collapsed(problem, solution), can_shrink=can_shrink))


def test_shrinkage_is_a_remedy_unless_it_was_used() -> None:
    x = clusters(5, 8, 6, 30.0)
    (plain,) = diagnosed(x, 8, can_shrink=True)
    assert plain.endswith('Use fewer components, covariance_type="tied" or shrinkage, or increase reg_covar.')
    (shrunk,) = diagnosed(x, 8, can_shrink=False)
    assert "shrinkage" not in shrunk


def test_shrinkage_is_no_remedy_if_the_pooled_covariance_is_singular() -> None:
    (text,) = diagnosed(clusters(4, 3, 10, 30.0), 3, can_shrink=True)
    assert "shrinkage" not in text


def test_too_few_samples_for_full_covariances() -> None:
    x = clusters(166, 3, 30)
    (text,) = diagnosed(x, 3, can_shrink=True)
    assert text == (
        "498 samples are few for the 1395 numbers in 3 full covariances: the fit may not hold for new samples. "
        'Use fewer components, covariance_type="tied" or shrinkage.'
    )
    assert diagnosed(x, 3, can_shrink=False) == []
    assert diagnosed(x, 3, can_shrink=True, covariance_type="tied") == []
    assert diagnosed(x, 1, can_shrink=True) == []
    assert diagnosed(clusters(50, 3, 4), 3, can_shrink=True) == []


def test_components_with_fewer_samples_than_dimensions() -> None:
    """Of a small cluster in 5 dimensions, with a solution that has not collapsed."""
    x = torch.cat((clusters(100, 2, 5), 40 + normal(4, 5, 9)))
    problem = prepare(x, 3, MergeDown(), Options(generator=torch.Generator().manual_seed(0), shrinkage=0))
    with torch.no_grad():
        solution = MergeDown().run(problem)
        shrunk = solution.components.covariances + torch.eye(5, dtype=D) / 10
    solution = solution._replace(components=solution.components._replace(covariances=shrunk))
    narrow = collapsed(problem, solution)
    assert not narrow.any()
    for can_shrink, remedy in (
        (True, ', covariance_type="tied" or shrinkage.'),
        (False, ' or covariance_type="tied".'),
    ):
        (text,) = warnings_of(problem, solution, narrow, can_shrink=can_shrink)
        assert text == (
            "1 of 3 components have fewer samples than the 5 dimensions, too few for a covariance of their own. "
            f"Use fewer components{remedy}"
        )
    assert texts(x, 3, covariance_type="tied") == []
    assert texts(x, 2) == []
