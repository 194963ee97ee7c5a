"""Risk measures: which return distribution is the best.

Quantiles and expectiles of a mixture are roots of increasing functions. They are bracketed on a grid that is refined a
fixed number of times, so that the cost is a few operations on all actions at once, and the compiler can follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cramix.mixture import NormalMixture

Measure = Callable[[NormalMixture], Tensor]
Risk = str | Measure

# Each refinement divides a bracket by the number of points less one: 31^4 is about 10^6, the precision of float32.
_POINTS, _REFINEMENTS = 32, 4
# The quantiles of all levels that float32 can tell from 0 and 1 are within so many scales of the means.
_REACH = 6.0
_DENSITY_AT_0 = 1 / math.sqrt(2 * math.pi)


def parse_risk(risk: Risk) -> Measure:
    """Return a function from mixtures of batch shape `(*batch)` to values `(*batch)`; larger is better.

    Args:
        risk: "mean", "cvar:0.1" (the mean of the worst tenth), "expectile:0.3", "quantile:0.5", or a function.

    Example:
        >>> p = NormalMixture.from_samples(torch.tensor([0.0, 1.0, 2.0, 9.0]))
        >>> parse_risk("mean")(p), parse_risk("cvar:0.5")(p)
        (tensor(3.), tensor(0.5000))
    """
    if callable(risk):
        return Checked(risk)
    name, _, text = risk.partition(":") if isinstance(risk, str) else (risk, "", "")
    if name == "mean" and not text:
        return mean
    try:
        level = float(text)
    except ValueError:
        level = -1.0
    kind = _MEASURES.get(name) if isinstance(name, str) else None
    if kind is None or not 0 < level <= (1 if kind is CVaR else 1 - 1e-9):
        raise ValueError(
            f'risk must be "mean", "cvar:level", "expectile:level", "quantile:level" with a level in (0, 1), or a '
            f'function of a mixture; got {risk!r}. Try "cvar:0.1".'
        )
    return kind(level)


def mean(p: NormalMixture) -> Tensor:
    """Return the means of mixtures."""
    return (p.weights * p.means).sum(-1)


@dataclass(frozen=True)
class Quantile:
    """The quantile of a level: the smallest x with `F(x) >= level`, to about 10^-6 of the range of a mixture."""

    level: float

    def __call__(self, p: NormalMixture) -> Tensor:
        """Return the quantiles `(*batch)`."""
        return _quantile(p, self.level)


@dataclass(frozen=True)
class CVaR:
    """The mean of the worst fraction `level` of returns, `q - E(q - X)+ / level` at the quantile q.

    This is flat at the quantile, so the error of q enters squared only.
    """

    level: float

    def __call__(self, p: NormalMixture) -> Tensor:
        """Return the means of the lower tails `(*batch)`."""
        if self.level == 1:
            return mean(p)
        quantile = _quantile(p, self.level)  # torch 2.11 cannot compile a dataclass that is made here
        return quantile - _shortfall(p)(quantile.unsqueeze(-1)).squeeze(-1) / self.level


@dataclass(frozen=True)
class Expectile:
    """The x with `level E(X - x)+ = (1 - level) E(x - X)+`, to about 10^-6 of the range of a mixture."""

    level: float

    def __call__(self, p: NormalMixture) -> Tensor:
        """Return the expectiles `(*batch)`."""
        center, shortfall = mean(p).unsqueeze(-1), _shortfall(p)
        # E(X - x)+ = E(x - X)+ + E X - x
        return _root(p, lambda x: (1 - 2 * self.level) * shortfall(x) < self.level * (center - x))


@dataclass(frozen=True)
class Checked:
    """A function of the user's, whose results are checked."""

    function: Measure

    def __call__(self, p: NormalMixture) -> Tensor:
        """Return its values."""
        values = self.function(p)
        if not isinstance(values, Tensor) or values.shape != p.batch_shape:
            found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(
                f"risk must return a tensor of shape {tuple(p.batch_shape)}; got {found}. Try lambda p: p.mean."
            )
        return values


_MEASURES: dict[str, type[CVaR] | type[Expectile] | type[Quantile]] = {
    "cvar": CVaR,
    "expectile": Expectile,
    "quantile": Quantile,
}


def _quantile(p: NormalMixture, level: float) -> Tensor:
    cdf = _cdf(p)
    return _root(p, lambda x: cdf(x) < level)


def _root(p: NormalMixture, below: Callable[[Tensor], Tensor]) -> Tensor:
    """Return where a condition on points `(*batch, n)` that is true on the left becomes false, `(*batch)`."""
    low = (p.means - _REACH * p.scales).amin(-1, keepdim=True)
    high = (p.means + _REACH * p.scales).amax(-1, keepdim=True)
    steps = torch.arange(_POINTS, dtype=low.dtype, device=low.device)
    width = (high - low) / (_POINTS - 1)
    for _ in range(_REFINEMENTS):
        reached = below(torch.addcmul(low, width, steps)).sum(-1, keepdim=True)  # the first point that is not below
        high = torch.addcmul(low, width, reached.clamp(1, _POINTS - 1).to(low.dtype))
        low = high - width
        width = width / (_POINTS - 1)
    return high.squeeze(-1)


def _cdf(p: NormalMixture) -> Callable[[Tensor], Tensor]:
    """Return the distribution function, of points `(*batch, n)`."""
    means, scales, inverse, weights = _columns(p)
    atoms = torch.where(scales > 0, 0.0, 40.0)  # an atom counts where x is equal to it
    return lambda x: (torch.special.ndtr(torch.addcmul(atoms, x.unsqueeze(-1) - means, inverse)) * weights).sum(-1)


def _shortfall(p: NormalMixture) -> Callable[[Tensor], Tensor]:
    """Return the function `E(x - X)+` of points `(*batch, n)`."""
    means, scales, inverse, weights = _columns(p)

    def shortfall(x: Tensor) -> Tensor:
        off = x.unsqueeze(-1) - means
        z = off * inverse
        density = torch.exp(-0.5 * z.square())
        return (torch.addcmul(off * torch.special.ndtr(z), scales, density, value=_DENSITY_AT_0) * weights).sum(-1)

    return shortfall


def _columns(p: NormalMixture) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return means, scales, their inverses and weights, `(*batch, 1, k)`; the scale of an atom has a huge inverse."""
    inverse = p.scales.clamp_min(torch.finfo(p.scales.dtype).tiny).reciprocal()
    return p.means.unsqueeze(-2), p.scales.unsqueeze(-2), inverse.unsqueeze(-2), p.weights.unsqueeze(-2)
