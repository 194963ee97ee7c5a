"""The energy distance of multivariate mixtures and points for autograd."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from cramix.accelerator import runs_triton
from cramix.distance.energy import ladder, point_pairs
from cramix.distance.energy.flat_mixtures import Components, Points, Side
from cramix.distance.energy.self_energy import SelfEnergy
from cramix.distance.energy.signature import KnownEnergy, Problem, no_energy
from cramix.distance.energy.transforms import chained, ordinary, transformable_energy
from cramix.mixture import Factor, MultivariateNormalMixture
from cramix.torch_internals import in_transform, plain_eager

# Up to this many components, and this many uses in a batch, the pairs within a side are summed with all others.
_FEW_COMPONENTS, _FEW_USES = 16, 64
# The same for kernels on a GPU, which would have to wait for the self energy.
_FEW_COMPONENTS_ON_GPU = 128

Energy = Tensor | SelfEnergy


class Operand(NamedTuple):
    """A side of the distance, and its self energy if that is already known."""

    mixture: MultivariateNormalMixture
    energy: Energy | None = None

    @property
    def needs_grad(self) -> bool:
        """Return whether a gradient may be requested; inside a function transform that is unknown, so True."""
        return requires_grad(self.mixture) or any(map(in_transform, _parameters(self.mixture)))


def requires_grad(mixture: MultivariateNormalMixture) -> bool:
    """Return whether autograd records operations on the parameters of a mixture."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in _parameters(mixture))


def _parameters(mixture: MultivariateNormalMixture) -> tuple[Tensor, Tensor, Tensor]:
    return mixture.weights, mixture.means, mixture.covariance_kind.values


def energy_distance(
    p: Operand,
    q: Operand,
    tolerance: float,
    *,
    target_self_energy: bool = True,
    backend: str = "auto",
    block: int | None = None,
) -> Tensor:
    """Return `E|X - Y| - 1/2 E|X - X'| - 1/2 E|Y - Y'|`, `(*batch)`.

    Without `target_self_energy` the last term is left out: then p is a mixture, and q points or a constant mixture.
    """
    batch = p.mixture.batch_shape
    if batch != q.mixture.batch_shape:
        batch = torch.broadcast_shapes(batch, q.mixture.batch_shape)
    if not batch.numel():
        parts = [x.sum() for side in (p, q) for x in _parameters(side.mixture)]
        return torch.stack(parts).sum().expand(batch)  # empty, but with gradients
    if target_self_energy and _cheaper_swapped(p, q):
        p, q = q, p
    eager, grad_p, grad_q = plain_eager(), p.needs_grad, q.needs_grad
    known_p = known_q = None
    if eager and not p.mixture.is_empirical:
        known_p = _known(p, batch, tolerance, block)
        known_q = _known(q, batch, tolerance, block) if target_self_energy else no_energy(batch, q.mixture.means)
    p_kind, q_kind = _kind(p.mixture, False), _kind(q.mixture, known_q is not None)
    p_tensors, q_tensors = _tensors(p.mixture, q.mixture, p_kind), _tensors(q.mixture, p.mixture, q_kind)
    if not eager:
        of_p, of_q = _flat(p_tensors, batch, p_kind), _flat(q_tensors, batch, q_kind)
        return transformable_energy(of_p, of_q, grad_p, grad_q, tolerance, target_self_energy).reshape(batch)
    # On the CPU calls are a quarter cheaper in inference mode. On a GPU the copies of its results cost more than that.
    with torch.no_grad() if p.mixture.means.is_cuda else torch.inference_mode():
        a, b = p_kind(*_flat(p_tensors, batch, p_kind)), q_kind(*_flat(q_tensors, batch, q_kind))
        problem = Problem(a, b, known_p, known_q, tolerance, grad_p, grad_q, block)
        found = ladder.evaluate(problem, backend)
    distances = ordinary(found.distances)
    if target_self_energy:
        distances.clamp_min_(0)  # rounding may take it below 0; the gradient stays
    distances = distances.to(p.mixture.means.dtype).view(batch)
    if not (grad_p or grad_q):
        return distances
    at = *(found.at_p or (None,) * len(p_tensors)), *(found.at_q or (None,) * len(q_tensors))
    known = [None if x is None else ordinary(x) for x in at]
    return _WithGradients.apply((distances, known), *p_tensors, *q_tensors)


