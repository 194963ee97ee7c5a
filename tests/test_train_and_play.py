"""The commands train and play: runs that resume, tables, films, and words for what cannot be done."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from PIL import Image
from typer.testing import CliRunner

from cramix.cli.app import app
from cramix.cli.refusal import Refusal
from cramix.cli.train import changes
from cramix.rl import ALGORITHMS, GMDQN, evaluate_calibration, pretrained
from cramix.rl.evaluation import evaluate

SMALL = ["--set", "policy_kwargs.net_arch=[16]", "--set", "learning_starts=100", "--set", "returns.n_components=2"]
RUN = ["CartPole-v1", "--steps", "500", "--interval", "200", "--episodes", "4", "--seed", "3", *SMALL]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
PROGRAM = str(Path(sys.executable).parent / "cramix")


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """The commands set the number of threads of their process, which is ours here."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(*arguments: object, code: int = 0) -> tuple[str, str]:
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == code, done.output
    return done.stdout, done.stderr


def refuses(*arguments: object) -> str:
    out, line = run(*arguments, code=2)
    assert out == ""
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    return line


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict, str]:
    """The folder of a run, what it said at its end, and on its way."""
    folder = tmp_path_factory.mktemp("train") / "run"
    out, err = run("train", *RUN, "--out", folder, "--json")
    return folder, json.loads(out), err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: tuple[Path, dict, str]) -> Path:
    shutil.copytree(trained[0], tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_train_reports_the_returns_of_the_last_agent(trained: tuple[Path, dict, str]) -> None:
    folder, about, said = trained
    model = GMDQN.load(folder / "model.zip", device="cpu")
    returns = evaluate(model, "CartPole-v1", 4)
    assert about["returns"] == returns.tolist()
    assert about["mean"] == pytest.approx(returns.mean())
    assert about["std"] == pytest.approx(returns.std())
    assert about["min"] == returns.min()
    assert about["quartiles"] == pytest.approx(np.percentile(returns, [25, 50, 75]).tolist())
    # Two members, of one layer and then three numbers a component.
    assert about["parameters"] == 2 * (4 * 16 + 16 + 17 * 2 * 3 * 2)
    assert about["seconds"] > 0
    assert model.learning_starts == 100
    assert [line.split(",")[0] for line in said.splitlines()] == ["step 200", "step 400", "step 500"]
    assert all("evaluation" in line for line in said.splitlines())


def test_a_done_run_is_told_again_and_another_is_not_mixed_with_it(folder: Path) -> None:
    out, err = run("train", *RUN, "--out", "run")
    assert "Already finished: run" in err
    for word in ("mean return", "standard deviation", "minimum", "quartiles", "parameters", "time", "gmdqn"):
        assert word in out
    assert "seed 3 instead of 4" in refuses("train", *RUN, "--seed", 4, "--out", "run")
    assert run("train", *RUN, "--out", "run", "--quiet") == ("", "")


def test_a_run_that_was_interrupted_goes_on_to_the_same_end(
    tmp_path: Path, trained: tuple[Path, dict, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> object:
        def report(step: int, figures: dict) -> None:
            if step >= 400:
                raise KeyboardInterrupt

        return report

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["cramix", "train", *RUN, "--out", "a run"])
    with monkeypatch.context() as patch:
        patch.setattr("cramix.cli.train._lines", interrupt)
        _, err = run("train", *RUN, "--out", "a run", code=130)
    assert "Resume from step 400 with: cramix train CartPole-v1 --steps 500" in err
    assert "--out 'a run'\nstopped\n" in err
    assert not (tmp_path / "a run" / "result.json").exists()
    out, err = run("train", *RUN, "--out", "a run", "--json")
    assert "Resuming from step 400: a run" in err
    assert json.loads(out)["returns"] == trained[1]["returns"]
    one, other = (GMDQN.load(place / "model.zip", device="cpu") for place in (trained[0], tmp_path / "a run"))
    assert torch.equal(*(x.policy.q_net.each[0][0][0].weight for x in (one, other)))


def test_the_installed_command_stops_at_an_interrupt(tmp_path: Path) -> None:
    command = [PROGRAM, "train", "CartPole-v1", "--interval", "150", *SMALL, "--set", "compile=false", "--out", "run"]
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    options = {"stderr": subprocess.PIPE, "text": True, "cwd": tmp_path, "env": ENVIRONMENT}
    with subprocess.Popen(command, **options, preexec_fn=heed) as job:
        assert job.stderr is not None
        assert job.stderr.readline().startswith("step 150, ")
        job.send_signal(signal.SIGINT)
        err = job.stderr.read()
    assert job.returncode == 130
    assert "Traceback" not in err
    assert "Resume from step " in err
    assert "with: cramix train CartPole-v1 --interval 150" in err


def test_settings_that_are_no_good_leave_the_folder_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for bad, word in (
        ("gama=0.9", "Did you mean gamma?"),
        ("gamma=2", "gamma must be a number in [0, 1]"),
        ("returns.n_component=2", "n_component"),
        ("returns.min_scale=-1", "min_scale must"),
        ("risk=cvar:7", "risk must"),
    ):
        assert word in refuses("train", *RUN, "--set", bad, "--out", "run")
        assert [path.name for path in tmp_path.glob("run/*")] == [".lock"]


def test_what_cannot_be_trained_is_refused(folder: Path) -> None:
    assert "algo must be" in refuses("train", "CartPole-v1", "--algo", "ppo", "--out", "new")
    assert "preset must be one of" in refuses("train", "CartPole-v1", "--preset", "best", "--out", "new")
    assert "registered environment" in refuses("train", "Nowhere-v0", "--out", "new")
    assert "discrete actions" in refuses("train", "Pendulum-v1", "--out", "new")
    (folder / "file").write_text("")
    assert "file is not a folder" in refuses("train", "CartPole-v1", "--out", "file")
    help_text = run("train", "--help")[0]
    assert all(name in help_text for name in ALGORITHMS)


def test_risk_is_a_setting(tmp_path: Path) -> None:
    arguments = ["CartPole-v1", "--steps", 120, "--episodes", 1, *SMALL[:4], "--algo", "qrdqn"]
    run("train", *arguments, "--risk", "cvar:0.2", "--out", tmp_path / "run")
    assert ALGORITHMS["qrdqn"].load(tmp_path / "run" / "model.zip").risk == "cvar:0.2"
    out, _ = run("play", tmp_path / "run", "--episodes", 1)
    assert "cvar:0.2" in out


def test_changes_are_json_or_words() -> None:
    assert changes(["a=1", "b.c=[1, 2]", "b.d=null", "e=cvar:0.1", 'f="x y"']) == {
        "a": 1, "b": {"c": [1, 2], "d": None}, "e": "cvar:0.1", "f": "x y",
    }  # fmt: skip
    for bad in (["a"], ["=1"], ["a=[1"], ["a=1", "a=2"], ["a=1", "a.b=2"], ["a.b=2", "a=1"], ["a b=1"]):
        with pytest.raises(Refusal, match="--set"):
            changes(bad)


def test_play_tells_the_returns_and_films_the_first_episode(folder: Path) -> None:
    out, err = run("play", "run", "--episodes", 3, "--seed", 5, "--out", "x.gif", "--picture", "x.png", "--json")
    assert err == ""
    about = json.loads(out)
    returns = evaluate(GMDQN.load("run/model.zip", device="cpu"), "CartPole-v1", 3, seed=5)
    assert about["returns"] == returns.tolist()
    assert about["mean"] == pytest.approx(returns.mean())
    assert (about["env"], about["algorithm"], about["steps"], about["film"]) == ("CartPole-v1", "GMDQN", 500, "x.gif")
    with Image.open("x.gif") as film:
        assert film.n_frames == -(-int(returns[0]) // 3) + 1  # every third step, and the end
        assert film.size == (1000, 400)
    assert (folder / "x.png").read_bytes().startswith(b"\x89PNG")


def test_play_writes_a_page_of_every_step(folder: Path) -> None:
    about = json.loads(run("play", "run", "--episodes", 1, "--html", "x.html", "--json")[0])
    assert (about["html"], about["film"]) == ("x.html", None)  # a film on request only
    assert {path.name for path in folder.iterdir()} == {"run", "x.html"}
    text = re.search(r'id="data">(.*?)</script>', Path("x.html").read_text(), re.DOTALL)
    assert text is not None
    data = json.loads(text[1])
    assert data["steps"] == list(range(int(about["returns"][0]) + 1))
    assert (data["title"], data["about"]) == ("CartPole-v1", "GMDQN, trained for 500 steps")
    out, _ = run("play", "run", "--episodes", 1, "--html", "y.html", "--out", "y.gif", "--risk", "cvar:0.2")
    assert "y.gif (return" in out
    assert "y.html" in out
    assert '"risk":"cvar:0.2"' in Path("y.html").read_text()


def test_play_by_another_risk_and_unseen(folder: Path) -> None:
    out, _ = run("play", "run", "--episodes", 2, "--risk", "quantile:0.9", "--json")
    returns = evaluate(GMDQN.load("run/model.zip", device="cpu"), "CartPole-v1", 2, risk="quantile:0.9")
    assert json.loads(out)["returns"] == returns.tolist()
    assert [path.name for path in folder.iterdir()] == ["run"]


def test_play_a_pretrained_agent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "shelf").mkdir()
    GMDQN.load("run/model.zip").save("shelf/CartPole-v1.zip", acting_only=True)
    monkeypatch.setattr(pretrained, "FOLDER", folder / "shelf")
    out, _ = run("play", "CartPole-v1", "--episodes", 2, "--out", "CartPole-v1.gif")
    for word in ("CartPole-v1.gif (return", "mean return", "500 steps", "risk measure"):
        assert word in out
    assert (folder / "CartPole-v1.gif").read_bytes().startswith(b"GIF89a")
    assert "Pretrained agents: CartPole-v1" in refuses("play", "Pong-v5")


class Blind(CartPoleEnv):
    metadata = {"render_modes": []}  # noqa: RUF012


def test_what_cannot_be_played_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "empty").mkdir()
    assert "neither a folder nor a pretrained agent" in refuses("play", "nowhere")
    assert "no run.json" in refuses("play", "empty")
    shutil.copy("run/run.json", "empty")
    assert "the first is written at step 200" in refuses("play", "empty")
    assert "must end in .gif or .mp4" in refuses("play", "run", "--out", "x.avi")
    assert "nowhere is not a folder" in refuses("play", "run", "--out", "nowhere/x.gif")
    assert "must end in .png" in refuses("play", "run", "--picture", "x.jpg")
    assert "must end in .html" in refuses("play", "run", "--html", "x.htm")
    assert "risk must" in refuses("play", "run", "--risk", "luck")
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert "pip install 'cramix[film]'" in run("play", "run", "--out", "x.mp4", code=1)[1]
    (folder / "run" / "model.zip").write_bytes((folder / "run" / "model.zip").read_bytes()[:900])
    assert "model.zip must be an intact cramix model" in refuses("play", "run")


def test_an_environment_that_cannot_be_seen_is_played_unseen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gymnasium.registry, "Blind-v0", gymnasium.envs.registration.EnvSpec("Blind-v0", Blind))
    about = json.loads(Path("run/run.json").read_text())
    Path("run/run.json").write_text(json.dumps(about | {"env": "Blind-v0"}))
    assert "Leave out --out and --picture." in refuses("play", "run", "--out", "x.gif")
    assert "Leave out --html." in refuses("play", "run", "--html", "x.html")
    out, _ = run("play", "run", "--episodes", 1, "--json")
    assert json.loads(out)["env"] == "Blind-v0"


