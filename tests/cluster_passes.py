"""Passes over rows on a cluster, and what they must give, by NumPy.

Passes are closures, which travel to workers by value: workers cannot import tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor


def rows_and_weights(n: int = 100, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows `(n, 3)` and weights `(n,)` that are whole numbers, so that sums are exact in any order."""
    g = np.random.default_rng(seed)
    return g.integers(-50, 50, (n, 3)).astype(float), g.integers(0, 5, n).astype(float)


def moments(dim: int = 3) -> Callable[[Iterator[Any]], Tensor]:
    """Return a pass that sums up good rows, bad rows, weights, weighted rows and weighted products."""

    def sums(batches: Iterator[Any]) -> Tensor:
        total = torch.zeros(3 + dim + dim**2, dtype=torch.float64)
        for batch in batches:
            x = batch.rows.double()
            w = torch.ones(len(x), dtype=x.dtype) if batch.weights is None else batch.weights.double()
            counts = torch.tensor([len(x), batch.bad, w.sum()], dtype=x.dtype)
            total += torch.cat((counts, w @ x, ((w[:, None] * x).T @ x).ravel()))
        return total

    return sums


def moments_by_numpy(x: np.ndarray, w: np.ndarray | None = None, bad: int = 0) -> np.ndarray:
    """Return what `moments` must give."""
    w = np.ones(len(x)) if w is None else w
    return np.concatenate(([len(x), bad, w.sum()], w @ x, ((w[:, None] * x).T @ x).ravel()))


def positions() -> Callable[[Iterator[Any]], list[tuple[int, float]]]:
    """Return a pass that lists the position and the first number of each row; lists are added in order."""

    def listed(batches: Iterator[Any]) -> list[tuple[int, float]]:
        return [(batch.position + i, x) for batch in batches for i, x in enumerate(batch.rows[:, 0].tolist())]

    return listed


def threads() -> Callable[[Iterator[Any]], list[int]]:
    """Return a pass that lists the number of threads of torch in each part."""

    def number(batches: Iterator[Any]) -> list[int]:
        return [torch.get_num_threads() for _ in batches]

    return number
