"""Small environments with risks, their exact solutions, and the commands that measure agents there."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from typer.testing import CliRunner

from experiments import calibration, risk, risky
from experiments.risky import HOME, Cliff, FiniteEnv, Inventory, Trading, value

ENVS = [Cliff, Trading, Inventory]


@pytest.mark.parametrize("env", ENVS)
def test_tables_are_those_of_a_decision_process(env: type[FiniteEnv]) -> None:
    table = env.table()
    assert all(len(state) == len(env.names) for state in table)
    for chances in (action for state in table for action in state):
        assert sum(c.probability for c in chances) == pytest.approx(1)
        assert all(c.next_state == HOME or 0 <= c.next_state < len(table) for c in chances)
    check_env(env(), skip_render_check=True)


@pytest.mark.parametrize("level", [None, 0.1])
@pytest.mark.parametrize("env", ENVS)
def test_the_exact_distribution_is_that_of_episodes(env: type[FiniteEnv], level: float | None) -> None:
    policy, exact = env.solve(level)
    game, returns = env(), []
    game.reset(seed=0)
    for _ in range(4000):
        state, _ = game.reset()
        total, over = 0.0, False
        while not over:
            state, reward, terminated, truncated, _ = game.step(np.int64(policy[state]))
            total, over = total + reward, terminated or truncated
        returns.append(total)
    points = np.array(sorted(exact))
    expected = np.cumsum([exact[x] for x in points])
    found = np.mean(np.array(returns)[:, None] <= points + 1e-6, 0)
    assert expected[-1] == pytest.approx(1)
    assert np.abs(found - expected).max() < 1.95 / np.sqrt(4000)  # Kolmogorov: exceeded once in 1,000


def test_values_against_sorted_outcomes() -> None:
    outcomes = np.random.default_rng(0).normal(size=100)
    returns = dict.fromkeys(outcomes.tolist(), 0.01)
    assert value(returns, None) == pytest.approx(outcomes.mean())
    assert value(returns, 0.25) == pytest.approx(np.sort(outcomes)[:25].mean())


def test_where_exact_cvar_pays_and_where_it_does_not() -> None:
    """Greedy CVaR of the remaining return is not always the best for the whole episode."""
    gains = {}
    for env in ENVS:
        means, careful = (env.solve(level)[1] for level in (None, 0.1))
        assert value(means, None) > value(careful, None)
        gains[env] = value(careful, 0.1) - value(means, 0.1)
    assert gains[Cliff] > 5
    assert gains[Trading] > 1.5
    assert gains[Inventory] < -0.3


@pytest.mark.slow
def test_an_agent_that_learns_by_cvar_sees_rare_crashes(tmp_path: Path) -> None:
    """It invests where no crash is due, as the exact policy does, whose mean is 1.00 and whose CVaR is 0.25."""
    risk._run("Trading", risk.RISK, 100, 200_000, True, str(tmp_path))
    (row,) = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert row["mean"] > 0.5
    assert row["cvar"] > 0.05


def test_the_command_writes_a_row_for_every_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(risk, "run_jobs", lambda work, jobs, _: [(name, work(*args)) for name, args in jobs.items()])
    monkeypatch.setattr(risk, "_EPISODES", 20)
    monkeypatch.setitem(risk._SETTINGS, "learning_starts", 64)
    options = ["--out", str(tmp_path), "--env", "Trading", "--seeds", "2", "--steps", "128"]
    found = CliRunner().invoke(risk.app, options)
    assert found.exit_code == 0, found.output
    with (tmp_path / "risk.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["agent"], row["seed"]) for row in rows} == {(arm, seed) for arm in risk.ARMS for seed in "01"}
    _, exact = risky.Trading.solve(None)
    assert f"{value(exact, None):.2f} | {value(exact, 0.1):.2f}" in found.output
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    assert CliRunner().invoke(risk.app, options).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in written} == written


@pytest.mark.slow
def test_the_calibration_of_the_pretrained_agent_is_written(tmp_path: Path) -> None:
    found = CliRunner().invoke(calibration.app, ["--out", str(tmp_path), "--episodes", "4"])
    assert found.exit_code == 0, found.output
    text = (tmp_path / "calibration.md").read_text()
    assert all(f"| {name} |" in text for name in calibration._FIGURES)
    assert {path.name for path in tmp_path.glob("*.png")} == {"network_alone.png", "recalibrated.png"}
