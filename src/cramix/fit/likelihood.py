"""The maximum likelihood fit from random starts that finds the best optimum: more components than asked, merged.

Several fits run at once, each from random points with more components than asked. Expectation maximisation places them.
Then the two whose merging costs least become one, with a few steps after it, until as many are left as asked, and the
best fit is polished. The surplus finds the places that a start has missed, and merging takes from where there are too
many.
"""

from __future__ import annotations

import time
import warnings
from numbers import Integral

import torch
from torch import Tensor

from cramix.checks import check_finite, check_floating
from cramix.fit.em import Data, Outcome, maximize
from cramix.fit.families import FAMILIES, Family, SphericalFamily
from cramix.fit.merging import merge_cheapest
from cramix.fit.result import FitResult, Step
from cramix.mixture import MultivariateNormalMixture
from cramix.mixture.weights import of_samples

# Steps of expectation maximisation after the start, after each merge, and before the best is chosen.
_PLACING, _SETTLING, _CHOOSING = 20, 5, 30


def fit_likelihood(
    x: Tensor,
    n_components: int,
    covariances: str = "full",
    weights: Tensor | None = None,
    *,
    starts: int = 8,
    surplus: int | None = None,
    floor: float = 1e-6,
    tolerance: float = 1e-7,
    max_iterations: int = 1000,
    generator: torch.Generator | None = None,
) -> FitResult:
    """Fit a mixture to data by maximum likelihood, from random starts to the best optimum.

    Args:
        x: samples `(n, d)`.
        n_components: k, at most n.
        covariances: "full", "tied", "diag" or "spherical".
        weights: of the samples, `(n,)`, of any positive sum.
        starts: how many fits run at once.
        surplus: components to begin with beyond k; k + 4 if None.
        floor: added to every variance, as a part of the variance of the data.
        tolerance: gain of the mean log likelihood in a step at which to stop.
        max_iterations: of the last stage.
        generator: for the starts.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(100, 2, generator=g), 5 + torch.randn(100, 2, generator=g)])
        >>> fit_likelihood(x, 2, generator=g).mixture.weights.sort().values
        tensor([0.4969, 0.5031])
    """
    began = time.perf_counter()
    _check(x, n_components, covariances, starts, surplus, floor)
    if weights is not None:
        check_floating(x=x, weights=weights)
    dtype, x = x.dtype, x.detach().double()
    weights = of_samples("x", x.shape[:1], None if weights is None else weights.detach().double(), x)
    centre, scale = _units(x, weights, FAMILIES[covariances])
    data = Data(FAMILIES[covariances](x.shape[-1], floor), (x - centre) / scale, weights)
    history = _History(began, scale.log().sum().item())
    most = min(len(x), n_components + (n_components + 4 if surplus is None else surplus))
    outcome = maximize(data, _random_points(data, starts, most, generator), _PLACING)
    history.add("placing", outcome)
    while outcome.sums.shape[1] > n_components:
        outcome = maximize(data, merge_cheapest(data.family, outcome.sums), _SETTLING)
        history.add("merging", outcome)
    outcome = maximize(data, outcome.sums, _CHOOSING)
    history.add("choosing", outcome)
    best = outcome.sums[outcome.log_likelihood.argmax()].unsqueeze(0)
    outcome = maximize(data, best, max_iterations, tolerance)
    history.add("polishing", outcome)
    return _result(data.family, outcome, centre, scale, dtype, history)


def _random_points(data: Data, batch: int, k: int, generator: torch.Generator | None) -> Tensor:
    """Components at k random points each, as wide as lets them share the space of the data, `(B, k, F)`."""
    dim = data.x.shape[-1]
    index = torch.stack([torch.multinomial(data.weights, k, generator=generator) for _ in range(batch)])
    offset = data.x - (data.weights.unsqueeze(-1) * data.x).sum(0)
    spread = (data.weights.unsqueeze(-1) * offset).T @ offset / k ** (2 / dim)
    return data.family.sums(data.x.new_full((batch, k), 1 / k), data.x[index], spread.expand(batch, k, dim, dim))


def _units(x: Tensor, weights: Tensor, family: type[Family]) -> tuple[Tensor, Tensor]:
    """Return a centre and scales `(d,)` to measure the data in; one scale for all where directions are alike."""
    centre = (weights.unsqueeze(-1) * x).sum(0)
    variance = (weights.unsqueeze(-1) * (x - centre).square()).sum(0)
    if family is SphericalFamily:
        variance = variance.mean().expand_as(variance)
    rounding = (16 * torch.finfo(x.dtype).eps * centre.abs()).square()
    return centre, torch.where(variance > rounding, variance, 1).sqrt()


class _History:
    """The stages of a fit, in the units of the data."""

    def __init__(self, began: float, log_scale: float) -> None:
        self.began, self.log_scale = began, log_scale
        self.last, self.steps = began, list[Step]()

    def add(self, name: str, outcome: Outcome) -> None:
        now = time.perf_counter()
        best = outcome.log_likelihood.max().item() - self.log_scale
        self.steps.append(Step(name, outcome.sums.shape[1], best, now - self.last))
        self.last = now


def _result(
    family: Family, outcome: Outcome, centre: Tensor, scale: Tensor, dtype: torch.dtype, history: _History
) -> FitResult:
    weights, means, spread = (x.squeeze(0) for x in family.parameters(outcome.sums))
    kind = family.kind(spread)
    least = torch.linalg.eigvalsh(kind.matrices(family.dim))[..., 0]
    collapsed = int((least < 2 * family.floor).sum())
    if collapsed:
        warnings.warn(
            f"{collapsed} of {len(weights)} components have collapsed to the floor of {family.floor:g} of the data's "
            "variance. Ask for fewer components, or raise the floor.",
            stacklevel=3,
        )
    stretched = family.kind(family.stretched(spread, scale))
    mixture = MultivariateNormalMixture(weights, centre + scale * means, stretched, validate_args=False).to(dtype)
    reason = "the log likelihood gains less than the tolerance" if outcome.converged else "out of iterations"
    steps = tuple(history.steps)
    return FitResult(
        mixture, steps[-1].log_likelihood, outcome.converged, reason, collapsed, steps, history.last - history.began
    )


def _check(x: Tensor, n_components: int, covariances: str, starts: int, surplus: int | None, floor: float) -> None:
    check_floating(x=x)
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"x must be samples (n, d) with n, d >= 1; got {tuple(x.shape)}. Use unsqueeze(-1) for d = 1.")
    check_finite(x=x)
    if covariances not in FAMILIES:
        raise ValueError(f"covariances must be one of {', '.join(FAMILIES)}; got {covariances!r}. Try full.")
    for name, value, least in (("n_components", n_components, 1), ("starts", starts, 1), ("surplus", surplus or 0, 0)):
        if not isinstance(value, Integral) or value < least:
            raise ValueError(f"{name} must be an integer >= {least}; got {value!r}. Give the number wanted.")
    if n_components > len(x):
        raise ValueError(f"n_components must be at most the {len(x)} samples; got {n_components}. Ask for fewer.")
    if not isinstance(floor, int | float) or not floor > 0:
        raise ValueError(f"floor must be > 0; got {floor!r}. The default is 1e-6.")
