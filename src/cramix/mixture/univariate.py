"""`NormalMixture`: a mixture of normal components and atoms on the line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal, constraints

from cramix.arrays import as_tensor, numpy_in_numpy_out, promoted
from cramix.checks import check_broadcast, check_finite, check_mixture, check_within
from cramix.mixture import components, display, html
from cramix.mixture.base import Mixture
from cramix.mixture.mode import highest_mode
from cramix.mixture.quantile import quantile, reparameterized
from cramix.mixture.risk import expectile, lower_cvar
from cramix.mixture.weights import draw, of_logits
from cramix.quadrature import gauss_legendre, panel_edges
from cramix.torch_internals import readable

_SHAPES = "Each is (*batch, k)."


class NormalMixture(Mixture):
    """A mixture of univariate normal distributions, `sum_i weights_i N(means_i, scales_i^2)`.

    Args:
        weights: probabilities of the components, `(*batch, k)`, which sum to one along the last axis.
        means: `(*batch, k)`.
        scales: standard deviations >= 0, `(*batch, k)`; a component of scale 0 is an atom.
        validate_args: check the values, too (shapes always are); True if None, unless Python runs with -O.

    Example:
        >>> p = NormalMixture(torch.tensor([0.3, 0.7]), torch.tensor([-1.0, 2.0]), torch.tensor([0.5, 1.0]))
        >>> p
        NormalMixture(weights=[0.3, 0.7], means=[-1, 2], scales=[0.5, 1])
        >>> p.mean, p.cdf(2.0), p.icdf(0.65)
        (tensor(1.1000), tensor(0.6500), tensor(2.0000))
    """

    arg_constraints = {  # noqa: RUF012
        "weights": constraints.simplex,
        "means": constraints.real_vector,
        "scales": constraints.independent(constraints.nonnegative, 1),
    }
    support = constraints.real
    _sample_axes = ("n",)

    def __init__(self, weights: Any, means: Any, scales: Any, validate_args: bool | None = None) -> None:
        weights, means, scales = promoted(weights=weights, means=means, scales=scales)
        if weights.shape == means.shape == scales.shape:
            shape = weights.shape
        else:
            shape = check_broadcast(_SHAPES, weights=weights.shape, means=means.shape, scales=scales.shape)
            weights, means, scales = weights.expand(shape), means.expand(shape), scales.expand(shape)
        if not shape or shape[-1] == 0:
            raise ValueError(f"weights must be (*batch, k) with k >= 1; got shape {tuple(shape)}.")
        self.weights, self.means, self.scales = weights, means, scales
        # Set here rather than by torch's constructor, whose checks take longer than the Cramér distance itself.
        self._batch_shape, self._event_shape = shape[:-1], torch.Size()
        self._validate_args = type(self)._validate_args if validate_args is None else validate_args
        self._is_empirical = False
        if self._validate_args:
            check_mixture(weights, means, scales)

    @classmethod
    def from_logits(cls, logits: Any, means: Any, scales: Any, validate_args: bool | None = None) -> Self:
        """Build from unnormalised log weights `(*batch, k)`."""
        logits, means, scales = promoted(logits=logits, means=means, scales=scales)
        shape = check_broadcast(_SHAPES, logits=logits.shape, means=means.shape, scales=scales.shape)
        return cls(of_logits(logits.expand(shape)), means, scales, validate_args)

    @classmethod
    def from_samples(cls, x: Any, sample_weight: Any = None) -> Self:
        """Build the empirical distribution of samples `(*batch, n)`: atoms, with weights >= 0 of any positive sum.

        Example:
            >>> NormalMixture.from_samples(torch.tensor([1.0, 2.0, 4.0]), sample_weight=[1, 1, 2]).mean
            tensor(2.7500)
        """
        return cls._of_samples("x", x, sample_weight)

    @classmethod
    def _of_atoms(cls, weights: Tensor, means: Tensor) -> Self:
        """Build from weights and means `(*batch, n)` that are known to be valid."""
        atoms = cls(weights, means, means.new_zeros(()), validate_args=False)
        atoms._validate_args, atoms._is_empirical = cls._validate_args, True
        return atoms

    @classmethod
    def from_torch(cls, mixture: MixtureSameFamily) -> Self:
        """Build from torch's `MixtureSameFamily(Categorical, Normal)`."""
        normal = mixture.component_distribution if isinstance(mixture, MixtureSameFamily) else mixture
        if not isinstance(mixture, MixtureSameFamily) or not isinstance(normal, Normal):
            raise ValueError(f"mixture must be a MixtureSameFamily of Normal; got {type(normal).__name__}.")
        return cls(mixture.mixture_distribution.probs, normal.loc, normal.scale)

    def to_torch(self) -> MixtureSameFamily:
        """Return torch's `MixtureSameFamily(Categorical, Normal)`; a ValueError where there are atoms."""
        self._require_density("to_torch")
        return MixtureSameFamily(Categorical(probs=self.weights), Normal(self.means, self.scales))

    @classmethod
    def from_normals(cls, normals: Sequence[Normal], weights: Any = None) -> Self:
        """Build from k torch `Normal`s of one batch shape, with weights `(*batch, k)`; equal ones if None."""
        if len(normals) == 0:
            raise ValueError("normals must hold at least one Normal; got an empty list.")
        for n in normals:
            if not isinstance(n, Normal):
                raise ValueError(f"normals must all be Normal; got {type(n).__name__}.")
        shapes = {f"normals[{i}]": n.batch_shape for i, n in enumerate(normals)}
        shape = check_broadcast("Use Normals of one batch shape.", **shapes)
        means, scales = (
            torch.stack(
                promoted(**{f"normals[{i}]": getattr(n, name).expand(shape) for i, n in enumerate(normals)}), -1
            )
            for name in ("loc", "scale")
        )
        return cls(torch.full_like(means, 1 / len(normals)) if weights is None else weights, means, scales)

    @classmethod
    def mix(cls, mixtures: Sequence[Self], weights: Any) -> Self:
        """Build the mixture of j mixtures, with weights `(*batch, j)`; its components are all of theirs.

        Example:
            >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
            >>> NormalMixture.mix([p, p.affine(1.0, 2.0)], [0.25, 0.75]).weights
            tensor([0.2500, 0.7500])
        """
        weights = as_tensor("weights", weights, mixtures[0].means if mixtures else None)
        batch, scaled = cls._mixing(mixtures, weights)
        means, scales = ([getattr(m.expand(batch), name) for m in mixtures] for name in ("means", "scales"))
        mixed = cls(torch.cat(scaled, -1), torch.cat(means, -1), torch.cat(scales, -1), validate_args=False)
        mixed._validate_args = any(m._validate_args for m in mixtures)
        mixed._is_empirical = all(m.is_empirical for m in mixtures)
        return mixed

    __repr__ = display.of_univariate
    _repr_html_ = html.of_mixture

    @property
    def is_empirical(self) -> bool:
        """Whether the mixture was built from samples, so that every scale is known to be 0."""
        return self._is_empirical

    @property
    def covariance_type(self) -> str:
        """On the line all kinds are one."""
        return "full"

    @property
    def n_parameters(self) -> int:
        """Number of free parameters, as information criteria count them."""
        return 3 * self.n_components - 1

    @property
    def mean(self) -> Tensor:
        """`E X`, `(*batch)`."""
        return (self.weights * self.means).sum(-1)

    @property
    def variance(self) -> Tensor:
        """`E (X - E X)^2`, `(*batch)`."""
        offset = self.means - self.mean.unsqueeze(-1)
        return (self.weights * (offset.square() + self.scales.square())).sum(-1)

    @property
    def skewness(self) -> Tensor:
        """Third standardised moment, `(*batch)`."""
        offset, variances = self.means - self.mean.unsqueeze(-1), self.scales.square()
        return (self.weights * (offset.pow(3) + 3 * offset * variances)).sum(-1) / self.variance.pow(1.5)

    @property
    def kurtosis(self) -> Tensor:
        """Excess kurtosis, the fourth standardised moment minus 3, `(*batch)`."""
        offset, variances = self.means - self.mean.unsqueeze(-1), self.scales.square()
        fourth = offset.pow(4) + 6 * offset.square() * variances + 3 * variances.square()
        return (self.weights * fourth).sum(-1) / self.variance.square() - 3

    @property
    def mode(self) -> Tensor:
        """The point of the highest density, `(*batch)`, without gradient; a ValueError where there are atoms."""
        self._require_density("the mode")
        wide = self.detach().to(torch.float64)
        precisions = wide.scales.square().reciprocal()[..., None, None]
        found = highest_mode(wide.means.unsqueeze(-1), precisions, lambda x: wide._log_joint(x.squeeze(-1)))
        return found.squeeze(-1).to(self.dtype)

    @numpy_in_numpy_out
    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density, `(*sample, *batch)`, finite in both tails; a ValueError where there are atoms."""
        return self._log_joint(value).logsumexp(-1)

    @numpy_in_numpy_out
    def cdf(self, value: Tensor) -> Tensor:
        """Return `F(x) = P(X <= x)`, `(*sample, *batch)`, to relative accuracy in the left tail."""
        return (self.weights * components.cdf(self._points(value), self.means, self.scales)).sum(-1)

    @numpy_in_numpy_out
    def log_cdf(self, value: Tensor) -> Tensor:
        """Return `log F(x)`, `(*sample, *batch)`, finite in the left tail as far as `x^2` is."""
        terms = components.log_cdf(self._points(value), self.means, self.scales)
        return (components.log_weights(self.weights) + terms).logsumexp(-1)

    @numpy_in_numpy_out
    def prob(self, low: Tensor, high: Any) -> Tensor:
        """Return `P(low < X <= high)`, `(*sample, *batch)`, to relative accuracy in either tail.

        Example:
            >>> NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1)).prob(9.0, 10.0)
            tensor(1.1285e-19)
        """
        low, high = self._points(low, "low"), self._points(as_tensor("high", high, self.means), "high")
        high = torch.maximum(*torch.broadcast_tensors(low, high))  # an empty interval has probability 0
        left = components.cdf(high, self.means, self.scales) - components.cdf(low, self.means, self.scales)
        right = components.survival(low, self.means, self.scales) - components.survival(high, self.means, self.scales)
        return (self.weights * torch.where(low > self.means, right, left)).sum(-1)

    @numpy_in_numpy_out
    def icdf(self, value: Tensor) -> Tensor:
        """Return the quantile `inf {x: F(x) >= u}`, `(*sample, *batch)`, for levels u in [0, 1].

        It is solved in float64 by a safeguarded Newton method, to 1e-12 there, and is differentiable in the level, the
        weights (along the simplex), the means and the scales.
        """
        return quantile(*self._at_levels("value", value, "[0, 1]"))

    @numpy_in_numpy_out
    def expectile(self, tau: Tensor) -> Tensor:
        """Return e with `tau E(X - e)+ = (1 - tau) E(e - X)+`, `(*sample, *batch)`; tau = 0.5 is the mean."""
        return expectile(*self._at_levels("tau", tau, "(0, 1)"))

    @numpy_in_numpy_out
    def cvar(self, alpha: Tensor, tail: str = "lower") -> Tensor:
        """Return the mean of the lowest (or with `tail="upper"` the highest) fraction alpha in (0, 1] of outcomes.

        Example:
            >>> NormalMixture.from_samples(torch.tensor([0.0, 1.0, 2.0, 9.0])).cvar(0.5)
            tensor(0.5000)
        """
        alpha, weights, means, scales = self._at_levels("alpha", alpha, "(0, 1]")
        if tail not in ("lower", "upper"):
            raise ValueError(f'tail must be "lower" or "upper"; got {tail!r}.')
        sign = 1 if tail == "lower" else -1
        return sign * lower_cvar(alpha, weights, sign * means, scales)

    def entropy(self) -> Tensor:
        """Return the differential entropy `-E log f(X)`, `(*batch)`, by quadrature, to 1e-9 in float64.

        The nodes are as finely spaced as numbers of the size of the means: a scale below 1e-7 of a mean costs digits.
        """
        self._require_density("entropy")
        if self.batch_shape.numel() == 0:
            return self.means.new_empty(self.batch_shape)
        x, mass = self.to(torch.float64)._quadrature()
        log_density = self.to(torch.float64).log_prob(x).clamp_min(-1e3)  # f log f is 0 below
        return -(mass * log_density.exp() * log_density).sum(0).to(self.dtype)

    def _quadrature(self) -> tuple[Tensor, Tensor]:
        """Return nodes and weights `(n, *batch)` of a rule for integrals of smooth functions times the density."""
        with torch.no_grad():
            shape = (-1, self.n_components)
            x, weights = gauss_legendre(panel_edges(self.means.reshape(shape), self.scales.reshape(shape)))  # (B, n)
        return x.T.reshape(-1, *self.batch_shape), weights.T.reshape(-1, *self.batch_shape)

    def sample(self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draw `(*sample, *batch)` values, without gradient."""
        with torch.no_grad():
            shape = self._extended_shape(torch.Size(sample_shape))
            if not shape.numel():
                return self.means.new_empty(shape)
            index = draw(self.weights, shape, generator).unsqueeze(-1)
            mean, scale = (t.expand(*shape, -1).gather(-1, index).squeeze(-1) for t in (self.means, self.scales))
            noise = torch.randn(shape, generator=generator, device=mean.device, dtype=mean.dtype)
            return mean + scale * noise

    def rsample(self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draw `(*sample, *batch)` values with gradients to weights, means and scales.

        The reparameterisation is implicit (Figurnov et al. 2018): a value moves with the parameters so that F(x) stays
        constant, which makes the gradient of any expectation unbiased. Where modes are far apart, the gradient of the
        weights depends on rare values between them and needs very many samples. A value on an atom moves with it.
        """
        return reparameterized(self.sample(sample_shape, generator), self.weights, self.means, self.scales)

    def affine(self, loc: Any, scale: Any) -> Self:
        """Return the distribution of `loc + scale * X`; loc and scale are numbers or `(*batch)`.

        Example:
            >>> NormalMixture(torch.ones(1), torch.ones(1), torch.ones(1)).affine(3.0, -2.0).mean
            tensor(1.)
        """
        loc, scale = as_tensor("loc", loc, self.means), as_tensor("scale", scale, self.means)
        batch = check_broadcast("Use numbers or (*batch).", loc=loc.shape, scale=scale.shape, mixture=self.batch_shape)
        if self._validate_args and readable(loc, scale):
            check_finite(loc=loc, scale=scale)
        loc, scale = loc.unsqueeze(-1), scale.unsqueeze(-1)
        shape = (*batch, self.n_components)
        means, scales = loc + scale * self.means, scale.abs() * self.scales
        return self._like(self.weights.expand(shape), means.expand(shape), scales.expand(shape))

    def _require_density(self, what: str) -> None:
        """Raise a ValueError if there are atoms, for which `what` is not defined."""
        if self._is_empirical or (self._validate_args and readable(self.scales) and (self.scales == 0).any()):
            raise ValueError(f"scales must be > 0 for {what}; got 0, an atom, which has no density.")

    def _log_joint(self, value: Tensor) -> Tensor:
        """Return the log density of value and component together, `(*sample, *batch, k)`."""
        self._require_density("a density")
        terms = components.log_density(self._points(value), self.means, self.scales)
        return components.log_weights(self.weights) + terms

    def _points(self, value: Tensor, name: str = "value") -> Tensor:
        """Check values `(*sample, *batch)` and give them a component axis."""
        value = as_tensor(name, value, self.means)
        check_broadcast("Values are (*sample, *batch).", **{name: value.shape}, mixture=self.batch_shape)
        if self._validate_args and readable(value) and value.isnan().any():
            raise ValueError(f"{name} must not be NaN; got {int(value.isnan().sum())} of {value.numel()}.")
        return value.unsqueeze(-1)

    def _at_levels(self, name: str, level: Any, interval: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Check levels `(*sample, *batch)`, and return them with the parameters, all of one dtype."""
        level = as_tensor(name, level, self.means)
        each = (*level.shape, *(1,) * len(self.batch_shape))
        cure = f"Levels are (*sample, *batch): for the same levels of each mixture use shape {each}."
        check_broadcast(cure, **{name: level.shape}, mixture=self.batch_shape)
        if self._validate_args and readable(level):
            check_within(name, level, interval)
        parameters = {"weights": self.weights, "means": self.means, "scales": self.scales}
        return promoted(**{name: level}, **parameters)  # type: ignore[return-value]

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        return self._like(function(self.weights), function(self.means), function(self.scales))

    def _whole(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.weights, self.means, self.scales

    def _of_whole(self, weights: Tensor, means: Tensor, values: Tensor) -> Self:
        return self._like(weights, means, values)

    def _expanded(self, batch: torch.Size) -> Self:
        return self._map(lambda x: x.expand(*batch, self.n_components))

    def _components(self, chosen: Tensor, weights: Tensor) -> Self:
        if chosen.dtype == torch.bool:
            return self._like(weights, self.means[..., chosen], self.scales[..., chosen])
        return self._like(weights, self.means.gather(-1, chosen), self.scales.gather(-1, chosen))

    def _like(self, weights: Tensor, means: Tensor, scales: Tensor) -> Self:
        """Return a mixture made from parts of this one, which are valid."""
        new = type(self)(weights, means, scales, validate_args=False)
        new._validate_args, new._is_empirical = self._validate_args, self._is_empirical
        return new
