"""The choice of an implementation of the energy distance: the one place that knows them all.

Another implementation, such as a GPU kernel, is a module with an `evaluate` of the same signature, an entry of
`IMPLEMENTATIONS`, and a line of `choose` that states when it is the fastest.
"""

from __future__ import annotations

from cramix.checks import check_choice
from cramix.distance.energy import blocked, reference, small
from cramix.distance.energy.flat_mixtures import Side
from cramix.distance.energy.signature import Evaluation, Implementation, Problem

IMPLEMENTATIONS: dict[str, Implementation] = {
    "reference": reference.evaluate,
    "blocked": blocked.evaluate,
    "small": small.evaluate,
}


def choose(p: Side, q: Side) -> str:
    """Return the name of the fastest implementation for both sides in the current mode of torch."""
    return "small" if small.applies(p, q) else "blocked"


def evaluate(problem: Problem, backend: str = "auto") -> Evaluation:
    """Evaluate distances and derivatives by the implementation of that name; "auto" takes the fastest one."""
    return IMPLEMENTATIONS[choose(problem.p, problem.q) if backend == "auto" else backend](problem)


def check_backend(backend: str) -> None:
    """Require "auto" or the name of an implementation."""
    check_choice("backend", backend, ("auto", *IMPLEMENTATIONS))
