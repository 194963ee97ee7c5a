"""The picture of a mixture over its points: what is drawn is where it says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure
from scipy import stats

from cramix import Diagonal, MultivariateNormalMixture, NormalMixture
from cramix.plot import mixture_and_points
from cramix.plot.figure import component_styles
from cramix.plot.view import most_separating
from tests.refusals import refuses

D = torch.float64


def on_the_line() -> NormalMixture:
    weights, means, scales = [0.3, 0.699, 0.001], [-1.0, 2.0, 8.0], [0.5, 1.0, 0.2]
    return NormalMixture(*(torch.tensor(values, dtype=D) for values in (weights, means, scales)))


def in_space(dim: int) -> MultivariateNormalMixture:
    g = torch.Generator().manual_seed(dim)
    root = torch.randn(3, dim, dim, generator=g, dtype=D)
    covariances = root @ root.mT + 0.1 * torch.eye(dim, dtype=D)
    means = 3 * torch.randn(3, dim, generator=g, dtype=D)
    return MultivariateNormalMixture(torch.tensor([0.5, 0.499, 0.001], dtype=D), means, covariances)


def draw(p: NormalMixture | MultivariateNormalMixture, n: int) -> torch.Tensor:
    return p.sample((n,), generator=torch.Generator().manual_seed(0))


def densities(x: np.ndarray, *parameters: torch.Tensor) -> list[np.ndarray]:
    return [w * stats.norm(m, s).pdf(x) for w, m, s in zip(*(t.tolist() for t in parameters), strict=True)]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_density_and_its_components_on_the_line() -> None:
    p = on_the_line()
    figure = mixture_and_points(p, names=["time"])
    (axes,) = figure.axes
    density, *components = axes.lines
    x, y = density.get_data()
    parts = densities(x, p.weights, p.means, p.scales)
    np.testing.assert_allclose(y, sum(parts), rtol=1e-10)
    for line, part in zip(components, parts, strict=True):
        np.testing.assert_allclose(line.get_ydata(), part, rtol=1e-10)
    assert np.trapezoid(y, x) == pytest.approx(1, abs=0.01)
    marks = next(c for c in axes.collections if isinstance(c, PathCollection))
    assert marks.get_offsets()[:, 0].tolist() == p.means.tolist()
    assert axes.get_xlabel() == "time"
    assert texts(figure) == ["components", "density"]
    # A component has one colour, for its curve and its mean, and no two the same.
    colours = [to_rgba(line.get_color()) for line in components]
    assert len(set(colours)) == 3
    assert [tuple(colour) for colour in marks.get_facecolors()] == colours


def test_a_rug_has_a_tick_for_each_point() -> None:
    x = draw(on_the_line(), 100)
    axes = mixture_and_points(on_the_line(), x).axes[0]
    (rug,) = ellipses(axes)
    segments = np.array(rug.get_segments())
    np.testing.assert_array_equal(segments[:, :, 0], np.stack([x, x], -1))
    assert (np.ptp(segments[:, :, 1], axis=1) > 0).all()


@pytest.mark.parametrize(("n", "least"), [(100, 30), (900, 80), (100_000, 120)])
def test_bars_are_fine(n: int, least: int) -> None:
    (bars,) = mixture_and_points(on_the_line(), draw(on_the_line(), n)).axes[0].patches
    assert len(bars.get_data().values) >= least


def test_colours_repeat_with_other_dashes() -> None:
    styles = component_styles(14)
    assert len(set(styles)) == 14
    assert styles[7][0] == styles[0][0]


@pytest.mark.parametrize("weighted", [True, False])
def test_the_histogram_is_the_share_of_the_points(weighted: bool) -> None:
    x = draw(on_the_line(), 900)
    weights = torch.rand(900, generator=torch.Generator().manual_seed(1), dtype=D) if weighted else None
    figure = mixture_and_points(on_the_line(), x, weights=weights)
    (bars,) = figure.axes[0].patches
    heights, edges, _ = bars.get_data()
    assert (heights * np.diff(edges)).sum() == pytest.approx(1, rel=1e-9)
    inside = (x.numpy() >= edges[10]) & (x.numpy() < edges[15])
    share = inside.mean() if weights is None else weights.numpy()[inside].sum() / weights.sum().item()
    assert (heights[10:15] * np.diff(edges)[10:15]).sum() == pytest.approx(share, rel=1e-9)
    assert texts(figure)[0] == "900 points"


def test_a_spike_does_not_flatten_the_rest_and_is_drawn_to_its_top() -> None:
    p = NormalMixture(*(torch.tensor(v, dtype=D) for v in ([0.5, 0.5], [0.0, 3.0], [1.0, 1e-5])))
    axes = mixture_and_points(p, draw(p, 1000)).axes[0]
    top = 0.5 / 1e-5 / np.sqrt(2 * np.pi)
    assert axes.lines[0].get_ydata().max() == pytest.approx(top, rel=1e-6)
    assert 0.2 < axes.get_ylim()[1] < 20


def test_atoms_are_lines_at_their_means() -> None:
    p = NormalMixture(torch.tensor([0.5, 0.5]), torch.tensor([0.0, 3.0]), torch.tensor([1.0, 0.0]))
    atom, density, component = mixture_and_points(p).axes[0].lines
    assert list(atom.get_xdata()) == [3, 3]
    x, y = density.get_data()
    np.testing.assert_allclose(y, 0.5 * stats.norm.pdf(x), rtol=1e-6)
    np.testing.assert_array_equal(y, component.get_ydata())
    only = NormalMixture.from_samples(torch.tensor([1.0, 2.0]))
    assert [line.get_xdata()[0] for line in mixture_and_points(only).axes[0].lines[:2]] == [1, 2]


def ellipses(axes: object) -> list[LineCollection]:
    return [c for c in axes.collections if isinstance(c, LineCollection)]  # type: ignore[attr-defined]


def assert_ellipses(axes: object, p: MultivariateNormalMixture, across: int, up: int) -> None:
    """Every corner must be 1 or 2 standard deviations from the mean, all around it."""
    for sigmas, collection in enumerate(ellipses(axes), start=1):
        assert len(collection.get_segments()) == p.n_components
        for segment, mean, covariance in zip(collection.get_segments(), p.means, p.covariances, strict=True):
            chosen = [across, up]
            offset = segment - mean.numpy()[chosen]
            inverse = np.linalg.inv(covariance.numpy()[np.ix_(chosen, chosen)])
            distance = np.sqrt(np.einsum("ni,ij,nj->n", offset, inverse, offset))
            np.testing.assert_allclose(distance, sigmas, rtol=1e-8)
            np.testing.assert_allclose(offset[:-1].mean(0), 0, atol=1e-10)
    assert len(ellipses(axes)) == 2


def test_the_plane_shows_points_components_and_regions_of_their_mass() -> None:
    p = in_space(2)
    x = draw(p, 700)
    figure = mixture_and_points(p, x, names=["a", "b"])
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("a", "b")
    assert_ellipses(axes, p, 0, 1)
    points = next(c for c in axes.collections if isinstance(c, PathCollection))
    np.testing.assert_array_equal(points.get_offsets(), x.numpy())
    # Points have the colours of the components they most probably come from.
    parts = zip(p.weights.tolist(), p.means.numpy(), p.covariances.numpy(), strict=True)
    labels = np.argmax([w * stats.multivariate_normal(m, c).pdf(x.numpy()) for w, m, c in parts], 0)
    styles = component_styles(3)
    np.testing.assert_allclose(points.get_facecolors()[:, :3], [to_rgb(styles[i][0]) for i in labels])
    np.testing.assert_allclose(ellipses(axes)[0].get_colors()[:, :3], [to_rgb(colour) for colour, _ in styles])
    (regions,) = (c for c in axes.collections if isinstance(c, ContourSet))
    heights = p.log_prob(p.sample((40_000,), generator=torch.Generator().manual_seed(9))).numpy()
    shares = [(heights > level).mean() for level in regions.levels[:3]]
    assert shares == pytest.approx([0.99, 0.9, 0.5], abs=0.015)
    assert texts(figure) == ["700 points", "components, 1 and 2 σ", "50%", "90%", "99% of the mixture"]
    (low, high), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    assert low < x[:, 0].min() < x[:, 0].max() < high
    assert bottom < x[:, 1].min() < x[:, 1].max() < top


def test_a_region_is_where_the_density_is_high() -> None:
    """A region of a normal distribution is a disc of a known radius."""
    p = MultivariateNormalMixture(torch.ones(1, dtype=D), torch.zeros(1, 2, dtype=D), torch.eye(2, dtype=D)[None])
    (axes,) = mixture_and_points(p).axes
    (regions,) = (c for c in axes.collections if isinstance(c, ContourSet))
    for path, share in zip(regions.get_paths(), (0.99, 0.9, 0.5), strict=True):
        outermost = np.linalg.norm(path.vertices, axis=-1).max()
        assert outermost == pytest.approx(stats.chi2(2).ppf(share) ** 0.5, rel=0.03)


def test_light_components_stay_visible() -> None:
    thick, thin = ellipses(mixture_and_points(in_space(2)).axes[0])
    for collection in (thick, thin):
        alphas = collection.get_colors()[:, 3]
        assert alphas[0] == 1
        assert alphas[2] == pytest.approx(0.4)


def test_more_dimensions_are_pairs_with_marginals_on_the_diagonal() -> None:
    p = in_space(3)
    x = draw(p, 200)
    figure = mixture_and_points(p, x, names=["a", "b", "c"])
    grid = np.array(figure.axes).reshape(3, 3)
    for row in range(3):
        for column in range(3):
            axes = grid[row, column]
            if row == column:
                grid_points, density = axes.lines[0].get_data()
                parts = densities(grid_points, p.weights, p.means[:, row], p.covariances[:, row, row].sqrt())
                np.testing.assert_allclose(density, sum(parts), rtol=1e-8)
            else:
                assert_ellipses(axes, p, column, row)
                points = [c for c in axes.collections if isinstance(c, PathCollection) and len(c.get_offsets()) == 200]
                assert len(points) == (1 if row > column else 0)
                if points:
                    np.testing.assert_array_equal(points[0].get_offsets(), x[:, [column, row]].numpy())
                assert any(isinstance(c, ContourSet) for c in axes.collections) == (row < column)
            assert axes.get_xlabel() == ("abc"[column] if row == 2 else "")
            assert axes.get_ylabel() == ("abc"[row] if column == 0 else "")
    assert figure._suptitle is None


def test_what_is_left_out_is_said() -> None:
    figure = mixture_and_points(in_space(7))
    assert len(figure.axes) == 36
    assert figure._suptitle.get_text() == "6 of 7 columns, those that separate the components most"
    assert len(mixture_and_points(in_space(6)).axes) == 36
    p = in_space(2)
    far = torch.tensor([[1e6, 0.0], [0.0, -1e9]], dtype=D)
    figure = mixture_and_points(p, torch.cat([draw(p, 1000), far]))
    assert figure._suptitle.get_text() == "2 of 1002 points lie outside"
    assert figure.axes[0].get_xlim()[1] < 100
    many = mixture_and_points(p, draw(p, 30_000))
    points = next(c for c in many.axes[0].collections if isinstance(c, PathCollection))
    assert len(points.get_offsets()) == 20_000
    assert "30000 points" in texts(many)


@pytest.mark.parametrize("size", [1e-8, 1e8])
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_pictures_scale_with_their_units(dim: int, size: float) -> None:
    p = in_space(dim)
    large = p.affine(torch.full((dim,), 5 * size, dtype=D), size * torch.eye(dim, dtype=D))
    x = draw(p, 100)
    one, other = (mixture_and_points(q, y) for q, y in ((p, x), (large, size * (x + 5))))
    for a, b in zip(one.axes, other.axes, strict=True):
        np.testing.assert_allclose(b.get_xlim(), size * (np.array(a.get_xlim()) + 5), rtol=1e-6)
    other.canvas.draw()


def test_different_units_fill_the_picture_and_like_ones_keep_their_shape() -> None:
    p = in_space(2)
    assert mixture_and_points(p).axes[0].get_aspect() == 1
    stretched = p.affine(0.0, torch.diag(torch.tensor([1.0, 1e-6], dtype=D)))
    assert mixture_and_points(stretched).axes[0].get_aspect() == "auto"


def test_the_columns_that_separate_the_components_are_chosen() -> None:
    means = torch.zeros(2, 9, dtype=D)
    means[1, 4], means[1, 8], means[1, 2], means[1, 5] = 6.0, 2.0, 1.0, 0.5
    covariances = torch.eye(9, dtype=D).expand(2, 9, 9).clone()
    covariances[:, 2, 7] = covariances[:, 7, 2] = 0.99  # 7 by itself says nothing, but with 2 it does
    p = MultivariateNormalMixture(torch.tensor([0.5, 0.5], dtype=D), means, covariances)
    assert most_separating(p, 1) == [4]
    assert most_separating(p, 4) == [2, 4, 7, 8]
    scaled = p.affine(3.0, torch.diag(10.0 ** torch.arange(-4.0, 5.0, dtype=D)))
    assert most_separating(scaled, 4) == [2, 4, 7, 8]
    one = MultivariateNormalMixture(torch.ones(1, dtype=D), means[:1], covariances[:1])
    assert most_separating(one, 3) == [0, 1, 2]


def test_a_constant_column_and_a_flat_component_are_drawn() -> None:
    p = MultivariateNormalMixture(
        torch.ones(1, dtype=D), torch.tensor([[0.0, 7.0]], dtype=D), Diagonal(torch.tensor([[1.0, 0.0]], dtype=D))
    )
    axes = mixture_and_points(p, draw(p, 50)).axes[0]
    assert not any(isinstance(c, ContourSet) for c in axes.collections)
    assert axes.get_ylim()[0] < 7 < axes.get_ylim()[1]
    assert np.ptp(ellipses(axes)[1].get_segments()[0], axis=0) == pytest.approx([4, 0], abs=0.01)


def test_bad_input_is_refused() -> None:
    p = in_space(2)
    refuses(lambda: mixture_and_points(p.expand((3,))), "mixture", "(3,)")
    refuses(lambda: mixture_and_points(p, torch.zeros(5, 3)), "x", "(5, 3)")
    refuses(lambda: mixture_and_points(p, torch.zeros(5)), "x", "(5,)")
