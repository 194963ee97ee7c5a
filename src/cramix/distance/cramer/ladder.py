"""The choice of an implementation of the Cramér loss: the one place that knows them all.

Another implementation is a module with an `evaluate` of the same signature, an entry of `IMPLEMENTATIONS`, and a line
of `choose` that states when it is the fastest.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cramix.accelerator import runs_triton
from cramix.checks import check_choice
from cramix.distance.cramer import blocked, compiled, reference, small
from cramix.distance.cramer.signature import Evaluation, Implementation, Operand, Problem

# The most components that the kernels in Triton take.
_MOST_COMPONENTS = 64


def _triton(problem: Problem) -> Evaluation:
    from cramix.distance.cramer import triton  # imports Triton, which not everybody has

    return triton.evaluate(problem)


IMPLEMENTATIONS: dict[str, Implementation] = {
    "reference": reference.evaluate,
    "blocked": blocked.evaluate,
    "small": small.evaluate,
    "compiled": compiled.evaluate,
    "triton": _triton,
}


def choose(p: Operand, q: Operand) -> str:
    """Return the name of the fastest implementation for both sides in the current mode of torch."""
    if runs_triton(p.means) and takes_triton(p.means) and (q.scales is None or takes_triton(q.means)):
        return "triton"
    if torch.compiler.is_compiling():
        return "compiled"
    return "small" if small.applies(p, q) else "blocked"


def takes_triton(means: Tensor) -> bool:
    """Return whether the kernels in Triton take mixtures with such means `(*batch, k)`: few components in float32."""
    return means.dtype == torch.float32 and means.shape[-1] <= _MOST_COMPONENTS


def check_backend(backend: str) -> None:
    """Require "auto" or the name of an implementation."""
    check_choice("backend", backend, ("auto", *IMPLEMENTATIONS))
