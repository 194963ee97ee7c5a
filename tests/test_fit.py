"""Maximum likelihood fits: steps against scikit-learn and loops, optima from any start."""

from __future__ import annotations

import importlib.util
import itertools
import math
import warnings

import numpy as np
import pandas as pd
import pytest
import sklearn.exceptions
import torch
from scipy.stats import multivariate_normal
from sklearn.mixture import GaussianMixture
from torch import Tensor

import cramix
from cramix import (
    ConvergenceWarning,
    Diagonal,
    Full,
    MultivariateNormalMixture,
    NormalMixture,
    Spherical,
    Tied,
    fit,
    select,
)
from cramix.fitting import METHODS, ExpectationMaximization, GradientDescent, MergeDown, Method
from cramix.fitting.em import maximize
from cramix.fitting.features import Data
from cramix.fitting.merge import merge_cheapest
from cramix.fitting.starts import clustered, regrouped
from cramix.mixture.covariance import FAMILIES, Family

D = torch.float64
ONE = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
KINDS = {"full": Full, "tied": Tied, "diag": Diagonal, "spherical": Spherical}


def blobs(n: int = 300, d: int = 2, k: int = 3, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    roots = torch.randn(k, d, d, generator=g, dtype=D)
    centres = 4 * torch.randn(k, d, generator=g, dtype=D)
    label = torch.arange(n) % k
    return centres[label] + (roots[label] @ torch.randn(n, d, 1, generator=g, dtype=D)).squeeze(-1)


def random_sums(family: Family, batch: int, k: int, seed: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    roots = torch.randn(batch, k, family.dim, family.dim, generator=g, dtype=D)
    weights = torch.randn(batch, k, generator=g, dtype=D).softmax(-1)
    return family.sums(weights, torch.randn(batch, k, family.dim, generator=g, dtype=D), roots @ roots.mT)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_step_is_that_of_scikit_learn(name: str) -> None:
    """One step from the same parameters, with the same floor; weighted samples are repeated ones."""
    x, repeats = blobs(), torch.arange(300) % 3 + 1
    family = FAMILIES[name](2, 1e-6)
    sums = random_sums(family, 1, 3, seed=1)
    weights, means, spread = (t.squeeze(0) for t in family.parameters(sums))
    precisions = torch.linalg.inv(spread) if name in ("full", "tied") else 1 / spread
    peer = GaussianMixture(
        3,
        covariance_type=name,
        max_iter=1,
        weights_init=weights.numpy(),
        means_init=means.numpy(),
        precisions_init=precisions.numpy(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one step does not converge
        peer.fit(x.repeat_interleave(repeats, 0).numpy())
    found, likelihood = Data(family, x, repeats.to(D)).step(sums)
    weights, means, spread = (t.squeeze(0).numpy() for t in family.parameters(found))
    np.testing.assert_allclose(weights, peer.weights_, rtol=1e-9)
    np.testing.assert_allclose(means, peer.means_, rtol=1e-9)
    np.testing.assert_allclose(spread, peer.covariances_, rtol=1e-8)
    assert likelihood.item() == pytest.approx(peer.lower_bound_, rel=1e-9)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_likelihood_is_that_of_scipy_and_never_falls(name: str) -> None:
    x = blobs(seed=2)
    data = Data(FAMILIES[name](2, 1e-6), x, torch.ones(300, dtype=D))
    sums, last = random_sums(data.family, 4, 5, seed=3), None
    for _ in range(20):
        weights, means, spread = data.family.parameters(sums)
        covariances = KINDS[name](spread).matrices(2).expand(4, 5, 2, 2)
        truth = []
        for b in range(4):
            density = sum(
                weights[b, i].item()
                * multivariate_normal(means[b, i].numpy(), covariances[b, i].numpy()).pdf(x.numpy())
                for i in range(5)
            )
            truth.append(np.log(density).mean())
        sums, likelihood = data.step(sums)
        np.testing.assert_allclose(likelihood.numpy(), truth, rtol=1e-8)
        assert last is None or (likelihood >= last - 1e-8).all()
        last = likelihood


def test_fits_in_a_batch_do_not_feel_each_other_nor_the_blocks() -> None:
    x = blobs(seed=4)
    weights = torch.rand(300, generator=torch.Generator().manual_seed(5), dtype=D)
    data, blocks = (Data(FAMILIES["full"](2, 1e-6), x, weights, block=block) for block in (1 << 20, 100))
    sums = random_sums(data.family, 3, 4, seed=6)
    together = maximize(data, sums, 7)
    for b in range(3):
        alone = maximize(blocks, sums[b : b + 1], 7)
        torch.testing.assert_close(alone.sums[0], together.sums[b], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
def test_merging_keeps_moments_and_takes_the_cheapest_pair(name: str) -> None:
    family = FAMILIES[name](3, 1e-9)
    sums = random_sums(family, 6, 5, seed=7)
    merged = merge_cheapest(family, sums)
    torch.testing.assert_close(merged.sum(1), sums.sum(1))
    costs = family.merge_costs(sums)
    for b in range(6):
        i, j = family.pairs(5)[:, costs[b].argmin()].tolist()
        rest = [sums[b, m] for m in range(5) if m not in (i, j)] + [sums[b, i] + sums[b, j]]
        for row in rest:
            assert (merged[b] - row).abs().amax(-1).min() < 1e-12


@pytest.mark.parametrize("name", ["full", "diag", "spherical"])
def test_merge_costs_are_runnalls(name: str) -> None:
    family = FAMILIES[name](3, 1e-9)
    sums = random_sums(family, 1, 4, seed=8)
    costs = family.merge_costs(sums)[0]

    def log_determinant(row: Tensor) -> float:
        _, _, spread = family.parameters(row[None, None])
        return torch.logdet(KINDS[name](spread).matrices(3)[0, 0]).item()

    for cost, i, j in zip(costs, *family.pairs(4), strict=True):
        a, b = sums[0, i], sums[0, j]
        truth = (a + b)[0] * log_determinant(a + b) - a[0] * log_determinant(a) - b[0] * log_determinant(b)
        assert cost.item() == pytest.approx(0.5 * truth.item(), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_prior_is_samples_beside_those_of_each_component(name: str) -> None:
    """Covariances are those of the samples of a component, and of as many others around its mean."""
    family, shape = FAMILIES[name](2, 1e-9), torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=D)
    sums = random_sums(family, 2, 3, seed=24)
    prior = family.prior(torch.tensor([0.0, 0.1], dtype=D), shape)
    weights, means, spread = family.parameters(sums, prior)
    plain = family.parameters(sums)
    torch.testing.assert_close((weights, means), plain[:2])
    torch.testing.assert_close(spread[0], plain[2][0])
    alone = [family.parameters(sums[1, i : i + 1])[2] for i in range(3)]
    every = [KINDS[name](values).matrices(2)[0] for values in alone]
    if name == "spherical":
        shape = shape.diagonal().mean() * torch.eye(2, dtype=D)
    elif name == "diag":
        shape = shape.diagonal().diag()
    added = [w * s + 0.1 * shape for w, s in zip(weights[1], every, strict=True)]
    wanted = torch.stack([a / (w + 0.1) for w, a in zip(weights[1], added, strict=True)])
    if name == "tied":
        wanted = sum(added).unsqueeze(0) / 1.3
    torch.testing.assert_close(KINDS[name](spread[1]).matrices(2), wanted, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_nine_blobs_are_found_from_every_start(seed: int) -> None:
    """A grid on which expectation maximisation from random points ends in another optimum more often than not."""
    g = torch.Generator().manual_seed(10)
    grid = torch.cartesian_prod(torch.arange(3.0), torch.arange(3.0)).to(D)
    x = 5 * grid.repeat(60, 1) + torch.randn(540, 2, generator=g, dtype=D)
    result = fit(x, 9, generator=torch.Generator().manual_seed(seed))
    nearest = torch.cdist(5 * grid, result.mixture.means).amin(-1)
    assert nearest.max() < 0.6
    assert result.converged
    assert result.collapsed == 0
    assert result.log_likelihood == pytest.approx(result.mixture.log_prob(x).mean().item(), rel=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_at_least_as_good_as_ten_starts_of_scikit_learn(name: str) -> None:
    x = blobs(400, 3, 4, seed=11)
    peer = GaussianMixture(4, covariance_type=name, n_init=10, random_state=0, tol=1e-6, max_iter=500).fit(x.numpy())
    result = fit(x, 4, covariance_type=name, generator=torch.Generator().manual_seed(0))
    assert type(result.mixture.covariance_kind) is KINDS[name]
    assert result.log_likelihood >= peer.score(x.numpy()) - 1e-4


def test_units_and_places_do_not_matter() -> None:
    x = blobs(seed=12)
    scale, shift = torch.tensor([1e-8, 1e8], dtype=D), torch.tensor([1e-3, 1e9], dtype=D)
    plain, moved = (fit(y, 3, generator=torch.Generator().manual_seed(1)) for y in (x, shift + scale * x))
    back = (moved.mixture.means - shift) / scale
    assert torch.cdist(back, plain.mixture.means).amin(-1).max() < 1e-3
    assert moved.log_likelihood == pytest.approx(plain.log_likelihood - scale.log().sum().item(), abs=1e-3)


def test_weights_are_repetitions() -> None:
    x, repeats = blobs(seed=13), torch.arange(300) % 2 + 1
    weighted = fit(x, 3, sample_weight=repeats.to(D), generator=torch.Generator().manual_seed(2))
    repeated = fit(x.repeat_interleave(repeats, 0), 3, generator=torch.Generator().manual_seed(2))
    assert weighted.log_likelihood == pytest.approx(repeated.log_likelihood, abs=1e-5)


def test_same_seed_same_fit_and_float32_stays() -> None:
    x = blobs(seed=14).float()
    a, b = (fit(x, 3, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert a.mixture.means.dtype == torch.float32
    assert torch.equal(a.mixture.means, b.mixture.means)
    assert a.log_likelihood == b.log_likelihood


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_few_digits_are_those_of_the_data_only(dtype: torch.dtype) -> None:
    """1/3000 is far from itself in these dtypes; means and likelihoods do not notice."""
    x = (blobs(3000, seed=21) + 5).to(dtype)
    few, many = (fit(y, 1, generator=torch.Generator().manual_seed(0)) for y in (x, x.to(D)))
    assert few.mixture.means.dtype == dtype
    assert few.log_likelihood == pytest.approx(many.log_likelihood, rel=1e-12)
    torch.testing.assert_close(few.mixture.means, many.mixture.means.to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float16, 1e3), (torch.float32, 1e25), (torch.float32, 1e-30)])
def test_variances_beyond_a_dtype_are_refused(dtype: torch.dtype, scale: float) -> None:
    x = (scale * blobs(60, seed=22)).to(dtype)
    with pytest.raises(ValueError, match=f"X must have variances in the range of {dtype}; got a standard deviat"):
        fit(x, 2, generator=torch.Generator().manual_seed(0))


def test_a_constant_column_has_the_floor_as_its_variance() -> None:
    x = torch.stack([torch.randn(1500, generator=torch.Generator().manual_seed(6)), torch.ones(1500)], -1)
    with pytest.warns(UserWarning, match="collapsed"):
        result = fit(x, 2, method=MergeDown(tol=1e-5), generator=torch.Generator().manual_seed(7))
    torch.testing.assert_close(result.mixture.covariances[:, 1, 1], torch.full((2,), 1e-6))


def test_every_step_of_expectation_maximisation_is_shown() -> None:
    seen = []
    method = ExpectationMaximization(n_init=3)
    generator = torch.Generator().manual_seed(13)
    result = fit(blobs(seed=23), 3, method=method, init_params="random", generator=generator, progress=seen.append)
    assert len(seen) == result.n_iter > 5
    assert all(b.loss <= a.loss + 1e-12 for a, b in itertools.pairwise(seen))
    assert seen[-1].loss == pytest.approx(-result.log_likelihood, abs=1e-5)


def test_a_fit_keeps_no_graph() -> None:
    result = fit(blobs().requires_grad_(), 2, generator=torch.Generator().manual_seed(8))
    assert not result.mixture.means.requires_grad


def test_a_collapse_is_said() -> None:
    x = torch.cat([blobs(seed=15), torch.ones(50, 2, dtype=D) * 30])
    with pytest.warns(UserWarning, match="of 4 components have collapsed"):
        result = fit(x, 4, generator=torch.Generator().manual_seed(4))
    assert result.collapsed >= 1
    assert "fewer components" in result.warnings[0]
    assert result.mixture.log_prob(x).isfinite().all()


def test_fewer_components_are_no_cure_for_flat_data() -> None:
    x = blobs(seed=16)
    with pytest.warns(UserWarning, match="2 of 2 .* Some columns are linear combinations of others. Drop those"):
        fit(torch.cat([x, x[:, :1]], 1), 2, generator=torch.Generator().manual_seed(4))


def test_a_result_is_shown_in_a_few_lines() -> None:
    result = fit(blobs(), 3, generator=torch.Generator().manual_seed(0))
    assert "Step" not in repr(result)
    assert len(repr(result)) < 420


@pytest.mark.parametrize("x", [torch.zeros(5, 2), torch.ones(1, 3), torch.eye(4), torch.arange(6.0).unsqueeze(-1)])
def test_poor_data_gives_a_valid_mixture(x: Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # collapsed, as told above
        result = fit(x, 1, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(result.mixture.mean, x.mean(0))
    assert result.mixture.covariances.isfinite().all()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_group_far_out_does_not_hide_the_rest(name: str) -> None:
    """Samples at 1e6, too many for outliers, get a component of their own, and the others lie as without them."""
    x = blobs(seed=16)
    plain = fit(x, 3, covariance_type=name, generator=torch.Generator().manual_seed(9)).mixture
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # their component has collapsed
        far = torch.cat([x, torch.full((12, 2), 1e6, dtype=D)])
        found = fit(far, 4, covariance_type=name, generator=torch.Generator().manual_seed(9)).mixture
    order = torch.cdist(plain.means, found.means).argmin(-1)
    assert len(order.unique()) == 3
    torch.testing.assert_close(plain.means, found.means[order], atol=0.05, rtol=0)
    torch.testing.assert_close(plain.covariances, found.covariances[order], atol=0.05, rtol=0.05)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("method", ["merge", "em"])
def test_one_sample_of_all_the_weight(name: str, method: str) -> None:
    """In units that it makes, the others are at 1e9, where rounding is more than the floor."""
    x, weights = blobs(seed=17), torch.full((300,), 1e-20, dtype=D)
    weights[0] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # collapsed, but for tied ones
        generator = torch.Generator().manual_seed(10)
        found = fit(x, 3, method=method, covariance_type=name, sample_weight=weights, generator=generator).mixture
    assert found.log_prob(x).isfinite().all()
    torch.testing.assert_close(found.mean, x[0], rtol=1e-6, atol=1e-6)


def test_a_part_of_data_in_a_pattern_is_like_the_whole() -> None:
    """Two clusters take turns, and every other sample is drawn."""
    n = 2000
    x = torch.stack([torch.arange(n, dtype=D) % 2, torch.arange(n, dtype=D)], -1)
    data = Data(FAMILIES["full"](2, 1e-6), x, torch.ones(n, dtype=D))
    drawn = x[data.resample(n // 2, torch.Generator().manual_seed(0))]
    assert abs(drawn[:, 0].mean() - 0.5) < 0.1  # six standard errors
    torch.testing.assert_close(drawn[:, 1], torch.arange(0, n, 2, dtype=D) + 0.5, rtol=0, atol=1)


@pytest.mark.parametrize("method", METHODS)
def test_a_start_may_have_a_component_without_weight(method: str) -> None:
    x = blobs(40, seed=19)
    start = MultivariateNormalMixture(torch.tensor([0.5, 0.5, 0.0]), x[:3].float(), Spherical(torch.ones(3)))
    settings = {"max_iter": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # after so few steps
        generator = torch.Generator().manual_seed(12)
        found = fit(x, 3, method=METHODS[method](**settings), init_params=start, generator=generator).mixture
    assert found.log_prob(x).isfinite().all()
    assert found.weights.sum().item() == pytest.approx(1)


def test_a_cluster_without_weight_is_a_component_of_all() -> None:
    x = blobs(4, seed=20)
    data = Data(FAMILIES["full"](2, 1e-6), x, torch.tensor([1, 1, 1, 0], dtype=D))
    sums = clustered(data, torch.tensor([[0, 0, 1, 2]]), 3)
    weights, means, _ = data.family.parameters(sums.squeeze(0))
    torch.testing.assert_close(means[2], x[:3].mean(0))
    torch.testing.assert_close(weights, torch.tensor([8, 4, 3], dtype=D) / 15)
    start = data.family.sums(
        torch.full((1, 4), 0.25, dtype=D), x.unsqueeze(0), torch.eye(2, dtype=D).expand(1, 4, 2, 2)
    )
    _, means, _ = data.family.parameters(regrouped(data, start).squeeze(0))
    torch.testing.assert_close(means, x)


@pytest.mark.parametrize("name", FAMILIES)
def test_more_clusters_than_places(name: str) -> None:
    x = blobs(5, seed=18).repeat(20, 1)
    with pytest.warns(UserWarning, match="of 7 components have collapsed"):
        result = fit(x, 7, method="em", covariance_type=name, generator=torch.Generator().manual_seed(11))
    assert result.mixture.log_prob(x).isfinite().all()


# What goes in, and what comes back


@pytest.mark.parametrize("dtype", [torch.float32, D])
@pytest.mark.parametrize("method", ["merge", "em", "descent"])
def test_samples_without_axis_give_a_univariate_mixture(method: str, dtype: torch.dtype) -> None:
    x = blobs(d=1, seed=30).to(dtype)
    line, column = (fit(y, 2, method=method, generator=torch.Generator().manual_seed(1)) for y in (x.squeeze(-1), x))
    assert isinstance(line.mixture, NormalMixture)
    assert isinstance(column.mixture, MultivariateNormalMixture)
    assert line.mixture.means.dtype == line.mixture.scales.dtype == dtype
    torch.testing.assert_close(line.mixture.means, column.mixture.means.squeeze(-1))
    torch.testing.assert_close(line.mixture.scales, column.mixture.covariances.flatten().sqrt())
    assert line.log_likelihood == column.log_likelihood
    assert (line.bic, line.aic) == (column.bic, column.aic)
    again = fit(x.squeeze(-1), 2, method=ExpectationMaximization(max_iter=0), init_params=line.mixture)
    torch.testing.assert_close(again.mixture.means, line.mixture.means)
    assert isinstance(fit(line.mixture, 1).mixture, NormalMixture)


def test_arrays_and_tables_are_samples() -> None:
    x, w = blobs(60, seed=31), torch.arange(1.0, 61.0, dtype=D)

    def means(X: object, weights: object) -> Tensor:
        return fit(X, 2, sample_weight=weights, generator=torch.Generator().manual_seed(2)).mixture.means

    wanted = means(x, w)
    named = {"a": x[:, 0].numpy(), "b": x[:, 1].numpy()}
    inputs = [(x.numpy(), w.numpy()), (pd.DataFrame(named), pd.Series(w.numpy())), (x.tolist(), w.tolist())]
    if importlib.util.find_spec("polars"):
        polars = importlib.import_module("polars")
        inputs.append((polars.DataFrame(named), polars.Series(w.numpy())))
    for X, weights in inputs:
        assert torch.equal(means(X, weights), wanted)
    assert means(x.float().numpy(), w.numpy()).dtype == torch.float32
    whole = (10 * x).round()
    assert torch.equal(means(whole.long(), None), means(whole.float(), None))


@pytest.mark.parametrize(
    "column", [["x", "y", "z"], ["1", "2", "3"], np.array(["2026-01-01", "2026-01-02", "2026-01-03"], "datetime64[D]")]
)
def test_columns_of_text_and_dates_are_refused_by_name(column: object) -> None:
    table = pd.DataFrame({"length": [1.0, 2.0, 3.0], "when": column})
    for call in (lambda: fit(table, 1), lambda: select(table, [1])):
        with pytest.raises(ValueError, match="'when'"):
            call()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e3])
@pytest.mark.parametrize("reg_covar", [0.0, 1e-6, 0.3])
def test_reg_covar_is_that_of_scikit_learn(name: str, scale: float, reg_covar: float) -> None:
    """An absolute variance, in columns of different units, from the same start."""
    x = blobs(seed=32) * torch.tensor([scale, 1.0], dtype=D)
    means = np.stack([x[i::3].mean(0).numpy() for i in range(3)])
    settings = {"tol": 1e-12, "max_iter": 20_000}
    peer = GaussianMixture(3, covariance_type=name, reg_covar=reg_covar, means_init=means, **settings).fit(x.numpy())
    start = MultivariateNormalMixture.from_sklearn(peer)
    method = ExpectationMaximization(**settings)
    found = fit(x, 3, method=method, covariance_type=name, reg_covar=reg_covar, init_params=start).mixture
    np.testing.assert_allclose(found.means, peer.means_, rtol=1e-3, atol=1e-3 * scale)
    np.testing.assert_allclose(found.covariance_kind.values, peer.covariances_, rtol=2e-3, atol=1e-6 * scale**2)
    best = fit(x, 3, covariance_type=name, reg_covar=reg_covar, generator=torch.Generator().manual_seed(3))
    assert best.log_likelihood >= peer.score(x.numpy()) - 5e-3  # whose start is the truth


@pytest.mark.parametrize("scaling", ["each", "one", "none"])
def test_reg_covar_does_not_depend_on_the_units_of_the_fit(scaling: str) -> None:
    x = torch.stack([torch.arange(50.0), torch.ones(50)], -1).double()
    for reg_covar, wanted in ((0.25, 0.25), (None, 1e-6)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the constant column
            method = GradientDescent("likelihood", scaling=scaling, max_iter=200)
            found = fit(x, 1, method=method, reg_covar=reg_covar, generator=torch.Generator().manual_seed(4))
        assert found.mixture.covariances[0, 1, 1].item() == pytest.approx(wanted, rel=0.05)


def test_reg_covar_zero_refuses_a_singular_fit() -> None:
    x = torch.eye(2, dtype=D).repeat(10, 1)
    with pytest.raises(ValueError, match=r"ill-defined empirical covariance .* increase reg_covar"):
        fit(x, 2, reg_covar=0.0, generator=torch.Generator().manual_seed(5))


# Warnings


def test_warnings_are_those_of_scikit_learn() -> None:
    """One class, and the words that filters look for."""
    assert ConvergenceWarning is sklearn.exceptions.ConvergenceWarning
    method = ExpectationMaximization(max_iter=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*did not converge.*")
        result = fit(blobs(seed=34), 3, method=method, init_params="random", generator=torch.Generator().manual_seed(7))
    assert not result.converged
    assert result.warnings


def test_no_iterations_return_the_start_without_a_warning() -> None:
    x = blobs(seed=35)
    start = fit(x, 3, generator=torch.Generator().manual_seed(8)).mixture
    result = fit(x, 3, method=ExpectationMaximization(max_iter=0), init_params=start)
    assert (result.n_iter, result.converged, result.warnings) == (0, False, ())
    torch.testing.assert_close(result.mixture.means, start.means)
    torch.testing.assert_close(result.mixture.covariances, start.covariances)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"X": torch.zeros(3, 1, 2)}, r"X must be samples \(n, d\)"),
        ({"X": torch.tensor([[0.0, float("nan")]])}, "X must be finite; got nan"),
        ({"X": 1e160 * torch.eye(4, dtype=D)}, r"X must lie within 1e\+150, .* got 1e\+160"),
        ({"X": np.array(["text"])}, "X must hold numbers"),
        ({"n_components": 0}, "n_components must be an integer >= 1; got 0"),
        ({"n_components": 2.0}, r"n_components must be an integer >= 1; got 2\.0"),
        ({"n_components": 5}, "n_components must be at most the number of samples with a weight, 4; got 5"),
        ({"method": "newton"}, "method must be one of merge, em, descent"),
        ({"method": lambda: MergeDown(surplus=-1)}, "surplus must be an integer >= 0; got -1"),
        ({"covariance_type": "round"}, "covariance_type must be one of full, tied, diag, spherical; got 'round'"),
        ({"sample_weight": torch.tensor([1.0, -1.0, 1.0, 1.0])}, "sample_weight must be >= 0; got min -1"),
        ({"sample_weight": torch.zeros(4)}, "sample_weight must have an entry > 0"),
        ({"sample_weight": torch.ones(4, 1)}, r"sample_weight must have one entry per sample, shape \(4,\); got"),
        ({"init_params": "best"}, "init_params must be one of kmeans, .* got 'best'"),
        ({"init_params": ONE}, "init_params must be a mixture of 2 components in 4 dimensions; got one of 1 in 1"),
        ({"X": ONE, "sample_weight": torch.ones(1)}, "sample_weight must be None if X is a mixture"),
        ({"X": ONE.expand((3,)), "n_components": 1}, r"X must be one mixture; got a batch of shape \(3,\)"),
        ({"method": lambda: MergeDown(n_init=0)}, "n_init must be an integer >= 1"),
        ({"method": lambda: MergeDown(tol=-1.0)}, r"tol must be a number >= 0; got -1\.0"),
        ({"method": lambda: ExpectationMaximization(tol=math.nan)}, "tol must be a number >= 0; got nan"),
        ({"reg_covar": -1.0}, "reg_covar must be a number >= 0"),
    ],
)
def test_bad_input(change: dict, match: str) -> None:
    arguments = {"X": torch.eye(4), "n_components": 2} | change
    with pytest.raises(ValueError, match=match):
        fit(**{name: value() if callable(value) else value for name, value in arguments.items()})


def many_optima(seed: int, n: int = 400, d: int = 2) -> Tensor:
    """Return samples of twelve components that overlap, in no particular order."""
    g = torch.Generator().manual_seed(seed)
    means = 2 * torch.randn(12, d, generator=g, dtype=torch.float64)
    return means[torch.randint(12, (n,), generator=g)] + torch.randn(n, d, generator=g, dtype=torch.float64)


@pytest.mark.parametrize(("kind", "shrinkage"), [(MergeDown, 0.0), (MergeDown, 1.0), (ExpectationMaximization, 0.0)])
@pytest.mark.slow
def test_more_searches_never_end_worse(kind: type[Method], shrinkage: float) -> None:
    found = torch.tensor(
        [
            [
                fit(
                    many_optima(seed),
                    5,
                    method=kind(n_init=n_init),
                    shrinkage=shrinkage,
                    generator=torch.Generator().manual_seed(seed),
                ).log_likelihood
                for n_init in (1, 2, 5)
            ]
            for seed in range(6)
        ],
        dtype=torch.float64,
    )
    assert found.diff(dim=1).min() > -1e-6
    assert (found[:, 2] - found[:, 0]).max() > 1e-3  # some of the first searches have missed


def test_the_history_ends_with_the_steps_of_the_result() -> None:
    """Also where another fit was polished last."""
    for seed in range(6):
        result = fit(many_optima(seed), 5, method=MergeDown(n_init=3), generator=torch.Generator().manual_seed(seed))
        last = result.history[-result.n_iter :]
        assert {step.name for step in last} == {"polishing"}
        assert -last[-1].loss == pytest.approx(result.log_likelihood, abs=1e-5)


@pytest.mark.parametrize("n", [500, 2000, 30_000])
@pytest.mark.parametrize("value", [0.1, 1.0, 7.0, 1e6])
def test_a_constant_column_is_constant_whatever_the_number_of_samples(n, value):
    x = np.random.default_rng(0).normal(size=(n, 3))
    x[:, 2] = value
    with pytest.warns(ConvergenceWarning, match=r"Column 2 is constant\. Drop it"):
        found = cramix.fit(x, 1)
    assert found.mixture.covariances[0, 2, 2].item() == pytest.approx(1e-6)


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_repeated_rows_are_searched_in_float64_where_float32_fails(seed):
    x = np.random.default_rng(seed).random((30_000, 3)) < 0.3
    with pytest.warns(ConvergenceWarning, match="which the data repeat"):
        found = cramix.fit(x, 3, generator=torch.Generator().manual_seed(0))
    assert found.collapsed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        choice = cramix.select(x, [1, 2, 3], generator=torch.Generator().manual_seed(0))
    assert choice.by_bic not in choice.collapsed
