"""Risk measures: which return distribution is the best.

Quantiles and expectiles of a mixture are roots of increasing functions. They are bracketed on a grid that is refined a
fixed number of times, so that the cost is a few operations on all actions at once, and the compiler can follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from cramix.mixture import NormalMixture

Measure = Callable[[NormalMixture], Tensor]
Risk = str | Measure

# Into how many parts a bracket is divided, and how often: 31^4 and 2^20 are about 10^6, the precision of float32.
# Bisection needs least arithmetic and most calls, which cost nothing in compiled code.
_EAGER, _COMPILED = (31, 4), (2, 20)
# The expectiles of all levels that float32 can tell from 0 and 1 are within so many scales of the means.
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
    """The mean of the worst fraction `level` of returns: the maximum of `q - E(q - X)+ / level`, at the quantile q.

    Around a quantile where X has a density this is flat, so the error of q enters squared only. Around an atom it is
    not, so the nearest atom is tried too.
    """

    level: float

    def __call__(self, p: NormalMixture) -> Tensor:
        """Return the means of the lower tails `(*batch)`."""
        if self.level == 1:
            return mean(p)
        quantile = _quantile(p, self.level).unsqueeze(-1)  # torch 2.11 cannot compile a dataclass that is made here
        points = torch.cat([quantile, _nearest_atom(p, quantile)], -1)
        return (points - _shortfall(p)(points) / self.level).amax(-1)


@dataclass(frozen=True)
class Expectile:
    """The x with `level E(X - x)+ = (1 - level) E(x - X)+`, to about 10^-6 of the range of a mixture."""

    level: float

    def __call__(self, p: NormalMixture) -> Tensor:
        """Return the expectiles `(*batch)`."""
        center, shortfall = mean(p).unsqueeze(-1), _shortfall(p)
        # E(X - x)+ = E(x - X)+ + E X - x
        return _root(
            _bracket(p, -_REACH, _REACH), lambda x: (1 - 2 * self.level) * shortfall(x) < self.level * (center - x)
        )


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
    cdf, z = _cdf(p), _standard_quantile(level)  # the quantile of a mixture lies between those of its components
    return _root(_bracket(p, z, z), lambda x: cdf(x) < level)


def _nearest_atom(p: NormalMixture, x: Tensor) -> Tensor:
    """Return the atoms that are nearest to points `(*batch, 1)`; where there are none, the nearest means."""
    away = (p.means - x).abs()
    nearest = torch.where(p.scales > 0, float("inf"), away).argmin(-1, keepdim=True)
    return p.means.gather(-1, nearest)


@torch.compiler.assume_constant_result
def _standard_quantile(level: float) -> float:
    return NormalDist().inv_cdf(level)


def _bracket(p: NormalMixture, left: float, right: float) -> tuple[Tensor, Tensor]:
    """Return the smallest `mean + left * scale` and the largest `mean + right * scale` of components, `(*batch, 1)`."""
    return (p.means + left * p.scales).amin(-1, keepdim=True), (p.means + right * p.scales).amax(-1, keepdim=True)


def _root(bracket: tuple[Tensor, Tensor], below: Callable[[Tensor], Tensor]) -> Tensor:
    """Return where a condition on points `(*batch, n)` that is true on the left becomes false, `(*batch)`."""
    parts, refinements = _COMPILED if torch.compiler.is_compiling() else _EAGER
    low, high = bracket
    steps = torch.arange(1, parts, dtype=low.dtype, device=low.device)
    width = high - low
    for i in range(1, refinements + 1):
        points = torch.addcmul(low, width, steps, value=parts**-i)
        count = below(points).sum(-1, keepdim=True, dtype=low.dtype)
        low = torch.addcmul(low, width, count, value=parts**-i)
    return torch.add(low, width, alpha=parts**-refinements).squeeze(-1)


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
