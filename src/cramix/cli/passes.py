"""Passes of a fit over data of any size: how many, what a checkpoint keeps, and what Ctrl-C leaves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cramix.cli.refusal import Interrupted, Refusal, check_output
from cramix.fitting import Step
from cramix.fitting.checkpoint import finished_passes
from cramix.tensor_files import require_safetensors


class Passes:
    """What was asked about passes.

    Args:
        most: the largest number of passes; None for the default.
        checkpoint: file for finished passes; None without.

    Attributes:
        kept: number of passes that were in the checkpoint at the start.
    """

    def __init__(self, most: int | None, checkpoint: Path | None) -> None:
        self.most, self.checkpoint = most, checkpoint
        self.kept = 0 if checkpoint is None else finished_passes(checkpoint)

    @property
    def options(self) -> dict[str, object]:
        """Arguments of `fit` and `select`."""
        return {"max_passes": self.most, "checkpoint": self.checkpoint}

    @property
    def asked(self) -> str | None:
        """An option that was given; None without."""
        if self.checkpoint is not None:
            return "--checkpoint"
        return None if self.most is None else "--max-passes"

    def check(self, out: Path | None) -> None:
        """Require a checkpoint that can be written, and that is not the file of the model."""
        if self.checkpoint is None:
            return
        require_safetensors()
        check_output(self.checkpoint)
        if out is not None and out.resolve() == self.checkpoint.resolve():
            raise Refusal(f"--checkpoint and --out must be different files; both are {out}.")

    def in_words(self, count: int | None) -> str | None:
        """Return a number of passes, with how many of them came from the checkpoint."""
        return f"{count}, {self.kept} of them from {self.checkpoint}" if count and self.kept else None

    def announcing(self, update: Callable[[str], None], *, quiet: bool) -> Callable[[Step], None]:
        """Return a function that shows steps; with the first one it says that the fit goes on from a checkpoint.

        Not before: a checkpoint of another fit is refused.
        """
        told = quiet or not self.kept

        def progress(step: Step) -> None:
            nonlocal told
            if not told:
                told = True
                print(f"Going on after {_counted(self.kept)}: {self.checkpoint}", file=sys.stderr, flush=True)
            update(in_words(step))

        return progress

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """On Ctrl-C, raise `Interrupted` with what is kept."""
        try:
            yield
        except KeyboardInterrupt:
            raise Interrupted(self._left()) from None

    def _left(self) -> str:
        if self.checkpoint is None:
            return "stopped; nothing is kept. With --checkpoint FILE, the same command goes on after the last pass."
        kept = finished_passes(self.checkpoint)
        if not kept:
            return f"stopped; {self.checkpoint} is not written before the end of a pass. The same command starts over."
        return f"stopped; {self.checkpoint} keeps {_counted(kept)}. The same command goes on from there."


def in_words(step: Step) -> str:
    """Return a step of a fit for the line of progress; steps of passes have no components."""
    return f"{step.name}, {step.n_components} components" if step.n_components else step.name


def _counted(passes: int) -> str:
    return "1 pass" if passes == 1 else f"{passes} passes"
