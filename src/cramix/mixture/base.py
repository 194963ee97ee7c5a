"""What mixtures on the line and in d dimensions share: the operations of a value."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import Distribution

from cramix.arrays import as_tensor, check_one_device, numpy_in_numpy_out, promoted
from cramix.checks import check_broadcast, check_finite, check_weights
from cramix.mixture.weights import of_samples, pruned
from cramix.torch_internals import readable


class Mixture(Distribution):
    """A mixture of normal components; abstract, see `NormalMixture` and `MultivariateNormalMixture`."""

    has_rsample = True
    # A default of its own: torch's compiler switches that of all distributions off for good.
    _validate_args = __debug__
    __hash__ = None  # type: ignore[assignment] # values that are equal have no common hash

    weights: Tensor
    means: Tensor

    _sample_axes: ClassVar[tuple[str, ...]]  # names of the axes of samples behind the batch

    @classmethod
    def _of_samples(cls, name: str, x: Any, sample_weight: Any = None, validate_args: bool = True) -> Self:
        """Build from samples that errors call by a name; their values are checked only if `validate_args`."""
        if sample_weight is None:
            x = as_tensor(name, x)
        else:
            x, sample_weight = promoted(**{name: x}, sample_weight=sample_weight)
        axes = len(cls._sample_axes)
        if x.ndim < axes or 0 in x.shape[x.ndim - axes :]:
            rule = f"(*batch, {', '.join(cls._sample_axes)}) with {', '.join(cls._sample_axes)} >= 1"
            raise ValueError(f"{name} must be {rule}; got shape {tuple(x.shape)}.")
        weights = of_samples(name, x.shape[: x.ndim - axes + 1], sample_weight, x, validate_args)
        if validate_args and readable(x):
            check_finite(**{name: x})
        return cls._of_atoms(weights, x)

    @classmethod
    @abstractmethod
    def _of_atoms(cls, weights: Tensor, means: Tensor) -> Self:
        """Build from weights and means of points that are known to be valid."""

    @abstractmethod
    def _log_joint(self, value: Tensor) -> Tensor:
        """Return the log density of value and component together, `(*sample, *batch, k)`."""

    @abstractmethod
    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the mixture with a function applied to each of its tensors."""

    @abstractmethod
    def _whole(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights, means, and scales or values of covariances, each with all batch axes."""

    @abstractmethod
    def _of_whole(self, weights: Tensor, means: Tensor, values: Tensor) -> Self:
        """Return a mixture of the same kind from valid tensors as `_whole` has them."""

    @property
    @abstractmethod
    def is_empirical(self) -> bool:
        """Whether the mixture was built from samples, so that its components are known to be points."""

    @property
    @abstractmethod
    def covariance_type(self) -> str:
        """The kind of covariances."""

    @property
    def n_components(self) -> int:
        """Number of components, k."""
        return self.weights.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of all parameters."""
        return self.means.dtype

    @property
    def device(self) -> torch.device:
        """The device of all parameters."""
        return self.means.device

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Return the mixture in another dtype or on another device; arguments are those of `Tensor.to`.

        Example:
            >>> from cramix import NormalMixture
            >>> NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1)).to(torch.float64).dtype
            torch.float64
        """
        wanted = self.means.to(*args, **kwargs)
        if not wanted.is_floating_point():
            raise ValueError(f"dtype must be a floating-point one; got {wanted.dtype}.")
        return self if wanted is self.means else self._map(lambda x: x.to(*args, **kwargs))

    def cpu(self) -> Self:
        """Return the mixture on the CPU."""
        return self.to("cpu")

    def detach(self) -> Self:
        """Return the mixture as a constant, without gradient; memory is shared."""
        return self._map(Tensor.detach)

    def clone(self) -> Self:
        """Return the mixture with memory of its own; gradients flow through."""
        return self._map(Tensor.clone)

    def __len__(self) -> int:
        if not self.batch_shape:
            raise TypeError("a mixture without batch has no length; its number of components is n_components")
        return self.batch_shape[0]

    def __bool__(self) -> bool:
        return True  # rather than by its length, which may be 0 or not exist

    def __getitem__(self, index: Any) -> Self:
        """Return some elements of the batch: numbers, slices, masks and index tensors as for a tensor `(*batch)`.

        Example:
            >>> from cramix import NormalMixture
            >>> p = NormalMixture(torch.ones(3, 1), torch.tensor([[0.0], [1.0], [2.0]]), torch.ones(3, 1))
            >>> p[1:].mean, p[0].batch_shape
            (tensor([1., 2.]), torch.Size([]))
        """
        self.weights[..., 0][index]  # an IndexError of torch's for what is out of range
        index = index if isinstance(index, tuple) else (index,)
        if any(i is Ellipsis for i in index):  # which would take the component axis for one of the batch
            rank = len(self.batch_shape)
            return self._of_whole(*(x[(*index, *(slice(None),) * (x.ndim - rank))] for x in self._whole()))
        return self._of_whole(*(x[index] for x in self._whole()))

    def expand(self, batch_shape: Sequence[int], _instance: None = None) -> Self:
        """Return the mixture with a larger batch shape, sharing memory."""
        try:
            batch = self.weights[..., 0].expand(tuple(batch_shape)).shape
        except RuntimeError:
            raise ValueError(
                f"batch_shape must extend {tuple(self.batch_shape)}; got {tuple(batch_shape)}. Only length 1 grows."
            ) from None
        return self._expanded(batch)

    @abstractmethod
    def _expanded(self, batch: torch.Size) -> Self:
        """Return the mixture with a batch shape that its own expands to."""

    @classmethod
    def stack(cls, mixtures: Sequence[Self], dim: int = 0) -> Self:
        """Return mixtures of one shape as one batch, with a new batch axis `dim`.

        Example:
            >>> from cramix import NormalMixture
            >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
            >>> NormalMixture.stack([p, p.affine(1.0, 2.0)]).mean
            tensor([0., 1.])
        """
        return cls._joined(mixtures, dim, torch.stack, 1)

    @classmethod
    def cat(cls, mixtures: Sequence[Self], dim: int = 0) -> Self:
        """Return batches of mixtures as one, joined along the batch axis `dim`."""
        return cls._joined(mixtures, dim, torch.cat, 0)

    @classmethod
    def _joined(cls, mixtures: Sequence[Self], dim: int, join: Callable[..., Tensor], more: int) -> Self:
        cls._check_same("mixtures", mixtures)
        shapes = {(m.covariance_type, m.n_components, m.event_shape) for m in mixtures}
        if len(shapes) > 1:
            raise ValueError(
                "mixtures must share covariance_type, n_components and event_shape; got "
                f"{', '.join(f'{kind} {k} {tuple(event)}' for kind, k, event in sorted(shapes, key=str))}."
            )
        first, rank = mixtures[0], len(mixtures[0].batch_shape) + more
        if not -rank <= dim < rank:
            raise ValueError(f"dim must be a batch axis from {-rank} to {rank - 1}; got {dim}.")
        parts = [join(tensors, dim % rank) for tensors in zip(*(m._whole() for m in mixtures), strict=True)]
        joined = first._of_whole(*parts)
        joined._validate_args = any(m._validate_args for m in mixtures)
        return joined

    @classmethod
    def _check_same(cls, name: str, mixtures: Sequence[Any]) -> None:
        """Require a list of at least one mixture of this class, on one device."""
        if len(mixtures) == 0:
            raise ValueError(f"{name} must hold at least one mixture; got an empty list.")
        for m in mixtures:
            if not isinstance(m, cls):
                raise ValueError(f"{name} must all be {cls.__name__}; got {type(m).__name__}.")
        check_one_device(**{f"{name}[{i}]": m.means for i, m in enumerate(mixtures)})

    @classmethod
    def _mixing(cls, mixtures: Sequence[Self], weights: Tensor) -> tuple[torch.Size, list[Tensor]]:
        """Check the arguments of `mix`; return the common batch shape and the weights of all components."""
        cls._check_same("mixtures", mixtures)
        if weights.shape[-1:] != (len(mixtures),):
            raise ValueError(
                f"weights must have {len(mixtures)} entries on the last axis, one for each mixture; "
                f"got shape {tuple(weights.shape)}."
            )
        if readable(weights):
            check_weights(weights)
        shapes = {f"mixtures[{i}]": m.batch_shape for i, m in enumerate(mixtures)}
        batch = check_broadcast("Use mixtures of one batch shape.", **shapes, weights=weights.shape[:-1])
        return batch, [m.expand(batch).weights * weights[..., i, None] for i, m in enumerate(mixtures)]

    def __eq__(self, other: object) -> bool:
        """Return whether two mixtures have the same parameters, component by component."""
        if type(self) is not type(other) or not isinstance(other, Mixture):
            return NotImplemented
        same = all(getattr(self, name) == getattr(other, name) for name in ("covariance_type", "dtype", "device"))
        pairs = zip(self._whole(), other._whole(), strict=True)
        return same and all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs)

    @numpy_in_numpy_out
    def responsibilities(self, value: Tensor) -> Tensor:
        """Return the probability of each component given a value, `(*sample, *batch, k)`."""
        return self._log_joint(value).softmax(-1)

    def sort(self, by: str = "means", descending: bool = False) -> Self:
        """Return the mixture with its components in the order of their means or of their weights.

        Args:
            by: "means", of which in d dimensions the first coordinate counts, or "weights".
            descending: whether the largest comes first.
        """
        if by not in ("means", "weights"):
            raise ValueError(f'by must be "means" or "weights"; got {by!r}.')
        means = self.means[..., 0] if self.event_shape else self.means
        keys = means if by == "means" else self.weights
        order = keys.argsort(dim=-1, descending=descending, stable=True)
        return self._components(order, self.weights.gather(-1, order))

    def prune(self, threshold: float = 0.0) -> Self:
        """Return the mixture without components of weight <= threshold; the other weights are rescaled to sum to one.

        In a batch, a component that stays in some elements has weight 0 in the others.
        """
        return self._components(*pruned(self.weights, threshold))

    def component(self, i: int) -> Self:
        """Return the component i alone, as a mixture of one."""
        if not -self.n_components <= i < self.n_components:
            raise IndexError(f"component {i} is out of range for a mixture of {self.n_components}")
        chosen = torch.arange(self.n_components, device=self.device) == i % self.n_components
        return self._components(chosen, torch.ones_like(self.weights[..., :1]))

    @abstractmethod
    def _components(self, chosen: Tensor, weights: Tensor) -> Self:
        """Return the mixture of some components, by a mask `(k,)` or an order `(*batch, k)`, with these weights."""
