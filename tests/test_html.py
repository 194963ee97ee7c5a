"""What notebooks show: well-formed HTML without scripts, whose numbers and curves are those of the values."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn import config_context
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import cramix
from cramix import (
    ConformalRegressor,
    CramerMixture,
    Diagonal,
    MixtureBoostingRegressor,
    MixtureRegressor,
    MixtureStackingRegressor,
    MultivariateNormalMixture,
    NormalMixture,
    SliceSketch,
    Spherical,
)
from cramix.markup import COLORS

D = torch.float64
SVG = "{http://www.w3.org/2000/svg}"


class Reader(HTMLParser):
    """The tables and all text of HTML; tags that are not closed in order are an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.text: list[str] = []
        self.tags = set[str]()
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not any(name.startswith("on") for name, _ in attrs)
        self.tags.add(tag)
        self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if any(tag in self.open for tag in ("td", "th")):
            self.tables[-1][-1][-1] += data


class Chart:
    """A picture, read as a person does: by the numbers at its axes."""

    def __init__(self, html: str) -> None:
        (svg,) = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
        self.root = ElementTree.fromstring(svg)
        across, down = [], []
        for text in self.root.iter(f"{SVG}text"):
            if re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", text.text or ""):
                place = float(text.get("x")), float(text.get("y")), float(text.text)
                (down if text.get("text-anchor") == "end" else across).append(place)
        self.x = np.polyfit([x for x, _, _ in across], [value for _, _, value in across], 1)
        self.y = np.polyfit([y - 3.5 for _, y, _ in down], [value for _, _, value in down], 1)

    def paths(self, color: str) -> list[np.ndarray]:
        """Return the points of curves of a colour, in the units of the axes."""
        found = []
        for path in self.root.iter(f"{SVG}path"):
            if path.get("stroke") == color and path.get("stroke-width"):
                points = np.array(re.findall(r"[ML](\S+) (\S+)", path.get("d")), dtype=float)
                found.append(np.column_stack([np.polyval(self.x, points[:, 0]), np.polyval(self.y, points[:, 1])]))
        return found

    def dots(self, color: str) -> list[tuple[float, float]]:
        circles = [c for c in self.root.iter(f"{SVG}circle") if c.get("fill") == color]
        return [(np.polyval(self.x, float(c.get("cx"))), np.polyval(self.y, float(c.get("cy")))) for c in circles]


def read(html: str) -> Reader:
    """Check HTML for all that must not be in it, and return what it says."""
    reader = Reader(html)
    assert reader.tags <= {
        "div",
        "b",
        "table",
        "tr",
        "th",
        "td",
        "span",
        "svg",
        "title",
        "path",
        "circle",
        "text",
        "pre",
    }
    assert "nan" not in html.lower().replace("covariance", "")
    assert "http" not in html.replace('xmlns="http://www.w3.org/2000/svg"', "")
    for color in re.findall(r'(?:fill|stroke)="([^"]*)"', html):
        assert color in {"none", "currentColor", *COLORS}
    return reader


def mixture(k: int = 3, d: int = 2, seed: int = 0) -> MultivariateNormalMixture:
    g = torch.Generator().manual_seed(seed)
    root = torch.randn(k, d, d, generator=g, dtype=D)
    means = 3 * torch.randn(k, d, generator=g, dtype=D)
    weights = torch.softmax(torch.randn(k, generator=g, dtype=D), 0)
    return MultivariateNormalMixture(weights, means, root @ root.mT + 0.3 * torch.eye(d, dtype=D))


LINE = NormalMixture([0.3, 0.5, 0.2], [-1.0, 2.0, 4.0], [0.5, 1.0, 0.25])


def test_table_on_the_line_has_the_parameters_the_heaviest_first() -> None:
    (table,) = read(LINE._repr_html_()).tables
    assert table == [
        ["component", "weight", "mean", "scale"],
        ["1", "0.5", "2", "1"],
        ["0", "0.3", "-1", "0.5"],
        ["2", "0.2", "4", "0.25"],
    ]


