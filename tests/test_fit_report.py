"""The page of a fit without a browser: what it refuses, and what its file holds."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import cramix
from cramix.html.idea import write_idea
from cramix.html.report import write_report
from cramix.html.worst import WorstRows, what_stands_out


def samples(n: int, d: int) -> torch.Tensor:
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[: n // 2] += 5
    return x


def fit(x: torch.Tensor, **options: Any) -> cramix.FitResult:
    return cramix.fit(x, 2, method="em", generator=torch.Generator().manual_seed(0), **options)


def data(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"X": torch.zeros(5, 3)}, r"X must be samples \(n, 2\).*got \(5, 3\)"),
        ({"X": torch.zeros(0, 2)}, r"X must be samples"),
        ({"X": torch.full((5, 2), torch.nan)}, "X"),
        ({"X": cramix.source(torch.zeros(5, 2))}, "X must be samples in memory; got a source"),
        ({"names": ["a"]}, "names must be 2, one for each column; got 1"),
        ({"sample_weight": torch.ones(3)}, r"sample_weight must have shape \(50,\).*got \(3,\)"),
        ({"sample_weight": -torch.ones(50)}, "sample_weight must be >= 0"),
        ({"sample_weight": torch.zeros(50)}, "sample_weight must not be all 0"),
        ({"n_rows": 49}, "n_rows must be an integer >= 50"),
    ],
)
def test_bad_input_is_refused_before_a_file_is_written(tmp_path: Path, options: dict, message: str) -> None:
    x = samples(50, 2)
    with pytest.raises(ValueError, match=message):
        write_report(tmp_path / "r.html", fit(x), **({"X": x} | options))
    assert not list(tmp_path.iterdir())


def test_a_result_is_required(tmp_path: Path) -> None:
    x = samples(50, 2)
    with pytest.raises(TypeError, match="result must be what fit returns, a FitResult; got NormalMixture"):
        write_report(tmp_path / "r.html", cramix.NormalMixture([1.0], [0.0], [1.0]), x)  # type: ignore[arg-type]


def test_files_stay_small_and_say_what_they_leave_out(tmp_path: Path) -> None:
    x = samples(6_000, 80)
    write_report(tmp_path / "r.html", fit(x, covariance_type="diag"), x, n_rows=10**9)
    found = data(tmp_path / "r.html")
    assert (tmp_path / "r.html").stat().st_size < 3e6
    assert found["omitted"] == {"columns": 50, "components": 0}
    assert len(found["names"]) == 30
    assert found["rows"]["count"] == 3333
    assert found["n_rows"] == 10**9


def test_of_many_columns_those_are_shown_that_separate_the_components(tmp_path: Path) -> None:
    x = torch.randn(500, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:250, 35:] += 8
    write_report(tmp_path / "r.html", fit(x, covariance_type="diag"), x)
    assert {"x36", "x37", "x38", "x39", "x40"} <= set(data(tmp_path / "r.html")["names"])


def test_bars_are_a_weighted_histogram(tmp_path: Path) -> None:
    x = samples(400, 2)
    weight = torch.rand(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    write_report(tmp_path / "r.html", fit(x, sample_weight=weight), x, sample_weight=weight)
    view = data(tmp_path / "r.html")["views"][1]
    width = (view["high"] - view["low"]) / len(view["bars"])
    for i in (0, 13, 39):
        inside = (x[:, 1] >= view["low"] + i * width) & (x[:, 1] < view["low"] + (i + 1) * width)
        expected = (weight[inside].sum() / weight.sum() / width).item()
        assert view["bars"][i] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_a_mixture_without_density_has_no_worst_rows(tmp_path: Path) -> None:
    x = samples(50, 1)[:, 0]
    result = fit(x)
    atoms = cramix.NormalMixture([0.5, 0.5], [0.0, 5.0], [0.0, 1.0])
    write_report(tmp_path / "r.html", replace(result, mixture=atoms), x)
    found = data(tmp_path / "r.html")
    assert found["worst"] == []
    assert "no density" in found["notes"][0]


def test_worst_rows_of_parts_are_those_of_the_whole() -> None:
    x = samples(200, 3)
    mixture = fit(x).mixture
    worst = WorstRows(mixture, 5)
    for part in torch.arange(200).split(30):
        worst.add(x[part], part + 1000, "file")
    order = mixture.log_prob(x).argsort()[:5]
    assert [row.number for row in worst.rows] == (order + 1000).tolist()
    assert {row.place for row in worst.rows} == {"file"}


def test_what_stands_out_is_a_column_or_a_combination() -> None:
    covariance = torch.tensor([[[1.0, 0.99], [0.99, 1.0]]], dtype=torch.float64)
    zero = torch.zeros(1, 2, dtype=torch.float64)
    mixture = cramix.MultivariateNormalMixture(torch.ones(1, dtype=torch.float64), zero, covariance)
    far, odd = torch.tensor([4.0, 4.0]).double(), torch.tensor([1.0, -0.5]).double()
    assert what_stands_out(mixture, far, ("a", "b")) == "a is 4.0 σ above component 0"
    # b given a = 1 has mean 0.99 and variance 1 - 0.99^2; a given b = -0.5 is as far off by symmetry of signs.
    given = (1.0 + 0.99 * 0.5) / (1 - 0.99**2) ** 0.5
    assert what_stands_out(mixture, odd, ("a", "b")) == f"given the other columns, a is {given:.1f} σ above component 0"


def test_the_idea_page_has_no_reference_to_the_network(tmp_path: Path) -> None:
    write_idea(tmp_path / "idea.html")
    text = (tmp_path / "idea.html").read_text("utf-8")
    assert not re.search(r"""(src|href)\s*=\s*["']|@import|url\((?!#)""", text)
    assert [preset["name"] for preset in data(tmp_path / "idea.html")["presets"]][1] == "far apart"
