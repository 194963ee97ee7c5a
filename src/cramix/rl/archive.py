"""Archives: a zip of JSON and safetensors, which holds words and numbers and never code."""

from __future__ import annotations

import errno
import json
import os
import zipfile
import zlib
from typing import Any, BinaryIO

from torch import Tensor

from cramix.io import require_safetensors

# What making something of wrong words raises.
NONSENSE: tuple[type[Exception], ...] = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError)


def pack(file: BinaryIO, name: str, words: dict[str, Any], **parts: dict[str, Tensor]) -> None:
    """Write words and tensors, from wherever they are.

    Args:
        file: to write into.
        name: of the words in the archive.
        words: plain values.
        parts: tensors by name, by the name of the part.
    """
    tensors = require_safetensors().torch
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}.json", json.dumps(words, indent=1))
        for part, named in parts.items():
            here = {key: x.detach().cpu().clone().contiguous() for key, x in named.items()}
            archive.writestr(f"{part}.safetensors", tensors.save(here))


def unpack(path: str | os.PathLike | BinaryIO, name: str, *parts: str) -> tuple[Any, list[dict[str, Tensor]]]:
    """Read words and parts that `pack` has written; a ValueError says what is wrong with an archive that is damaged."""
    safetensors = require_safetensors()
    try:
        with zipfile.ZipFile(path) as archive:  # which knows by checksums what is damaged
            words = json.loads(archive.read(f"{name}.json"))
            return words, [safetensors.torch.load(archive.read(f"{part}.safetensors")) for part in parts]
    except OSError as error:
        if error.errno != errno.EINVAL:  # a place before the beginning, which a damaged archive may name
            raise
        raise ValueError(str(error)) from None
    except (*NONSENSE, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, safetensors.SafetensorError) as error:
        raise ValueError(str(error).partition("\n")[0].rstrip(".") or type(error).__name__) from None
