"""Mixtures in files: safetensors, which hold numbers and words and never code."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from cramix.mixture import MultivariateNormalMixture, NormalMixture
from cramix.mixture.covariance import KINDS
from cramix.tensor_files import read_tensors, write_tensors

_FORMAT = "2"


def save(
    mixture: NormalMixture | MultivariateNormalMixture, path: str | os.PathLike, names: Sequence[str] | None = None
) -> None:
    """Write a mixture to a file; what was there before stays whole until the new file is.

    Args:
        mixture: the mixture, of any batch shape.
        path: where to; any name will do, `.safetensors` is usual.
        names: of the d coordinates, to read again by `cramix.io.names`.

    Example:
        >>> import cramix, tempfile
        >>> p = cramix.NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cramix.save(p, f"{folder}/p.safetensors")
        ...     cramix.load(f"{folder}/p.safetensors").scales
        tensor([1.])
    """
    tensors: dict[str, Tensor]
    if isinstance(mixture, NormalMixture):
        kind = "atoms" if mixture.is_empirical else "scales"
        tensors = {"weights": mixture.weights, "means": mixture.means, "scales": mixture.scales}
    elif isinstance(mixture, MultivariateNormalMixture):
        kind = mixture.covariance_type
        tensors = {"weights": mixture.weights, "means": mixture.means, "covariances": mixture.covariance_kind.values}
    else:
        raise ValueError(f"mixture must be a mixture of cramix; got {type(mixture).__name__}. See from_torch.")
    metadata = {"cramix": _FORMAT, "mixture": type(mixture).__name__, "covariance_type": kind}
    if names is not None:
        dim = mixture.event_shape.numel()
        if not _are_names(names, dim):
            raise ValueError(f"names must be a list of {dim} strings; got {names!r}. Give one a coordinate.")
        metadata["names"] = json.dumps(list(names))
    write_tensors(path, tensors, metadata)


def load(path: str | os.PathLike, device: torch.device | str = "cpu") -> NormalMixture | MultivariateNormalMixture:
    """Read a mixture from a file that `save` has written, and check it.

    Args:
        path: of the file.
        device: where the tensors `(k,)`, `(k, d)` and those of the covariances are put.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp()) / "p.safetensors"
        >>> save(NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1)), path)
        >>> load(path)
        NormalMixture(weights=[1], means=[0], scales=[1])
    """
    metadata, tensors = _content(path, device)
    kind, third = (
        metadata.get("covariance_type"),
        "scales" if metadata.get("mixture") == "NormalMixture" else "covariances",
    )
    if set(tensors) != {"weights", "means", third} or (third == "covariances" and kind not in KINDS):
        found = ", ".join(sorted(tensors))
        raise ValueError(
            f"{path} must hold weights, means and {third}; got {found} of kind {kind}. Write it again with save."
        )
    weights, means = tensors["weights"], tensors["means"]
    if kind == "atoms":
        return NormalMixture.from_samples(means, weights)
    if kind == "points":
        return MultivariateNormalMixture.from_samples(means, weights)
    if third == "scales":
        return NormalMixture(weights, means, tensors[third], validate_args=True)
    return MultivariateNormalMixture(weights, means, KINDS[str(kind)](tensors[third]), validate_args=True)


def names(path: str | os.PathLike) -> tuple[str, ...] | None:
    """Return the names of the coordinates of a mixture in a file, None where `save` was given none."""
    dim = load(path).event_shape.numel()
    text = _content(path, "cpu")[0].get("names")
    if text is None:
        return None
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        found = None
    if not _are_names(found, dim):
        raise ValueError(f"{path} must hold {dim} names of coordinates; got {text}. Write it again with save.")
    return tuple(found)


def _are_names(names: object, dim: int) -> bool:
    return isinstance(names, list | tuple) and len(names) == dim and all(isinstance(name, str) for name in names)


def _content(path: str | os.PathLike, device: torch.device | str) -> tuple[dict[str, str], dict[str, Tensor]]:
    metadata, tensors = read_tensors(path, device)
    if metadata.get("cramix") != _FORMAT:
        version = metadata.get("cramix", "none")
        raise ValueError(f"{path} must hold a mixture of format {_FORMAT}; got {version}. Write it with save.")
    return metadata, tensors
