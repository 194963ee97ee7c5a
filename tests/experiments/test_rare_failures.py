"""The command rare_failures, with few episodes: a row without the component for rare outcomes in every physics."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments import rare_failures


@pytest.mark.slow
def test_every_physics_has_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rare_failures, "PHYSICS", {"as trained": {}, "wind 15": {"enable_wind": True}})
    options = ["--out", str(tmp_path), "--episodes", "20", "--calibration", "60"]
    found = CliRunner().invoke(rare_failures.app, options)
    assert found.exit_code == 0, found.output
    with (tmp_path / "rare_failures.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["physics"] for row in rows if row["tail"] == "False"] == ["as trained", "wind 15"]
    windy = [row for row in rows if row["physics"] == "wind 15"]
    assert [row["tail"] for row in windy] == ["False", "True"]  # many landings fail in such wind
    assert float(windy[0]["failures"]) > 0.1
    assert float(windy[1]["predicted"]) > 0
