"""Archives: zip files of JSON and safetensors, which cannot hold code."""

from __future__ import annotations

import errno
import json
import os
import zipfile
import zlib
from typing import Any, BinaryIO

from torch import Tensor

from cramix.tensor_files import require_safetensors

# Errors raised when malformed content is interpreted.
MALFORMED: tuple[type[Exception], ...] = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError)


def pack(file: BinaryIO, name: str, metadata: dict[str, Any], **tensors: dict[str, Tensor]) -> None:
    """Write metadata and tensors, from any device.

    Args:
        file: to write into.
        name: of the JSON file in the archive.
        metadata: plain values.
        tensors: dictionaries of tensors, by the name of their safetensors file.
    """
    safetensors = require_safetensors().torch
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}.json", json.dumps(metadata, indent=1))
        for part, named in tensors.items():
            here = {key: x.detach().cpu().clone().contiguous() for key, x in named.items()}
            archive.writestr(f"{part}.safetensors", safetensors.save(here))


def unpack(path: str | os.PathLike | BinaryIO, name: str, *parts: str) -> tuple[Any, list[dict[str, Tensor]]]:
    """Read metadata and tensors written by `pack`; a damaged archive raises a ValueError with the reason."""
    safetensors = require_safetensors()
    try:
        with zipfile.ZipFile(path) as archive:  # it verifies checksums
            metadata = json.loads(archive.read(f"{name}.json"))
            return metadata, [safetensors.torch.load(archive.read(f"{part}.safetensors")) for part in parts]
    except OSError as error:
        if error.errno != errno.EINVAL:  # a negative offset in a damaged archive
            raise
        raise ValueError(str(error)) from None
    except (*MALFORMED, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, safetensors.SafetensorError) as error:
        raise ValueError(str(error).partition("\n")[0].rstrip(".") or type(error).__name__) from None
