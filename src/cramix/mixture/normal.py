"""`NormalMixture`: a one-dimensional mixture of normal components and atoms."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Normal, constraints

from cramix.checks import (
    check_broadcast,
    check_finite,
    check_floating,
    check_mixture,
    check_weights,
    check_within,
    readable,
)
from cramix.mixture import components
from cramix.mixture.quantile import quantile, reparameterized
from cramix.mixture.risk import expectile, lower_cvar
from cramix.quadrature import gauss_legendre, panel_edges


class NormalMixture(Distribution):
    """A mixture of univariate normal distributions, `sum_i weights_i N(means_i, scales_i^2)`.

    Args:
        weights: probabilities of the components, `(*batch, k)`, sum to one along the last axis.
        means: `(*batch, k)`.
        scales: standard deviations >= 0, `(*batch, k)`; a scale of 0 is an atom.
        validate_args: check the values too (shapes always are); torch's default if None.

    Example:
        >>> p = NormalMixture(torch.tensor([0.3, 0.7]), torch.tensor([-1.0, 2.0]), torch.tensor([0.5, 1.0]))
        >>> p.mean, p.cdf(torch.tensor(2.0)), p.icdf(torch.tensor(0.65))
        (tensor(1.1000), tensor(0.6500), tensor(2.0000))
    """

    arg_constraints = {  # noqa: RUF012
        "weights": constraints.simplex,
        "means": constraints.real_vector,
        "scales": constraints.independent(constraints.nonnegative, 1),
    }
    support = constraints.real
    has_rsample = True

    def __init__(self, weights: Tensor, means: Tensor, scales: Tensor, validate_args: bool | None = None) -> None:
        check_floating(weights=weights, means=means, scales=scales)
        if weights.shape == means.shape == scales.shape:
            shape = weights.shape
        else:
            cure = "Each is (*batch, components)."
            shape = check_broadcast(cure, weights=weights.shape, means=means.shape, scales=scales.shape)
            weights, means, scales = weights.expand(shape), means.expand(shape), scales.expand(shape)
        if not shape or shape[-1] == 0:
            raise ValueError(
                f"weights must have a component axis of length >= 1; got shape {tuple(shape)}. Use (*batch, k)."
            )
        self.weights, self.means, self.scales = weights, means, scales
        # Checked here rather than by torch's constraints, which take longer than the Cramér distance itself.
        super().__init__(shape[:-1], torch.Size(), validate_args=False)
        self._validate_args = Distribution._validate_args if validate_args is None else validate_args
        self._only_atoms = False
        if self._validate_args and readable(weights, means, scales):
            check_mixture(weights, means, scales)

    @classmethod
    def from_logits(
        cls, logits: Tensor, means: Tensor, scales: Tensor, validate_args: bool | None = None
    ) -> NormalMixture:
        """Build from unnormalised log weights `(*batch, k)`."""
        check_floating(logits=logits, means=means, scales=scales)
        return cls(logits.softmax(-1), means, scales, validate_args)

    @classmethod
    def from_samples(cls, x: Tensor, weights: Tensor | None = None) -> NormalMixture:
        """Build the empirical distribution of points `(*batch, n)`: atoms, with weights >= 0 of any positive sum.

        Example:
            >>> NormalMixture.from_samples(torch.tensor([1.0, 2.0, 4.0]), weights=torch.tensor([1.0, 1.0, 2.0])).mean
            tensor(2.7500)
        """
        check_floating(**{"x": x} if weights is None else {"x": x, "weights": weights})
        if x.ndim == 0 or x.shape[-1] == 0:
            raise ValueError(f"x must hold at least one sample; got shape {tuple(x.shape)}. Use (*batch, n).")
        if weights is None:
            weights = x.new_full((), 1 / x.shape[-1]).expand(x.shape)
        else:
            check_broadcast("Give one weight a sample.", x=x.shape, weights=weights.shape)
            total = weights.sum(-1, keepdim=True)
            if readable(weights) and (weights.amin() < 0 or not bool((total > 0).all())):
                raise ValueError(
                    f"weights must be >= 0 with a positive sum; got min {weights.amin().item():.3g} and "
                    f"sum {total.amin().item():.3g}. Drop samples of no weight."
                )
            weights = weights / total
        if readable(x, weights):
            check_finite(x=x, weights=weights)
        atoms = cls(weights, x, torch.zeros((), dtype=x.dtype, device=x.device), validate_args=False)
        atoms._only_atoms = True
        return atoms

    @classmethod
    def from_torch(cls, mixture: MixtureSameFamily) -> NormalMixture:
        """Build from torch's `MixtureSameFamily(Categorical, Normal)`."""
        normal = mixture.component_distribution
        if not isinstance(normal, Normal):
            raise ValueError(
                f"mixture must have Normal components; got {type(normal).__name__}. Convert its components."
            )
        return cls(mixture.mixture_distribution.probs, normal.loc, normal.scale)

    @classmethod
    def from_normals(cls, normals: Sequence[Normal], weights: Tensor | None = None) -> NormalMixture:
        """Build from a list of k torch `Normal`s of one batch shape, with equal weights if none are given, `(*batch, k)`."""
        if len(normals) == 0:
            raise ValueError("normals must hold at least one Normal; got an empty list.")
        means, scales = (torch.stack([getattr(n, name) for n in normals], -1) for name in ("loc", "scale"))
        return cls(torch.full_like(means, 1 / len(normals)) if weights is None else weights, means, scales)

    @classmethod
    def mix(cls, mixtures: Sequence[NormalMixture], weights: Tensor) -> NormalMixture:
        """Build the mixture of j mixtures of one batch shape, with weights `(*batch, j)`; its components are all of theirs.

        Example:
            >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
            >>> NormalMixture.mix([p, p.affine(1.0, 2.0)], torch.tensor([0.25, 0.75])).weights
            tensor([0.2500, 0.7500])
        """
        if len(mixtures) == 0:
            raise ValueError("mixtures must hold at least one mixture; got an empty list.")
        check_floating(**{f"mixtures[{i}]": m.means for i, m in enumerate(mixtures)}, weights=weights)
        if weights.shape[-1:] != (len(mixtures),):
            raise ValueError(
                f"weights must have one entry a mixture, {len(mixtures)}, on the last axis; got shape {tuple(weights.shape)}."
            )
        if readable(weights):
            check_weights(weights)
        shapes = {f"mixtures[{i}]": m.batch_shape for i, m in enumerate(mixtures)}
        batch = check_broadcast("Use mixtures of one batch shape.", **shapes, weights=weights.shape[:-1])
        scaled = [m.expand(batch).weights * weights[..., i, None] for i, m in enumerate(mixtures)]
        means, scales = ([getattr(m.expand(batch), name) for m in mixtures] for name in ("means", "scales"))
        return cls(torch.cat(scaled, -1), torch.cat(means, -1), torch.cat(scales, -1), validate_args=False)

    def to_torch(self) -> MixtureSameFamily:
        """Return torch's `MixtureSameFamily(Categorical, Normal)`; not possible with atoms."""
        self.refuse_atoms("to_torch")
        return MixtureSameFamily(Categorical(probs=self.weights), Normal(self.means, self.scales))

    def expand(self, batch_shape: Sequence[int], _instance: None = None) -> NormalMixture:
        """Return the mixture with a larger batch shape, sharing memory."""
        shape = (*batch_shape, self.n_components)
        return self._like(self.weights.expand(shape), self.means.expand(shape), self.scales.expand(shape))

    def affine(self, loc: Tensor | float, scale: Tensor | float) -> NormalMixture:
        """Return the distribution of `loc + scale * X`; loc and scale are numbers or `(*batch)`.

        Example:
            >>> NormalMixture(torch.ones(1), torch.ones(1), torch.ones(1)).affine(3.0, -2.0).mean
            tensor(1.)
        """
        loc, scale = (torch.as_tensor(t, dtype=self.means.dtype, device=self.means.device) for t in (loc, scale))
        batch = check_broadcast(
            "loc and scale are numbers or (*batch).", loc=loc.shape, scale=scale.shape, mixture=self.batch_shape
        )
        if self._validate_args and readable(loc, scale):
            check_finite(loc=loc, scale=scale)
        loc, scale = loc.unsqueeze(-1), scale.unsqueeze(-1)
        shape = (*batch, self.n_components)
        return self._like(
            self.weights.expand(shape),
            (loc + scale * self.means).expand(shape),
            (scale.abs() * self.scales).expand(shape),
        )

    def sort(self) -> NormalMixture:
        """Return the mixture with its components in the order of their means."""
        order = self.means.argsort(-1)
        return self._like(*(t.gather(-1, order) for t in (self.weights, self.means, self.scales)))

    def prune(self, threshold: float = 0.0) -> NormalMixture:
        """Return the mixture without components of weight <= threshold, the rest scaled up to sum to one.

        In a batch, a component that stays in some elements has weight 0 in those where it goes.
        """
        keep = self.weights > threshold
        if not bool(keep.any(-1).all()):
            raise ValueError(
                f"threshold must leave a component; got {threshold:g}, max weight {self.weights.amax(-1).min().item():.3g}."
            )
        left = torch.where(keep, self.weights, 0)
        columns = keep.reshape(-1, self.n_components).any(0)
        return self._like(
            (left / left.sum(-1, keepdim=True))[..., columns], self.means[..., columns], self.scales[..., columns]
        )

    @property
    def n_components(self) -> int:
        """Number of components, k."""
        return self.weights.shape[-1]

    @property
    def only_atoms(self) -> bool:
        """Whether the mixture was built from samples, so that every scale is known to be 0 without looking."""
        return self._only_atoms

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
        offset, spread = self.means - self.mean.unsqueeze(-1), self.scales.square()
        return (self.weights * (offset.pow(3) + 3 * offset * spread)).sum(-1) / self.variance.pow(1.5)

    @property
    def kurtosis(self) -> Tensor:
        """Fourth standardised moment less the 3 of a normal distribution, `(*batch)`."""
        offset, spread = self.means - self.mean.unsqueeze(-1), self.scales.square()
        fourth = offset.pow(4) + 6 * offset.square() * spread + 3 * spread.square()
        return (self.weights * fourth).sum(-1) / self.variance.square() - 3

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log density, `(*sample, *batch)`, finite in both tails; a ValueError where there are atoms."""
        self.refuse_atoms("log_prob")
        terms = components.log_density(self._points(value), self.means, self.scales)
        return (components.log_weights(self.weights) + terms).logsumexp(-1)

    def cdf(self, value: Tensor) -> Tensor:
        """Return `F(x) = P(X <= x)`, `(*sample, *batch)`, to relative accuracy in the left tail."""
        return (self.weights * components.cdf(self._points(value), self.means, self.scales)).sum(-1)

    def log_cdf(self, value: Tensor) -> Tensor:
        """Return `log F(x)`, `(*sample, *batch)`, finite in the left tail as far as `x^2` is."""
        terms = components.log_cdf(self._points(value), self.means, self.scales)
        return (components.log_weights(self.weights) + terms).logsumexp(-1)

    def prob(self, low: Tensor, high: Tensor) -> Tensor:
        """Return `P(low < X <= high)`, `(*sample, *batch)`, to relative accuracy in either tail.

        Example:
            >>> NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1)).prob(torch.tensor(9.0), torch.tensor(10.0))
            tensor(1.1285e-19)
        """
        low, high = self._points(low), self._points(high)
        left = components.cdf(high, self.means, self.scales) - components.cdf(low, self.means, self.scales)
        right = components.survival(low, self.means, self.scales) - components.survival(high, self.means, self.scales)
        return (self.weights * torch.where(low > self.means, right, left)).sum(-1)

    def icdf(self, value: Tensor) -> Tensor:
        """Return the quantile `inf {x: F(x) >= u}`, `(*sample, *batch)`, for levels u in [0, 1].

        It is solved in float64 by a safeguarded Newton method, to 1e-12 there, and is differentiable in the level, the
        weights (along the simplex), the means and the scales.
        """
        self._check_level("value", value, 0.0)
        return quantile(value, self.weights, self.means, self.scales)

    def expectile(self, tau: Tensor | float) -> Tensor:
        """Return e with `tau E(X - e)+ = (1 - tau) E(e - X)+` for tau in (0, 1), `(*sample, *batch)`; 0.5 is the mean."""
        tau = torch.as_tensor(tau, dtype=self.means.dtype, device=self.means.device)
        smallest = torch.finfo(tau.dtype).tiny
        self._check_level("tau", tau, smallest, 1 - torch.finfo(tau.dtype).eps / 2)
        return expectile(tau, self.weights, self.means, self.scales)

    def cvar(self, alpha: Tensor | float, tail: str = "lower") -> Tensor:
        """Return the mean of the lowest (or with `tail="upper"` the highest) fraction alpha in (0, 1] of outcomes.

        Example:
            >>> NormalMixture.from_samples(torch.tensor([0.0, 1.0, 2.0, 9.0])).cvar(0.5)
            tensor(0.5000)
        """
        alpha = torch.as_tensor(alpha, dtype=self.means.dtype, device=self.means.device)
        self._check_level("alpha", alpha, torch.finfo(alpha.dtype).tiny)
        if tail not in ("lower", "upper"):
            raise ValueError(f'tail must be "lower" or "upper"; got {tail!r}.')
        if tail == "lower":
            return lower_cvar(alpha, self.weights, self.means, self.scales)
        return -lower_cvar(alpha, self.weights, -self.means, self.scales)

    def entropy(self) -> Tensor:
        """Return the differential entropy `-E log f(X)`, `(*batch)`, by quadrature to 1e-9 in float64."""
        self.refuse_atoms("entropy")
        shape = (-1, self.n_components)
        with torch.no_grad():
            edges = panel_edges(
                self.means.detach().double().reshape(shape), self.scales.detach().double().reshape(shape)
            )
            x, weights = gauss_legendre(edges)  # (B, nodes)
        nodes = x.T.reshape(-1, *self.batch_shape).to(self.means.dtype)
        log_density = self.log_prob(nodes)
        return -(weights.T.reshape(nodes.shape) * log_density.exp() * log_density).sum(0).to(self.means.dtype)

    def sample(self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draw `(*sample, *batch)` values, without gradient."""
        with torch.no_grad():
            shape = self._extended_shape(torch.Size(sample_shape))
            if not shape.numel():
                return self.means.new_empty(shape)
            # Inverting the weights' distribution function has no limit on the number of components, as multinomial has.
            mass = self.weights.double().cumsum(-1).reshape(-1, self.n_components)
            draws = torch.rand(shape, generator=generator, device=mass.device, dtype=mass.dtype)
            draws = draws.reshape(-1, mass.shape[0]).T * mass[:, -1:]
            index = torch.searchsorted(mass, draws.contiguous(), right=True).clamp_max(self.n_components - 1)
            index = index.T.reshape(*shape, 1)
            mean, scale = (t.expand(*shape, -1).gather(-1, index).squeeze(-1) for t in (self.means, self.scales))
            noise = torch.randn(shape, generator=generator, device=mean.device, dtype=mean.dtype)
            return mean + scale * noise

    def rsample(self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draw `(*sample, *batch)` values with gradients to weights, means and scales.

        The reparameterisation is implicit (Figurnov et al. 2018): a value moves with the parameters so that F(x) stays,
        which makes the gradient of any expectation unbiased. A value on an atom moves with that atom.
        """
        return reparameterized(self.sample(sample_shape, generator), self.weights, self.means, self.scales)

    def refuse_atoms(self, what: str) -> None:
        """Raise a ValueError if there are atoms, for which `what` is not defined."""
        if self._only_atoms or (self._validate_args and readable(self.scales) and (self.scales == 0).any()):
            raise ValueError(
                f"scales must be > 0 for {what}; got 0, an atom, which has no density. Use cdf, or a small scale."
            )

    def _like(self, weights: Tensor, means: Tensor, scales: Tensor) -> NormalMixture:
        """A mixture made of this one's, so of valid parts."""
        new = NormalMixture(weights, means, scales, validate_args=False)
        new._validate_args, new._only_atoms = self._validate_args, self._only_atoms
        return new

    def _points(self, value: Tensor) -> Tensor:
        """Check values `(*sample, *batch)` and give them a component axis."""
        check_floating(value=value, means=self.means)
        check_broadcast("Values are (*sample, *batch).", value=value.shape, mixture=self.batch_shape)
        if self._validate_args and readable(value) and value.isnan().any():
            raise ValueError(f"value must not be NaN; got {int(value.isnan().sum())} of {value.numel()}. Drop them.")
        return value.unsqueeze(-1)

    def _check_level(self, name: str, level: Tensor, low: float, high: float = 1.0) -> None:
        check_floating(**{name: level}, means=self.means)
        check_broadcast("Levels are (*sample, *batch).", **{name: level.shape}, mixture=self.batch_shape)
        if self._validate_args and readable(level):
            check_within(name, level, low, high)
