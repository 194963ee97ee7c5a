"""What a distance is taken between: mixtures or samples, checked at the door and brought to one form."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cramix.checks import check_broadcast, check_floating, in_transform, plain_eager
from cramix.mixture import MultivariateNormalMixture, NormalMixture

_CURES = {
    "MultivariateNormalMixture": "Use sliced_cramer_loss, or project.",
    "NormalMixture": "Use cramer_loss.",
    "MixtureSameFamily": "Convert it with from_torch.",
}


class Operand(NamedTuple):
    """Weights, means and scales `(*batch, k)` in float32 or float64; no scales for samples, which are all atoms."""

    weights: Tensor
    means: Tensor
    scales: Tensor | None

    @property
    def needs_grad(self) -> bool:
        """Whether gradients may be asked for; inside a function transform that cannot be known, so yes."""
        weights, means, scales = self
        tensors = (weights, means) if scales is None else (weights, means, scales)
        for x in tensors:
            if x.requires_grad and torch.is_grad_enabled():
                return True
        return not plain_eager() and not torch.compiler.is_compiling() and any(map(in_transform, tensors))


def operands(p: NormalMixture | Tensor, q: NormalMixture | Tensor) -> tuple[Operand, Operand, torch.dtype]:
    """Return both sides of a distance and the dtype of its result, float32 at least: losses leave half's range."""
    p, q = _mixture("p", p), _mixture("q", q)
    check_floating(p=p.means, q=q.means)
    check_broadcast("Batch shapes are all axes but the last.", p=p.batch_shape, q=q.batch_shape)
    dtype = torch.float64 if p.means.dtype == torch.float64 else torch.float32
    return _operand(p, dtype), _operand(q, dtype), dtype


def _mixture(name: str, side: NormalMixture | Tensor) -> NormalMixture:
    if isinstance(side, NormalMixture):
        return side
    if isinstance(side, Tensor):
        return NormalMixture.from_samples(side, name=name)
    raise ValueError(f"{name} must be a NormalMixture or a tensor of samples; {_got(side)}")


def _operand(side: NormalMixture, dtype: torch.dtype) -> Operand:
    weights, means, scales = side.weights, side.means, None if side.only_atoms else side.scales
    if means.dtype == dtype:
        return Operand(weights, means, scales)
    return Operand(weights.to(dtype), means.to(dtype), None if scales is None else scales.to(dtype))


def multivariate_operands(
    p: MultivariateNormalMixture | Tensor, q: MultivariateNormalMixture | Tensor
) -> tuple[MultivariateNormalMixture, MultivariateNormalMixture]:
    """Return both sides of a distance as mixtures in one space, with batch shapes that broadcast."""
    p, q = _multivariate("p", p), _multivariate("q", q)
    check_floating(p=p.means, q=q.means)
    if p.dim != q.dim:
        raise ValueError(f"p and q must have one dimension; got {p.dim} and {q.dim}. See marginal and affine.")
    check_broadcast("Batch shapes come before components.", p=p.batch_shape, q=q.batch_shape)
    return p, q


def _multivariate(name: str, side: MultivariateNormalMixture | Tensor) -> MultivariateNormalMixture:
    if isinstance(side, MultivariateNormalMixture):
        return side
    if isinstance(side, Tensor):
        return MultivariateNormalMixture.from_samples(side, name=name)
    raise ValueError(f"{name} must be a MultivariateNormalMixture or a tensor of samples (*batch, n, d); {_got(side)}")


def _got(side: object) -> str:
    name = type(side).__name__
    return f"got {name}. {_CURES.get(name, 'Use torch.as_tensor for samples.')}"


def common_batch(
    p: NormalMixture | MultivariateNormalMixture, q: NormalMixture | MultivariateNormalMixture
) -> torch.Size:
    """Require two mixtures in one space, and return what their batch shapes broadcast to."""
    check_floating(p=p.means, q=q.means)
    if p.event_shape != q.event_shape:
        raise ValueError(
            f"p and q must live in one space; got event shapes {tuple(p.event_shape)} and {tuple(q.event_shape)}. "
            "See marginal and affine."
        )
    return check_broadcast("Batch shapes come before components.", p=p.batch_shape, q=q.batch_shape)
