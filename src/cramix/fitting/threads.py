"""Threads of a fit: for small data one is as fast, and does not wait for a second that other libraries keep busy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from cramix.fitting.features import is_small
from cramix.fitting.problem import Problem
from cramix.mixture.covariance import Family


def threads_for(problem: Problem) -> AbstractContextManager[None]:
    """Compute with one thread in the block if the data of a problem are small, then with as many as before."""
    return threads_for_samples(len(problem.target.weights), problem.family)


@contextmanager
def threads_for_samples(n: int, family: Family) -> Iterator[None]:
    """Do the same for n samples and a kind of covariances."""
    before = torch.get_num_threads()
    if before == 1 or not is_small(n, family):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
