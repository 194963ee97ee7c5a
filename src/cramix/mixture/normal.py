"""`NormalMixture`: a one-dimensional mixture of normal components and atoms."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cramix.checks import check_broadcast, check_floating, check_within
from cramix.mixture import components
from cramix.mixture.quantile import quantile, reparameterized
from cramix.mixture.risk import expectile, lower_cvar
from cramix.mixture.value import NormalComponents
from cramix.mixture.weights import draw
from cramix.quadrature import gauss_legendre, panel_edges
from cramix.torch_internals import readable


class NormalMixture(NormalComponents):
    """A mixture of univariate normal distributions, `sum_i weights_i N(means_i, scales_i^2)`.

    Args:
        weights: probabilities of the components, `(*batch, k)`, sum to one along the last axis.
        means: `(*batch, k)`.
        scales: standard deviations >= 0, `(*batch, k)`; a scale of 0 is an atom.
        validate_args: check the values too (shapes always are); yes if None, unless Python runs with -O.

    Example:
        >>> p = NormalMixture(torch.tensor([0.3, 0.7]), torch.tensor([-1.0, 2.0]), torch.tensor([0.5, 1.0]))
        >>> p.mean, p.cdf(torch.tensor(2.0)), p.icdf(torch.tensor(0.65))
        (tensor(1.1000), tensor(0.6500), tensor(2.0000))
    """

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
        low, high = self._points(low, "low"), self._points(high, "high")
        high = torch.maximum(low, high)  # an empty interval has probability 0
        left = components.cdf(high, self.means, self.scales) - components.cdf(low, self.means, self.scales)
        right = components.survival(low, self.means, self.scales) - components.survival(high, self.means, self.scales)
        return (self.weights * torch.where(low > self.means, right, left)).sum(-1)

    def icdf(self, value: Tensor) -> Tensor:
        """Return the quantile `inf {x: F(x) >= u}`, `(*sample, *batch)`, for levels u in [0, 1].

        It is solved in float64 by a safeguarded Newton method, to 1e-12 there, and is differentiable in the level, the
        weights (along the simplex), the means and the scales.
        """
        self._check_level("value", value, "[0, 1]")
        return quantile(value, self.weights, self.means, self.scales)

    def expectile(self, tau: Tensor | float) -> Tensor:
        """Return e with `tau E(X - e)+ = (1 - tau) E(e - X)+`, `(*sample, *batch)`; tau = 0.5 is the mean."""
        (tau,) = self._numbers(tau=tau)
        self._check_level("tau", tau, "(0, 1)")
        return expectile(tau, self.weights, self.means, self.scales)

    def cvar(self, alpha: Tensor | float, tail: str = "lower") -> Tensor:
        """Return the mean of the lowest (or with `tail="upper"` the highest) fraction alpha in (0, 1] of outcomes.

        Example:
            >>> NormalMixture.from_samples(torch.tensor([0.0, 1.0, 2.0, 9.0])).cvar(0.5)
            tensor(0.5000)
        """
        (alpha,) = self._numbers(alpha=alpha)
        self._check_level("alpha", alpha, "(0, 1]")
        if tail not in ("lower", "upper"):
            raise ValueError(f'tail must be "lower" or "upper"; got {tail!r}. Use "lower" for the worst outcomes.')
        if tail == "lower":
            return lower_cvar(alpha, self.weights, self.means, self.scales)
        return -lower_cvar(alpha, self.weights, -self.means, self.scales)

    def entropy(self) -> Tensor:
        """Return the differential entropy `-E log f(X)`, `(*batch)`, by quadrature, to 1e-9 in float64.

        The nodes are as finely spaced as numbers of the size of the means: a scale below 1e-7 of a mean costs digits.
        """
        self.refuse_atoms("entropy")
        if self.batch_shape.numel() == 0:
            return self.means.new_empty(self.batch_shape)
        wide = self._like(self.weights.double(), self.means.double(), self.scales.double())
        shape = (-1, self.n_components)
        with torch.no_grad():
            x, weights = gauss_legendre(
                panel_edges(wide.means.reshape(shape), wide.scales.reshape(shape))
            )  # (B, nodes)
        log_density = wide.log_prob(x.T.reshape(-1, *self.batch_shape)).clamp_min(-1e3)  # f log f is 0 below
        return -(weights.T.reshape(log_density.shape) * log_density.exp() * log_density).sum(0).to(self.means.dtype)

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

        The reparameterisation is implicit (Figurnov et al. 2018): a value moves with the parameters so that F(x) stays,
        which makes the gradient of any expectation unbiased. Where modes are far apart that of the weights rests on
        rare values between them, and needs very many samples. A value on an atom moves with that atom.
        """
        return reparameterized(self.sample(sample_shape, generator), self.weights, self.means, self.scales)

    def _points(self, value: Tensor, name: str = "value") -> Tensor:
        """Check values `(*sample, *batch)` and give them a component axis."""
        check_floating(**{name: value}, means=self.means)
        check_broadcast("Values are (*sample, *batch).", **{name: value.shape}, mixture=self.batch_shape)
        if self._validate_args and readable(value) and value.isnan().any():
            raise ValueError(f"{name} must not be NaN; got {int(value.isnan().sum())} of {value.numel()}. Drop them.")
        return value.unsqueeze(-1)

    def _check_level(self, name: str, level: Tensor, interval: str) -> None:
        check_floating(**{name: level}, means=self.means)
        check_broadcast("Levels are (*sample, *batch).", **{name: level.shape}, mixture=self.batch_shape)
        if self._validate_args and readable(level):
            check_within(name, level, interval)
