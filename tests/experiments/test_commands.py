"""The commands lunarlander, ablation and screening, on a small game: tables, curves; what is done stays done."""

from __future__ import annotations

import inspect
import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from cramix.rl import ALGORITHMS, GMDQN
from experiments import ablation, lunarlander, screening
from experiments.ablation import PAPER, VARIATIONS
from experiments.comparison import Standing
from experiments.report import table
from experiments.statistics import EpisodeSummary, Interval


def run(folder: Path, *more: str) -> tuple[int, str, str]:
    arguments = ["--out", str(folder), "--env", "CartPole-v1", "--steps", "60", *more]
    found = CliRunner().invoke(lunarlander.app, arguments, env={"COLUMNS": "120"})
    return found.exit_code, found.stdout, found.stderr


@pytest.mark.slow
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
    standings = {row["name"]: row for row in json.loads((tmp_path / "standings.json").read_text())}
    means = [json.loads(path.read_text())["mean"] for path in sorted(tmp_path.glob("CartPole-v1/gmdqn/*/result.json"))]
    assert standings["gmdqn"]["scores"] == means
    with Image.open(tmp_path / "CartPole-v1.png") as picture:
        assert picture.size[0] > 800
    assert run(tmp_path, *options)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in results} == results


def test_joint_training_leaves_out_algorithms_that_it_does_not_support(tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(lunarlander.report, "train", lambda runs, *_: trained.extend(runs))
    monkeypatch.setattr(lunarlander.report, "standings", lambda *_: None)
    code, _, error = run(tmp_path, "--device", "cpu")
    assert code == 0
    assert "Left out, because joint training does not support it: iqn." in error
    assert {run.algo for run in trained} == set(ALGORITHMS) - {"iqn"}
    code, _, error = run(tmp_path, "--device", "cpu", "--algo", "iqn")
    assert code == 2
    assert "algo must be one that can be trained jointly; got iqn. Train it without --device." in error


@pytest.mark.slow
def test_a_name_with_a_stroke_makes_no_folder_of_pictures(tmp_path: Path) -> None:
    arguments = ["--out", str(tmp_path), "--env", "experiments.bridge:cramix/Bridge-v0", "--steps", "60"]
    options = ["--algo", "gmdqn", "--seeds", "1", "--episodes", "2", "--workers", "1"]
    found = CliRunner().invoke(lunarlander.app, [*arguments, *options])
    assert found.exit_code == 0, found.stderr
    assert (tmp_path / "experiments.bridge-cramix-Bridge-v0.png").exists()


def test_unknown_algorithms_and_games_are_refused(tmp_path: Path) -> None:
    code, _, error = run(tmp_path, "--algo", "dqn")
    assert code == 2
    assert "algo must be one of" in error
    code, _, error = run(tmp_path, "--env", "Chess-v0")
    assert code == 2
    assert "Chess-v0" in error


@pytest.mark.slow
def test_what_the_caller_can_mend_is_said_in_a_line(tmp_path: Path) -> None:
    few = "--algo", "gmdqn", "--seeds", "1", "--rival-seeds", "0", "--episodes", "1", "--workers", "1"
    assert run(tmp_path, *few)[0] == 0
    for options, words in (
        (("--episodes", "2"), "must hold this run or none"),
        (("--device", "cuda:77"), "device must be available"),
        (("--steps", "0"), "--steps"),
        (("--env", "Pendulum-v1"), "discrete actions"),
    ):
        code, _, error = run(tmp_path, *few, *options)
        assert code == 2, error
        assert words in error
        assert "Traceback" not in error
    code, _, error = run(tmp_path / "other", "--algo", "ddqn", "--rival-seeds", "0")
    assert code == 2
    assert "seeds must be at least 1" in error


@pytest.mark.slow
def test_variations_are_compared_with_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(VARIATIONS)[2:]:
        monkeypatch.delitem(VARIATIONS, name)
    arguments = ["--out", str(tmp_path), "--env", "CartPole-v1", "--steps", "60"]
    options = ["--seeds", "1", "--episodes", "2", "--device", "cpu", "--workers", "2"]
    found = CliRunner().invoke(ablation.app, [*arguments, *options], env={"COLUMNS": "120"})
    assert found.exit_code == 0, found.stderr
    rows = {row["name"]: row for row in json.loads((tmp_path / "standings.json").read_text())}
    assert set(rows) == {"default", "1 step", PAPER}
    assert rows["default"]["parameters"] > rows[PAPER]["parameters"]
    told = json.loads((tmp_path / "CartPole-v1" / "1 step" / "seed-100" / "run.json").read_text())
    assert told["settings"] == {"n_steps": 1}


def test_the_table_fits_a_narrow_screen() -> None:
    """Failures are told where the environment says what one is."""
    console, nothing = Console(width=80, record=True, file=StringIO()), np.empty(0)
    found = Interval(283.1, 279.9, 285.9), EpisodeSummary(282.5, 0.134, 285.4), 309392, 700.0, nothing, nothing
    rows = [Standing("LunarLander-v3", name, np.array([274.6, 286.5]), *found) for name in [*VARIATIONS, PAPER]]
    console.print(table("LunarLander-v3", rows, "variation"))
    text = console.export_text()
    assert "…" not in text
    assert len(text.splitlines()) == len(rows) + 3
    assert text.count("279.9 to 285.9  274.6  13.4%  309392  11.7") == len(rows)
    unknown = [row._replace(episodes=EpisodeSummary(282.5, np.nan, np.nan)) for row in rows[:1]]
    console.print(table("cramix/Bridge-v0", unknown, "variation"))
    assert "%" not in console.export_text().replace("95 %", "")


@pytest.mark.slow
def test_choices_are_screened(tmp_path: Path) -> None:
    arguments = ["--out", str(tmp_path), "--env", "CartPole-v1", "--steps", "60"]
    options = ["--seeds", "2", "--episodes", "2", "--choice", "1 step", "--choice", "dueling", "--workers", "2"]
    found = CliRunner().invoke(screening.app, [*arguments, *options], env={"COLUMNS": "80"})
    assert found.exit_code == 0, found.stderr
    assert len(list(tmp_path.rglob("result.json"))) == 8
    told = json.loads((tmp_path / "effects.json").read_text())
    assert list(told) == ["1 step", "dueling"]
    assert told["dueling"]["score"]["low"] <= told["dueling"]["score"]["high"]
    assert "1 step" in found.stdout
    code = CliRunner().invoke(screening.app, [*arguments, "--choice", "none"]).exit_code
    assert code == 2


@pytest.mark.parametrize("name", VARIATIONS)
def test_every_variation_changes_the_settings(name: str) -> None:
    names = inspect.signature(GMDQN).parameters
    assert set(VARIATIONS[name]) <= set(names)
    default, varied = (GMDQN("MlpPolicy", "CartPole-v1", device="cpu", **changes) for changes in ({}, VARIATIONS[name]))
    settings = [
        {key: getattr(model, key) for key in names if key in vars(model) and key not in ("policy", "env")}
        | {"network": model.policy.architecture, "returns": model.policy.returns_options, "group": _group(model)}
        for model in (default, varied)
    ]
    assert (settings[0] == settings[1]) == (name == "default")


def _group(model: GMDQN) -> dict:
    """The settings of the optimiser."""
    return {key: x for key, x in model.policy.optimizer.param_groups[0].items() if key != "params"}