def test_curves_on_the_line_are_the_density_and_its_parts() -> None:
    chart = Chart(LINE._repr_html_())
    weights, means, scales = ([float(x) for x in part] for part in ([0.3, 0.5, 0.2], [-1, 2, 4], [0.5, 1, 0.25]))
    parts = [lambda x, i=i: weights[i] * stats.norm.pdf(x, means[i], scales[i]) for i in range(3)]
    (total,) = chart.paths("currentColor")
    assert total[:, 0].min() == pytest.approx(-3, abs=0.02)  # four standard deviations of each component
    assert total[:, 0].max() == pytest.approx(6, abs=0.02)
    top = sum(part(np.array(4.0)) for part in parts)
    np.testing.assert_allclose(total[:, 1], sum(part(total[:, 0]) for part in parts), atol=0.01 * top)
    for color, i in zip(COLORS, (1, 0, 2), strict=False):
        (curve,) = chart.paths(color)
        np.testing.assert_allclose(curve[:, 1], parts[i](curve[:, 0]), atol=0.01 * top)


def test_a_curve_that_is_one_percent_too_high_would_be_noticed() -> None:
    (total,) = Chart(NormalMixture([1.0], [0.0], [1.0])._repr_html_()).paths("currentColor")
    peak = total[:, 1].max()
    assert peak == pytest.approx(1 / math.sqrt(2 * math.pi), rel=2e-3)
    assert peak != pytest.approx(1.01 / math.sqrt(2 * math.pi), rel=2e-3)


def test_atoms_are_steps_of_the_distribution_function() -> None:
    html = NormalMixture([0.25, 0.25, 0.5], [0.0, 1.0, 3.0], [0.0, 0.0, 0.5])._repr_html_()
    assert "distribution function" in "".join(read(html).text)
    (curve,) = Chart(html).paths("currentColor")
    x, y = curve.T
    truth = 0.25 * (x >= 0) + 0.25 * (x >= 1) + 0.5 * stats.norm.cdf(x, 3, 0.5)
    away = (np.abs(x) > 0.05) & (np.abs(x - 1) > 0.05)
    np.testing.assert_allclose(y[away], truth[away], atol=5e-3)
    steps = np.flatnonzero(np.diff(y) > 0.2)
    np.testing.assert_allclose(x[steps], [0, 1], atol=0.05)
    np.testing.assert_allclose(x[steps + 1] - x[steps], 0, atol=0.01)  # vertical


def test_ellipses_hold_the_probabilities_that_the_caption_says() -> None:
    p = mixture()
    html = p._repr_html_()
    assert "Ellipses hold 50 and 90 % of each component." in "".join(read(html).text)
    chart = Chart(html)
    for color, i in zip(COLORS, p.weights.argsort(descending=True).tolist(), strict=False):
        mean, precision = p.means[i].numpy(), np.linalg.inv(p.covariances[i].numpy())
        for inside, ring in zip((0.5, 0.9), chart.paths(color), strict=True):
            offset = ring - mean
            distance = np.einsum("ni,ij,nj->n", offset, precision, offset)
            np.testing.assert_allclose(stats.chi2.cdf(distance, 2), inside, atol=0.02)
        np.testing.assert_allclose(chart.dots(color), [mean], atol=0.05)


def test_table_in_several_dimensions_has_means_and_standard_deviations() -> None:
    p = mixture(3, 4)
    (table,) = read(p._repr_html_()).tables
    assert table[0] == ["component", "weight", "column 0", "column 1", "column 2", "column 3"]
    for row in table[1:]:
        i = int(row[0])
        assert float(row[1]) == pytest.approx(p.weights[i].item(), rel=1e-3)
        for j, cell in enumerate(row[2:]):
            mean, scale = map(float, cell.split(" ± "))
            assert mean == pytest.approx(p.means[i, j].item(), rel=1e-3)
            assert scale == pytest.approx(math.sqrt(p.covariances[i, j, j].item()), rel=1e-3)


