"""The page of a fit: numbers equal Python's, choosing columns redraws, pointing highlights, names are harmless."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import cramix
from cramix.html.report import write_report
from cramix.mixture.coordinates import in_coordinates

NAMES = ["<script>window.hacked = 1</script>", "a \"quoted\" 'name'", "<img src=x onerror=hacked=1>", "</script>&amp;"]


def samples(n: int = 300, d: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    groups = torch.arange(n) % 3
    x = torch.randn(n, d, generator=generator, dtype=torch.float64) + 4.0 * groups[:, None] * (-1.0) ** torch.arange(d)
    x[7] = torch.tensor([30.0, *[0.0] * (d - 1)])
    return x


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor, Any]:
    x = samples()
    selection = cramix.select(x, range(1, 4), folds=0, generator=torch.Generator().manual_seed(0))
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, selection.results[selection.by_bic], x, names=NAMES, considered=selection.results)
    return path, x, selection


def sorted_mixture(result: Any) -> cramix.MultivariateNormalMixture:
    return in_coordinates(result.mixture.sort("weights", descending=True), torch.float64)


def numbers(page: Any, selector: str, attribute: str = "data-value") -> list[float]:
    return [float(cell.get_attribute(attribute)) for cell in page.locator(selector).all()]


def test_tables_hold_the_numbers_of_python(open_page: Any, fitted: Any) -> None:
    path, x, selection = fitted
    page, mixture = open_page(path), sorted_mixture(selection.results[selection.by_bic])
    scales = mixture.covariances.diagonal(dim1=-2, dim2=-1).sqrt()
    for i in range(mixture.n_components):
        row = f"#components tbody tr:nth-child({i + 1}) td"
        assert numbers(page, f"{row}:nth-child(2)") == [pytest.approx(mixture.weights[i].item(), rel=1e-6)]
        assert numbers(page, f"{row}:nth-child(n + 3)") == pytest.approx(mixture.means[i].tolist(), rel=1e-6)
        assert numbers(page, f"{row}:nth-child(n + 3)", "data-scale") == pytest.approx(scales[i].tolist(), rel=1e-6)
    assert numbers(page, "#considered tbody td:nth-child(3)") == pytest.approx(list(selection.bic.values()), rel=1e-9)
    heights = mixture.log_prob(x)
    order = heights.argsort()[:10]
    assert [int(cell.text_content()) for cell in page.locator("#worst tbody th").all()] == order.tolist()
    assert numbers(page, "#worst tbody td:nth-child(2)") == pytest.approx(heights[order].tolist(), rel=1e-6)
    assert numbers(page, "#worst tbody tr:first-child td:nth-child(n + 4)") == pytest.approx(x[order[0]].tolist())
    facts = dict(zip(page.locator("dt").all_text_contents(), page.locator("dd").all_text_contents(), strict=True))
    assert facts["rows"] == "300"
    assert float(facts["BIC"]) == pytest.approx(selection.bic[selection.by_bic], rel=1e-5)


def test_the_density_over_the_bars_is_that_of_the_marginal(open_page: Any, fitted: Any) -> None:
    path, _, selection = fitted
    page, mixture = open_page(path), sorted_mixture(selection.results[selection.by_bic])
    xs = [-3.0, 0.5, 4.0, 7.7]
    got = page.evaluate("xs => xs.map(x => pdf(marginal(1), x))", xs)
    expected = mixture.marginal(1).log_prob(torch.tensor(xs, dtype=torch.float64)).exp()
    assert got == pytest.approx(expected.tolist(), rel=1e-9)


def test_ellipses_are_those_of_the_covariances(open_page: Any, fitted: Any) -> None:
    """In pixels: where the first ellipse is widest is one standard deviation from the mean."""
    path, _, selection = fitted
    page, mixture = open_page(path), sorted_mixture(selection.results[selection.by_bic])
    page.select_option("#across", "2")
    page.select_option("#up", "0")
    view, width = page.evaluate("[page.views[2], document.querySelector('#frame rect').width.baseVal.value]")
    for i in range(mixture.n_components):
        box = page.evaluate(f"document.querySelector('#fit [data-component=\"{i}\"] .inner').getBBox().width")
        expected = 2 * mixture.covariances[i, 2, 2].sqrt().item() * width / (view["high"] - view["low"])
        assert box == pytest.approx(expected, rel=5e-3)


def test_choosing_columns_redraws(open_page: Any, fitted: Any) -> None:
    page = open_page(fitted[0])

    def drawn() -> tuple[str, str]:
        image = page.evaluate("document.querySelector('#fit canvas').toDataURL()")
        return image, page.locator("#fit .component .inner").first.get_attribute("d")

    before = drawn()
    page.get_by_label("across").select_option(index=2)
    after = drawn()
    assert all(a != b for a, b in zip(before, after, strict=True))
    page.get_by_label("up").select_option(index=2)  # the same column: a line
    assert "line" in page.locator("#fit").get_attribute("class")
    assert page.locator("#fit .component").count() == page.locator("#components tbody tr").count()


def test_pointing_highlights_both_ways(open_page: Any, fitted: Any) -> None:
    page = open_page(fitted[0])

    def highlighted() -> list[str]:
        return page.evaluate(
            "[...document.querySelectorAll('.on')].map(e => e.tagName.toLowerCase() + e.dataset.component).sort()"
        )

    assert highlighted() == []
    page.locator("#components tbody tr").nth(1).hover()
    assert highlighted() == ["g1", "tr1"]
    page.locator("h1").hover()
    assert highlighted() == []
    page.locator("#fit [data-component='0'] text").hover()
    assert highlighted() == ["g0", "tr0"]
    page.mouse.move(1, 1)
    page.locator("#fit [data-component='2']").focus()
    assert highlighted() == ["g2", "tr2"]
    page.locator("#components tbody tr").first.focus()
    page.keyboard.press("Tab")
    assert highlighted() == ["g1", "tr1"]
    page.locator("#worst tbody tr").first.hover()
    assert page.locator("#fit .mark").count() == 1
    page.locator("h1").hover()
    assert page.locator("#fit .mark").count() == 0


def test_names_are_text_and_never_markup(open_page: Any, fitted: Any) -> None:
    page = open_page(fitted[0])
    page.wait_for_timeout(100)
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("main script, main img").count() == 0
    assert page.locator("#across option").all_text_contents() == NAMES
    assert [head.get_attribute("title") for head in page.locator("#components thead th").all()][2:] == NAMES


def test_what_stands_out_of_the_outlier(open_page: Any, fitted: Any) -> None:
    row = open_page(fitted[0]).locator("#worst tbody tr").first
    assert row.locator("th").text_content() == "7"
    assert row.locator(".words").text_content().startswith(f"{NAMES[0]} is ")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen_in_both_schemes(open_page: Any, fitted: Any, width: int, scheme: str) -> None:
    page = open_page(fitted[0], width=width, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light == (scheme == "light")
    assert all(svg.get_attribute("aria-label") for svg in page.locator("svg").all())
    assert page.get_by_role("img", name="component 0, weight").count() == 1


def test_one_column(open_page: Any, tmp_path: Path) -> None:
    x = torch.cat([samples(200, 1)[:, 0], torch.full((3,), 2.5, dtype=torch.float64)])
    result = cramix.fit(x, 2, generator=torch.Generator().manual_seed(0))
    write_report(tmp_path / "one.html", result, x)
    page = open_page(tmp_path / "one.html", width=390)
    assert page.locator("#across").is_hidden()
    assert page.locator("#choice").is_hidden()
    page.locator("#components tbody tr").first.hover()
    assert page.locator("#fit .component.on").count() == 1


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_thirteen_columns_of_every_kind(open_page: Any, tmp_path: Path, kind: str) -> None:
    x = samples(400, 13)
    weight = torch.ones(400, dtype=torch.float64)
    weight[7] = 0
    options: dict[str, Any] = {"covariance_type": kind, "sample_weight": weight, "method": "em"}
    result = cramix.fit(x, 3, generator=torch.Generator().manual_seed(0), **options)
    write_report(tmp_path / "r.html", result, x, sample_weight=weight)
    page, mixture = open_page(tmp_path / "r.html"), sorted_mixture(result)
    assert numbers(page, "#components tbody tr:first-child td:nth-child(n + 3)", "data-scale") == pytest.approx(
        mixture.covariances[0].diagonal().sqrt().tolist(), rel=1e-6
    )
    assert "7" not in page.locator("#worst tbody th").all_text_contents()  # its weight is 0
    page.select_option("#up", "12")
    assert page.evaluate("covariance(0, 12, 0)") == pytest.approx(mixture.covariances[0, 12, 0].item(), abs=1e-9)


def test_warnings_are_shown_with_their_remedy(open_page: Any, tmp_path: Path) -> None:
    x = samples(100, 2)
    x[:, 1] = 2.0
    with pytest.warns(UserWarning, match="Column 1 is constant. Drop it."):
        result = cramix.fit(x, 2, generator=torch.Generator().manual_seed(0))
    write_report(tmp_path / "r.html", result, x, notes=["Row 3 <b>looks</b> odd."])
    page = open_page(tmp_path / "r.html")
    assert page.locator("#warnings-title").text_content() == "Warnings, and what to do"
    assert page.locator("#warnings li").all_text_contents() == [*result.warnings, "Row 3 <b>looks</b> odd."]


def test_the_steps_of_the_fit(open_page: Any, tmp_path: Path) -> None:
    x = samples(200, 2)
    result = cramix.fit(x, 3, method="em", generator=torch.Generator().manual_seed(0))
    write_report(tmp_path / "r.html", result, x)
    page = open_page(tmp_path / "r.html")
    (stage,) = page.evaluate("page.history")
    assert stage["lines"][0]["losses"] == pytest.approx([step.loss for step in result.history])
    assert float(page.locator("#history .note").text_content()) == pytest.approx(result.history[-1].loss, rel=1e-5)


def test_the_command_reads_a_folder_and_finds_the_worst_of_all_rows(open_page: Any, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from cramix.cli.app import app

    folder, out = tmp_path / "parts", tmp_path / "report.html"
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    for i in range(2):
        x = torch.randn(15_000, 2, generator=generator)
        if i == 1:
            x[123, 1] = 9.0
        lines = ["a,b", *(f"{a:.5f},{b:.5f}" for a, b in x.tolist())]
        (folder / f"{i}.csv").write_text("\n".join(lines), encoding="utf-8")
    done = CliRunner().invoke(app, ["fit", str(folder), "-k", "1", "--html", str(out), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["html"] == str(out)
    page = open_page(out)
    assert page.locator("#shown").text_content() == "4,000 of 30,000 rows, drawn at random to keep the file small"
    assert page.locator("#worst tbody th").first.text_content() == "15124 1.csv"
    assert page.locator("#worst tbody .words").first.text_content().startswith("b is 9.")
    assert math.isclose(numbers(page, "#worst tbody tr:first-child td:last-child")[0], 9.0)