def self_energy_of(mixture: MultivariateNormalMixture, tolerance: float, block: int | None = None) -> Energy:
    """Return the self energy `1/2 E|Y - Y'|` of a constant mixture: numbers of points, else for any quadrature nodes.

    It is a sum over all pairs, O(n^2).
    """
    kind = _kind(mixture, constant=True)
    with torch.no_grad():
        tensors = _flat(_tensors(mixture, mixture, kind), mixture.batch_shape, kind)
        if mixture.is_empirical:
            weights, points = tensors
            return point_pairs.self_energy(points, weights, block)
        return SelfEnergy(kind(*tensors), tolerance, block)


def _cheaper_swapped(p: Operand, q: Operand) -> bool:
    """Return whether the distance, which is symmetric, takes less work from q to p."""
    if p.mixture.is_empirical or q.mixture.is_empirical:
        return p.mixture.is_empirical and not q.mixture.is_empirical
    return not p.needs_grad and (q.needs_grad or p.mixture.n_components > q.mixture.n_components)


def _known(side: Operand, batch: torch.Size, tolerance: float, block: int | None) -> KnownEnergy | None:
    """Return the self energy of a side that stays the same; None where it is as well summed with the rest."""
    mixture, energy = side
    shape = mixture.batch_shape
    if energy is None:
        few = mixture.n_components <= _FEW_COMPONENTS and batch.numel() <= _FEW_USES * shape.numel()
        if runs_triton(mixture.means) and mixture.means.dtype == torch.float32:
            few = mixture.n_components <= _FEW_COMPONENTS_ON_GPU
        if side.needs_grad or (few and not mixture.is_empirical):
            return None
        energy = self_energy_of(mixture, tolerance, block)
    rows = None
    if shape != batch:
        rows = torch.arange(shape.numel(), device=mixture.means.device).view(shape).expand(batch).reshape(-1)
    return KnownEnergy(energy, rows)


def _kind(mixture: MultivariateNormalMixture, constant: bool) -> type[Side]:
    """Return the form of a side; a constant one is points if its components share a covariance."""
    return Points if mixture.is_empirical or (constant and mixture.covariance_kind.shared) else Components


class _WithGradients(Function):
    """Distances `(*batch)` whose gradients in some tensors are known, `(B, *)` each; None for those without."""

    @staticmethod
    def forward(ctx, distances_and_gradients, *tensors):
        distances, known = distances_and_gradients
        ctx.save_for_backward(*tensors, *known)
        return distances

    @staticmethod
    def backward(ctx, grad):
        return None, *chained(grad, ctx.saved_tensors)


def _tensors(
    mixture: MultivariateNormalMixture, other: MultivariateNormalMixture, kind: type[Side]
) -> tuple[Tensor, ...]:
    """Return weights, means and covariances, if there are any, in a form that suits both sides."""
    weights, means, covariances = mixture.weights, mixture.means, mixture.covariance_kind
    if mixture.is_empirical:
        return weights, means
    if isinstance(covariances, Factor):
        covariances = covariances.map(Tensor.double)  # the product would round in float32
    dense = not covariances.axis_aligned or not (other.is_empirical or other.covariance_kind.axis_aligned)
    values, axes = (covariances.matrices(mixture.dim), 2) if dense else (covariances.compact(), 1)
    if not dense and not other.is_empirical and other.covariance_kind.compact().shape[-1] > 1:
        values = values.expand(*values.shape[:-1], mixture.dim)
    k = mixture.n_components
    if kind is Points:
        values, k = values.narrow(-1 - axes, 0, 1), 1
    whole = (*mixture.batch_shape, k, *values.shape[-axes:])
    return weights, means, values if values.shape == whole else values.expand(whole)


def _flat(tensors: tuple[Tensor, ...], batch: torch.Size, kind: type[Side]) -> tuple[Tensor, ...]:
    """Return tensors with one flat batch axis, of length 1 for points that the whole batch shares."""
    shape = tensors[0].shape[:-1]
    if shape != batch:
        if kind is Points and shape.numel() == 1:
            batch = shape
        tensors = tuple(x.expand(*batch, *x.shape[len(shape) :]) for x in tensors)
    rows = batch.numel()
    return tuple(x.reshape(rows, *x.shape[len(batch) :]) for x in tensors)
