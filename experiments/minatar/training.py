"""Training of populations on MinAtar within a time limit: it resumes, and writes its results as they come."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from experiments.minatar import checkpoint, results
from experiments.minatar.arcade import Arcade
from experiments.minatar.checkpoint import Progress
from experiments.minatar.games import GAMES
from experiments.minatar.games.game import ACTIONS
from experiments.minatar.population import Population, evaluate, play_episodes
from experiments.minatar.results import Point, Result
from experiments.minatar.settings import Plan

# Of the learning curve.
POINTS = 20
# Of the final evaluation of a run: environments, each with one episode, and the longest episode.
EPISODES = 32
MAX_STEPS = 5000
_CHECK = 100  # steps of all environments between looks at the clock


class Job(NamedTuple):
    """A population to train.

    Args:
        name: of the files of its results.
        plan: the runs and their settings.
        labels: names of algorithms in the results, if they differ.
        merge: whether files of results keep the rows of other runs.
    """

    name: str
    plan: Plan
    labels: dict[str, str] | None = None
    merge: bool = False


def train(
    jobs: Sequence[Job],
    out: Path,
    *,
    device: torch.device,
    seed: int = 0,
    minutes: float = math.inf,
    state: Path | None = None,
    max_steps: int = MAX_STEPS,
    finish: bool = False,
    compile: bool = False,
    compile_games: bool = False,
) -> list[Result] | None:
    """Train populations side by side, or resume them; return the results, or None if the time was not enough.

    On a GPU each has a stream, so that the small kernels of one fill the gaps of another. Writes `NAME_curves.csv` as
    training goes on, and `NAME.csv` at the end.

    Args:
        jobs: the populations.
        out: folder of the results.
        device: of the populations.
        seed: of everything random.
        minutes: the time after which a checkpoint is written instead of going on.
        state: folder of the checkpoints; None writes none.
        max_steps: the longest episode of the evaluation.
        finish: whether the runs are evaluated when the time is up, wherever they are.
        compile: whether parts of the update are compiled.
        compile_games: whether the games are compiled, too.
    """
    began = time.monotonic()
    trainings = []
    for job in jobs:
        population = Population(job.plan, device, seed, compile=compile, compile_games=compile_games)
        trainings.append(_Training(job, population, out, state))
    clock = _Clock(trainings, device)
    going = [x for x in trainings if not x.done]
    while going:
        for _ in range(_CHECK):
            for training in going:
                training.step()
        going = [x for x in going if not x.done]
        clock.tick()
        if time.monotonic() - began > 60 * minutes:
            break
    seconds = time.monotonic() - began
    if going and not finish:
        for training in trainings:
            training.write_checkpoint(seconds)
        _log(f"Time is up at {', '.join(f'{x.population.steps} of {x.job.plan.settings.steps}' for x in trainings)}.")
        return None
    together = sum(len(training.runs) for training in trainings)
    return [row for training in trainings for row in training.evaluated(seconds, max_steps, together)]


class _Training:
    """A population, its learning curve and its files."""

    def __init__(self, job: Job, population: Population, out: Path, state: Path | None):
        self.job, self.population, self.out = job, population, out
        self._write = results.merge if job.merge else results.write
        self.path = None if state is None else Path(state) / f"{job.name}.pt"
        progress = Progress() if self.path is None else checkpoint.restore(self.path, population)
        self.seconds, self.curve = progress.seconds, [Point(*row) for row in progress.curve]
        labels = job.labels or {}
        self.runs = [(labels.get(v.algorithm, v.algorithm), v.learning_rate, game, i) for v, game, i in job.plan.runs]
        s = job.plan.settings
        self._interval = max(1, s.steps // POINTS // s.envs) * s.envs
        self._stream = None
        if population.device.type == "cuda":
            torch.cuda.synchronize()
            self._stream = torch.cuda.Stream(population.device)

    @property
    def done(self) -> bool:
        """Whether all steps were taken."""
        return self.population.steps >= self.job.plan.settings.steps

    def step(self) -> None:
        """Step the population, and write its learning curve where a point is due."""
        if self.done:
            return
        with torch.cuda.stream(self._stream):  # does nothing without a stream
            self.population.step()
            if self.population.steps % self._interval == 0:
                self._add_point()

    def write_checkpoint(self, seconds: float) -> None:
        """Write what is needed to resume, if there is a place for it."""
        if self.path is not None:
            rows = tuple(tuple(vars(row).values()) for row in self.curve)
            checkpoint.write(self.path, self.population, Progress(self.seconds + seconds, rows))

    def evaluated(self, seconds: float, max_steps: int, together: int) -> list[Result]:
        """Evaluate the agents and write the results."""
        if self._stream is not None:
            torch.cuda.synchronize()
        seconds += self.seconds
        found = [
            replace(row, seconds=seconds, together=together)
            for row in _evaluated(self.population, self.runs, self.curve, max_steps)
        ]
        self._write(self.out / f"{self.job.name}.csv", found, Result)
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        _log(f"{len(found)} runs of {self.population.steps} steps in {seconds:.0f} s; wrote {self.job.name}.csv")
        return found

    def _add_point(self) -> None:
        means, counts = self.population.take_finished()
        step = self.population.steps
        self.curve += [
            Point(*run, step, mean, int(count))
            for run, mean, count in zip(self.runs, means.tolist(), counts.tolist(), strict=True)
        ]
        self._write(self.out / f"{self.job.name}_curves.csv", self.curve, Point)
        _log(f"{self.job.name}, {step} steps: mean training return {torch.nanmean(means).item():.2f}")


def _evaluated(
    population: Population, runs: list[tuple[str, float, str, int]], curve: list[Point], max_steps: int
) -> list[Result]:
    plan, steps = population.plan, population.steps
    returns, over = evaluate(population, EPISODES, max_steps, seed=2**31 + len(runs))
    late: dict[tuple, list[Point]] = {}
    for point in curve:
        if point.step > 0.9 * steps and point.episodes:
            late.setdefault((point.label, point.learning_rate, point.game, point.seed), []).append(point)
    found = []
    for (label, rate, game, seed), (variant, _, _), mine, ended in zip(runs, plan.runs, returns, over, strict=True):
        points = late.get((label, rate, game, seed), [])
        count = sum(point.episodes for point in points)
        total = sum(point.episodes * point.train_return for point in points)
        parameters, last = population.learner.layout.parameters(variant.algorithm, game)
        found.append(
            Result(
                label=label,
                algorithm=variant.algorithm,
                learning_rate=rate,
                game=game,
                seed=seed,
                steps=steps,
                updates=int(population.learner.updates),
                score=mine.mean().item(),
                score_std=mine.std().item(),
                episodes=len(mine),
                unfinished=int((~ended).sum()),
                train_return=total / count if count else math.nan,
                parameters=parameters,
                last_parameters=last,
                seconds=math.nan,
                together=len(runs),
            )
        )
    return found


def random_scores(envs: int = 1000, seed: int = 0) -> list[Result]:
    """Return the results of random actions in every game, for a scale of scores."""
    device, generator = torch.device("cpu"), torch.Generator().manual_seed(seed)
    arcade = Arcade(list(GAMES), 1, 1, envs, device)

    def act(screens: Tensor) -> Tensor:
        return torch.randint(ACTIONS, screens.shape[:2], generator=generator)

    returns, over = play_episodes(arcade, act, MAX_STEPS, generator)
    return [
        Result(
            label="random",
            algorithm="random",
            learning_rate=0.0,
            game=game,
            seed=seed,
            steps=0,
            updates=0,
            score=x.mean().item(),
            score_std=x.std().item(),
            episodes=envs,
            unfinished=int((~y).sum()),
            train_return=math.nan,
            parameters=0,
            last_parameters=0,
            seconds=0.0,
            together=1,
        )
        for game, x, y in zip(GAMES, returns, over, strict=True)
    ]


class _Clock:
    """Prints the throughput, and the time that the whole run will take."""

    def __init__(self, trainings: Sequence[_Training], device: torch.device):
        self.trainings, self.device = trainings, device
        self.last: tuple[float, int] | None = None
        self.printed = -math.inf

    def tick(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        first = self.trainings[0].population
        s, now, steps = first.plan.settings, time.monotonic(), first.steps
        if self.last is not None and steps > s.learning_starts + 2 * _CHECK * s.envs and now - self.printed > 30:
            each = (now - self.last[0]) / max(1, steps - self.last[1]) * s.envs
            left = (s.steps - steps) / s.envs * each
            used = f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if self.device.type == "cuda" else ""
            runs = sum(len(x.runs) for x in self.trainings)
            _log(f"{steps} steps, {runs} runs: {1000 * each:.2f} ms per update, {left / 60:.1f} min left{used}")
            self.printed = now
        self.last = now, steps


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