def test_many_columns_show_those_in_which_components_differ() -> None:
    means = torch.zeros(2, 50, dtype=D)
    means[0, 17], means[0, 40] = 9.0, 5.0
    html = MultivariateNormalMixture([0.5, 0.5], means, Diagonal(torch.ones(2, 50, dtype=D)))._repr_html_()
    reader = read(html)
    assert reader.tables[0][0] == ["component", "weight", *(f"column {j}" for j in (0, 1, 2, 3, 17, 40))]
    assert "and 44 columns more" in reader.text
    assert "components in column 17 and column 40" in html


def test_many_components_are_counted_where_they_are_not_shown() -> None:
    line = NormalMixture(torch.full((200,), 0.005), torch.randn(200), torch.rand(200) + 0.1)
    reader = read(line._repr_html_())
    assert len(reader.tables[0]) == 11
    assert "and 190 lighter components more" in reader.text
    wide = read(mixture(200, 50)._repr_html_())
    assert "and 190 lighter components and 44 columns more" in wide.text
    assert "The 100 heaviest components are drawn." in wide.text


def test_batches_show_their_first_elements() -> None:
    g = torch.Generator().manual_seed(0)
    p = NormalMixture(torch.full((4, 3, 2), 0.5), torch.randn(4, 3, 2, generator=g), torch.ones(4, 3, 2))
    html = p._repr_html_()
    reader = read(html)
    assert [row[0] for row in reader.tables[0]] == ["element", "0, 0", "0, 1", "0, 2", "1, 0", "1, 1", "1, 2"]
    assert "and 6 elements more" in reader.text
    mean, scale = map(float, reader.tables[0][4][1].split(" ± "))
    assert mean == pytest.approx(p[1, 0].mean.item(), rel=1e-3)
    assert scale == pytest.approx(p[1, 0].variance.sqrt().item(), rel=1e-3)
    (curve,) = Chart(html).paths(COLORS[3])
    truth = sum(0.5 * stats.norm.pdf(curve[:, 0], m) for m in p[1, 0].means.tolist())
    np.testing.assert_allclose(curve[:, 1], truth, atol=5e-3)
    space = read(
        MultivariateNormalMixture(torch.ones(7, 1), torch.randn(7, 1, 9), Spherical(torch.ones(1)))._repr_html_()
    )
    assert "and 1 element and 3 columns more" in space.text


@pytest.mark.parametrize(
    "p",
    [
        LINE.to(torch.float16),
        LINE.to(torch.bfloat16),
        mixture().to(torch.float16),
        mixture(200, 50),
        mixture(1, 1),
        NormalMixture([1.0], [0.0], [0.0]),
        NormalMixture([1.0], [1e6], [0.0]),
        NormalMixture([0.5, 0.5], [1e6, 1e6 + 0.1], [0.01, 0.02]),
        NormalMixture([1.0, 0.0], [0.0, 5.0], [1.0, 0.0]),  # an atom without weight
        NormalMixture(torch.tensor([1.0], dtype=D), torch.tensor([1e308], dtype=D), torch.tensor([1e308], dtype=D)),
        NormalMixture(torch.tensor([1.0], dtype=D), torch.tensor([0.0], dtype=D), torch.tensor([1e-308], dtype=D)),
        NormalMixture.from_samples(torch.randn(5)),
        NormalMixture.from_samples(torch.randn(20_000)),
        NormalMixture.from_samples(torch.randn(4, 5)),
        MultivariateNormalMixture.from_samples(torch.randn(500, 3)),
        MultivariateNormalMixture.from_samples(torch.ones(1, 2)),
        MultivariateNormalMixture([1.0], [[0.0, 1.0]], Diagonal(torch.tensor([[1.0, 0.0]]))),
        NormalMixture(torch.ones(0, 1), torch.zeros(0, 1), torch.ones(0, 1)),
        LINE.to("meta"),
        NormalMixture(torch.ones(1), torch.zeros(1, requires_grad=True), torch.ones(1)),
    ],
    ids=lambda p: f"{type(p).__name__}{tuple(p.means.shape)}{p.dtype}",
)
def test_extreme_mixtures_are_shown(p: NormalMixture | MultivariateNormalMixture) -> None:
    html = p._repr_html_()
    assert "inf" not in html
    read(html)
    assert len(html) < 300_000


