"""Comparisons: what is planned, what stays done, and the statistics of scores."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest

from cramix.rl import GMDQN
from cramix.rl.evaluation import evaluate
from cramix.rl.folder import read_result, write_json
from cramix.rl.training import Run, finish, train
from experiments.comparison import compare, plan, run_folder, standings
from experiments.population import joint_training
from experiments.statistics import interquartile_mean, interval
from tests.refusals import refuses
from tests.rl.killing import Killed


def test_interquartile_mean_leaves_out_a_quarter_at_each_end():
    scores = np.array([1.0, -900.0, 3.0, 2.0, 4.0, 5.0, 700.0, 6.0])
    assert interquartile_mean(scores) == pytest.approx(np.mean([2.0, 3.0, 4.0, 5.0]))


def test_interval_covers_the_truth_as_often_as_it_says():
    """Interquartile means of 40 normal scores: 95 % intervals hold the centre in at least 85 of 100 draws."""
    rng = np.random.default_rng(0)
    held = 0
    for seed in range(100):
        value, low, high = interval(rng.normal(3.0, 1.0, 40), seed)
        assert low <= value <= high
        held += low <= 3.0 <= high
    assert held >= 85


def test_interval_of_one_score_is_that_score():
    assert interval(np.array([2.0])) == (2.0, 2.0, 2.0)


def test_c51_is_told_the_range_of_returns():
    runs = plan({"CartPole-v1": 10}, {"gmdqn": 1, "c51": 1})
    assert runs[0].settings == {}
    assert runs[1].settings["returns"] == {"low": 0, "high": 200}


def test_curves_have_as_many_points_in_short_runs_as_in_long_ones():
    runs = plan({"CartPole-v1": 1200, "LunarLander-v3": 300_000}, {"gmdqn": 1})
    assert [run.interval for run in runs] == [100, 25_000]


def result(returns: list[float], curve: list[float]) -> dict:
    rows = [{"step": 10 * (i + 1), "mean": x, "seconds": 1.0} for i, x in enumerate(curve)]
    return {
        "mean": sum(returns) / len(returns),
        "std": 1.0,
        "returns": returns,
        "parameters": 7,
        "seconds": 60.0,
        "curve": rows,
    }


def test_standings_are_of_the_runs_that_are_done(tmp_path):
    runs = plan({"CartPole-v1": 10}, {"gmdqn": 3, "ddqn": 1})
    done = {
        ("gmdqn", 0): result([496.0, 500.0], [0.0, 1.0]),
        ("gmdqn", 2): result([300.0, 500.0, 490.0], [2.0, 3.0, 9.0]),
    }
    for run in runs:
        if (run.algo, run.seed) in done:
            folder = run_folder(run, tmp_path)
            folder.mkdir(parents=True)
            write_json(folder / "result.json", done[run.algo, run.seed])
    (standing,) = standings(runs, tmp_path)
    assert standing.name == "gmdqn"
    assert standing.scores.tolist() == [498.0, 430.0]
    assert standing.summary.value == 464.0
    assert standing.episodes == pytest.approx((457.2, 0.2, 496.5))  # CartPole is solved at 475
    assert standing.curve.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert standing.steps.tolist() == [10, 20]


@pytest.mark.slow
@pytest.mark.parametrize("device", [None, "cpu"])
def test_what_is_done_stays_done(tmp_path, device):
    runs = plan({"CartPole-v1": 30}, {"gmdqn": 2}, episodes=2, curve_episodes=0, interval=20)
    told = []
    first = compare(runs, tmp_path, 2, lambda run, result: told.append((run.seed, result["mean"])), device)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert sorted(seed for seed, _ in told) == [0, 1]
    again = compare(runs, tmp_path, 2, lambda run, result: told.append((run.seed, result["mean"])), device)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")} == before
    assert sorted(told[2:]) == sorted(told[:2])
    assert again[0].scores.tolist() == first[0].scores.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize(("steps", "episodes", "name"), [(60, 2, "steps"), (30, 3, "episodes")])
def test_results_of_other_settings_are_not_taken_for_these(tmp_path, device, steps, episodes, name):
    options = {"curve_episodes": 0, "interval": 20}
    compare(plan({"CartPole-v1": 30}, {"gmdqn": 1}, episodes=2, **options), tmp_path, 1, device=device)
    other = plan({"CartPole-v1": steps}, {"gmdqn": 1}, episodes=episodes, **options)
    with pytest.raises(ValueError, match=f"must hold this run or none; got one with {name}"):
        compare(other, tmp_path, 1, device=device)


@pytest.mark.slow
def test_what_one_by_one_has_begun_together_ends(tmp_path):
    """The agent in the folder is the one that has the result."""
    (run,) = plan({"CartPole-v1": 60}, {"gmdqn": 1}, episodes=2, curve_episodes=0, interval=20)
    folder = run_folder(run, tmp_path)

    def stop(step, figures):
        if step == 40:
            raise Killed

    with pytest.raises(Killed):
        train(run, folder, stop)
    (standing,) = compare([run], tmp_path, 1, device="cpu")
    model = GMDQN.load(folder / "model.zip")
    assert model.num_timesteps == 60
    assert evaluate(model, run.env, 2).mean() == standing.scores[0]
    assert {path.name for path in folder.iterdir()} == {"run.json", "model.zip", "result.json", ".lock"}


@pytest.mark.slow
def test_what_was_killed_while_results_were_written_goes_on_together(tmp_path, monkeypatch):
    """One of two is done, and both have one checkpoint: it is of the whole group."""
    runs = plan({"CartPole-v1": 60}, {"gmdqn": 2}, episodes=2, curve_episodes=0, interval=20)
    folders = [run_folder(run, tmp_path) for run in runs]

    def kill(run, *rest, **more):
        if run.seed == 0:
            raise Killed
        return finish(run, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(joint_training, "finish", kill)
        with pytest.raises(Killed):
            joint_training.train_jointly(runs, folders, "cpu", 1)
    assert [(folder / "result.json").exists() for folder in folders] == [False, True]
    before, told = read_result(folders[1]), []
    (standing,) = compare(runs, tmp_path, 1, lambda run, result: told.append((run.seed, result["curve"])), "cpu")
    assert [seed for seed, _ in told] == [1, 0]
    assert standing.scores[1] == before["mean"]
    assert not (folders[0] / "population.zip").exists()
    (folders[1] / "result.json").unlink()
    assert train(runs[1], folders[1])["mean"] == before["mean"]  # the agent is there, and plays again


def test_runs_of_one_name_are_refused(tmp_path):
    runs = [Run("CartPole-v1", steps=steps) for steps in (10, 20)]
    refuses(lambda: compare(runs, tmp_path, 1), "runs", "same name and seed")


@pytest.mark.parametrize("device", ["cuda:77", "nonsense"])
def test_a_device_that_is_not_here_is_refused(tmp_path, device):
    refuses(lambda: compare(plan({"CartPole-v1": 30}, {"gmdqn": 1}), tmp_path, 1, device=device), "device", device)


def test_no_seeds_are_refused():
    refuses(lambda: plan({"CartPole-v1": 30}, {}), "seeds", "{}")


@pytest.mark.slow
def test_a_run_that_fails_ends_the_others_and_is_told(tmp_path):
    long = {"steps": 1_000_000, "interval": 1_000_000}
    runs = [Run("CartPole-v1", settings={"nonsense": 1}, **long), *(Run("CartPole-v1", seed=i, **long) for i in (1, 2))]
    with pytest.raises(ValueError, match="got nonsense"):
        compare(runs, tmp_path, 2)
    assert not multiprocessing.active_children()
    assert not list(tmp_path.rglob("result.json"))
