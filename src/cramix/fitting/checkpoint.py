"""Finished passes in a file, so that a fit which was stopped goes on where it was."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from cramix.data.survey import Extremes, Rows, Sample, Survey
from cramix.tensor_files import read_tensors, require_safetensors, write_tensors

_FORMAT = "1"
_COUNTS = "n_rows", "n_present", "n_bad", "weight", "squared_weight", "whole"


class Checkpoint:
    """The results of finished passes over a source, in a safetensors file that is replaced after each pass.

    Args:
        path: of the file, which need not exist.
        task: what is computed: data, settings and seed. A file of another task is refused.
    """

    def __init__(self, path: str | os.PathLike, task: str) -> None:
        self.path, self._task = Path(path), task
        self.survey: Survey | None = None
        self._expected = dict[int, tuple[tuple[Tensor, ...], tuple[Tensor, ...], float]]()
        require_safetensors()  # before the first pass, not after it
        if self.path.exists():
            self._read()

    def expected(self, number: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], float] | None:
        """Return the sums, log likelihoods and weight of a pass; None if it is not finished."""
        return self._expected.get(number)

    def keep_survey(self, survey: Survey) -> None:
        """Store the first pass."""
        self.survey = survey
        self._write()

    def keep_expected(
        self, number: int, sums: Sequence[Tensor], log_likelihoods: Sequence[Tensor], weight: float
    ) -> None:
        """Store another pass."""
        self._expected[number] = tuple(sums), tuple(log_likelihoods), weight
        self._write()

    def remove(self) -> None:
        """Delete the file: the fit is done."""
        self.path.unlink(missing_ok=True)

    def _write(self) -> None:
        assert self.survey is not None
        sample, extremes = self.survey.sample, self.survey.extremes
        tensors = {"sample.bound": torch.tensor([sample.bound])}
        tensors |= _tensors("sample", sample.rows)
        if extremes.rows is not None:
            tensors |= _tensors("extremes", extremes.rows)
        for number, (sums, likelihoods, weight) in self._expected.items():
            tensors[f"pass {number}.weight"] = torch.tensor([weight], dtype=torch.float64)
            for i, (x, y) in enumerate(zip(sums, likelihoods, strict=True)):
                tensors |= {f"pass {number}.sums {i}": x, f"pass {number}.log likelihood {i}": y}
        counts = {name: getattr(self.survey, name) for name in _COUNTS}
        metadata = {
            "cramix": f"checkpoint {_FORMAT}",
            "task": self._task,
            "survey": json.dumps(counts),
            "sample": json.dumps([sample.size, sample.seed]),
        }
        write_tensors(self.path, tensors, metadata)

    def _read(self) -> None:
        try:
            metadata, tensors = read_tensors(self.path)
        except (ValueError, OSError):
            raise ValueError(
                f"checkpoint must be a whole file of a fit; {self.path} is not. Remove it to start over."
            ) from None
        if metadata.get("cramix") != f"checkpoint {_FORMAT}" or metadata.get("task") != self._task:
            raise ValueError(
                f"checkpoint must belong to the same data, settings and seed; {self.path} does not. "
                "Remove it to start over."
            )
        size, seed = json.loads(metadata["sample"])
        rows = _rows("sample", tensors)
        sample = Sample(size, seed).with_rows(rows)
        sample = Sample(size, seed, int(tensors["sample.bound"]), sample.parts)
        extremes = Extremes()
        if "extremes.rows" in tensors:
            extremes = extremes.with_rows(_rows("extremes", tensors))
        self.survey = Survey(sample, extremes, **json.loads(metadata["survey"]))
        while f"pass {(number := 2 + len(self._expected))}.weight" in tensors:
            indices = range(sum(name.startswith(f"pass {number}.sums ") for name in tensors))
            self._expected[number] = (
                tuple(tensors[f"pass {number}.sums {i}"] for i in indices),
                tuple(tensors[f"pass {number}.log likelihood {i}"] for i in indices),
                tensors[f"pass {number}.weight"].item(),
            )


def finished_passes(path: str | os.PathLike) -> int:
    """Return how many passes a checkpoint holds; 0 if there is none."""
    try:
        _, names = read_tensors(path)
    except (ValueError, OSError):
        return 0
    return sum(name == "sample.bound" or bool(re.fullmatch(r"pass \d+\.weight", name)) for name in names)


def _tensors(name: str, rows: Rows) -> dict[str, Tensor]:
    return {f"{name}.rows": rows.rows, f"{name}.weights": rows.weights, f"{name}.positions": rows.positions}


def _rows(name: str, tensors: dict[str, Tensor]) -> Rows:
    return Rows(*(tensors[f"{name}.{field}"] for field in ("rows", "weights", "positions")))
