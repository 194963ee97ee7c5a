"""The paper's experiment with points in the plane, with its settings and seeds, and our fit beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.distance.sliced import sliced_cramer_squared
from cramix.fitting import METHODS
from cramix.fitting.descending import Descent
from cramix.fitting.descent import found_at
from cramix.fitting.door import conclude, prepare
from cramix.fitting.paper import PaperDescent
from cramix.fitting.problem import Method, Problem
from cramix.mixture import MultivariateNormalMixture

SEEDS = 123, 456, 789
COMPONENTS = 10
INIT, PAPER, OURS = "init", ("sc2", "nll", "sc2+nll"), "merge"
# Steps between two places at which both losses are taken.
_EVERY = 10


class Place(NamedTuple):
    """A place on a way down: the number of its step, and both losses there."""

    step: int
    cramer: float
    negative_log_likelihood: float


class Run(NamedTuple):
    """One fit: where it ended, how long it took, and how it got there.

    Args:
        seed: of the start.
        method: "init" for the start itself.
        mixture: the result.
        end: both losses of it.
        seconds: of the descent alone; losses on the way do not count.
        way: both losses on the way; empty for our fit, which is none.
    """

    seed: int
    method: str
    mixture: MultivariateNormalMixture
    end: Place
    seconds: float
    way: tuple[Place, ...]


def run(x: Tensor, seeds: tuple[int, ...] = SEEDS, say: Callable[[str], None] = lambda text: None) -> list[Run]:
    """Fit points `(n, 2)` as the paper does, and by our default; say what is at work."""
    runs = []
    for seed in seeds:
        for name in PAPER:
            say(f"{name}, seed {seed}")
            start, descent = _descent(x, name, seed)
            if name == PAPER[0]:
                runs.append(start)
            runs.append(descent)
        say(f"{OURS}, seed {seed}")
        runs.append(_ours(x, seed))
    return runs


def _descent(x: Tensor, name: str, seed: int) -> tuple[Run, Run]:
    """Return the start, and the descent from it."""
    method = METHODS[name]()
    assert isinstance(method, PaperDescent), "the methods of the paper are descents"
    problem = _problem(x, method, seed)
    seconds, steps, ways = 0.0, 0, list[tuple[Descent, Place]]()
    with torch.no_grad():
        for place, spent in _timed(problem, method):
            seconds += spent
            if steps % _EVERY == 0 or place.reason is not None:
                ways.append((place, _losses(x, steps, _mixture(problem, place))))
            steps += place.step > 0 or steps == 0
        last, end = ways[-1]
        mixture = conclude(problem, found_at(last)).mixture
        begin = _mixture(problem, ways[0][0])
    way = tuple(place for _, place in ways)
    return Run(seed, INIT, begin, way[0], 0.0, ()), Run(seed, name, mixture, end, seconds, way)


def _timed(problem: Problem, method: PaperDescent) -> Iterator[tuple[Descent, float]]:
    """Yield the places of a descent with the time that each took."""
    began = problem.history.seconds
    for _, place in method.descents(problem):
        yield place, problem.history.seconds - began
        began = problem.history.seconds


def _ours(x: Tensor, seed: int) -> Run:
    method = METHODS[OURS]()
    problem = _problem(x, method, seed)
    with torch.no_grad():
        result = conclude(problem, method.run(problem))
    return Run(seed, OURS, result.mixture, _losses(x, result.iterations, result.mixture), result.seconds, ())


def _problem(x: Tensor, method: Method, seed: int) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    return prepare(x, COMPONENTS, method, generator=generator)


def _mixture(problem: Problem, place: Descent) -> MultivariateNormalMixture:
    scale = torch.diag(problem.units.scale)
    return place.mixture().affine(problem.units.centre, scale)


def _losses(x: Tensor, step: int, mixture: MultivariateNormalMixture) -> Place:
    return Place(step, sliced_cramer_squared(mixture, x).item(), -mixture.log_prob(x).mean().item())
