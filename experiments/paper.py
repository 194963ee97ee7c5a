"""The paper's experiment with points in the plane, with its settings and seeds, and our default fit for comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.distance.sliced import sliced_cramer_squared
from cramix.fitting import METHODS
from cramix.fitting.descent import Iterate, solution_at
from cramix.fitting.paper import PaperDescent
from cramix.fitting.problem import Method, Problem
from cramix.fitting.solve import Options, conclude, prepare
from cramix.mixture import MultivariateNormalMixture
from cramix.mixture.coordinates import in_coordinates

SEEDS = 123, 456, 789
COMPONENTS = 10
INIT, PAPER, OURS = "init", ("sc2", "nll", "sc2+nll"), "merge"
# Both losses are recorded every so many steps.
_EVERY = 10


class Losses(NamedTuple):
    """Both losses after a number of steps."""

    step: int
    cramer: float
    negative_log_likelihood: float


class Run(NamedTuple):
    """One fit.

    Args:
        seed: of the initial mixture.
        method: "init" for the initial mixture itself.
        mixture: the result.
        end: its losses.
        seconds: time of the descent, without the recording of losses.
        history: losses during the descent; empty for our fit, which is not a descent.
    """

    seed: int
    method: str
    mixture: MultivariateNormalMixture
    end: Losses
    seconds: float
    history: tuple[Losses, ...]


def run(x: Tensor, seeds: tuple[int, ...] = SEEDS, status: Callable[[str], None] = lambda text: None) -> list[Run]:
    """Fit points `(n, 2)` as the paper does, and by our default; `status` is called with what is being fitted."""
    runs = []
    for seed in seeds:
        for name in PAPER:
            status(f"{name}, seed {seed}")
            start, descent = _descent(x, name, seed)
            if name == PAPER[0]:
                runs.append(start)
            runs.append(descent)
        status(f"{OURS}, seed {seed}")
        runs.append(_ours(x, seed))
    return runs


def _descent(x: Tensor, name: str, seed: int) -> tuple[Run, Run]:
    """Return the initial mixture, and the descent from it."""
    method = METHODS[name]()
    assert isinstance(method, PaperDescent), "the methods of the paper are descents"
    problem = _problem(x, method, seed)
    seconds, steps, recorded = 0.0, 0, list[tuple[Iterate, Losses]]()
    with torch.no_grad():
        for state, elapsed in _timed(problem, method):
            seconds += elapsed
            if steps % _EVERY == 0 or state.reason is not None:
                recorded.append((state, _losses(x, steps, _mixture(problem, state))))
            steps += state.step > 0 or steps == 0
        last, end = recorded[-1]
        mixture = in_coordinates(conclude(problem, solution_at(last)).mixture)
        initial = _mixture(problem, recorded[0][0])
    history = tuple(losses for _, losses in recorded)
    return Run(seed, INIT, initial, history[0], 0.0, ()), Run(seed, name, mixture, end, seconds, history)


def _timed(problem: Problem, method: PaperDescent) -> Iterator[tuple[Iterate, float]]:
    """Yield the states of a descent with the time of each step."""
    began = problem.history.seconds
    for _, state in method.descents(problem):
        yield state, problem.history.seconds - began
        began = problem.history.seconds


def _ours(x: Tensor, seed: int) -> Run:
    method = METHODS[OURS]()
    problem = _problem(x, method, seed)
    with torch.no_grad():
        result = conclude(problem, method.run(problem))
    mixture = in_coordinates(result.mixture)
    return Run(seed, OURS, mixture, _losses(x, result.n_iter, mixture), result.seconds, ())


def _problem(x: Tensor, method: Method, seed: int) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    reg_covar = 1e-6 if isinstance(method, PaperDescent) else None
    return prepare(x, COMPONENTS, method, Options(reg_covar=reg_covar, generator=generator))


def _mixture(problem: Problem, state: Iterate) -> MultivariateNormalMixture:
    scale = torch.diag(problem.units.scale)
    return state.mixture().affine(problem.units.centre, scale)


def _losses(x: Tensor, step: int, mixture: MultivariateNormalMixture) -> Losses:
    return Losses(step, sliced_cramer_squared(mixture, x).item(), -mixture.log_prob(x).mean().item())
