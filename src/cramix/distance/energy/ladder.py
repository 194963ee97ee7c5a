"""The choice of an implementation of the energy distance: the one place that knows them all.

Another implementation is a module with an `evaluate` of the same signature, an entry of `IMPLEMENTATIONS`, and a line
of `choose` that states when it is the fastest.
"""

from __future__ import annotations

import torch

from cramix.accelerator import runs_triton
from cramix.checks import check_choice
from cramix.distance.energy import blocked, reference, small
from cramix.distance.energy.flat_mixtures import Components, Points
from cramix.distance.energy.signature import Evaluation, Implementation, KnownEnergy, Problem

# The most dimensions, and the most numbers in the axes of all pairs of components, that the kernels in Triton take.
_MOST_DIMENSIONS = 32
_MOST_AXES = 1 << 25


def _triton(problem: Problem) -> Evaluation:
    from cramix.distance.energy import triton  # imports Triton, which not everybody has

    return triton.evaluate(problem)


IMPLEMENTATIONS: dict[str, Implementation] = {
    "reference": reference.evaluate,
    "blocked": blocked.evaluate,
    "small": small.evaluate,
    "triton": _triton,
}


def choose(problem: Problem) -> str:
    """Return the name of the fastest implementation for a problem in the current mode of torch."""
    if runs_triton(problem.p.means) and takes_triton(problem):
        return "triton"
    return "small" if small.applies(problem.p, problem.q) else "blocked"


def takes_triton(problem: Problem) -> bool:
    """Return whether the kernels in Triton take a problem: components in float32, and energies that are numbers."""
    p, q, known_p, known_q, *_ = problem
    if not isinstance(p, Components) or not all(map(_is_number, (known_p, known_q))):
        return False
    if p.means.dtype != torch.float32 or q.means.dtype != torch.float32:
        return False
    if isinstance(q, Points) and q.covariances is not None:
        return False
    rows, k, d = p.means.shape
    pairs = rows * (k if isinstance(q, Points) else k + q.means.shape[1]) ** 2
    return d <= _MOST_DIMENSIONS and pairs * d * d <= _MOST_AXES


def _is_number(energy: KnownEnergy | None) -> bool:
    return energy is None or isinstance(energy.energy, torch.Tensor)


def evaluate(problem: Problem, backend: str = "auto") -> Evaluation:
    """Evaluate distances and derivatives by the implementation of that name; "auto" takes the fastest one."""
    return IMPLEMENTATIONS[choose(problem) if backend == "auto" else backend](problem)


def check_backend(backend: str) -> None:
    """Require "auto" or the name of an implementation."""
    check_choice("backend", backend, ("auto", *IMPLEMENTATIONS))
