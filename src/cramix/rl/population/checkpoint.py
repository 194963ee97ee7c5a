"""Checkpoints of populations: one file, which holds words and numbers and never code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cramix.atomic import replacing
from cramix.rl.archive import NONSENSE, pack, unpack
from cramix.rl.learning.optimizers import restore, state_of
from cramix.rl.population.learner import PopulationLearner
from cramix.rl.population.memory import Memory
from cramix.rl.runs.training import Run

NAME = "population.zip"
_FORMAT = 1
_WRONG: tuple[type[Exception], ...] = (*NONSENSE, RuntimeError)
_PART, _OPTIMIZER = "population", "optimizer/"


class Progress(NamedTuple):
    """How far a population is.

    Args:
        step: of each environment.
        seconds: it has taken.
        curve: rows of each run.
    """

    step: int
    seconds: float
    curve: list[list[dict[str, Any]]]


class Checkpoint:
    """What a population goes on from, in a file.

    Args:
        folder: of the file; neither need be there.
        runs: which it is of; that of others is left alone until it is written over.
        learner: of all agents.
        memory: of all agents, to which a row is added at each step.
        generator: of their random numbers.
    """

    def __init__(
        self,
        folder: str | Path,
        runs: Sequence[Run],
        learner: PopulationLearner,
        memory: Memory,
        generator: torch.Generator,
    ):
        self.path = Path(folder) / NAME
        self.runs = json.loads(json.dumps([asdict(run) for run in runs]))
        self.learner, self.memory, self.generator = learner, memory, generator

    def write(self, progress: Progress) -> None:
        """Write all to the file; until it is whole the old one stays."""
        words = {"format": _FORMAT, "runs": self.runs, "updates": self.learner.updates, **progress._asdict()}
        tensors = self._tensors(progress.step)
        tensors |= {f"{_OPTIMIZER}{name}": x for name, x in state_of(self.learner.optimizer).items()}
        tensors["generator"] = self.generator.get_state()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.path) as file:
            pack(file, _PART, words, **{_PART: tensors})

    def restore(self) -> Progress:
        """Bring all to where the file is, in place, and return how far that is: nowhere if there is none."""
        if not self.path.exists():
            return self._nowhere()
        try:
            words, _ = unpack(self.path, _PART)
            if words["format"] != _FORMAT:
                raise ValueError(f"format {words['format']} in place of {_FORMAT}")
            if words["runs"] != self.runs:
                return self._nowhere()
            _, (tensors,) = unpack(self.path, _PART, _PART)
            self._take(words, tensors)
            return Progress(words["step"], words["seconds"], words["curve"])
        except torch.OutOfMemoryError:
            raise  # the file is as good as it was
        except _WRONG as error:
            got = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
            raise ValueError(
                f"{self.path} must be a whole checkpoint of these runs; got: {got}. Delete it to start anew."
            ) from None

    def remove(self) -> None:
        """Remove the file if there is one."""
        self.path.unlink(missing_ok=True)

    def _nowhere(self) -> Progress:
        return Progress(0, 0.0, [[] for _ in self.runs])

    def _tensors(self, step: int) -> dict[str, Tensor]:
        """Return by name the tensors that are there from the start, where they are."""
        learner = self.learner
        named = {f"vectors/{i}": x for i, x in enumerate(learner.vectors)}
        named |= {f"targets/{i}": x for i, x in enumerate(learner.targets)}
        return {**named, "units": learner.units, "memory": self.memory.rows[:, : min(step, self.memory.size)]}

    def _take(self, words: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        # A recorded graph reads tensors where they were: numbers are copied into them.
        here = self._tensors(words["step"])
        found = {name: tuple(x.shape) for name, x in tensors.items()}
        for name, x in here.items():
            if found.get(name) != tuple(x.shape):
                raise ValueError(f"{name} of shape {found.get(name)} in place of {tuple(x.shape)}")
        for name, x in here.items():
            x.copy_(tensors[name])
        self.memory.count(words["step"])
        self.generator.set_state(tensors["generator"])
        state = {name.removeprefix(_OPTIMIZER): x for name, x in tensors.items() if name.startswith(_OPTIMIZER)}
        restore(self.learner.optimizer, state)  # in new tensors: no graph has recorded its steps
        self.learner.updates = words["updates"]
