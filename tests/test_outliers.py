"""Samples absurdly far out are left out of a fit, which is then the fit to the others."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from cramix import ConvergenceWarning, CramerMixture, MultivariateNormalMixture, compress, fit, select
from cramix.fitting import METHODS, GradientDescent
from cramix.fitting.outliers import find_outliers
from cramix.mixture.covariance import FAMILIES

D = torch.float64
SIZES = [1e3, 1e6, 1e10, 1e15]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def blobs(d: int, n: int = 240) -> Tensor:
    """Three clusters; the standard deviation of a column is at most 10."""
    g = seeded(d)
    return 4 * torch.randn(3, d, generator=g, dtype=D).repeat(n // 3, 1) + torch.randn(n, d, generator=g, dtype=D)


def far(kind: str, count: int, size: float, d: int) -> Tensor:
    g = seeded(5)
    signs = torch.tensor([1.0, -1.0, -1.0, 1.0, -1.0], dtype=D)[:count, None]
    if kind == "one place":
        return torch.full((count, d), size, dtype=D)
    if kind == "scattered":
        return size * (1 + 9 * torch.rand(count, d, generator=g, dtype=D))
    if kind == "both signs":
        return size * signs * (1 + torch.rand(count, d, generator=g, dtype=D))
    rows = torch.randn(count, d, generator=g, dtype=D)
    rows[:, -1] = size * signs.squeeze(-1)
    return rows


def mixed(x: Tensor, rows: Tensor) -> tuple[Tensor, list[int]]:
    """Return all samples in a random order, and the indices of the second ones."""
    order = torch.randperm(len(x) + len(rows), generator=seeded(6))
    return torch.cat((x, rows))[order], (order >= len(x)).nonzero().flatten().tolist()


def without(x: Tensor, indices: list[int]) -> Tensor:
    keep = torch.ones(len(x), dtype=torch.bool)
    keep[indices] = False
    return x[keep]


def assert_same(found: MultivariateNormalMixture, wanted: MultivariateNormalMixture) -> None:
    torch.testing.assert_close(found.weights, wanted.weights)
    torch.testing.assert_close(found.means, wanted.means)
    torch.testing.assert_close(found.covariances, wanted.covariances)


def indices(x: Tensor, weights: Tensor | None = None, keep: int = 1) -> list[int]:
    return list(find_outliers(x, torch.ones(len(x), dtype=D) if weights is None else weights, keep).rows)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["one place", "scattered", "both signs", "one column"])
@pytest.mark.parametrize(("d", "count"), [(1, 5), (2, 1), (2, 5), (5, 5)])
def test_the_fit_is_that_of_the_others(d: int, count: int, kind: str, size: float) -> None:
    x, wanted = mixed(blobs(d), far(kind, count, 10 * size, d))
    with pytest.warns(ConvergenceWarning, match=f"{count} of {240 + count} samples lie.* left out of the fit"):
        found = fit(x, 3, generator=seeded())
    plain = fit(without(x, wanted), 3, generator=seeded())
    assert list(found.outliers) == wanted
    assert len(found.warnings) == 1
    assert_same(found.mixture, plain.mixture)
    assert (found.log_likelihood, found.bic, found.n_samples) == (plain.log_likelihood, plain.bic, 240)
    assert plain.outliers == ()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("method", ["merge", "em", "descent"])
def test_all_covariance_types_and_methods(method: str, name: str, size: float) -> None:
    x, wanted = mixed(blobs(2), far("both signs", 2, 10 * size, 2))
    options = {"method": method, "covariance_type": name}
    with pytest.warns(ConvergenceWarning, match="left out of the fit"):
        found = fit(x, 3, generator=seeded(), **options)
    assert_same(found.mixture, fit(without(x, wanted), 3, generator=seeded(), **options).mixture)


@pytest.mark.parametrize("size", SIZES)
def test_weights(size: float) -> None:
    x, wanted = mixed(blobs(2), far("scattered", 5, 10 * size, 2))
    weights = torch.rand(len(x), generator=seeded(7), dtype=D)
    weights[::7] = 0
    weights[wanted] += 0.1
    with pytest.warns(ConvergenceWarning, match="5 of 245 samples"):
        found = fit(x, 3, sample_weight=weights, generator=seeded())
    keep = torch.tensor([i not in wanted for i in range(len(x))])
    assert_same(found.mixture, fit(x[keep], 3, sample_weight=weights[keep], generator=seeded()).mixture)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["one place", "scattered"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_estimator_names_the_rows_of_the_caller(weighted: bool, kind: str, size: float) -> None:
    """Although it merges equal ones."""
    x, wanted = mixed(blobs(2).round(decimals=1), far(kind, 5, 10 * size, 2))
    weights = np.arange(1.0, 246.0) if weighted else np.ones(245)
    before = weights.copy()
    rest = np.delete(np.arange(245), wanted)
    listed = ", ".join(map(str, wanted))
    with pytest.warns(ConvergenceWarning, match=f"in columns 0, 1, and were left out of the fit: rows {listed}. Check"):
        found = CramerMixture(3, random_state=0).fit(x.numpy(), sample_weight=weights)
    plain = CramerMixture(3, random_state=0).fit(x.numpy()[rest], sample_weight=weights[rest])
    assert_same(found.mixture_, plain.mixture_)
    assert found.lower_bound_ == plain.lower_bound_
    assert list(found.result_.outliers) == wanted
    assert (found.result_.n_samples, found.result_.bic) == (240, plain.result_.bic)
    assert np.array_equal(weights, before)


def test_the_estimator_starts_without_them() -> None:
    x, wanted = mixed(blobs(2), far("scattered", 3, 1e8, 2))
    rest = np.delete(x.numpy(), wanted, 0)
    for settings in ({"means_init": rest[:3]}, {"init_params": "kmeans"}, {"max_iter": 0}, {"objective": "cramer"}):
        with pytest.warns(ConvergenceWarning, match="left out of the fit"):
            found = CramerMixture(3, random_state=0, **settings).fit(x.numpy())
        assert_same(found.mixture_, CramerMixture(3, random_state=0, **settings).fit(rest).mixture_)


def test_selection() -> None:
    x, wanted = mixed(blobs(2), far("both signs", 5, 1e10, 2))
    with pytest.warns(ConvergenceWarning, match="^5 of 245 samples lie"):
        found = select(x, range(1, 5), folds=3, generator=seeded())
    plain = select(without(x, wanted), range(1, 5), folds=3, generator=seeded())
    assert (found.bic, found.held_out) == (plain.bic, plain.held_out)


def test_samples_without_axis_and_in_single_precision() -> None:
    x, wanted = mixed(blobs(1), far("one place", 1, 1e30, 1))
    x = x.squeeze(-1).float()
    with pytest.warns(
        ConvergenceWarning, match=rf"1 of 241 samples lies \S+ standard .* others, and .* row {wanted[0]}\."
    ):
        found = fit(x, 3, generator=seeded())
    plain = fit(without(x, wanted), 3, generator=seeded())
    assert torch.equal(found.mixture.means, plain.mixture.means)


def test_the_largest_numbers() -> None:
    """Their squares overflow."""
    x, wanted = mixed(blobs(2), far("both signs", 2, 1e300, 2))
    with pytest.warns(ConvergenceWarning, match="left out"):
        found = fit(x, 3, generator=seeded())
    assert_same(found.mixture, fit(without(x, wanted), 3, generator=seeded()).mixture)


def test_outliers_of_all_sizes_at_once() -> None:
    x = blobs(1)
    sizes = torch.tensor([[1e4], [-1e6], [3e9], [1e12], [-1e15]], dtype=D)
    assert indices(torch.cat((x, sizes))) == list(range(240, 245))


def test_one_outlier_does_not_hide_another() -> None:
    """They lie close to each other, and the nearest is only 20 standard deviations out."""
    x = torch.randn(500, 1, generator=seeded(), dtype=D)
    rows = torch.tensor([[1300.0], [900.0], [-400.0], [150.0], [60.0], [20.0]], dtype=D)
    assert indices(torch.cat((x, rows))) == list(range(500, 506))


def test_each_column_has_its_own() -> None:
    x = blobs(4, 600)
    for j in range(4):
        x[10 * j : 10 * j + 8, j] = 1e7
    found = find_outliers(x, torch.ones(600, dtype=D), 3)
    assert found.rows == tuple(10 * j + i for j in range(4) for i in range(8))
    assert found.columns == (0, 1, 2, 3)
    assert found.warning.startswith("32 of 600 samples lie up to")
    assert found.warning.endswith("rows 0, 1, 2, 3, 4 and 27 more. Check or remove them.")


def test_large_data_are_read_in_blocks() -> None:
    """Outliers in several blocks, and a first block without weight."""
    x = torch.randn(200_000, 2, generator=seeded(), dtype=torch.float32)
    weights = torch.ones(200_000)
    weights[:70_000] = 0
    x[[5, 80_000, 150_000, 199_999], [0, 0, 1, 0]] = 1e6
    assert indices(x, weights) == [80_000, 150_000, 199_999]


GROUP = 1e6 + torch.randn(11, 2, generator=seeded(1), dtype=D)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: torch.cat((x, GROUP)),  # more than ten
        lambda x: torch.cat((x[:60], GROUP[:4])),  # more than one in twenty
        lambda x: torch.cat((x, 50 * x[:1].sign())),  # within 100 standard deviations
        lambda x: torch.cat((x[:15], 1e9 * torch.ones(1, 2, dtype=D))),  # too few samples to judge
        lambda x: torch.cat((x, torch.zeros(0, 2, dtype=D))),
        lambda x: torch.exp(2 * torch.randn(5000, 2, generator=seeded(2), dtype=D)),  # a heavy tail
        lambda x: torch.cat((torch.full_like(x, 0.1), x[:5])),  # rare values of constant columns
        lambda x: torch.cat((torch.full_like(x, 0.1), 0.1 + 1e-17 * x, 5 * x[:1])),  # constant up to rounding
        lambda x: x[:1],
        lambda x: x[:2],
    ],
)
def test_what_is_no_outlier(change: Callable[[Tensor], Tensor]) -> None:
    assert indices(change(torch.randn(240, 2, generator=seeded(), dtype=D))) == []


def test_rare_values_are_no_outliers_but_typing_errors_among_them_are() -> None:
    x = torch.zeros(300, 1, dtype=D)
    x[:8, 0] = torch.tensor([1.0, 2.0, 1.0, 3.0, 1.0, 4.0, 2.0, 1.0])
    assert indices(x) == []
    x[9] = 1e8
    assert indices(x) == [9]


def test_ten_samples_of_a_cauchy_distribution_at_most() -> None:
    for seed in range(20):
        x = torch.empty(2000, 1, dtype=D).cauchy_(generator=seeded(seed))
        found = indices(x)
        assert len(found) <= 10
        rest = without(x, found)
        assert all(x[i].abs() > 3 * rest.abs().max() - 1 for i in found)


def test_as_many_samples_as_components_remain() -> None:
    x = torch.cat((blobs(1, 39), torch.full((1, 1), 1e9, dtype=D)))
    assert indices(x, keep=39) == [39]
    assert indices(x, keep=40) == []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # collapsed
        assert fit(x, 40, generator=seeded()).outliers == ()


def test_weight_counts_not_only_number() -> None:
    x = torch.cat((blobs(2), torch.full((1, 2), 1e9, dtype=D)))
    weights = torch.ones(241, dtype=D)
    for weight, wanted in ((0.0, []), (1e-3, [240]), (10.0, [240]), (15.0, [])):
        weights[240] = weight
        assert indices(x, weights) == wanted


def test_large_weights_do_not_overflow() -> None:
    x = torch.cat((blobs(2), 1e9 + blobs(2, 21)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the group far out
        model = CramerMixture(4, random_state=0).fit(x.numpy(), sample_weight=np.full(261, 1e307))
    assert model.result_.outliers == ()


@pytest.mark.parametrize("method", sorted(METHODS))
def test_methods_to_compare_with_keep_all_samples(method: str) -> None:
    assert METHODS[method]().sets_outliers_aside == (method in ("merge", "em", "descent"))


def test_batches_are_not_searched() -> None:
    assert not GradientDescent(optimizer="adam", batch_size=8).sets_outliers_aside


def test_a_mixture_keeps_all_components() -> None:
    """Far points of a mixture are what it is made of, not errors."""
    x = torch.cat((torch.arange(40, dtype=D).unsqueeze(-1), torch.full((1, 1), 1e6, dtype=D)))
    small = compress(MultivariateNormalMixture.from_samples(x), 2)
    assert small.means.max().item() == pytest.approx(1e6, rel=1e-3)
