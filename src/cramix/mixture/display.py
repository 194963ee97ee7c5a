"""Mixtures as text and as HTML: the numbers of small ones, the shapes of large ones."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from cramix.mixture.base import Mixture
    from cramix.mixture.multivariate import MultivariateNormalMixture
    from cramix.mixture.univariate import NormalMixture

# Numbers of one tensor that fit into a line, and components in a table.
_MOST_NUMBERS, _MOST_ROWS = 12, 20


def of_univariate(p: NormalMixture) -> str:
    """Return the text for a mixture on the line."""
    if _is_small(p):
        numbers = ", ".join(f"{name}={_text(getattr(p, name))}" for name in ("weights", "means", "scales"))
        return f"{type(p).__name__}({numbers}{_kind(p)})"
    return f"{type(p).__name__}(batch_shape={tuple(p.batch_shape)}, n_components={p.n_components}{_kind(p)})"


def of_multivariate(p: MultivariateNormalMixture) -> str:
    """Return the text for a mixture in d dimensions."""
    shape = f"n_components={p.n_components}, dim={p.dim}, covariance_type={p.covariance_type!r}{_kind(p)}"
    if _is_small(p):
        return f"{type(p).__name__}(weights={_text(p.weights)}, means={_text(p.means)}, {shape})"
    return f"{type(p).__name__}(batch_shape={tuple(p.batch_shape)}, {shape})"


def html(p: Mixture) -> str:
    """Return a table of components for a notebook; of a batch only the text."""
    if p.batch_shape or p.means.is_meta:
        return f"<pre>{escape(repr(p))}</pre>"
    deviations = p.scales if not p.event_shape else p.covariances.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()  # type: ignore[attr-defined]
    order = p.weights.detach().argsort(descending=True, stable=True)[:_MOST_ROWS].tolist()
    rows = "".join(
        f"<tr><td>{i}</td><td>{p.weights[i].item():.4f}</td><td>{escape(_text(p.means[i]))}</td>"
        f"<td>{escape(_text(deviations[i]))}</td></tr>"
        for i in order
    )
    left = p.n_components - len(order)
    more = f"<tr><td colspan=4>and {left} more</td></tr>" if left else ""
    head = "<tr><th>component</th><th>weight</th><th>mean</th><th>standard deviation</th></tr>"
    title = f"{type(p).__name__}, {p.n_components} components{_kind(p)}"
    return f"<table><caption>{escape(title)}</caption>{head}{rows}{more}</table>"


def _is_small(p: Mixture) -> bool:
    return not p.batch_shape and p.means.numel() <= _MOST_NUMBERS and not p.means.is_meta and type(p.means) is Tensor


def _kind(p: Mixture) -> str:
    """Return what is not the default: dtype and device."""
    dtype = "" if p.dtype == torch.get_default_dtype() else f", dtype={p.dtype}"
    return dtype if p.device.type == "cpu" else f"{dtype}, device={str(p.device)!r}"


def _text(x: Tensor) -> str:
    """Return numbers in brackets, with four digits."""
    if x.ndim == 0:
        return f"{x.item():.4g}"
    return f"[{', '.join(_text(part) for part in x.detach())}]"
