"""Many runs: algorithms by seeds, some at a time, each in a process of its own; what is done stays done."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cramix.rl.runs.statistics import Interval, Judged, interval, judged
from cramix.rl.runs.training import Run, read, train

# Checkpoints of a run, and points of its learning curve.
_POINTS = 12
# C51 must be told the range of returns; it is that of discounted ones here.
_RANGES = {"LunarLander-v3": (-300, 300), "CartPole-v1": (0, 200), "Acrobot-v1": (-200, 0)}


class Standing(NamedTuple):
    """What an algorithm, or a variation of it, has reached on an environment.

    Args:
        env: name of the environment.
        name: of its runs.
        scores: mean return of the last agent of each seed, `(seeds)`.
        summary: their interquartile mean.
        episodes: of all seeds together.
        parameters: of the network.
        seconds: of a run, the median.
        steps: of the learning curve, `(points)`.
        curve: mean returns on the way, `(seeds, points)`.
    """

    env: str
    name: str
    scores: np.ndarray
    summary: Interval
    episodes: Judged
    parameters: int
    seconds: float
    steps: np.ndarray
    curve: np.ndarray


def plan(envs: dict[str, int], seeds: dict[str, int], **options: Any) -> list[Run]:
    """Return runs of every environment (with its steps) by every algorithm (with its number of seeds), seed by seed.

    Example:
        >>> [(run.algo, run.seed) for run in plan({"CartPole-v1": 1000}, {"gmdqn": 2, "ddqn": 1})]
        [('gmdqn', 0), ('ddqn', 0), ('gmdqn', 1)]
    """
    most = max(seeds.values())
    return [
        Run(env, algo, steps, seed, settings=_settings(env, algo), **{"interval": max(1, steps // _POINTS), **options})
        for env, steps in envs.items()
        for seed in range(most)
        for algo, count in seeds.items()
        if seed < count
    ]


def _settings(env: str, algo: str) -> dict[str, Any]:
    """Return what an algorithm must be told of an environment."""
    if algo != "c51" or env not in _RANGES:
        return {}
    low, high = _RANGES[env]
    return {"return_scale": 1.0, "returns": {"low": low, "high": high}}


def place(run: Run, folder: str | Path) -> Path:
    """Return the folder of a run inside that of a comparison."""
    return Path(folder) / run.env.replace("/", "-") / run.name.replace("/", "-") / f"seed-{run.seed}"


def compare(
    runs: Sequence[Run],
    folder: str | Path,
    workers: int | None = None,
    tell: Callable[[Run, dict[str, Any]], None] | None = None,
    device: str | None = None,
) -> list[Standing]:
    """Train what is not trained yet and return how the algorithms stand.

    Args:
        runs: what to train, see `plan`.
        folder: one folder a run goes below it; an interrupted comparison goes on from there.
        workers: processes at a time; one for each core by default.
        tell: called with each run that is done, and its result.
        device: such as "cuda", on which all seeds of an algorithm are trained together, see `train_together`; None
            trains each run by itself.
    """
    # A new process for each: a fork would share the threads of torch with us.
    context = multiprocessing.get_context("spawn")
    waiting = [run for run in runs if not (place(run, folder) / "result.json").exists()]
    for run in runs:
        if run not in waiting and tell is not None:
            tell(run, read(place(run, folder) / "result.json"))
    count = workers or (os.cpu_count() if device is None else 1)
    with ProcessPoolExecutor(count, context, max_tasks_per_child=1) as pool:
        pending: dict[Future, list[Run]] = {}
        try:
            jobs = [[run] for run in waiting] if device is None else _groups(waiting)
            share = None if device is None else max(1, (os.cpu_count() or 1) // min(count or 1, len(jobs) or 1))
            for job in jobs:
                pending[pool.submit(_work, job, [place(run, folder) for run in job], device, share)] = job
            while pending:
                done, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    for run, result in zip(pending.pop(future), future.result(), strict=True):
                        if tell is not None:
                            tell(run, result)
        except BaseException:
            for future in pending:
                future.cancel()
            for process in multiprocessing.active_children():
                process.terminate()
            raise
    return standings(runs, folder)


def _groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Return runs in groups that differ in their seeds only."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(repr(replace(run, seed=0)), []).append(run)
    return list(groups.values())


def _work(runs: list[Run], folders: list[Path], device: str | None, workers: int | None) -> list[dict[str, Any]]:
    import torch

    torch.set_num_threads(1)  # processes, not threads, share the cores
    if device is None:
        return [train(run, folder) for run, folder in zip(runs, folders, strict=True)]
    from cramix.rl.population.training import train_together

    return train_together(runs, folders, device, workers)


def standings(runs: Sequence[Run], folder: str | Path) -> list[Standing]:
    """Return how algorithms stand after the runs that have a result, in the order of the plan."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        path = place(run, folder) / "result.json"
        if path.exists():
            found.setdefault((run.env, run.name), []).append(read(path))
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
        judged(np.concatenate([result["returns"] for result in results]), env),
        results[0]["parameters"],
        float(np.median([result["seconds"] for result in results])),
        np.array([row["step"] for row in results[0]["curve"][:points]]),
        np.array(curves),
    )


def curve_intervals(standing: Standing) -> Iterator[Interval]:
    """Yield the interquartile mean over seeds at each point of the learning curve."""
    for scores in standing.curve.T:
        yield interval(scores)