def test_vmap_shows_text() -> None:
    seen = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(NormalMixture(torch.ones(1), x, torch.ones(1), validate_args=False)._repr_html_())
        return x

    torch.vmap(look)(torch.zeros(3, 1))
    assert "<pre>NormalMixture(" in seen[0]


def two_groups() -> np.ndarray:
    random = np.random.default_rng(0)
    return np.concatenate([random.normal(0, 1, (60, 2)), random.normal(6, 1, (40, 2))])


def test_a_fit_shows_its_figures() -> None:
    result = cramix.fit(two_groups(), 2, generator=torch.Generator().manual_seed(0))
    components, facts = read(result._repr_html_()).tables
    shown = dict(facts)
    assert float(shown["mean log likelihood"]) == pytest.approx(result.log_likelihood, rel=1e-5)
    assert float(shown["BIC"]) == pytest.approx(result.bic, abs=0.06)
    assert (shown["samples"], shown["converged"], shown["stopped"]) == ("100", "yes", result.reason)
    assert [float(row[1]) for row in components[1:]] == pytest.approx([0.6, 0.4], abs=0.02)


def test_a_fit_shows_its_warnings_and_a_fit_to_a_mixture_has_no_likelihood() -> None:
    with pytest.warns(UserWarning, match="collapsed"):
        result = cramix.fit(np.array([[0.0], [0.0], [1.0], [1.0]]), 2, shrinkage=0)
    assert any("⚠" in text and "collapsed" in text for text in read(result._repr_html_()).text)
    _, facts = read(cramix.fit(LINE, 2)._repr_html_()).tables
    assert "BIC" not in dict(facts)


def test_a_selection_shows_criteria_and_what_they_chose() -> None:
    selection = cramix.select(two_groups(), range(1, 5), folds=3, generator=torch.Generator().manual_seed(0))
    html = selection._repr_html_()
    (table,) = read(html).tables
    assert [int(row[0]) for row in table[1:]] == [1, 2, 3, 4]
    for row in table[1:]:
        k = int(row[0])
        assert float(row[2]) == pytest.approx(selection.bic[k], abs=0.06)
        assert float(row[3]) == pytest.approx(selection.held_out[k].mean, rel=1e-3)
        assert ("BIC" in row[5]) == (k == selection.by_bic)
        assert ("held-out" in row[5]) == (k == selection.by_held_out)
    ((k, bic),) = Chart(html).dots(COLORS[0])
    assert k == pytest.approx(selection.by_bic, abs=0.02)
    assert bic == pytest.approx(selection.bic[selection.by_bic], rel=1e-3)
    without = cramix.select(two_groups(), [1, 2], folds=0)._repr_html_()
    assert "held-out" not in without


def test_a_drift_shows_the_columns_that_moved() -> None:
    x = torch.randn(8, 200, 12, generator=torch.Generator().manual_seed(0))
    x[4:, :, 7] += 0.8
    parts = [SliceSketch(12, 16, 64).update(part) for part in x]
    found = cramix.drift(parts[:4], parts[4:])
    reader = read(found._repr_html_())
    columns, facts = reader.tables
    assert columns[1][0] == "7"
    assert float(columns[1][1]) == pytest.approx(found.columns[7].item(), rel=1e-3)
    assert float(columns[1][3]) == pytest.approx(found.mean_shifts[7].item(), rel=1e-3)
    assert float(dict(facts)["p-value"]) == pytest.approx(found.p_value, rel=1e-3)
    assert "and 2 columns more" in reader.text
    assert len(list(Chart(found._repr_html_()).root.iter(f"{SVG}path"))) == 1 + 12  # the frame, and a bar for each


