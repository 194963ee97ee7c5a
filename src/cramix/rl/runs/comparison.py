"""Many runs: algorithms by seeds, some at a time, and how they stand; what is done stays done."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cramix.rl.population.checkpoint import NAME as CHECKPOINT
from cramix.rl.runs.folder import alone, as_name, result_of
from cramix.rl.runs.processes import each_in_its_own
from cramix.rl.runs.statistics import Interval, Judged, interval, judged
from cramix.rl.runs.training import Run, check_folder, train

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
    most = max(seeds.values(), default=0)
    if most < 1:
        raise ValueError(f"seeds must be at least 1 of some algorithm; got {seeds}. Ask for more.")
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
    return Path(folder) / as_name(run.env) / run.name.replace("/", "-") / f"seed-{run.seed}"


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
    _check_device(device)
    if len({place(run, folder) for run in runs}) < len(runs):
        raise ValueError("runs must have a folder each; got two of the same name and seed. Give them labels.")
    for run in runs:
        check_folder(run, place(run, folder))
    done = [run for run in runs if (place(run, folder) / "result.json").exists()]
    for run in done:
        result = result_of(place(run, folder))
        if tell is not None:
            tell(run, result)
    waiting = [run for run in runs if run not in done]
    groups = [[run] for run in waiting]
    if device is not None:
        # Those that have a checkpoint together go on together, though some may be done.
        whole = [group for group in _groups(runs) if (place(group[0], folder) / CHECKPOINT).exists()]
        groups = whole + _groups([run for run in waiting if not any(run in group for group in whole)])
    count = min(workers or (os.cpu_count() or 1 if device is None else 1), len(groups) or 1)
    share = max(1, (os.cpu_count() or 1) // count)
    jobs = {_name(group): (group, [place(run, folder) for run in group], device, share) for group in groups}
    for name, results in each_in_its_own(_work, jobs, count):
        for run, result in zip(jobs[name][0], results, strict=True):
            if tell is not None and run in waiting:
                tell(run, result)
    return standings(runs, folder)


def _check_device(device: str | None) -> None:
    """Require a device that is there, before processes find out one by one."""
    if device is None:
        return
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device must be one that is here; got {device!r}: {reason}. Leave it out.") from None


def _name(group: Sequence[Run]) -> str:
    """Return what runs that are trained together are called when something is wrong with them."""
    seeds = ", ".join(str(run.seed) for run in group)
    return f"{group[0].env}, {group[0].name}, seed {seeds}"


def _groups(runs: Sequence[Run]) -> list[list[Run]]:
    """Return runs in groups that differ in their seeds only."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(repr(replace(run, seed=0)), []).append(run)
    return list(groups.values())


def _work(runs: list[Run], folders: list[Path], device: str | None, workers: int) -> list[dict[str, Any]]:
    import torch

    torch.set_num_threads(1)  # processes, not threads, share the cores
    if device is None:
        return [train(run, folder) for run, folder in zip(runs, folders, strict=True)]
    from cramix.rl.population.training import train_together

    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(alone(folder))
        if all((folder / "result.json").exists() for folder in folders):
            return [result_of(folder) for folder in folders]  # another program was faster
        return train_together(runs, folders, device, workers)


def standings(runs: Sequence[Run], folder: str | Path) -> list[Standing]:
    """Return how algorithms stand after the runs that have a result, in the order of the plan."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        own = place(run, folder)
        if (own / "result.json").exists():
            found.setdefault((run.env, run.name), []).append(result_of(own))
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
