"""The queue of landings: what starts, what is written, what a time limit leaves."""

from __future__ import annotations

import io
import time
import zipfile
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from cramix.rl import GMDQN
from cramix.rl.training import Run
from experiments import landings
from experiments.landings import CALM, WINDY, read_rows

SMALL = {"learning_starts": 20, "policy_kwargs": {"net_arch": [8]}, "compile": False}


@pytest.fixture(autouse=True)
def few_episodes(monkeypatch):
    monkeypatch.setattr(landings, "_CALIBRATION_EPISODES", 16)


def queue(out: Path, seconds: float = 1000.0) -> landings._Queue:
    return landings._Queue(landings.plan("calm", 10_000, seeds=2), out, seconds, 2)


def landed(out: Path, run: Run, until: float | None = None):
    return landings._land(run, until or time.time() + 1000, 2, out / "agent.zip")


def test_figures_against_a_loop():
    returns = np.random.default_rng(0).normal(200, 50, size=40)
    found = landings.figures(returns)
    worst = sorted(returns.tolist())
    assert found["cvar_25"] == pytest.approx(sum(worst[:10]) / 10)
    assert found["cvar_10"] == pytest.approx(sum(worst[:4]) / 4)
    assert found["failures"] == sum(x < 200 for x in worst) / 40


def test_wind_moves_the_lander():
    paths = []
    for name in (CALM, WINDY):
        env = gymnasium.make(name)
        env.reset(seed=3)
        paths.append([env.step(0)[0][0] for _ in range(30)])
        env.close()
    assert abs(paths[0][-1] - paths[1][-1]) > 1e-3


def test_what_cannot_end_in_time_does_not_start(tmp_path):
    guess = landings._OVERHEAD + 10_000 * landings._PER_STEP
    assert queue(tmp_path, seconds=guess - 1).choose() is None
    waiting = queue(tmp_path, seconds=guess + 1)
    assert waiting.choose() is not None
    waiting.overhead, waiting.per_step = [10.0], [0.1]  # the first run was slower than the guess
    assert waiting.choose() is None


def test_results_are_appended_and_not_repeated(tmp_path):
    waiting = queue(tmp_path)
    name, _ = waiting.choose() or ("", ())
    waiting.finish(name, landed(tmp_path, Run(CALM, "gmdqn", 60, 0, settings=SMALL, label="gmdqn")))
    rows = read_rows(tmp_path / "landings.csv")
    assert {(row["calibrated"], row["acts"]) for row in rows} >= {("False", "mean")}
    episodes = read_rows(tmp_path / "episodes.csv")
    assert len(episodes) == len(rows)
    assert float(rows[0]["mean"]) == pytest.approx(
        np.mean([float(x) for x in episodes[0]["returns"].split()]), abs=0.01
    )
    with zipfile.ZipFile(tmp_path / "agents.zip") as archive:
        agent = GMDQN.load(io.BytesIO(archive.read("LunarLander-v3-gmdqn-0.zip")))
    assert agent.predict(np.zeros(8, np.float32))[0].shape == ()
    again = queue(tmp_path)
    assert name not in again.waiting
    assert len(again.waiting) == len(waiting.waiting) + len(waiting.running)


def test_an_agent_that_is_stopped_says_so_and_one_whose_evaluation_is_stopped_is_kept(tmp_path):
    rows, _ = landed(tmp_path, Run(CALM, "gmdqn", 5000, 0, settings=SMALL, label="gmdqn"), until=time.time() - 1)
    assert len(rows) == 1
    assert rows[0]["steps"] < rows[0]["planned"] == 5000
    waiting = queue(tmp_path)
    _, arguments = waiting.choose() or ("", ())
    landings._land(Run(CALM, "ddqn", 60, 0, settings=SMALL, label="gmdqn"), time.time() + 1000, 2, arguments[3])
    waiting.finish_evaluations()
    assert not waiting.running
    assert [row["seed"] for row in read_rows(tmp_path / "landings.csv")] == ["0"]
    assert not list(tmp_path.glob("*.trained.*"))


def test_an_error_of_a_job_is_printed_and_the_others_go_on(tmp_path, capsys):
    waiting = queue(tmp_path)
    name, _ = waiting.choose() or ("", ())
    waiting.finish(name, ValueError("no land in sight"))
    assert "no land in sight" in capsys.readouterr().out
    assert not (tmp_path / "landings.csv").exists()
    assert waiting.choose() is not None
