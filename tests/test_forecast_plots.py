"""Pictures of predictions: what is drawn is where it says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from cramix import MultivariateNormalMixture, NormalMixture, cramer_distance
from cramix.plot import cdf_and_sample, fan_chart, mixture_over_input, pit_histogram, reliability
from tests.refusals import refuses

D = torch.float64
X = torch.linspace(1, -1, 40, dtype=D)  # not in order


def branches() -> NormalMixture:
    means = torch.stack([X, -X], -1)
    weights = torch.stack([0.5 + 0.495 * X, 0.5 - 0.495 * X], -1)
    return NormalMixture(weights, means, torch.full_like(means, 0.1))


def test_a_fan_has_the_quantiles_of_its_levels() -> None:
    p = NormalMixture(torch.ones(40, 1, dtype=D), X.unsqueeze(-1), 0.5 + X.abs().unsqueeze(-1))
    figure = fan_chart(X, p, (X, X + 1), levels=[0.5, 0.9], names=("time", "load"))
    (axes,) = figure.axes
    wide, narrow, dots = axes.collections
    place = X.sort().values.numpy()
    for band, level in ((wide, 0.9), (narrow, 0.5)):
        corners = band.get_paths()[0].vertices
        upper = stats.norm.ppf(0.5 + level / 2, place, 0.5 + np.abs(place))
        got = [corners[np.isclose(corners[:, 0], t), 1].max() for t in place]
        np.testing.assert_allclose(got, upper, rtol=1e-9)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), place, atol=1e-12)
    np.testing.assert_array_equal(dots.get_offsets()[:, 1], X + 1)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("time", "load")
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["90%", "50%", "median", "40 points"]


def test_a_mixture_over_its_input_is_dark_where_it_is_likely() -> None:
    p = branches()
    figure = mixture_over_input(X, p, (X, -X))
    (axes,) = figure.axes
    mesh, _, first, second = axes.collections
    shades = np.asarray(mesh.get_array())
    assert shades.max(0) == pytest.approx(1)
    low, high = axes.get_ylim()
    y = np.linspace(low, high, len(shades))
    column = 30  # x is about 0.54, where the rising branch is heavy
    place = X.sort().values[column].item()
    assert abs(y[shades[:, column].argmax()] - place) < 0.05
    density = sum(
        w * stats.norm.pdf(y, m, 0.1) for w, m in ((0.5 + 0.495 * place, place), (0.5 - 0.495 * place, -place))
    )
    np.testing.assert_allclose(shades[:, column], np.sqrt(density / density.max()), rtol=1e-6)
    # A branch without weight is not drawn.
    assert len(first.get_segments()) < 39
    assert len(second.get_segments()) < 39


def test_the_pit_histogram_counts() -> None:
    u = torch.tensor([0.05, 0.15, 0.15, 0.95])
    (axes,) = pit_histogram(u, bins=10).axes
    heights, _, _ = axes.patches[-1].get_data()
    np.testing.assert_allclose(heights / 10, [0.25, 0.5, 0, 0, 0, 0, 0, 0, 0, 0.25])


def test_reliability_is_the_share_in_central_intervals() -> None:
    u = torch.from_numpy(np.random.default_rng(0).beta(2, 2, 400))
    (axes,) = reliability(u).axes
    levels, coverage = axes.lines[-1].get_data()
    expected = [((u >= 0.5 - a / 2) & (u <= 0.5 + a / 2)).double().mean().item() for a in levels]
    np.testing.assert_allclose(coverage, expected)
    assert coverage[50] > 0.6  # a hump: not sure enough


def test_the_distribution_function_against_a_sample() -> None:
    p = NormalMixture(torch.tensor([0.5, 0.5]), torch.tensor([-1.0, 2.0]), torch.tensor([0.5, 1.0]))
    x = torch.tensor([-1.0, 0.0, 2.0, 2.5])
    (axes,) = cdf_and_sample(p, x, name="load").axes
    steps, curve = axes.lines
    place = curve.get_xdata()
    expected = 0.5 * stats.norm.cdf(place, -1, 0.5) + 0.5 * stats.norm.cdf(place, 2, 1)
    np.testing.assert_allclose(curve.get_ydata(), expected, atol=1e-7)
    np.testing.assert_allclose(steps.get_ydata(), stats.ecdf(x.numpy()).cdf.evaluate(steps.get_xdata()))
    assert axes.get_title() == f"C2 = {cramer_distance(p, x):.3g}"
    assert axes.get_xlabel() == "load"


def test_bad_input_is_refused() -> None:
    refuses(lambda: fan_chart(X[:3], branches()), "x", "(3,)")
    refuses(lambda: fan_chart(X, branches(), levels=[1.5]), "levels", "1.5")
    vectors = MultivariateNormalMixture(torch.ones(1), torch.zeros(1, 2), torch.eye(2).unsqueeze(0))
    refuses(lambda: mixture_over_input(X, vectors), "p", "MultivariateNormalMixture")  # type: ignore[arg-type]
    refuses(lambda: pit_histogram(torch.tensor([1.5])), "pit", "1.5")
    refuses(lambda: cdf_and_sample(branches(), X), "p", "(40,)")
