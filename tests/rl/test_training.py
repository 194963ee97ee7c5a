"""Runs in folders: a run that was killed, at whatever moment, ends as the run that was not."""

import errno
import fcntl
import itertools
import json
import signal
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from cramix.rl import training
from cramix.rl.evaluation import evaluate, make_visible
from cramix.rl.training import Run, train
from tests.refusals import refuses
from tests.rl.killing import Killed, kill_at

SETTINGS = {
    "learning_starts": 30,
    "batch_size": 8,
    "buffer_size": 70,
    "exploration_fraction": 0.8,
    "policy_kwargs": {"net_arch": [8], "members": 1},
}


def run(**changes):
    return Run(
        **{
            "env": "CartPole-v1",
            "steps": 120,
            "interval": 40,
            "curve_episodes": 1,
            "episodes": 3,
            "settings": SETTINGS,
            **changes,
        }
    )


def outcome(result, folder):
    """All of a result but the time it took, and the numbers of the agent."""
    curve = [{key: x for key, x in row.items() if key != "seconds"} for row in result["curve"]]
    model = Run(**json.loads((folder / "run.json").read_text())).algorithm().load(folder / "model.zip")
    weights = {name: x.tolist() for name, x in model.policy.state_dict().items()}
    return {**{key: x for key, x in result.items() if key != "seconds"}, "curve": curve}, weights


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    folder = tmp_path_factory.mktemp("truth")
    return outcome(train(run(), folder), folder)


def test_result(truth, tmp_path):
    result, _ = truth
    assert [row["step"] for row in result["curve"]] == [40, 80, 120]
    assert result["mean"] == np.mean(result["returns"])
    assert len(result["returns"]) == 3
    assert result["parameters"] == 4 * 8 + 8 + 8 * 2 * 9 + 2 * 9


@pytest.mark.slow
def test_killed_at_every_change_of_a_file(truth, tmp_path, monkeypatch):
    """A run changes files some two dozen times; the program ends before each of them in turn."""
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        with monkeypatch.context() as patch:
            kill_at(patch, moment)
            try:
                result = train(run(), folder)
            except Killed:
                killed = True
            else:
                killed = False
        if not killed:
            break
        if moment % 3 == 0 or moment > 12:  # going on from some is as good as from all, and takes less time
            before = _step(folder)
            assert outcome(train(run(), folder), folder) == truth
            assert before % 40 == 0
    assert moment > 12
    assert outcome(result, folder) == truth


def _step(folder):
    """How far the last checkpoint is."""
    model = folder / "model.zip"
    return run().algorithm().load(model).num_timesteps if model.exists() else 0


