"""The choice of an implementation of the Cramér loss: the one place that knows them all.

Another implementation, such as a GPU kernel, is a module with an `evaluate` of the same signature, an entry of
`IMPLEMENTATIONS`, and a line of `choose` that states when it is the fastest.
"""

from __future__ import annotations

import torch

from cramix.checks import check_choice
from cramix.distance.cramer import blocked, compiled, reference, small
from cramix.distance.cramer.signature import Implementation, Operand

IMPLEMENTATIONS: dict[str, Implementation] = {
    "reference": reference.evaluate,
    "blocked": blocked.evaluate,
    "small": small.evaluate,
    "compiled": compiled.evaluate,
}


def choose(p: Operand, q: Operand) -> str:
    """Return the name of the fastest implementation for both sides in the current mode of torch."""
    if torch.compiler.is_compiling():
        return "compiled"
    return "small" if small.applies(p, q) else "blocked"


def check_backend(backend: str) -> None:
    """Require "auto" or the name of an implementation."""
    check_choice("backend", backend, ("auto", *IMPLEMENTATIONS))
