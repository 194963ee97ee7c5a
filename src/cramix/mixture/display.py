"""Mixtures as text: the numbers of small ones, the shapes of large ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cramix.torch_internals import readable

if TYPE_CHECKING:
    from cramix.mixture.base import Mixture
    from cramix.mixture.multivariate import MultivariateNormalMixture
    from cramix.mixture.univariate import NormalMixture

# Numbers of one tensor that fit into a line.
_MOST_NUMBERS = 12


def of_univariate(p: NormalMixture) -> str:
    """Return the text for a mixture on the line."""
    if _is_small(p):
        numbers = ", ".join(f"{name}={_text(getattr(p, name))}" for name in ("weights", "means", "scales"))
        return f"{type(p).__name__}({numbers}{kind(p)})"
    return f"{type(p).__name__}(batch_shape={tuple(p.batch_shape)}, n_components={p.n_components}{kind(p)})"


def of_multivariate(p: MultivariateNormalMixture) -> str:
    """Return the text for a mixture in d dimensions."""
    shape = f"n_components={p.n_components}, dim={p.dim}, covariance_type={p.covariance_type!r}{kind(p)}"
    if _is_small(p):
        return f"{type(p).__name__}(weights={_text(p.weights)}, means={_text(p.means)}, {shape})"
    return f"{type(p).__name__}(batch_shape={tuple(p.batch_shape)}, {shape})"


def _is_small(p: Mixture) -> bool:
    return not p.batch_shape and p.means.numel() <= _MOST_NUMBERS and are_numbers(p)


def are_numbers(p: Mixture) -> bool:
    """Return whether there are numbers to show: not on the meta device, nor inside a transformation of torch's."""
    return type(p.means) is Tensor and readable(*p._whole())


def kind(p: Mixture) -> str:
    """Return what is not the default: dtype and device."""
    dtype = "" if p.dtype == torch.get_default_dtype() else f", dtype={p.dtype}"
    return dtype if p.device.type == "cpu" else f"{dtype}, device={str(p.device)!r}"


def _text(x: Tensor) -> str:
    """Return numbers in brackets, with four digits."""
    if x.ndim == 0:
        return f"{x.item():.4g}"
    return f"[{', '.join(_text(part) for part in x.detach())}]"
