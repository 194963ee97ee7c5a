"""Comparisons: runs of several algorithms over seeds, in parallel; finished runs are kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from cramix.rl.folder import locked, read_result, slug
from cramix.rl.training import Run, check_folder, train
from experiments.population.checkpoint import NAME as CHECKPOINT
from experiments.population.joint_training import train_jointly
from experiments.processes import run_jobs
from experiments.statistics import EpisodeSummary, Interval, interval, summarize

# Number of checkpoints of a run, and of points of its learning curve.
_POINTS = 12
# C51 needs the range of the discounted returns.
_RANGES = {"LunarLander-v3": (-300, 300), "CartPole-v1": (0, 200), "Acrobot-v1": (-200, 0)}


class Standing(NamedTuple):
    """The results of an algorithm, or of a variation of it, in one environment.

    Args:
        env: name of the environment.
        name: of its runs.
        scores: mean return of the final agent of each seed, `(seeds)`.
        summary: their interquartile mean.
        episodes: summary of the episodes of all seeds.
        parameters: number of parameters of the network.
        seconds: median time of a run.
        steps: of the learning curve, `(points)`.
        curve: mean returns at these steps, `(seeds, points)`.
    """

    env: str
    name: str
    scores: np.ndarray
    summary: Interval
    episodes: EpisodeSummary
    parameters: int
    seconds: float
    steps: np.ndarray
    curve: np.ndarray


def plan(envs: dict[str, int], seeds: dict[str, int], **options: Any) -> list[Run]:
    """Return the runs of every environment (with its steps) and algorithm (with its number of seeds), seed by seed.

    Example:
        >>> [(run.algo, run.seed) for run in plan({"CartPole-v1": 1000}, {"gmdqn": 2, "ddqn": 1})]
        [('gmdqn', 0), ('ddqn', 0), ('gmdqn', 1)]
    """
    most = max(seeds.values(), default=0)
    if most < 1:
        raise ValueError(f"seeds must be at least 1 for some algorithm; got {seeds}. Increase them.")
    return [
        Run(env, algo, steps, seed, settings=_settings(env, algo), **{"interval": max(1, steps // _POINTS), **options})
        for env, steps in envs.items()
        for seed in range(most)
        for algo, count in seeds.items()
        if seed < count
    ]


def _settings(env: str, algo: str) -> dict[str, Any]:
    """Return the settings that an algorithm needs for an environment."""
    if algo != "c51" or env not in _RANGES:
        return {}
    low, high = _RANGES[env]
    return {"return_scale": 1.0, "returns": {"low": low, "high": high}}


def run_folder(run: Run, folder: str | Path) -> Path:
    """Return the folder of a run inside that of a comparison."""
    return Path(folder) / slug(run.env) / run.name.replace("/", "-") / f"seed-{run.seed}"


def compare(
    runs: Sequence[Run],
    folder: str | Path,
    workers: int | None = None,
    report: Callable[[Run, dict[str, Any]], None] | None = None,
    device: str | None = None,
) -> list[Standing]:
    """Train the runs that are not finished, and return the standings.

    Args:
        runs: see `plan`.
        folder: of all runs, each in a folder below it; an interrupted comparison resumes.
        workers: number of processes at a time; one per core by default.
        report: called with each finished run and its result.
        device: such as "cuda", on which the seeds of an algorithm are trained jointly, see `train_jointly`; None trains
            each run by itself.
    """
    _check_device(device)
    if len({run_folder(run, folder) for run in runs}) < len(runs):
        raise ValueError("runs must have different folders; got two of the same name and seed. Set their labels.")
    for run in runs:
        check_folder(run, run_folder(run, folder))
    done = [run for run in runs if (run_folder(run, folder) / "result.json").exists()]
    for run in done:
        result = read_result(run_folder(run, folder))
        if report is not None:
            report(run, result)
    waiting = [run for run in runs if run not in done]
    groups = [[run] for run in waiting]
    if device is not None:
        # A joint checkpoint is that of its whole group, even if some runs of the group are finished.
        whole = [group for group in _groups(runs) if (run_folder(group[0], folder) / CHECKPOINT).exists()]
        groups = whole + _groups([run for run in waiting if not any(run in group for group in whole)])
    count = min(workers or (os.cpu_count() or 1 if device is None else 1), len(groups) or 1)
    cores = max(1, (os.cpu_count() or 1) // count)
    jobs = {_name(group): (group, [run_folder(run, folder) for run in group], device, cores) for group in groups}
    for name, results in run_jobs(_work, jobs, count):
        for run, result in zip(jobs[name][0], results, strict=True):
            if report is not None and run in waiting:
                report(run, result)
    return standings(runs, folder)


def _check_device(device: str | None) -> None:
    """Require an available device, before processes fail one by one."""
    if device is None:
        return
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device must be available; got {device!r}: {reason}. Leave it out for the CPU.") from None


def _name(group: Sequence[Run]) -> str:
    """Return the name of a group of runs in error messages."""
    seeds = ", ".join(str(run.seed) for run in group)
    return f"{group[0].env}, {group[0].name}, seed {seeds}"


def _groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Return runs in groups that differ only in their seeds."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(repr(replace(run, seed=0)), []).append(run)
    return list(groups.values())


def _work(runs: list[Run], folders: list[Path], device: str | None, workers: int) -> list[dict[str, Any]]:
    torch.set_num_threads(1)  # processes, not threads, share the cores
    if device is None:
        return [train(run, folder) for run, folder in zip(runs, folders, strict=True)]
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(locked(folder))
        if all((folder / "result.json").exists() for folder in folders):
            return [read_result(folder) for folder in folders]  # another process has finished them
        return train_jointly(runs, folders, device, workers)


def standings(runs: Sequence[Run], folder: str | Path) -> list[Standing]:
    """Return the standings of the finished runs, in the order of the plan."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        own = run_folder(run, folder)
        if (own / "result.json").exists():
            found.setdefault((run.env, run.name), []).append(read_result(own))
    return [_standing(env, name, results) for (env, name), results in found.items()]


def _standing(env: str, name: str, results: list[dict[str, Any]]) -> Standing:
    scores = np.array([result["mean"] for result in results])
    points = min(len(result["curve"]) for result in results)
    curves = [[row.get("mean", np.nan) for row in result["curve"][:points]] for result in results]
    return Standing(
        env,
        name,
        scores,
        interval(scores),
        summarize(np.concatenate([result["returns"] for result in results]), env),
        results[0]["parameters"],
        float(np.median([result["seconds"] for result in results])),
        np.array([row["step"] for row in results[0]["curve"][:points]]),
        np.array(curves),
    )


def curve_intervals(standing: Standing) -> Iterator[Interval]:
    """Yield the interquartile mean over seeds at each point of the learning curve."""
    for scores in standing.curve.T:
        yield interval(scores)
