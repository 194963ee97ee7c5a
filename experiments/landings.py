"""Agents with today's defaults on LunarLander, with and without wind; `python -m experiments.landings`.

A queue of runs, one process each, for a limited time. Results are appended to files as they come: `landings.csv` has a
row for every way in which an agent acts, `episodes.csv` the return of every episode, and `agents.zip` the agents.
"""

from __future__ import annotations

import csv
import io
import os
import time
import zipfile
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np
import torch
import typer
from stable_baselines3.common.callbacks import BaseCallback

from cramix.checks import check_choice
from cramix.rl import DoubleDQN, calibrate, evaluate_calibration
from cramix.rl.algorithm import DistributionalDQN
from cramix.rl.environments import make_training_env
from cramix.rl.evaluation import evaluate
from cramix.rl.folder import read_json, slug, write_json
from cramix.rl.learner import can_compile
from cramix.rl.training import Run
from experiments.command import Command, Episodes, Steps
from experiments.processes import run_queue

CALM, WINDY = "LunarLander-v3", "experiments.landings:cramix/WindyLunarLander-v0"
# How agents act in addition to their own measure.
RISKS = {CALM: ("cvar:0.25", "quantile:0.5"), WINDY: ("mean", "cvar:0.5")}
# The environment of each part, and its algorithms and settings by name.
PARTS: dict[str, tuple[str, dict[str, tuple[str, dict[str, Any]]]]] = {
    "calm": (CALM, {"gmdqn": ("gmdqn", {})}),
    "preconditioned": (CALM, {"preconditioned": ("gmdqn", {"returns": {"preconditioned": True}})}),
    "windy": (WINDY, {"gmdqn": ("gmdqn", {}), "learns by CVaR": ("gmdqn", {"risk": "cvar:0.5"})}),
    "rivals": (CALM, {"qrdqn": ("qrdqn", {}), "ddqn": ("ddqn", {})}),
    "ways": (
        CALM,
        {"8 steps": ("gmdqn", {"n_steps": 8}), "1 member": ("gmdqn", {"policy_kwargs": {"members": 1}})},
    ),
}
# Episodes that nothing was chosen by.
_SEED = 60_000_000
_CALIBRATION_EPISODES = 800
# Seconds before the time limit at which runs stop learning, to be evaluated as they are.
_RESERVE = 40.0
# First guesses of the seconds of a step, and of what comes before and after the steps.
_PER_STEP, _OVERHEAD = 0.0022, 110.0
_FIELDS = (
    *("env", "name", "learns", "seed", "steps", "planned", "calibrated", "acts", "episodes"),
    *("mean", "std", "failures", "cvar_50", "cvar_25", "cvar_10"),
    *("coverage_50", "coverage_80", "coverage_95", "return_crps", "empirical_crps"),
    *("return_bias", "return_error", "return_deviation", "training_seconds", "seconds", "compiled"),
)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

if WINDY.rpartition(":")[2] not in gymnasium.registry:
    gymnasium.register(
        WINDY.rpartition(":")[2],
        entry_point="gymnasium.envs.box2d:LunarLander",
        kwargs={"enable_wind": True},
        max_episode_steps=1000,
        reward_threshold=200,
    )


def plan(part: str, steps: int = 300_000, seeds: int = 10, first_seed: int = 0) -> list[Run]:
    """Return the runs of a part of `PARTS`, seed by seed.

    Example:
        >>> [(run.name, run.seed, run.settings) for run in plan("windy", seeds=1)]
        [('gmdqn', 0, {}), ('learns by CVaR', 0, {'risk': 'cvar:0.5'})]
    """
    env, ways = PARTS[part]
    return [
        Run(env, algo, steps, seed, settings=settings, label=name)
        for seed in range(first_seed, first_seed + seeds)
        for name, (algo, settings) in ways.items()
    ]


