"""Checkpoints of populations: one file of JSON and tensors, which cannot hold code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cramix.atomic import replacing
from cramix.rl.archive import MALFORMED, pack, unpack
from cramix.rl.learner import optimizer_state, restore_optimizer
from cramix.rl.training import Run
from experiments.population.memory import Memory
from experiments.population.vectorized import VectorizedLearner

NAME = "population.zip"
_FORMAT = 2
_DAMAGE: tuple[type[Exception], ...] = (*MALFORMED, RuntimeError)
_PART, _OPTIMIZER = "population", "optimizer/"


class Progress(NamedTuple):
    """The progress of a population.

    Args:
        step: of each environment.
        seconds: elapsed time.
        curve: learning curve of each run.
    """

    step: int
    seconds: float
    curve: list[list[dict[str, Any]]]


class Checkpoint:
    """The file that a population resumes from.

    Args:
        folder: of the file; neither needs to exist.
        runs: of the population; the file of other runs is ignored until it is overwritten.
        learner: of all agents.
        memory: of all agents, to which a row is added at each step.
        generator: of their random numbers.
    """

    def __init__(
        self,
        folder: str | Path,
        runs: Sequence[Run],
        learner: VectorizedLearner,
        memory: Memory,
        generator: torch.Generator,
    ):
        self.path = Path(folder) / NAME
        self.runs = json.loads(json.dumps([asdict(run) for run in runs]))
        self.learner, self.memory, self.generator = learner, memory, generator

    def write(self, progress: Progress) -> None:
        """Write the file, atomically."""
        metadata = {"format": _FORMAT, "runs": self.runs, "updates": self.learner.updates, **progress._asdict()}
        tensors = self._tensors(progress.step)
        state = optimizer_state(self.learner.optimizer, self.learner.parameters)
        tensors |= {f"{_OPTIMIZER}{name}": x for name, x in state.items()}
        tensors["generator"] = self.generator.get_state()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.path) as file:
            pack(file, _PART, metadata, **{_PART: tensors})

    def restore(self) -> Progress:
        """Load the file, in place, and return its progress; without a file, that of the start."""
        if not self.path.exists():
            return self._start()
        try:
            metadata, _ = unpack(self.path, _PART)
            if metadata["format"] != _FORMAT:
                raise ValueError(f"format {metadata['format']} instead of {_FORMAT}")
            if metadata["runs"] != self.runs:
                return self._start()
            _, (tensors,) = unpack(self.path, _PART, _PART)
            self._load(metadata, tensors)
            return Progress(metadata["step"], metadata["seconds"], metadata["curve"])
        except torch.OutOfMemoryError:
            raise  # the file is intact
        except _DAMAGE as error:
            got = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
            raise ValueError(
                f"{self.path} must be an intact checkpoint of these runs; got: {got}. Delete it to start again."
            ) from None

    def remove(self) -> None:
        """Remove the file if it exists."""
        self.path.unlink(missing_ok=True)

    def _start(self) -> Progress:
        return Progress(0, 0.0, [[] for _ in self.runs])

    def _tensors(self, step: int) -> dict[str, Tensor]:
        """Return the tensors that exist from the start, by name."""
        learner = self.learner
        named = {f"parameters/{name}": x.detach() for name, x in learner.parameters.items()}
        named |= {f"targets/{name}": x for name, x in learner.targets.items()}
        return {**named, "units": learner.units, "memory": self.memory.rows[:, : min(step, self.memory.size)]}

    def _load(self, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        # A CUDA graph reads tensors at fixed addresses, so values are copied into them.
        here = self._tensors(metadata["step"])
        found = {name: tuple(x.shape) for name, x in tensors.items()}
        for name, x in here.items():
            if found.get(name) != tuple(x.shape):
                raise ValueError(f"{name} of shape {found.get(name)} instead of {tuple(x.shape)}")
        for name, x in here.items():
            x.copy_(tensors[name])
        self.memory.set_count(metadata["step"])
        self.generator.set_state(tensors["generator"])
        state = {name.removeprefix(_OPTIMIZER): x for name, x in tensors.items() if name.startswith(_OPTIMIZER)}
        # In new tensors: its steps are in no graph.
        restore_optimizer(self.learner.optimizer, state, self.learner.parameters)
        self.learner.updates = metadata["updates"]
