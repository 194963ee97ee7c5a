"""Exploration: epsilon-greedy actions."""

from __future__ import annotations

import numpy as np


class Exploration:
    """Samples which environments explore, and their actions.

    Args:
        actions: number of actions.
        seed: of the generator.

    Example:
        >>> Exploration(3, seed=0).mix(np.array([7, 7]), rate=0.0, mask=None)
        array([7, 7])
    """

    def __init__(self, actions: int, seed: int | np.random.SeedSequence | None = None):
        self.actions = actions
        self.generator = np.random.default_rng(seed)

    def random(self, rows: int, mask: np.ndarray | None) -> np.ndarray:
        """Sample an action for every row `(rows)`; a mask `(rows, actions)` that allows no action is ignored."""
        if mask is None:
            return self.generator.integers(self.actions, size=rows)
        keys = self.generator.random((rows, self.actions))
        return np.where(np.asarray(mask, bool), keys, keys - 1).argmax(-1)

    def rows(self, rows: int, rate: float) -> np.ndarray:
        """Sample which rows explore `(rows)`, each with probability `rate`."""
        return self.generator.random(rows) < rate

    def mix(self, best: np.ndarray, rate: float, mask: np.ndarray | None) -> np.ndarray:
        """Return the best actions, each replaced by a random one with probability `rate`."""
        explores = self.rows(len(best), rate)
        return np.where(explores, self.random(len(best), mask), best) if explores.any() else best
