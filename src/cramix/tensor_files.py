"""Named tensors in files: safetensors, which hold numbers and words and never code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cramix.atomic import replacing


def write_tensors(path: str | os.PathLike, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors and words to a file; what was there before stays whole until the new file is."""
    content = require_safetensors().torch.save({k: x.detach().cpu().contiguous() for k, x in tensors.items()}, metadata)
    with replacing(path) as file:
        file.write(content)


def read_tensors(
    path: str | os.PathLike, device: torch.device | str = "cpu"
) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the words and the tensors of a file."""
    safetensors = require_safetensors()
    try:
        with safetensors.safe_open(path, framework="pt", device=str(device)) as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} must be a whole safetensors file; got: {error}. Write it again with save.") from None


def require_safetensors() -> Any:
    """Return safetensors, or raise an ImportError that names the pip command."""
    try:
        import safetensors
        import safetensors.torch
    except ImportError:
        raise ImportError("save and load need safetensors. Use: pip install 'cramix[io]'") from None
    return safetensors
