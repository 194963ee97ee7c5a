"""Checkpoints of a population on MinAtar: one file of tensors and plain values, which cannot hold code."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cramix.atomic import replacing
from experiments.minatar.population import Population


class Progress(NamedTuple):
    """What a run has done besides its tensors: the time it took, and the rows of its learning curve so far."""

    seconds: float = 0.0
    curve: tuple[tuple[Any, ...], ...] = ()


def write(path: Path, population: Population, progress: Progress) -> None:
    """Write a population to a file, atomically."""
    content = {
        "plan": repr(population.plan),
        "steps": population.steps,
        "generator": population.generator.get_state().cpu(),
        "progress": list(progress),
        "tensors": {name: _pack(x) for name, x in population.tensors().items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        torch.save(content, file)


def restore(path: Path, population: Population) -> Progress:
    """Load the file into a population of the same plan and return its progress; without a file, that of the start."""
    if not path.exists():
        return Progress()
    content = torch.load(path, map_location="cpu", weights_only=True)
    if content["plan"] != repr(population.plan):
        raise ValueError(f"{path} must be a checkpoint of this plan; got another one. Use another folder.")
    for name, x in population.tensors().items():
        _unpack_into(x, content["tensors"][name])
    population.generator.set_state(content["generator"])
    population.steps = content["steps"]
    seconds, curve = content["progress"]
    return Progress(seconds, tuple(tuple(row) for row in curve))


def _pack(x: Tensor) -> Tensor:
    """Return a tensor on the CPU; many booleans as bits, in bytes `(first axis, ...)`."""
    if not _packs(x):
        return x.detach().cpu().clone()
    return torch.stack([_bits(row).cpu() for row in x])


def _unpack_into(x: Tensor, stored: Tensor) -> None:
    if not _packs(x):
        x.copy_(stored)
        return
    shifts = torch.arange(8, dtype=torch.uint8, device=x.device)
    for row, packed in zip(x, stored, strict=True):  # one at a time, to need little memory
        row.copy_((packed.to(x.device).unsqueeze(-1) >> shifts & 1).view(row.shape))


def _packs(x: Tensor) -> bool:
    return x.dtype == torch.bool and x.ndim > 1 and x[0].numel() % 8 == 0


def _bits(row: Tensor) -> Tensor:
    shifts = torch.arange(8, dtype=torch.uint8, device=row.device)
    return (row.reshape(-1, 8).to(torch.uint8) << shifts).sum(-1, dtype=torch.uint8)