@app.command(cls=Command)
def main(
    out: Annotated[Path, typer.Option(help="Folder of the results; finished runs are not repeated.")] = Path(
        "landings"
    ),
    part: Annotated[
        list[str] | None, typer.Option(help="calm, preconditioned, windy, rivals or ways; may be repeated.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes at a time, of one core each.", min=1)] = 1,
    minutes: Annotated[float, typer.Option(help="Time limit; runs that cannot end before it do not start.")] = 23.0,
    steps: Steps = 300_000,
    seeds: Annotated[int, typer.Option(help="Seeds of each way of learning.", min=1)] = 10,
    first_seed: Annotated[int, typer.Option(help="The first of them.", min=0)] = 0,
    episodes: Episodes = 100,
) -> None:
    """Train as many runs of the queue as the time allows, calibrate and evaluate them."""
    out.mkdir(parents=True, exist_ok=True)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # processes share the cores already
    os.environ["OMP_NUM_THREADS"] = "1"
    if not can_compile(torch.device("cpu")):
        print("No C++ compiler: updates run uncompiled, which is slower.", flush=True)
    for name in part or ():
        check_choice("part", name, PARTS)
    runs = [run for name in part or PARTS for run in plan(name, steps, seeds, first_seed)]
    queue = _Queue(runs, out, 60 * minutes, episodes)
    for name, result in run_queue(_land, queue.choose, workers, 60 * minutes):
        queue.finish(name, result)
    left = ", ".join(queue.running) or "none"
    queue.finish_evaluations()
    print(f"{queue.count} runs finished in {queue.elapsed:.0f} s; stopped: {left}.", flush=True)


class _Queue:
    """Chooses the next job that can end before the time limit, and writes results to files.

    Args:
        runs: in the order of their value.
        out: folder of the files.
        seconds: time limit.
        episodes: of the evaluations.
    """

    def __init__(self, runs: list[Run], out: Path, seconds: float, episodes: int):
        self.out, self.seconds, self.episodes = out, seconds, episodes
        self.started, self.until = time.monotonic(), time.time() + seconds - _RESERVE
        done = {name_of(row["env"], row["name"], row["seed"]) for row in read_rows(out / "landings.csv")}
        jobs = {name_of(run.env, run.name, run.seed): run for run in runs}
        self.waiting = {name: run for name, run in jobs.items() if name not in done}
        self.running: dict[str, float] = {}
        self.count = 0
        self.per_step: list[float] = []
        self.overhead: list[float] = []

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def choose(self) -> tuple[str, tuple] | None:
        """Return the name and the arguments of the next job, or None."""
        for name, run in self.waiting.items():
            if self.elapsed + self._estimate(run) < self.seconds:
                del self.waiting[name]
                self.running[name] = self.elapsed
                return name, (run, self.until, self.episodes, self._trained(name))
        return None

    def _estimate(self, run: Run) -> float:
        """Return the seconds that a run takes, by the slowest of those that are finished."""
        return max(self.overhead, default=_OVERHEAD) + run.steps * max(self.per_step, default=_PER_STEP)

    def _trained(self, name: str) -> Path:
        """Return the file of an agent that is trained, until all of its evaluations are done."""
        return self.out / f"{slug(name)}.trained.zip"

    def finish_evaluations(self) -> None:
        """Keep the agents of jobs that the time limit has stopped after training."""
        for name in list(self.running):
            if (path := self._trained(name)).exists():
                rows = read_json(path.with_suffix(".json"))
                self.finish(name, (rows, path.read_bytes()))

    def finish(self, name: str, result: Any) -> None:
        """Write the result of a job."""
        seconds = self.elapsed - self.running.pop(name)
        print(f"{self.elapsed:6.0f} s  {name}: {_summary(result)} ({seconds:.0f} s)", flush=True)
        if isinstance(result, BaseException):
            for note in getattr(result, "__notes__", []):
                print(note, flush=True)
            return
        self.count += 1
        rows, agent = result
        self.per_step.append(rows[0]["training_seconds"] / rows[0]["steps"])
        self.overhead.append(seconds - rows[0]["training_seconds"])
        returns = [{**row, "returns": " ".join(f"{x:.2f}" for x in row.pop("returns"))} for row in rows]
        _append(self.out / "episodes.csv", ("env", "name", "seed", "calibrated", "acts", "returns"), returns)
        with zipfile.ZipFile(self.out / "agents.zip", "a") as archive:
            archive.writestr(f"{rows[0]['env'].rpartition('/')[2]}-{rows[0]['name']}-{rows[0]['seed']}.zip", agent)
        _append(self.out / "landings.csv", _FIELDS, rows)
        for path in (self._trained(name), self._trained(name).with_suffix(".json")):
            path.unlink(missing_ok=True)


