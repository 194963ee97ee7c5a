"""What people see of the commands: versions, examples that run, completion, and tables in 80 columns."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import cramix
from cramix.cli import writers
from cramix.cli.app import app
from cramix.cli.examples import EXAMPLES

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
# Options that make examples small; of an option that is given twice the last one counts.
SMALL = {"train": ["--steps", "200", "--episodes", "1"], "play": ["--episodes", "1"]}
RUNS = [(command, example) for command, examples in EXAMPLES.items() for example in examples]
SLOW = ("demo", "train", "play")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


def table(path: Path, n: int, names: list[str], seed: int = 0, shift: float = 0.0) -> None:
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, len(names))) + 6 * random.integers(0, 3, (n, 1)) + shift
    path.parent.mkdir(exist_ok=True)
    writers.write(dict(zip(names, x.T, strict=True)), path)


def prepare(folder: Path) -> None:
    """Write the files that the examples name."""
    names = ["height", "weight"]
    table(folder / "people.csv", 120, names)
    table(folder / "others.csv", 60, names, seed=1)
    for i in range(3):
        table(folder / "data" / f"{i}.parquet", 60, names, seed=2 + i)
        table(folder / "january" / f"{i}.csv", 80, names, seed=5 + i)
        table(folder / "february" / f"{i}.csv", 80, names, seed=8 + i, shift=0.5)
    run("fit", "people.csv", "-k", "3", "--out", "model.safetensors", "--quiet")
    run("compress", "model.safetensors", "-k", "2", "--out", "small.safetensors")


@pytest.mark.parametrize(
    ("command", "example"),
    [pytest.param(*both, marks=pytest.mark.slow if both[0] in SLOW else (), id=both[1]) for both in RUNS],
)
def test_examples_in_the_help_run(command: str, example: str, folder: Path) -> None:
    prepare(folder)
    program, *arguments = shlex.split(example)
    assert (program, arguments[0]) == ("cramix", command)
    if command == "play" and "run" in arguments:
        run("train", "CartPole-v1", "--out", "run", *SMALL["train"])
    out = run(*arguments, *SMALL.get(command, []))
    assert max(map(len, out.splitlines())) <= 80 or "--json" in arguments
    if "--json" in arguments:
        assert "error" not in json.loads(out)
    for option in ("--out", "--plot"):  # each file that the example asks for
        if option in arguments:
            assert Path(arguments[arguments.index(option) + 1]).exists()
    if "--plot" not in arguments and "--out" not in arguments:
        assert not [path for path in folder.iterdir() if path.suffix in (".png", ".gif")]  # pictures on request only


@pytest.mark.parametrize("command", EXAMPLES)
def test_help_has_the_examples_each_on_a_line(command: str, folder: Path) -> None:
    lines = [line.strip() for line in run(command, "--help").splitlines()]
    assert 2 <= len(EXAMPLES[command]) <= 3
    for example in EXAMPLES[command]:
        assert example in lines
    assert max(map(len, lines)) <= 80


def test_every_command_has_examples() -> None:
    assert set(EXAMPLES) == {info.callback.__name__ for info in app.registered_commands if info.callback}


@pytest.mark.parametrize("program", [["cramix"], [sys.executable, "-m", "cramix"]], ids=["script", "module"])
def test_version(program: list[str]) -> None:
    env = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([*program, "--version"], capture_output=True, text=True, check=True, env=env)
    assert done.stdout == f"cramix {cramix.__version__}\n"


@pytest.mark.slow
def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    """The script that --show-completion prints works in bash."""
    script = """
eval "$(cramix --show-completion)"
complete -p cramix
COMP_WORDS=(cramix comp) COMP_CWORD=1; _cramix_completion cramix; echo "${COMPREPLY[@]}"
COMP_WORDS=(cramix fit --co) COMP_CWORD=2; _cramix_completion cramix; echo "${COMPREPLY[@]}"
"""
    env = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src"), "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=True, env=env)
    registered, commands, options = done.stdout.splitlines()
    assert registered == "complete -o default -F _cramix_completion cramix"  # files, where we have nothing to say
    assert commands.split() == ["compare", "compress"]
    assert options.split() == ["--components", "--columns", "--covariance-type"]


NAMES = [f"a_rather_long_name_of_a_measured_quantity_{i}" for i in range(12)] + ["a name of " + "x" * 90]


def joined(out: str) -> str:
    """The text of tables, without the frames and line breaks in it."""
    return "".join(c for c in out if c.isalnum() or c in "_.,;-")


def in_one_table(out: str, names: list[str]) -> None:
    """Check that no line is too wide, nothing is cut off, and that all names can be read."""
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    columns = [line.strip("│┃").replace("│", "┃").split("┃") for line in out.splitlines() if line[:1] in ("│", "┃")]
    text = ["".join(cells[i].strip() for cells in columns if len(cells) > i) for i in range(max(map(len, columns)))]
    for name in names:
        assert any(name.replace(" ", "") in part.replace(" ", "") for part in text), name


def test_tables_of_thirteen_columns_with_long_names_fit_in_80_columns(folder: Path) -> None:
    table(folder / "wide.csv", 200, NAMES)
    in_one_table(run("fit", "wide.csv", "-k", "2", "--out", "m.safetensors"), NAMES)
    in_one_table(run("compress", "m.safetensors", "-k", "1", "--out", "one.safetensors"), NAMES)
    out = run("sample", "m.safetensors", "-n", "3", "--out", "drawn.csv")
    assert max(map(len, out.splitlines())) <= 80
    assert all(name.replace(" ", "") in joined(out) for name in NAMES)


def test_what_moved_fits_in_80_columns_and_says_what_is_left_out(folder: Path) -> None:
    for month, shift in (("january", 0.0), ("february", 0.3)):
        for i in range(3):
            table(folder / month / f"{i}.csv", 60, NAMES, seed=i, shift=shift)
    out = run("compare", "january", "february")
    in_one_table(out, NAMES)
    shown = out.count("+ ...")
    whole = json.loads(run("compare", "january", "february", "--json"))["directions"]
    assert f"and {len(whole) - shown} more that moved less or are close; --json shows all" in out


def test_components_and_columns_that_are_left_out_are_counted(folder: Path) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(400, 64)) * 0.1 + 9 * random.integers(0, 25, (400, 1))
    writers.write({f"c{j}": column for j, column in enumerate(x.T)}, Path("x.csv"))
    out = run("fit", "x.csv", "-k", "25", "--covariance-type", "spherical")
    assert "and 5 lighter components and 4 more columns; --json shows all" in out
    assert max(map(len, out.splitlines())) <= 80
