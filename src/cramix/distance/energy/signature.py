"""The signature that all implementations of the energy distance share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.distance.energy.flat_mixtures import Side
from cramix.distance.energy.nodes import Nodes
from cramix.distance.energy.numpy_or_torch import Array, as_like
from cramix.distance.energy.self_energy import SelfEnergy


class KnownEnergy(NamedTuple):
    """The self energy of a constant side, `1/2 E|Y - Y'|`: numbers, or an object that has it for any nodes."""

    energy: Tensor | SelfEnergy
    rows: Tensor | None  # (B,), which mixture of the side a batch element has; its own if None

    def at(self, nodes: Nodes, unit: Array) -> Array:
        """Return it in units, `(B,)`."""
        if isinstance(self.energy, Tensor):
            return as_like(self.energy if self.rows is None else self.energy[self.rows], unit) / unit
        return as_like(self.energy.at(nodes, unit, self.rows), unit)


def no_energy(batch: torch.Size, like: Tensor) -> KnownEnergy:
    """Return a self energy of 0 for each batch element, for a side whose term is left out."""
    return KnownEnergy(like.new_zeros(batch.numel(), dtype=torch.float64), None)


class Problem(NamedTuple):
    """Distances to evaluate: of components to components or points, or of points to points.

    Args:
        p: one side, flat, with weights of any positive sum.
        q: the other; points come second if only one side is points.
        known_p: the self energy of components p, if it need not be computed.
        known_q: the same for q, if p is components; always given for points with a covariance.
        tolerance: error of a mean distance, relative to the size of the problem.
        grad_p: whether to return derivatives for p.
        grad_q: the same for q.
        block: numbers in the temporary arrays of one block, see `kernels.block_size`.
    """

    p: Side
    q: Side
    known_p: KnownEnergy | None
    known_q: KnownEnergy | None
    tolerance: float
    grad_p: bool
    grad_q: bool
    block: int | None = None


class Evaluation(NamedTuple):
    """Distances `(B,)` in float64, and their derivatives in the tensors of each side, none where not requested."""

    distances: Array
    at_p: tuple[Array, ...] = ()
    at_q: tuple[Array, ...] = ()


# A way to compute the distances of all batch elements, with their derivatives, without autograd.
Implementation = Callable[[Problem], Evaluation]
