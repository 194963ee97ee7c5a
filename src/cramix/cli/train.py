"""`cramix train`, and changes to settings on its command line, `name=value`."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from json import JSONDecodeError, loads
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from cramix.cli.agents import environment_errors
from cramix.cli.options import Json, Risk, Seed
from cramix.cli.refusal import Refusal, refusing
from cramix.cli.report import Fact, facts_of_returns, show, warnings_in_lines

Report = Callable[[int, dict[str, Any]], None]


def train(
    env: Annotated[str, typer.Argument(metavar="ENV", help="Gymnasium environment, such as LunarLander-v3.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Folder of the run; an interrupted run resumes.")
    ],
    algo: Annotated[
        str, typer.Option("--algo", metavar="NAME", help="gmdqn, c51, qrdqn, crdqn, fqf, iqn, jt, nll or ddqn.")
    ] = "gmdqn",
    steps: Annotated[int, typer.Option("--steps", min=1, help="Number of environment steps.")] = 300_000,
    envs: Annotated[
        int, typer.Option("--envs", min=1, help="Environments that are stepped together; updates per step stay equal.")
    ] = 1,
    seed: Seed = 0,
    preset: Annotated[
        str,
        typer.Option(
            "--preset", help="Settings to start from: default, paper or atari; by default atari for games of ALE."
        ),
    ] = "",
    risk: Risk = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=JSON", help="Change a setting: gamma=0.999, returns.n_components=5."),
    ] = None,
    interval: Annotated[int, typer.Option("--interval", min=1, help="Steps between checkpoints.")] = 25_000,
    episodes: Annotated[int, typer.Option("--episodes", min=1, help="Evaluation episodes of the final agent.")] = 100,
    curve_episodes: Annotated[
        int, typer.Option("--curve-episodes", min=0, help="Evaluation episodes at each checkpoint; 0: none.")
    ] = 10,
    calibrate: Annotated[
        int,
        typer.Option(
            "--calibrate", min=0, metavar="EPISODES", help="Calibrate the final agent by so many episodes; 0: do not."
        ),
    ] = 0,
    threads: Annotated[
        int, typer.Option("--threads", min=1, help="Number of threads; 1 is fastest for small networks.")
    ] = 1,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only warnings and errors.")] = False,
) -> None:
    """Train an agent, or resume an interrupted run."""
    from cramix.rl import training
    from cramix.rl.calibration import MIN_EPISODES

    torch.set_num_threads(threads)
    if out.exists() and not out.is_dir():
        raise Refusal(f"{out} is not a folder. Choose another one.")
    given = changes(settings or [])
    if risk is not None and given.setdefault("risk", risk) != risk:
        raise Refusal(f"--risk is {risk}, and --set risk is {given['risk']}. Use only one of them.")
    if 0 < calibrate < MIN_EPISODES:
        raise Refusal(f"--calibrate must be 0, or at least {MIN_EPISODES} episodes; got {calibrate}.")
    with refusing():
        run = training.Run(
            env,
            algo=algo,
            steps=steps,
            seed=seed,
            preset=preset,
            settings=given,
            interval=interval,
            curve_episodes=curve_episodes,
            episodes=episodes,
            envs=envs,
        )
        training.check_folder(run, out)
        resumed = training.checkpoint_step(out)
    done = (out / "result.json").exists()
    if resumed and not quiet:
        state = "Already finished" if done else f"Resuming from step {resumed}"
        print(f"{state}: {out}", file=sys.stderr, flush=True)
    try:
        progress = _progress(steps, resumed, quiet=quiet or done)
        with warnings_in_lines(), progress as report, refusing(), environment_errors(env):
            result = training.train(run, out, report)
            calibrated = training.calibrate_run(out, calibrate) if calibrate else None
    except KeyboardInterrupt:
        print(_how_to_resume(training.checkpoint_step(out)), file=sys.stderr, flush=True)
        raise
    facts = [
        Fact("env", "environment", env),
        Fact("algo", "algorithm", algo),
        Fact("steps", "steps", steps),
        Fact("seed", "seed", seed),
        Fact("episodes", "episodes played", episodes),
        *facts_of_returns(result["returns"]),
        Fact("calibrated", "calibrated", calibrated),
        Fact("parameters", "parameters", result["parameters"]),
        Fact("seconds", "time", round(result["seconds"], 3), str(timedelta(seconds=round(result["seconds"])))),
        Fact("out", "folder", out),
    ]
    show(facts, as_json=json, quiet=quiet)


def changes(texts: Sequence[str]) -> dict[str, Any]:
    """Return settings from texts `name=value`; values are JSON or bare words, dotted names are nested.

    Example:
        >>> changes(["gamma=0.9", "optimizer=lion", "policy_kwargs.net_arch=[64, 64]"])
        {'gamma': 0.9, 'optimizer': 'lion', 'policy_kwargs': {'net_arch': [64, 64]}}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"\w+(\.\w+)*", name):
            raise Refusal(f"--set must be NAME=VALUE; got {text!r}. Example: --set gamma=0.99")
        *outer, inner = name.split(".")
        target = found
        for part in outer:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise Refusal(f"--set has both {part} and {name}. Use only one of them.")
        if inner in target:
            raise Refusal(f"--set has {name} twice. Use it once.")
        target[inner] = _value(text, value)
    return found


def _value(text: str, value: str) -> Any:
    try:
        return loads(value)
    except JSONDecodeError:
        if re.fullmatch(r"[A-Za-z][\w.:-]*", value):
            return value
        raise Refusal(f"--set must have a JSON value; got {text!r}. Example: --set returns.n_components=5") from None


def _how_to_resume(step: int) -> str:
    start = f"Resume from step {step}" if step else "There is no checkpoint yet; start again"
    return f"{start} with: {shlex.join(['cramix', *sys.argv[1:]])}"


@contextmanager
def _progress(total: int, resumed: int, *, quiet: bool) -> Iterator[Report | None]:
    """Show the progress of a run: a bar on a terminal, otherwise a line for every evaluation."""
    console = Console(stderr=True)
    if quiet:
        yield None
    elif not console.is_terminal:
        yield _lines()
    else:
        figures = TextColumn("{task.fields[figures]}", markup=False)
        columns = BarColumn(bar_width=10), MofNCompleteColumn(), _Speed(), figures  # fits in 80 characters
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
            task = progress.add_task("", total=total, completed=resumed, figures="")

            def report(step: int, latest: dict[str, Any]) -> None:
                progress.update(task, completed=step, figures=_text(latest))

            yield report


class _Speed(ProgressColumn):
    """Steps per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.0f} steps/s")


def _lines() -> Report:
    last: int | None = None

    def report(step: int, latest: dict[str, Any]) -> None:
        nonlocal last
        if latest.get("compiling"):
            print(f"step {step}, {_text(latest)}", file=sys.stderr, flush=True)
        elif step == latest.get("evaluated") != last:
            last = step
            print(f"step {step}, {_text(latest)}", file=sys.stderr, flush=True)

    return report


def _text(latest: dict[str, Any]) -> str:
    if latest.get("compiling"):
        return "compiling the update, some seconds"
    return ", ".join(f"{name} {latest[name]:.0f}" for name in ("return", "evaluation") if latest.get(name) is not None)