@pytest.mark.parametrize("command", [["play", "run"], ["train", "CartPole-v1", "--out", "run"]])
def test_missing_packages_are_named(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[:2] == ["cramix", "rl"]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    assert "pip install 'cramix[rl]'" in run(*command, code=1)[1]


def test_an_agent_is_calibrated_and_its_calibration_shown(folder: Path) -> None:
    about = json.loads(run("train", *RUN, "--out", "run", "--calibrate", 40, "--json")[0])
    model = GMDQN.load(folder / "run" / "model.zip", device="cpu")
    assert about["calibrated"] is model.policy.recalibration.active is True  # an agent of 500 steps is wrong
    played = "play", "run", "--episodes", 6
    found = json.loads(run(*played, "--calibration", "--calibration-plot", "plot.png", "--json")[0])
    expected = evaluate_calibration(model, "CartPole-v1", 6)
    assert {name: found[name] for name in expected.summary()} == pytest.approx(expected.summary())
    assert found["returns"] == evaluate(model, "CartPole-v1", 6).tolist()
    with Image.open(folder / "plot.png") as picture:
        assert picture.size[0] > 800
    assert "in the 80 % interval" in run(*played, "--calibration")[0]
    assert "coverage_80" not in json.loads(run(*played, "--json")[0])
    assert "plot.txt" in refuses(*played, "--calibration-plot", "plot.txt")


def test_the_learning_curve_has_the_calibration(trained: tuple[Path, dict, str]) -> None:
    rows = json.loads((trained[0] / "result.json").read_text())["curve"]
    assert all(row["return_crps"] > 0 and 0 <= row["coverage_80"] <= 1 for row in rows)


def test_contradictions_are_refused_before_training(tmp_path: Path) -> None:
    arguments = ("train", "CartPole-v1", "--out", tmp_path / "run")
    assert "--risk is cvar:0.2, and --set risk is mean" in refuses(
        *arguments, "--risk", "cvar:0.2", "--set", "risk=mean"
    )
    assert "--calibrate must be 0, or at least 16" in refuses(*arguments, "--calibrate", 5)
    assert "must be known names" in refuses(*arguments, "--set", "_init_setup_model=false")
    assert "device" in refuses(*arguments, "--set", "device=foo")
    assert not (tmp_path / "run" / "model.zip").exists()