@pytest.mark.parametrize("step", [1, 20, 41, 79, 119])
def test_killed_between_checkpoints(truth, step, tmp_path, monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(training.time, "monotonic", lambda: float(next(clock)))  # so that report is called at each step

    def report(at, figures):
        if at == step:
            raise Killed

    with pytest.raises(Killed):
        train(run(), tmp_path, report)
    assert _step(tmp_path) == step // 40 * 40  # at most one interval is lost
    assert outcome(train(run(), tmp_path), tmp_path) == truth


def test_fractions_that_are_drawn_resume_too(tmp_path, monkeypatch):
    iqn = run(algo="iqn", settings={**SETTINGS, "returns": {"quantiles": 4, "cosines": 4}})
    whole = outcome(train(iqn, tmp_path / "whole"), tmp_path / "whole")
    clock = itertools.count()
    monkeypatch.setattr(training.time, "monotonic", lambda: float(next(clock)))

    def report(at, figures):
        if at == 90:
            raise Killed

    with pytest.raises(Killed):
        train(iqn, tmp_path / "cut", report)
    assert outcome(train(iqn, tmp_path / "cut"), tmp_path / "cut") == whole


def test_several_environments_resume_too(tmp_path, monkeypatch):
    several = run(envs=3, interval=30)  # checkpoints after 30, 60, 90 and 120 steps
    whole = outcome(train(several, tmp_path / "whole"), tmp_path / "whole")
    assert [row["step"] for row in whole[0]["curve"]] == [30, 60, 90, 120]
    clock = itertools.count()
    monkeypatch.setattr(training.time, "monotonic", lambda: float(next(clock)))

    def report(at, figures):
        if at == 75:
            raise Killed

    with pytest.raises(Killed):
        train(several, tmp_path / "cut", report)
    assert _step(tmp_path / "cut") == 60
    assert outcome(train(several, tmp_path / "cut"), tmp_path / "cut") == whole


def test_steps_that_several_environments_do_not_divide(tmp_path):
    odd = run(envs=7, steps=40, interval=20)
    first = train(odd, tmp_path)
    assert [row["step"] for row in first["curve"]] == [21, 42]
    assert (tmp_path / "curve-42.json").exists()
    (tmp_path / "result.json").unlink()
    assert train(odd, tmp_path)["curve"] == first["curve"]


@pytest.mark.parametrize(
    ("settings", "pace", "tau"),
    [
        ({}, (8, 1), 1 - 0.995**8),
        ({"train_freq": 4}, (2, 1), 1 - 0.995**8),
        ({"train_freq": 16}, (1, 2), 1 - 0.995**8),
        ({"train_freq": 3, "gradient_steps": 2}, (16, 3), 1 - 0.995**8),
        ({"gradient_steps": -1}, (-1, 1), 1 - 0.995**8),
        ({"target_update_interval": 100}, (8, 1), 1.0),
    ],
)
def test_updates_per_environment_step_do_not_depend_on_the_number_of_environments(settings, pace, tau, tmp_path):
    found = []
    for envs in (1, 8):
        train(run(steps=96, episodes=1, envs=envs, settings={**SETTINGS, **settings}), tmp_path / str(envs))
        found.append(run().algorithm().load(tmp_path / str(envs) / "model.zip"))
    one, several = found
    assert (several.gradient_steps, several.train_freq.frequency) == pace
    assert several.tau == pytest.approx(tau)
    assert several._n_updates == pytest.approx(one._n_updates, abs=16)
    assert one._n_updates > 0


def test_episodes_between_updates_need_one_environment(tmp_path):
    settings = {**SETTINGS, "train_freq": [1, "episode"]}
    train(run(steps=40, episodes=1, settings=settings), tmp_path / "one")
    two = run(envs=2, settings=settings)
    refuses(lambda: train(two, tmp_path / "two"), "train_freq", "1 episodes", "2 environments")


def test_runs_of_versions_without_several_environments_resume(tmp_path):
    first = train(run(steps=20, episodes=1), tmp_path)
    for name in ("run.json", "result.json"):
        content = json.loads((tmp_path / name).read_text())
        del content["envs"]
        (tmp_path / name).write_text(json.dumps(content))
    assert train(run(steps=20, episodes=1), tmp_path)["returns"] == first["returns"]


@pytest.mark.slow
def test_killed_by_the_system(truth, tmp_path):
    code = f"""
import os, signal, itertools, torch
from cramix.rl import training
torch.set_num_threads(1)
clock = itertools.count()
training.time.monotonic = lambda: float(next(clock))
def report(step, figures):
    if step == 100:
        os.kill(os.getpid(), signal.SIGKILL)
training.train(training.Run(**{vars(run())!r}), {str(tmp_path)!r}, report)
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, timeout=300)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    assert _step(tmp_path) == 80
    assert outcome(train(run(), tmp_path), tmp_path) == truth


def test_a_run_that_is_done_is_read(tmp_path, monkeypatch):
    first = train(run(steps=20, episodes=1), tmp_path)
    assert not list(tmp_path.glob("memory-*"))
    monkeypatch.setattr(training, "make_training_env", None)  # nothing is played again
    assert train(run(steps=20, episodes=1), tmp_path) == first


def test_what_a_killed_program_left_half_written_is_removed(tmp_path):
    (tmp_path / ".memory-40.npz.a1b2c3").write_bytes(b"half")
    (tmp_path / ".model.zip.a1b2c3").write_bytes(b"half")
    (tmp_path / ".mine").write_bytes(b"not ours")
    train(run(steps=20, episodes=1), tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"run.json", "model.zip", "curve-20.json", "result.json", ".mine", ".lock"}


@pytest.mark.parametrize(
    ("change", "name"),
    [({"seed": 1}, "seed"), ({"steps": 130}, "steps"), ({"algo": "c51"}, "algo"), ({"settings": {}}, "settings")],
)
def test_a_folder_of_another_run_is_refused(change, name, tmp_path):
    train(run(steps=10, episodes=1, curve_episodes=0), tmp_path)
    with pytest.raises(ValueError, match=f"must hold this run or none; got one with {name}"):
        train(run(**{"steps": 10, "episodes": 1, "curve_episodes": 0, **change}), tmp_path)


def test_a_damaged_checkpoint_is_said_as_such(tmp_path):
    train(run(steps=20, episodes=1), tmp_path)
    (tmp_path / "result.json").unlink()
    model = tmp_path / "model.zip"
    model.write_bytes(model.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"model.zip must be an intact cramix model"):
        train(run(steps=20, episodes=1), tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run.json must be valid JSON"):
        train(run(steps=20, episodes=1), tmp_path)


def test_a_result_that_is_lost_is_made_anew(tmp_path):
    first = train(run(), tmp_path)
    for damage in ("{", "{}", "[]", "\xff"):
        (tmp_path / "result.json").write_text(damage, encoding="latin-1")
        with pytest.raises(ValueError, match=r"result.json must .* Delete it to create it again"):
            train(run(), tmp_path)
    (tmp_path / "result.json").unlink()
    assert train(run(), tmp_path)["returns"] == first["returns"]


@pytest.mark.parametrize("damage", ["[]", "{}", "7", "\xff"])
def test_a_description_that_is_none_is_said_as_such(damage, tmp_path):
    (tmp_path / "run.json").write_text(damage, encoding="latin-1")
    with pytest.raises(ValueError, match=r"run.json must"):
        train(run(), tmp_path)


def test_leftovers_of_a_run_that_is_done_are_removed(tmp_path):
    """A program may be killed after its result is written."""
    train(run(steps=20, episodes=1), tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    for name in ("memory-20.npz", "curve-10.json"):
        (tmp_path / name).write_bytes(b"old")
    train(run(steps=20, episodes=1), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == names


def test_two_programs_do_not_train_in_one_folder(tmp_path):
    code = f"""
import time, pathlib
from cramix.rl.folder import locked
with locked(pathlib.Path({str(tmp_path)!r})):
    print("in", flush=True)
    time.sleep(600)
"""
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"in\n"
        refuses(lambda: train(run(), tmp_path), str(tmp_path), "locked by another process", "not be in use")
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    train(run(steps=20, episodes=1), tmp_path)  # the lock of a program that was killed is open


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_systems_without_locks(number, tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(number, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    train(run(steps=20, episodes=1), tmp_path)


def test_environments_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "own_games.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('OwnCart-v0', 'gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=20)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        result = train(run(env="own_games:OwnCart-v0", steps=40), tmp_path / "run")
        assert max(result["returns"]) <= 20
        scene = make_visible("own_games:OwnCart-v0")
        scene.reset()
        assert scene.render().ndim == 3
        scene.close()
    finally:
        gymnasium.registry.pop("OwnCart-v0", None)
    refuses(lambda: run(env="no_such_module:OwnCart-v0"), "env", "no_such_module", "imported")


def test_seeds_make_runs_of_their_own(tmp_path):
    results = [train(run(seed=seed, steps=60), tmp_path / str(seed)) for seed in (0, 1)]
    assert results[0]["curve"][0]["mean"] != results[1]["curve"][0]["mean"] or (
        results[0]["returns"] != results[1]["returns"]
    )


def test_report_knows_how_far_the_run_is(tmp_path, monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(training.time, "monotonic", lambda: float(next(clock)))
    told = []
    result = train(run(), tmp_path, lambda step, figures: told.append((step, dict(figures))))
    steps = [step for step, _ in told]
    assert sorted(steps) == sorted([*range(1, 121), *(row["step"] for row in result["curve"])])  # checkpoints tell too
    assert steps == sorted(steps)
    assert "return" in told[-1][1]
    assert told[-1][1]["evaluation"] is not None


def test_report_says_when_the_update_is_compiled(tmp_path):
    told = []
    settings = {**SETTINGS, "compile": True, "learning_starts": 50}
    train(run(settings=settings, steps=60), tmp_path, lambda step, figures: told.append((step, dict(figures))))
    assert [step for step, figures in told if figures.get("compiling")] == [51]
    assert any(step == 52 for step, _ in told)  # and when it is done


def test_bad_runs_are_refused():
    refuses(lambda: run(algo="dqn"), "algo", "dqn", "one of")
    refuses(lambda: run(env="CartPole"), "env", "CartPole", "registered")
    refuses(lambda: run(steps=0), "steps", "0")
    refuses(lambda: run(envs=0), "envs", "0")
    refuses(lambda: run(curve_episodes=-1), "curve_episodes", "-1")


def test_evaluation_by_a_loop(tmp_path):
    train(run(steps=60), tmp_path)
    model = run().algorithm().load(tmp_path / "model.zip")
    returns = []
    for i in range(3):
        env = gymnasium.make("CartPole-v1")
        seen, _ = env.reset(seed=1_000_000 + 7 + i)
        over, total = False, 0.0
        while not over:
            seen, reward, terminated, truncated, _ = env.step(model.predict(seen, deterministic=True)[0])
            over, total = terminated or truncated, total + reward
        returns.append(total)
    assert evaluate(model, "CartPole-v1", 3, seed=7).tolist() == returns
