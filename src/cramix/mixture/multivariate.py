"""`MultivariateNormalMixture`: a mixture of normal components and points in d dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Self, SupportsIndex, overload

import torch
from torch import Tensor

from cramix.checks import check_broadcast, check_finite, check_floating
from cramix.mixture.components import log_weights, whitened_log_density
from cramix.mixture.multivariate_value import MultivariateComponents
from cramix.mixture.normal import NormalMixture
from cramix.mixture.sampling import drawn, reparameterized
from cramix.torch_internals import readable


class MultivariateNormalMixture(MultivariateComponents):
    """A mixture of multivariate normal distributions, `sum_i weights_i N(means_i, covariances_i)`.

    Args:
        weights: probabilities of the components, `(*batch, k)`, sum to one along the last axis.
        means: `(*batch, k, d)`.
        covariances: matrices `(*batch, k, d, d)`, positive semi-definite (0 is a point), or one of the kinds `Full`,
            `Tied`, `Diagonal`, `Spherical`, `Factor`.
        validate_args: check the values too (shapes always are); yes if None, unless Python runs with -O.

    Example:
        >>> weights, means = torch.tensor([0.5, 0.5]), torch.tensor([[0.0, 0.0], [4.0, 2.0]])
        >>> p = MultivariateNormalMixture(weights, means, torch.eye(2).expand(2, 2, 2))
        >>> p.mean, p.condition([0], torch.tensor([4.0])).mean
        (tensor([2., 1.]), tensor([1.9993]))
    """

    @property
    def mean(self) -> Tensor:
        """`E X`, `(*batch, d)`."""
        return (self.weights.unsqueeze(-1) * self.means).sum(-2)

    @property
    def covariance(self) -> Tensor:
        """`E (X - E X)(X - E X)^T`, `(*batch, d, d)`."""
        offset = self.means - self.mean.unsqueeze(-2)
        between = (self.weights.unsqueeze(-1) * offset).mT @ offset
        within = (self.weights[..., None, None] * self.covariance_kind.matrices(self.dim)).sum(-3)
        return between + within

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate, `(*batch, d)`."""
        return self.covariance.diagonal(dim1=-2, dim2=-1)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density at `(*sample, *batch, d)`; a ValueError where a covariance is singular."""
        return self._log_joint(value).logsumexp(-1)

    def responsibilities(self, value: Tensor) -> Tensor:
        """Return the probability of each component given a value, `(*sample, *batch, k)`."""
        return self._log_joint(value).softmax(-1)

    def project(self, directions: Tensor) -> NormalMixture:
        """Return the distributions of `<X, direction>` for `(t, d)` directions, with batch shape `(*batch, t)`.

        Example:
            >>> p = MultivariateNormalMixture(torch.ones(1), torch.ones(1, 2), torch.eye(2).unsqueeze(0))
            >>> p.project(torch.tensor([[3.0, 4.0]])).mean
            tensor([7.])
        """
        check_floating(directions=directions, means=self.means)
        if directions.ndim != 2 or directions.shape[-1] != self.dim:
            raise ValueError(
                f"directions must be (t, {self.dim}) in {self.dim} dimensions; got {tuple(directions.shape)}. "
                "See cramix.directions."
            )
        if self._validate_args and readable(directions):
            check_finite(directions=directions)
        means = directions @ self.means.mT  # (*batch, t, k)
        weights = self.weights.unsqueeze(-2).expand_as(means)
        return self._univariate(weights, means, self.covariance_kind.scales_along(directions).mT)

    @overload
    def marginal(self, dims: int) -> NormalMixture: ...

    @overload
    def marginal(self, dims: Sequence[int]) -> Self: ...

    def marginal(self, dims: int | Sequence[int]) -> Self | NormalMixture:
        """Return the distribution of some coordinates; for a single number a univariate `NormalMixture`."""
        if isinstance(dims, SupportsIndex) and not isinstance(dims, Tensor):
            (dim,) = self._dims([index(dims)])
            scales = self.covariance_kind.marginal([dim]).scales_along(self.means.new_ones(1, 1)).squeeze(-1)
            return self._univariate(self.weights, self.means[..., dim], scales)
        dims = self._dims(dims)
        return self._like(self.weights, self.means[..., dims], self.covariance_kind.marginal(dims))

    def condition(self, dims: Sequence[int], values: Tensor) -> Self:
        """Return the distribution of the other coordinates, in their order, given that those in `dims` have values.

        Args:
            dims: the m coordinates that are known.
            values: `(*sample, *batch, m)`; the result has batch shape `(*sample, *batch)`.
        """
        given = self._dims(dims)
        rest = [i for i in range(self.dim) if i not in given]
        if not rest:
            raise ValueError(f"dims must leave a coordinate free; got all {self.dim}. See log_prob.")
        known = self._like(self.weights, self.means[..., given], self.covariance_kind.marginal(given))
        log_joint = known._log_joint(values, "values")
        if self._validate_args and readable(values):
            check_finite(values=values)
        gain, left = self.covariance_kind.condition(given, rest)
        means = self.means[..., rest]
        if gain is not None:
            offset = values.unsqueeze(-2) - known.means
            means = means + (gain @ offset.unsqueeze(-1)).squeeze(-1)
        return self._like(log_joint.softmax(-1), means.expand(*log_joint.shape, -1), left)

    def sample(self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draw `(*sample, *batch, d)` values, without gradient."""
        with torch.no_grad():
            return self._drawn(sample_shape, generator)

    def rsample(self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draw `(*sample, *batch, d)` values with gradients to weights, means and covariances.

        The reparameterisation is implicit (Figurnov et al. 2018): a value moves with the parameters so that each
        coordinate's distribution function given the coordinates before it stays, which makes the gradient of any
        expectation unbiased. Where modes are far apart the gradient of the weights rests on rare values between them,
        and needs very many samples. Covariances must be positive definite; points move with their place.
        """
        value = self._drawn(sample_shape, generator)
        moving = any(x.requires_grad for x in (self.weights, self.means, self.covariance_kind.values))
        if self.only_points or not torch.is_grad_enabled() or not moving:
            return value
        self.refuse_points("gradients of rsample")
        return reparameterized(value, self.weights, self.means, self.covariance_kind)

    def _drawn(self, sample_shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
        shape = self._extended_shape(torch.Size(sample_shape))
        if not shape.numel():
            return self.means.new_empty(shape)
        return drawn(self.weights, self.means, self.covariance_kind, shape, generator)

    def _log_joint(self, value: Tensor, name: str = "value") -> Tensor:
        """Return the log density of value and component together, `(*sample, *batch, k)`."""
        check_floating(**{name: value}, means=self.means)
        if value.shape[-1:] != (self.dim,):
            raise ValueError(
                f"{name} must have {self.dim} coordinates on the last axis; got shape {tuple(value.shape)}. "
                f"Use (*sample, *batch, {self.dim})."
            )
        cure = f"These are their axes before the last. Use (*sample, *batch, {self.dim})."
        check_broadcast(cure, **{name: value.shape[:-1]}, mixture=self.batch_shape)
        self.refuse_points("a density")
        if self._validate_args and readable(value) and value.isnan().any():
            raise ValueError(f"{name} must not be NaN; got {int(value.isnan().sum())} of {value.numel()}. Drop them.")
        z, log_diagonal = self.covariance_kind.whiten(value.unsqueeze(-2) - self.means)
        log_density = whitened_log_density(z, log_diagonal)
        # Infinite coordinates may cancel to NaN in z.
        log_density = torch.where(value.isinf().any(-1, keepdim=True), -torch.inf, log_density)
        return log_weights(self.weights) + log_density

    def _univariate(self, weights: Tensor, means: Tensor, scales: Tensor) -> NormalMixture:
        if self.only_points:
            return NormalMixture.from_atoms(weights, means)
        line = NormalMixture(weights, means, scales, validate_args=False)
        line._validate_args = self._validate_args
        return line

    def _dims(self, dims: Sequence[int]) -> list[int]:
        try:
            wanted = [i + self.dim if -self.dim <= i < 0 else i for i in map(index, dims)]
        except TypeError:
            wanted = []
        if not wanted or len(set(wanted)) < len(wanted) or not all(0 <= i < self.dim for i in wanted):
            raise ValueError(
                f"dims must be different coordinates below {self.dim}, at least one; got {dims}. Use a list of numbers."
            )
        return wanted