def test_names_of_columns_are_escaped() -> None:
    names = ["<script>alert(1)</script>", 'a"&b']
    html = CramerMixture(2, random_state=0).fit(pd.DataFrame(two_groups(), columns=names))._summary()
    assert "<script" not in html
    assert read(html).tables[0][0][2:] == names


def test_estimators_keep_the_diagram_and_add_what_they_learned() -> None:
    new, fitted = CramerMixture(2, random_state=0), CramerMixture(2, random_state=0).fit(two_groups())
    for show in (lambda model: model._repr_html_(), lambda model: model._repr_mimebundle_()["text/html"]):
        assert "sk-container" in show(new)
        assert "<svg" not in show(new).split("sk-container")[-1]
        assert "sk-container" in show(fitted)
        assert show(fitted).endswith(fitted._summary())
    components, facts = read(fitted._summary()).tables
    assert sorted(float(row[1]) for row in components[1:]) == pytest.approx(sorted(fitted.weights_), rel=1e-3)
    assert float(dict(facts)["mean log likelihood"]) == pytest.approx(fitted.lower_bound_, rel=1e-5)
    assert "sk-container" in make_pipeline(StandardScaler(), fitted)._repr_html_()
    with config_context(display="text"):
        assert "text/html" not in fitted._repr_mimebundle_()
        assert not hasattr(fitted, "_repr_html_")


def test_regressors_show_what_they_learned() -> None:
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, (120, 2))
    y = x[:, 0] + 0.1 * random.normal(size=120)
    networks = MixtureRegressor(n_estimators=2, max_iter=12, random_state=0)
    trees = MixtureBoostingRegressor(n_estimators=2, max_iter=12, random_state=0)
    for model, unit in ((networks, "epoch"), (trees, "round")):
        assert "Fitted</b>" not in model._repr_html_()
        html = model.fit(x, y)._summary()
        assert model._repr_html_().endswith(html)
        facts = dict(read(html).tables[0])
        assert facts[f"{unit}s"] == str(model.n_iter_)
        assert float(facts["last loss"]) == pytest.approx(model.loss_curve_[-1], rel=1e-3)
        (curve,) = Chart(html).paths(COLORS[0])
        height = max(model.loss_curve_) - min(model.loss_curve_)
        np.testing.assert_allclose(curve[:, 1], model.loss_curve_, atol=0.01 * height)
        np.testing.assert_allclose(curve[:, 0], np.arange(1, model.n_iter_ + 1), atol=0.1)
    stacked = MixtureStackingRegressor([trees, networks], random_state=0).fit(x, y)
    facts = dict(read(stacked._summary()).tables[0])
    assert float(facts["weight 1, MixtureRegressor"]) == pytest.approx(stacked.weights_[1], rel=1e-3, abs=1e-9)
    conformal = ConformalRegressor(trees, calibration_fraction=0.25, random_state=0).fit(x, y)
    facts = dict(read(conformal._summary()).tables[0])
    assert (facts["scored rows"], facts["regressors"]) == ("30", "1")
    # Beyond that coverage ends are infinite.
    most = float(facts["largest finite coverage"])
    assert np.isfinite(conformal.predict_interval(x, most - 1e-3)).all()
    assert np.isinf(conformal.predict_interval(x, most + 1e-3)).all()


def _contrast(color: str, background: float) -> float:
    """The contrast of WCAG 2 between a colour and a grey of given luminance."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return (max(light, background) + 0.05) / (min(light, background) + 0.05)


@pytest.mark.parametrize("color", COLORS)
def test_colours_can_be_seen_on_light_and_on_dark_pages(color: str) -> None:
    assert _contrast(color, 1.0) >= 3
    assert _contrast(color, 0.006) >= 3  # the background of JupyterLab's dark theme