def name_of(env: str, name: str, seed: int | str) -> str:
    """Return the name of a run in the queue."""
    return f"{env}, {name}, seed {seed}"


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file; none if there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _append(path: Path, fields: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fields, extrasaction="ignore")
        if new:
            writer.writeheader()
        writer.writerows(rows)


def _summary(result: Any) -> str:
    if isinstance(result, BaseException):
        return f"{type(result).__name__}: {result}"
    return ", ".join(f"{row['acts']} {row['mean']:.1f}" for row in result[0])


def _land(run: Run, until: float, episodes: int, trained: Path) -> tuple[list[dict[str, Any]], bytes]:
    """Train, calibrate and evaluate an agent. If the time is up first, it is evaluated as it is.

    Args:
        run: what to train.
        until: time of the wall clock at which training stops.
        episodes: of each evaluation.
        trained: file for the agent and, with another suffix, its first row, before it is calibrated.
    """
    torch.set_num_threads(1)
    begun = time.monotonic()
    env = make_training_env(run.env)
    model = run.algorithm()("MlpPolicy", env, seed=run.seed, device="cpu", **run.settings)
    model.learn(run.steps, callback=_Limit(until), log_interval=None)
    env.close()
    own = str(model.risk)
    common = {
        "env": run.env,
        "name": run.name,
        "learns": own,
        "seed": run.seed,
        "steps": model.num_timesteps,
        "planned": run.steps,
        "training_seconds": time.monotonic() - begun,
        "compiled": model.learner.compiled,
    }
    rows = [_row(model, run.env, own, episodes)]
    model.save(trained, acting_only=True)
    seconds = time.monotonic() - begun
    write_json(trained.with_suffix(".json"), [{**common, **rows[0], "seconds": seconds}])
    if model.num_timesteps >= run.steps and not isinstance(model, DoubleDQN):
        others = [x for x in RISKS[run.env] if x != own]
        if run.env == WINDY:
            rows += [_row(model, run.env, x, episodes) for x in others]
        calibrate(model, run.env, _CALIBRATION_EPISODES)
        if model.policy.recalibration.active:
            # The order of actions by their mean has not changed.
            rows += [_row(model, run.env, x, episodes) for x in (own, *others) if x != "mean" or x == own]
    seconds = time.monotonic() - begun
    file = io.BytesIO()
    model.save(file, acting_only=True)
    return [{**common, **row, "seconds": seconds} for row in rows], file.getvalue()


def _row(model: DistributionalDQN, env: str, acts: str, episodes: int) -> dict[str, Any]:
    """Return the figures of an agent that acts by a measure; those of calibration if the measure is its own."""
    found: dict[str, float] = {}
    if acts == model.risk and not isinstance(model, DoubleDQN):
        calibration = evaluate_calibration(model, env, episodes, seed=_SEED)
        returns, found = calibration.scores, calibration.summary()
    else:
        returns = evaluate(model, env, episodes, seed=_SEED, risk=acts)
    return {
        "calibrated": model.policy.recalibration.active,
        "acts": acts,
        **figures(returns),
        **found,
        "returns": returns.tolist(),
    }


def figures(returns: np.ndarray) -> dict[str, float]:
    """Return the mean, the deviation, the fraction below 200 and CVaRs of the returns of episodes.

    Example:
        >>> figures(np.array([100.0, 300.0, 300.0, 300.0]))["cvar_25"]
        100.0
    """
    ordered = np.sort(returns)
    worst = {f"cvar_{100 * x:.0f}": float(ordered[: max(1, round(x * len(ordered)))].mean()) for x in (0.5, 0.25, 0.1)}
    below = float((ordered < 200).mean())
    whole = {"episodes": len(ordered), "mean": float(ordered.mean()), "std": float(ordered.std())}
    return {**whole, "failures": below, **worst}


class _Limit(BaseCallback):
    """Stops learning at a time of the wall clock."""

    def __init__(self, until: float):
        super().__init__()
        self.until = until

    def _on_step(self) -> bool:
        return time.time() < self.until


if __name__ == "__main__":
    app()
