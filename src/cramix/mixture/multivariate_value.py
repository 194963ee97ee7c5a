"""The value of a multivariate mixture: weights, means and covariances, how to build them and how to rearrange them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, MixtureSameFamily, constraints

from cramix.checks import check_broadcast, check_finite, check_floating, check_weights
from cramix.mixture import convert
from cramix.mixture.axes import Points
from cramix.mixture.covariance import Covariance
from cramix.mixture.dense import Full
from cramix.mixture.weights import of_logits, of_samples, pruned
from cramix.torch_internals import readable

if TYPE_CHECKING:
    from sklearn.mixture import GaussianMixture


class MultivariateComponents(Distribution):
    """Checked parameters of a multivariate mixture; abstract, see `MultivariateNormalMixture`."""

    arg_constraints = {  # noqa: RUF012
        "weights": constraints.simplex,
        "means": constraints.independent(constraints.real, 2),
        "covariances": constraints.independent(constraints.positive_semidefinite, 1),
    }
    support = constraints.real_vector
    has_rsample = True
    _validate_args = __debug__  # of its own: torch's compiler switches the default of all distributions off for good

    def __init__(
        self, weights: Tensor, means: Tensor, covariances: Tensor | Covariance, validate_args: bool | None = None
    ) -> None:
        self.covariance_kind = covariances if isinstance(covariances, Covariance) else Full(covariances)
        check_floating(weights=weights, means=means, covariances=self.covariance_kind.values)
        if means.ndim < 2 or means.shape[-1] == 0 or means.shape[-2] == 0:
            raise ValueError(f"means must be (*batch, k, d) with k, d >= 1; got {tuple(means.shape)}. Use unsqueeze.")
        shape = check_broadcast(
            "These are their axes (*batch, k), without d.",
            weights=weights.shape,
            means=means.shape[:-1],
            covariances=self.covariance_kind.shape,
        )
        if shape[-1] == 0:
            raise ValueError(f"weights must have k >= 1 components; got shape {tuple(shape)}. Use (*batch, k).")
        dim = means.shape[-1]
        self.covariance_kind.check_shape(dim)
        self.weights = weights if weights.shape == shape else weights.expand(shape)
        self.means = means if means.shape[:-1] == shape else means.expand(*shape, dim)
        super().__init__(shape[:-1], torch.Size((dim,)), validate_args=False)
        self._validate_args = type(self)._validate_args if validate_args is None else validate_args
        if self._validate_args and readable(weights, means, self.covariance_kind.values):
            check_weights(self.weights)
            check_finite(means=means)
            self.covariance_kind.check()

    @classmethod
    def from_logits(
        cls, logits: Tensor, means: Tensor, covariances: Tensor | Covariance, validate_args: bool | None = None
    ) -> Self:
        """Build from unnormalised log weights `(*batch, k)`."""
        check_floating(logits=logits)
        return cls(of_logits(logits), means, covariances, validate_args)

    @classmethod
    def from_samples(cls, x: Tensor, weights: Tensor | None = None, *, name: str = "x") -> Self:
        """Build the empirical distribution of points `(*batch, n, d)`, with weights `(*batch, n)` of any positive sum.

        An error speaks of x by `name`.
        """
        check_floating(**{name: x} if weights is None else {name: x, "weights": weights})
        if x.ndim < 2 or 0 in x.shape[-2:]:
            raise ValueError(
                f"{name} must hold at least one sample, (*batch, n, d); got {tuple(x.shape)}. Add an axis."
            )
        weights = of_samples(name, x.shape[:-1], weights, x)
        if readable(x):
            check_finite(**{name: x})
        points = cls(weights, x, Points(x.new_zeros(1)), validate_args=False)
        points._validate_args = cls._validate_args
        return points

    @classmethod
    def mix(cls, mixtures: Sequence[Self], weights: Tensor) -> Self:
        """Build the mixture of j mixtures in one space, with weights `(*batch, j)`; all but points become full."""
        if len(mixtures) == 0:
            raise ValueError("mixtures must hold at least one mixture; got an empty list. Give one a weight.")
        for m in mixtures:
            if not isinstance(m, MultivariateComponents):
                raise ValueError(
                    f"mixtures must all be MultivariateNormalMixture; got {type(m).__name__}. See from_torch."
                )
        check_floating(**{f"mixtures[{i}]": m.means for i, m in enumerate(mixtures)}, weights=weights)
        dims = {m.dim for m in mixtures}
        if len(dims) > 1 or weights.shape[-1:] != (len(mixtures),):
            raise ValueError(
                "mixtures must share one dimension and weights have one entry a mixture; "
                f"got dimensions {sorted(dims)} and weights {tuple(weights.shape)} for {len(mixtures)} mixtures. "
                "Weights are (*batch, j)."
            )
        if readable(weights):
            check_weights(weights)
        shapes = {f"mixtures[{i}]": m.batch_shape for i, m in enumerate(mixtures)}
        batch = check_broadcast("Use mixtures of one batch shape.", **shapes, weights=weights.shape[:-1])
        grown = [m.expand(batch) for m in mixtures]
        scaled = torch.cat([m.weights * weights[..., i, None] for i, m in enumerate(grown)], -1)
        points = all(m.only_points for m in mixtures)
        covariances = grown[0].covariance_kind if points else Full(torch.cat([m.covariances for m in grown], -3))
        mixed = cls(scaled, torch.cat([m.means for m in grown], -2), covariances, validate_args=False)
        mixed._validate_args = any(m._validate_args for m in mixtures)
        return mixed

    @classmethod
    def from_torch(cls, mixture: MixtureSameFamily) -> Self:
        """Build from torch's mixture of MultivariateNormal, or of Independent(Normal, 1)."""
        return cls(*convert.parts_of_torch(mixture))

    def to_torch(self) -> MixtureSameFamily:
        """Return torch's `MixtureSameFamily(Categorical, MultivariateNormal)`; not possible with points."""
        self.refuse_points("to_torch")
        return convert.to_torch(self)

    @classmethod
    def from_sklearn(cls, model: GaussianMixture) -> Self:
        """Build from a fitted `sklearn.mixture.GaussianMixture`, in its dtype and with its kind of covariances."""
        return cls(*convert.parts_of_sklearn(model))

    def to_sklearn(self) -> GaussianMixture:
        """Return a `sklearn.mixture.GaussianMixture` that predicts, scores and samples as if it had been fitted."""
        return convert.to_sklearn(self)

    def __repr__(self) -> str:
        size = f"batch_shape={tuple(self.batch_shape)}, n_components={self.n_components}, dim={self.dim}"
        return f"{type(self).__name__}({size}, covariances={self.covariance_kind.name})"

    @property
    def n_components(self) -> int:
        """Number of components, k."""
        return self.weights.shape[-1]

    @property
    def dim(self) -> int:
        """Dimension of the space, d."""
        return self.means.shape[-1]

    @property
    def n_parameters(self) -> int:
        """Number of free parameters, as information criteria count them."""
        return self.n_components - 1 + self.means.shape[-2:].numel() + self.covariance_kind.n_parameters(self.dim)

    @property
    def only_points(self) -> bool:
        """Whether the mixture was built from samples, so that every covariance is known to be 0 without looking."""
        return isinstance(self.covariance_kind, Points)

    @property
    def covariances(self) -> Tensor:
        """The components' covariance matrices, `(*batch, k, d, d)`, whatever their kind."""
        matrices = self.covariance_kind.matrices(self.dim)
        return matrices.expand(*self.weights.shape, self.dim, self.dim)

    def affine(self, matrix: Tensor, offset: Tensor | None = None) -> Self:
        """Return the distribution of `matrix X + offset`, for a matrix `(*batch, m, d)` and an offset `(*batch, m)`."""
        check_floating(matrix=matrix, means=self.means)
        offset = matrix.new_zeros(matrix.shape[-2:-1]) if offset is None else offset
        check_floating(offset=offset, means=self.means)
        if matrix.ndim < 2 or matrix.shape[-1] != self.dim or offset.shape[-1:] != matrix.shape[-2:-1]:
            raise ValueError(
                f"matrix must be (*batch, m, {self.dim}) and offset (*batch, m); "
                f"got {tuple(matrix.shape)} and {tuple(offset.shape)}. Batch axes come first."
            )
        shapes = {"matrix": matrix.shape[:-2], "offset": offset.shape[:-1], "mixture": self.batch_shape}
        check_broadcast("These are their batch axes, which come first.", **shapes)
        if self._validate_args and readable(matrix, offset):
            check_finite(matrix=matrix, offset=offset)
        means = self.means @ matrix.mT + offset.unsqueeze(-2)
        return self._like(self.weights, means, self.covariance_kind.transform(matrix))

    def prune(self, threshold: float = 0.0) -> Self:
        """Return the mixture without components of weight <= threshold, the rest scaled up to sum to one.

        In a batch, a component that stays in some elements has weight 0 in those where it goes.
        """
        keep, weights = pruned(self.weights, threshold)
        return self._like(weights, self.means[..., keep, :], self.covariance_kind.take(keep))

    def component(self, i: int) -> Self:
        """Return the component i by itself."""
        chosen = torch.arange(self.n_components, device=self.weights.device) == i
        kind = self.covariance_kind.take(chosen)
        return self._like(torch.ones_like(self.weights[..., :1]), self.means[..., chosen, :], kind)

    def expand(self, batch_shape: Sequence[int], _instance: None = None) -> Self:
        """Return the mixture with a larger batch shape, sharing memory."""
        try:
            shape = (*self.weights[..., 0].expand(batch_shape).shape, self.n_components)
        except RuntimeError:
            raise ValueError(
                f"batch_shape must extend {tuple(self.batch_shape)}; got {tuple(batch_shape)}. Only length 1 grows."
            ) from None
        return self._like(self.weights.expand(shape), self.means.expand(*shape, self.dim), self.covariance_kind)

    def to(self, dtype: torch.dtype) -> Self:
        """Return the mixture in another floating-point dtype; itself if it has that one."""
        if dtype == self.means.dtype:
            return self
        kind = self.covariance_kind
        return self._like(self.weights.to(dtype), self.means.to(dtype), kind.like(kind.values.to(dtype)))

    def refuse_points(self, what: str) -> None:
        """Raise a ValueError if there are points or flat axes, for which `what` is not defined."""
        kind = self.covariance_kind
        flat = kind.axis_aligned and self._validate_args and readable(kind.values) and bool((kind.values <= 0).any())
        if self.only_points or flat:
            raise ValueError(f"covariances must be positive definite for {what}; got a variance of 0. Add a small one.")

    def _like(self, weights: Tensor, means: Tensor, covariances: Covariance) -> Self:
        """A mixture made of this one's, so of valid parts."""
        new = type(self)(weights, means, covariances, validate_args=False)
        new._validate_args = self._validate_args
        return new
