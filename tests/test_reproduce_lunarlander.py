"""`cramix reproduce lunarlander`, on a small game: runs, a table, curves, and what is done stays done."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image
from typer.testing import CliRunner

from cramix.cli.app import app


def run(folder: Path, *more: str) -> tuple[int, str, str]:
    arguments = ["reproduce", "lunarlander", "--out", str(folder), "--env", "CartPole-v1", "--steps", "60", *more]
    found = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
    return found.exit_code, found.stdout, found.stderr


def test_the_comparison_is_told_drawn_and_not_run_twice(tmp_path: Path) -> None:
    options = "--algo", "gmdqn", "--algo", "ddqn", "--seeds", "2", "--rival-seeds", "1", "--episodes", "2"
    code, out, error = run(tmp_path, *options, "--workers", "2")
    assert code == 0, error
    assert "gmdqn" in out
    assert "interquartile mean" in out
    assert error.count("seed") == 3
    results = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert {str(path.parent.relative_to(tmp_path)) for path in results} == {
        "CartPole-v1/gmdqn/seed-0",
        "CartPole-v1/gmdqn/seed-1",
        "CartPole-v1/ddqn/seed-0",
    }
    standings = {row["algo"]: row for row in json.loads((tmp_path / "standings.json").read_text())}
    means = [json.loads(path.read_text())["mean"] for path in sorted(tmp_path.glob("CartPole-v1/gmdqn/*/result.json"))]
    assert standings["gmdqn"]["scores"] == means
    with Image.open(tmp_path / "CartPole-v1.png") as picture:
        assert picture.size[0] > 800
    assert run(tmp_path, *options)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in results} == results


def test_unknown_algorithms_and_games_are_refused(tmp_path: Path) -> None:
    code, _, error = run(tmp_path, "--algo", "dqn")
    assert code == 2
    assert "algo must be one of" in error
    code, _, error = run(tmp_path, "--env", "Chess-v0")
    assert code == 2
    assert "Chess-v0" in error
