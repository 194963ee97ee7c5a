"""Training of a population on MinAtar within a time limit: it resumes, and writes its results as they come."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

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
_CHECK = 100  # steps between looks at the clock


def train(
    plan: Plan,
    name: str,
    out: Path,
    *,
    device: torch.device,
    seed: int = 0,
    minutes: float = math.inf,
    state: Path | None = None,
    labels: dict[str, str] | None = None,
    max_steps: int = MAX_STEPS,
    finish: bool = False,
    compile: bool = False,
    compile_games: bool = False,
) -> list[Result] | None:
    """Train a population, or resume it; return the results, or None if the time was not enough.

    Writes `NAME_curves.csv` as training goes on, and `NAME.csv` at the end.

    Args:
        plan: the runs and their settings.
        name: of the files.
        out: folder of the results.
        device: of the population.
        seed: of everything random.
        minutes: the time after which a checkpoint is written instead of going on.
        state: folder of the checkpoint; None writes none.
        labels: names of algorithms in the results, if they differ.
        max_steps: the longest episode of the evaluation.
        finish: whether the runs are evaluated when the time is up, wherever they are.
        compile: whether parts of the update are compiled.
        compile_games: whether the games are compiled, too.
    """
    began = time.monotonic()
    path = None if state is None else Path(state) / f"{name}.pt"
    population = Population(plan, device, seed, compile=compile, compile_games=compile_games)
    progress = Progress() if path is None else checkpoint.restore(path, population)
    s, before = plan.settings, population.steps
    runs = [((labels or {}).get(v.algorithm, v.algorithm), v.learning_rate, game, i) for v, game, i in plan.runs]
    curve = [Point(*row) for row in progress.curve]
    interval = max(1, s.steps // POINTS // s.envs) * s.envs
    clock = _Clock(population, len(runs))
    while population.steps < s.steps:
        population.step()
        if population.steps % interval == 0:
            means, counts = population.take_finished()
            curve += [
                Point(*run, population.steps, mean, int(count))
                for run, mean, count in zip(runs, means.tolist(), counts.tolist(), strict=True)
            ]
            results.write(out / f"{name}_curves.csv", curve, Point)
            _log(f"{population.steps} steps: mean training return {torch.nanmean(means).item():.2f}")
        if population.steps % (_CHECK * s.envs) == 0:
            clock.tick()
            if time.monotonic() - began > 60 * minutes:
                break
    seconds = progress.seconds + time.monotonic() - began
    if population.steps < s.steps and not finish:
        if path is not None:
            checkpoint.write(path, population, Progress(seconds, tuple(tuple(vars(row).values()) for row in curve)))
        _log(f"Time is up after {population.steps - before} steps, at {population.steps} of {s.steps}.")
        return None
    found = _evaluated(population, runs, curve, seconds, max_steps)
    results.write(out / f"{name}.csv", found, Result)
    if path is not None:
        path.unlink(missing_ok=True)
    _log(f"{len(runs)} runs of {population.steps} steps in {seconds:.0f} s; wrote {out / name}.csv")
    return found


def _evaluated(
    population: Population, runs: list[tuple[str, float, str, int]], curve: list[Point], seconds: float, max_steps: int
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
                seconds=seconds,
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

    def __init__(self, population: Population, runs: int):
        self.population, self.runs = population, runs
        self.last: tuple[float, int] | None = None
        self.printed = -math.inf

    def tick(self) -> None:
        if self.population.device.type == "cuda":
            torch.cuda.synchronize()
        s, now, steps = self.population.plan.settings, time.monotonic(), self.population.steps
        if self.last is not None and steps > s.learning_starts + 2 * _CHECK * s.envs and now - self.printed > 30:
            each = (now - self.last[0]) / (steps - self.last[1]) * s.envs
            left = (s.steps - steps) / s.envs * each
            used = ""
            if self.population.device.type == "cuda":
                used = f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"
            _log(f"{steps} steps, {self.runs} runs: {1000 * each:.2f} ms per update, {left / 60:.1f} min left{used}")
            self.printed = now
        self.last = now, steps


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
