"""Tables of landings, from rows that are written by hand."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments import landing_report
from experiments.landings import _FIELDS, CALM, WINDY


def row(env, name, seed, calibrated, acts, mean, cvar, **more):
    figures = {"coverage_50": 0.5, "coverage_80": 0.9, "coverage_95": 1, "return_crps": 2} if acts == "mean" else {}
    ratio = {"return_error": 2.0, "return_deviation": 5.0} if acts == "mean" else {}
    common = {"steps": 100, "planned": 100, "failures": 0.25, "cvar_50": cvar, "cvar_25": 2 * cvar}
    key = {"env": env, "name": name, "seed": seed, "calibrated": calibrated, "acts": acts, "mean": mean}
    return {**key, **common, **figures, **ratio, **more}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [row(CALM, "gmdqn", seed, flag, "mean", 280 + seed, 0) for seed in range(4) for flag in (False, True)]
    rows += [row(CALM, "gmdqn", 9, False, "mean", -500, 0, steps=50)]  # the time limit stopped it
    rows += [row(WINDY, "gmdqn", seed, False, "mean", 100, 10 * seed) for seed in range(3)]
    rows += [row(WINDY, "learns by CVaR", seed, False, "cvar:0.5", 90, 10 * seed + 5) for seed in (2, 1, 7)]
    with (tmp_path / "landings.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, _FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    return tmp_path


def test_tables_hold_finished_runs_and_pair_equal_seeds(folder):
    found = CliRunner().invoke(landing_report.app, [str(folder)])
    assert found.exit_code == 0, found.output
    assert "| `gmdqn` | 4 | 281.5 |" in found.output
    assert "280, 281, 282, 283" in found.output
    assert "| predicted / realised deviation | 2.50 (2.50 to 2.50)" in found.output
    # Seeds 1 and 2 are in both arms; seed 7 has no partner.
    line = next(x for x in found.output.splitlines() if x.startswith("| learns and acts by `cvar:0.5`"))
    assert line.split(" | ")[1] == "2"
    assert "5 (5 to 5) | 10 (10 to 10)" in line


def test_a_folder_without_results_is_an_error(tmp_path):
    found = CliRunner().invoke(landing_report.app, [str(tmp_path)])
    assert found.exit_code == 2
    assert "must have a landings.csv with finished runs" in found.output
