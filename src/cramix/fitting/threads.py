"""Threads of a fit: for small data one is as fast, and does not wait for a second that other libraries keep busy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cramix.fitting.features import is_small
from cramix.fitting.problem import Problem


@contextmanager
def threads_for(problem: Problem) -> Iterator[None]:
    """Compute with one thread in the block if the data are small, then with as many as before."""
    before = torch.get_num_threads()
    if before == 1 or not is_small(len(problem.target.weights), problem.family):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
