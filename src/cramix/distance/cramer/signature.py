"""The signature that all implementations of the Cramér loss on the line share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.mixture import NormalMixture
from cramix.torch_internals import in_transform, plain_eager


class Operand(NamedTuple):
    """One side of the distance: weights, means and scales `(*batch, k)` in float32 or float64.

    Weights may have any positive sum. Samples have no scales; all of them are atoms.
    """

    weights: Tensor
    means: Tensor
    scales: Tensor | None = None

    @property
    def needs_grad(self) -> bool:
        """Return whether a gradient may be requested; inside a function transform that is unknown, so True."""
        tensors = [x for x in self if x is not None]
        for x in tensors:
            if x.requires_grad and torch.is_grad_enabled():
                return True
        return not plain_eager() and not torch.compiler.is_compiling() and any(map(in_transform, tensors))


class Problem(NamedTuple):
    """Losses to evaluate: of a mixture p and a mixture or atoms q, whose batch shapes broadcast.

    Args:
        p: a mixture.
        q: a mixture or atoms.
        self_energy_q: `1/2 E|Y - Y'|` in float64, `(*batch)`, if q is atoms.
        grad_p: whether to return gradients for p.
        grad_q: the same for q; of atoms without the term `self_energy_q`.
        block: numbers in the temporary arrays of one block, see `kernels.block_size`.
        each: a factor of the gradients, that of a single loss in their total.
    """

    p: Operand
    q: Operand
    self_energy_q: Tensor | None
    grad_p: bool
    grad_q: bool
    block: int | None = None
    each: float = 1.0


class Evaluation(NamedTuple):
    """Losses `(*batch)` and, where requested, their gradients: weights, means and scales stacked, `(3, *batch, k)`.

    The gradient of atoms has no row for scales, `(2, *batch, k)`.
    """

    losses: Tensor
    at_p: Tensor | None
    at_q: Tensor | None


# A way to compute the losses of all batch elements, with their gradients, without autograd.
Implementation = Callable[[Problem], Evaluation]


def operand_of(mixture: NormalMixture) -> Operand:
    """Return a mixture as an operand, in float32 at least, since losses exceed the range of half precision."""
    weights, means, scales = mixture.weights, mixture.means, None if mixture.is_empirical else mixture.scales
    if means.dtype in (torch.float32, torch.float64):
        return Operand(weights, means, scales)
    return Operand(weights.float(), means.float(), None if scales is None else scales.float())


def batch_of(p: Operand, q: Operand) -> torch.Size:
    """Return the shape that the batch shapes of both sides broadcast to."""
    a, b = p.means.shape[:-1], q.means.shape[:-1]
    return a if a == b else torch.broadcast_shapes(a, b)
