"""Progress of training in notebooks, where the bar of Stable-Baselines3 needs widgets."""

from __future__ import annotations

import time

from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback
from stable_baselines3.common.type_aliases import MaybeCallback

from cramix.notebook import NotebookBar


class NotebookProgress(BaseCallback):
    """A bar with the number of steps and their rate."""

    def _on_training_start(self) -> None:
        self._began, self._first = time.monotonic(), self.model.num_timesteps
        self._total = self.locals["total_timesteps"]
        self._bar = NotebookBar(self._total - self._first)

    def _on_step(self) -> bool:
        done = self.num_timesteps - self._first
        rate = done / max(time.monotonic() - self._began, 1e-9)
        self._bar.update(f"{self.num_timesteps:,} of {self._total:,} steps, {rate:,.0f} steps/s", done)
        return True

    def _on_training_end(self) -> None:
        self._bar.close()


def with_bar(callback: MaybeCallback) -> CallbackList:
    """Return callbacks as Stable-Baselines3 takes them, with a bar for notebooks."""
    if isinstance(callback, list):
        callback = CallbackList(callback)
    first = callback if isinstance(callback, BaseCallback) else ConvertCallback(callback)
    return CallbackList([first, NotebookProgress()])
