"""Mixtures in files: safetensors, which hold numbers and words and never code."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch

from cramix.mixture import Diagonal, Factor, Full, MultivariateNormalMixture, NormalMixture, Spherical, Tied
from cramix.mixture.axes import Points
from cramix.mixture.covariance import Covariance

_FORMAT = "1"
_KINDS: dict[str, type[Covariance]] = {kind.name: kind for kind in (Full, Tied, Diagonal, Spherical, Factor, Points)}


def save(mixture: NormalMixture | MultivariateNormalMixture, path: str | os.PathLike) -> None:
    """Write a mixture to a file; what was there before stays whole until the new file is.

    Example:
        >>> import cramix
        >>> p = cramix.NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cramix.save(p, f"{folder}/p.safetensors")
        ...     cramix.load(f"{folder}/p.safetensors").scales
        tensor([1.])
    """
    if isinstance(mixture, NormalMixture):
        kind = "atoms" if mixture.only_atoms else "scales"
        tensors = {"weights": mixture.weights, "means": mixture.means, "scales": mixture.scales}
    elif isinstance(mixture, MultivariateNormalMixture):
        kind = mixture.covariance_kind.name
        tensors = {"weights": mixture.weights, "means": mixture.means, "covariances": mixture.covariance_kind.values}
    else:
        raise ValueError(f"mixture must be a mixture of cramix; got {type(mixture).__name__}. See from_torch.")
    metadata = {"cramix": _FORMAT, "mixture": type(mixture).__name__, "covariances": kind}
    content = _safetensors().torch.save({k: x.detach().cpu().contiguous() for k, x in tensors.items()}, metadata)
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike, device: torch.device | str = "cpu") -> NormalMixture | MultivariateNormalMixture:
    """Read a mixture from a file that `save` has written, and check it."""
    safetensors = _safetensors()
    try:
        with safetensors.safe_open(path, framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} must be a whole safetensors file; got: {error}. Write it anew with save.") from None
    if metadata.get("cramix") != _FORMAT:
        version = metadata.get("cramix", "none")
        raise ValueError(f"{path} must hold a mixture of format {_FORMAT}; got {version}. Write it with save.")
    kind, third = metadata.get("covariances"), "scales" if metadata.get("mixture") == "NormalMixture" else "covariances"
    if set(tensors) != {"weights", "means", third} or (third == "covariances" and kind not in _KINDS):
        found = ", ".join(sorted(tensors))
        raise ValueError(f"{path} must hold weights, means and {third}; got {found} of kind {kind}. Write it anew.")
    weights, means = tensors["weights"], tensors["means"]
    if kind == "atoms":
        return NormalMixture.from_samples(means, weights)
    if kind == Points.name:
        return MultivariateNormalMixture.from_samples(means, weights)
    if third == "scales":
        return NormalMixture(weights, means, tensors[third], validate_args=True)
    return MultivariateNormalMixture(weights, means, _KINDS[str(kind)](tensors[third]), validate_args=True)


def _safetensors():
    try:
        import safetensors
        import safetensors.torch
    except ImportError:
        raise ImportError("save and load need safetensors. Use: pip install 'cramix[io]'") from None
    return safetensors


def _umask() -> int:
    """The permissions that new files do not get; reading it means setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
