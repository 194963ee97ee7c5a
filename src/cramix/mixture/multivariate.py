"""`MultivariateNormalMixture`: a mixture of normal components and points in d dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, overload

import torch
from torch import Tensor
from torch.distributions import Distribution, MixtureSameFamily, constraints

from cramix.arrays import as_tensor, numpy_in_numpy_out, promoted
from cramix.checks import check_broadcast, check_finite, check_weights, surely_weights
from cramix.mixture import convert, display, html
from cramix.mixture.base import Mixture
from cramix.mixture.components import log_weights, whitened_log_density
from cramix.mixture.covariance import Covariance, Full, Points
from cramix.mixture.covariance.cholesky import cholesky
from cramix.mixture.covariance.full import Dense
from cramix.mixture.mode import highest_mode
from cramix.mixture.sampling import drawn, normal_nodes, reparameterized
from cramix.mixture.univariate import NormalMixture
from cramix.mixture.weights import of_logits
from cramix.torch_internals import readable

if TYPE_CHECKING:
    from sklearn.mixture import GaussianMixture


class MultivariateNormalMixture(Mixture):
    """A mixture of multivariate normal distributions, `sum_i weights_i N(means_i, covariances_i)`.

    Args:
        weights: probabilities of the components, `(*batch, k)`, which sum to one along the last axis.
        means: `(*batch, k, d)`.
        covariances: matrices `(*batch, k, d, d)`, positive semi-definite (0 is a point), or one of the kinds `Full`,
            `Tied`, `Diagonal`, `Spherical`, `Factor`.
        validate_args: check the values, too (shapes always are); True if None, unless Python runs with -O.

    Example:
        >>> p = MultivariateNormalMixture([0.5, 0.5], [[0.0, 0.0], [4.0, 2.0]], torch.eye(2).expand(2, 2, 2))
        >>> p.mean, p.condition([0], torch.tensor([4.0])).mean
        (tensor([2., 1.]), tensor([1.9993]))
    """

    arg_constraints = {  # noqa: RUF012
        "weights": constraints.simplex,
        "means": constraints.independent(constraints.real, 2),
        "covariances": constraints.independent(constraints.positive_semidefinite, 1),
    }
    support = constraints.real_vector
    _sample_axes = ("n", "d")

    def __init__(
        self, weights: Any, means: Any, covariances: Any | Covariance, validate_args: bool | None = None
    ) -> None:
        kind = covariances if isinstance(covariances, Covariance) else None
        values = covariances if kind is None else kind.values
        weights, means, values = promoted(weights=weights, means=means, covariances=values)
        self.covariance_kind = Full(values) if kind is None else kind if kind.values is values else kind.like(values)
        if means.ndim < 2 or means.shape[-1] == 0 or means.shape[-2] == 0:
            raise ValueError(f"means must be (*batch, k, d) with k, d >= 1; got {tuple(means.shape)}.")
        shape = check_broadcast(
            "These are their axes (*batch, k), without d.",
            weights=weights.shape,
            means=means.shape[:-1],
            covariances=self.covariance_kind.shape,
        )
        if shape[-1] == 0:
            raise ValueError(f"weights must be (*batch, k) with k >= 1; got shape {tuple(shape)}.")
        dim = means.shape[-1]
        self.covariance_kind.check_shape(dim)
        self.weights = weights if weights.shape == shape else weights.expand(shape)
        self.means = means if means.shape[:-1] == shape else means.expand(*shape, dim)
        Distribution.__init__(self, shape[:-1], torch.Size((dim,)), validate_args=False)
        self._validate_args = type(self)._validate_args if validate_args is None else validate_args
        if self._validate_args and readable(weights, means, self.covariance_kind.values) and not self._surely_valid():
            check_weights(self.weights)
            check_finite(means=means)
            self.covariance_kind.check()

    def _surely_valid(self) -> bool:
        """Return whether the values are valid, at the price of one transfer from a GPU; on the CPU checks are cheap."""
        if not self.weights.is_cuda or not self.means.numel():
            return False
        with torch.no_grad():
            return bool(self._evidence())

    def _evidence(self) -> Tensor:
        return surely_weights(self.weights) & self.means.isfinite().all() & self.covariance_kind.surely_valid()

    @classmethod
    def from_logits(cls, logits: Any, means: Any, covariances: Any, validate_args: bool | None = None) -> Self:
        """Build from unnormalised log weights `(*batch, k)`."""
        return cls(of_logits(as_tensor("logits", logits)), means, covariances, validate_args)

    @classmethod
    def from_samples(cls, x: Any, sample_weight: Any = None) -> Self:
        """Build the empirical distribution of samples `(*batch, n, d)`, with weights `(*batch, n)` of any sum > 0."""
        return cls._of_samples("x", x, sample_weight)

    @classmethod
    def _of_atoms(cls, weights: Tensor, means: Tensor) -> Self:
        """Build from weights `(*batch, n)` and means `(*batch, n, d)` that are known to be valid."""
        points = cls(weights, means, Points(means.new_zeros(1)), validate_args=False)
        points._validate_args = cls._validate_args
        return points

    @classmethod
    def mix(cls, mixtures: Sequence[Self], weights: Any) -> Self:
        """Build the mixture of j mixtures in one space, with weights `(*batch, j)`; all but points become full."""
        weights = as_tensor("weights", weights, mixtures[0].means if mixtures else None)
        batch, scaled = cls._mixing(mixtures, weights)
        dims = sorted({m.dim for m in mixtures})
        if len(dims) > 1:
            raise ValueError(f"mixtures must share one dimension; got {dims}.")
        grown = [m.expand(batch) for m in mixtures]
        points = all(m.is_empirical for m in mixtures)
        covariances = grown[0].covariance_kind if points else Full(torch.cat([m.covariances for m in grown], -3))
        mixed = cls(torch.cat(scaled, -1), torch.cat([m.means for m in grown], -2), covariances, validate_args=False)
        mixed._validate_args = any(m._validate_args for m in mixtures)
        return mixed

    @classmethod
    def from_torch(cls, mixture: MixtureSameFamily) -> Self:
        """Build from torch's mixture of MultivariateNormal, or of Independent(Normal, 1)."""
        return cls(*convert.parts_of_torch(mixture))

    def to_torch(self) -> MixtureSameFamily:
        """Return torch's `MixtureSameFamily(Categorical, MultivariateNormal)`; a ValueError where there are points."""
        self._require_density("to_torch")
        return convert.to_torch(self)

    @classmethod
    def from_sklearn(cls, model: GaussianMixture) -> Self:
        """Build from a fitted `sklearn.mixture.GaussianMixture`, in its dtype and with its kind of covariances."""
        return cls(*convert.parts_of_sklearn(model))

    def to_sklearn(self) -> GaussianMixture:
        """Return a `sklearn.mixture.GaussianMixture` that predicts, scores and samples as if it had been fitted."""
        return convert.to_sklearn(self)

    __repr__ = display.of_multivariate
    _repr_html_ = html.of_mixture

    @property
    def dim(self) -> int:
        """Dimension of the space, d."""
        return self.means.shape[-1]

    @property
    def is_empirical(self) -> bool:
        """Whether the mixture was built from samples, so that every covariance is known to be 0."""
        return isinstance(self.covariance_kind, Points)

    @property
    def covariance_type(self) -> str:
        """The kind of covariances: "full", "tied", "diag", "spherical", "factor", or "points" for samples."""
        return self.covariance_kind.name

    @property
    def n_parameters(self) -> int:
        """Number of free parameters, as information criteria count them."""
        return self.n_components - 1 + self.means.shape[-2:].numel() + self.covariance_kind.n_parameters(self.dim)

    @property
    def covariances(self) -> Tensor:
        """The components' covariance matrices, `(*batch, k, d, d)`, whatever their kind."""
        matrices = self.covariance_kind.matrices(self.dim)
        return matrices.expand(*self.weights.shape, self.dim, self.dim)

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

    @property
    def mode(self) -> Tensor:
        """The point of the highest density, `(*batch, d)`, without gradient; a ValueError where there are points."""
        self._require_density("the mode")
        wide = self.detach().to(torch.float64)
        precisions = torch.cholesky_inverse(cholesky(wide.covariances))
        return highest_mode(wide.means, precisions, wide._log_joint).to(self.dtype)

    @numpy_in_numpy_out
    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density at `(*sample, *batch, d)`; a ValueError where a covariance is singular."""
        return self._log_joint(value).logsumexp(-1)

    def entropy(self, n_samples: int = 4096) -> Tensor:
        """Return the differential entropy `-E log f(X)`, `(*batch)`.

        The mean is over quasi-random points of each component: right to rounding for one component, to some 1e-3 for
        several that overlap in a few dimensions. It is deterministic and differentiable.

        Args:
            n_samples: points for each component.
        """
        self._require_density("entropy")
        if self.batch_shape.numel() == 0:
            return self.means.new_empty(self.batch_shape)
        x = self._quasi_samples(n_samples)  # (n, *batch, k, d)
        each = self.log_prob(x.movedim(-2, 0)).mean(1)  # (k, *batch)
        return -(self.weights * each.movedim(0, -1)).sum(-1)

    def _quasi_samples(self, count: int) -> Tensor:
        """Return points `(n, *batch, k, d)` that stand for each component with equal weights."""
        nodes = normal_nodes(count, self.dim, self.means)
        nodes = nodes.reshape(len(nodes), *(1,) * self.weights.ndim, self.dim)
        # Cholesky factors rather than `roots`: eigenvectors, and so the points, differ between devices.
        if isinstance(self.covariance_kind, Dense):
            return self.means + (self.covariance_kind.lower() @ nodes.unsqueeze(-1)).squeeze(-1)
        return self.means + nodes * self.covariance_kind.roots(self.dim)

    def project(self, directions: Tensor) -> NormalMixture:
        """Return the distributions of `<X, direction>` for `(t, d)` directions, with batch shape `(*batch, t)`.

        Example:
            >>> p = MultivariateNormalMixture(torch.ones(1), torch.ones(1, 2), torch.eye(2).unsqueeze(0))
            >>> p.project(torch.tensor([[3.0, 4.0]])).mean
            tensor([7.])
        """
        directions = as_tensor("directions", directions, self.means).to(self.means)
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

    def condition(self, dims: Sequence[int], values: Any) -> Self:
        """Return the distribution of the other coordinates, in their order, given the values of those in `dims`.

        Args:
            dims: the m coordinates that are known.
            values: `(*sample, *batch, m)`; the result has batch shape `(*sample, *batch)`.
        """
        given = self._dims(dims)
        rest = [i for i in range(self.dim) if i not in given]
        if not rest:
            raise ValueError(f"dims must leave at least one coordinate; got all {self.dim}.")
        values = as_tensor("values", values, self.means)
        known = self._like(self.weights, self.means[..., given], self.covariance_kind.marginal(given))
        log_joint = known._log_joint(values, "values")
        if self._validate_args and readable(values):
            check_finite(values=values)
        regression, remaining = self.covariance_kind.condition(given, rest)
        means = self.means[..., rest]
        if regression is not None:
            offset = values.unsqueeze(-2) - known.means
            means = means + (regression @ offset.unsqueeze(-1)).squeeze(-1)
        return self._like(log_joint.softmax(-1), means.expand(*log_joint.shape, -1), remaining)

    def affine(self, loc: Any, scale: Any) -> Self:
        """Return the distribution of `loc + scale X`.

        Args:
            loc: a number, or vectors `(*batch, m)`.
            scale: a number for all coordinates, or a matrix `(*batch, m, d)`.

        Example:
            >>> p = MultivariateNormalMixture(torch.ones(1), torch.ones(1, 2), torch.eye(2).unsqueeze(0))
            >>> p.affine(1.0, 3.0).mean, p.affine([0.0], [[1.0, -1.0]]).mean
            (tensor([4., 4.]), tensor([0.]))
        """
        loc, scale = as_tensor("loc", loc, self.means), as_tensor("scale", scale, self.means)
        wanted = scale.shape[-2:-1] if scale.ndim else self.event_shape
        if scale.ndim == 1 or (scale.ndim and scale.shape[-1] != self.dim) or (loc.ndim and loc.shape[-1:] != wanted):
            raise ValueError(
                f"scale must be a number or a matrix (*batch, m, {self.dim}), and loc a number or (*batch, m); "
                f"got {tuple(scale.shape)} and {tuple(loc.shape)}. For one factor a coordinate use torch.diag."
            )
        shapes = {"loc": loc.shape[:-1], "scale": scale.shape[:-2], "mixture": self.batch_shape}
        check_broadcast("These are their batch axes, which come first.", **shapes)
        if self._validate_args and readable(loc, scale):
            check_finite(loc=loc, scale=scale)
        moved = loc.unsqueeze(-2) if loc.ndim else loc
        if scale.ndim:
            return self._like(self.weights, moved + self.means @ scale.mT, self.covariance_kind.transform(scale))
        return self._like(self.weights, moved + scale * self.means, self.covariance_kind.scale(scale))

    def sample(self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draw `(*sample, *batch, d)` values, without gradient."""
        with torch.no_grad():
            return self._drawn(sample_shape, generator)

    def rsample(self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draw `(*sample, *batch, d)` values with gradients to weights, means and covariances.

        The reparameterisation is implicit (Figurnov et al. 2018): a value moves with the parameters so that each
        coordinate's distribution function given the coordinates before it stays constant, which makes the gradient of
        any expectation unbiased. Where modes are far apart, the gradient of the weights depends on rare values between
        them and needs very many samples. Covariances must be positive definite; points move with their means.
        """
        value = self._drawn(sample_shape, generator)
        moving = any(x.requires_grad for x in (self.weights, self.means, self.covariance_kind.values))
        if self.is_empirical or not torch.is_grad_enabled() or not moving:
            return value
        self._require_density("gradients of rsample")
        return reparameterized(value, self.weights, self.means, self.covariance_kind)

    def _drawn(self, sample_shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
        shape = self._extended_shape(torch.Size(sample_shape))
        if not shape.numel():
            return self.means.new_empty(shape)
        return drawn(self.weights, self.means, self.covariance_kind, shape, generator)

    def _log_joint(self, value: Tensor, name: str = "value") -> Tensor:
        """Return the log density of value and component together, `(*sample, *batch, k)`."""
        value = as_tensor(name, value, self.means)
        if value.shape[-1:] != (self.dim,):
            raise ValueError(f"{name} must be (*sample, *batch, {self.dim}); got shape {tuple(value.shape)}.")
        cure = f"These are their axes before the last. Use (*sample, *batch, {self.dim})."
        check_broadcast(cure, **{name: value.shape[:-1]}, mixture=self.batch_shape)
        self._require_density("a density")
        if self._validate_args and readable(value) and value.isnan().any():
            raise ValueError(f"{name} must not be NaN; got {int(value.isnan().sum())} of {value.numel()}.")
        p = self if value.dtype == self.dtype else self.to(torch.promote_types(self.dtype, value.dtype))
        z, log_diagonal = p.covariance_kind.whiten(value.to(p.dtype).unsqueeze(-2) - p.means)
        log_density = whitened_log_density(z, log_diagonal)
        # Infinite coordinates may cancel to NaN in z.
        log_density = torch.where(value.isinf().any(-1, keepdim=True), -torch.inf, log_density)
        return log_weights(p.weights) + log_density

    def _require_density(self, what: str) -> None:
        """Raise a ValueError if there are points or flat axes, for which `what` is not defined."""
        kind = self.covariance_kind
        flat = kind.axis_aligned and self._validate_args and readable(kind.values) and bool((kind.values <= 0).any())
        if self.is_empirical or flat:
            raise ValueError(f"covariances must be positive definite for {what}; got a variance of 0.")

    def _univariate(self, weights: Tensor, means: Tensor, scales: Tensor) -> NormalMixture:
        if self.is_empirical:
            return NormalMixture._of_atoms(weights, means)
        line = NormalMixture(weights, means, scales, validate_args=False)
        line._validate_args = self._validate_args
        return line

    def _dims(self, dims: Sequence[int]) -> list[int]:
        try:
            wanted = [i + self.dim if -self.dim <= i < 0 else i for i in map(index, dims)]
        except TypeError:
            wanted = []
        if not wanted or len(set(wanted)) < len(wanted) or not all(0 <= i < self.dim for i in wanted):
            raise ValueError(f"dims must be different coordinates from 0 to {self.dim - 1}, at least one; got {dims}.")
        return wanted

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        return self._like(function(self.weights), function(self.means), self.covariance_kind.map(function))

    def _whole(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.weights, self.means, self.covariance_kind.expand(self.batch_shape).values

    def _of_whole(self, weights: Tensor, means: Tensor, values: Tensor) -> Self:
        return self._like(weights, means, self.covariance_kind.like(values))

    def _expanded(self, batch: torch.Size) -> Self:
        shape = (*batch, self.n_components)
        return self._like(self.weights.expand(shape), self.means.expand(*shape, self.dim), self.covariance_kind)

    def _components(self, chosen: Tensor, weights: Tensor) -> Self:
        mask = chosen.dtype == torch.bool
        means = self.means[..., chosen, :] if mask else self.means.take_along_dim(chosen.unsqueeze(-1), -2)
        return self._like(weights, means, self.covariance_kind.take(chosen))

    def _like(self, weights: Tensor, means: Tensor, covariances: Covariance) -> Self:
        """Return a mixture made from parts of this one, which are valid."""
        new = type(self)(weights, means, covariances, validate_args=False)
        new._validate_args = self._validate_args
        return new
