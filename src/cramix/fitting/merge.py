"""Fits that start with too many components, whose components are merged one pair at a time.

Expectation maximisation (EM) places the components. Then the two components whose merge costs least are merged,
followed by a few EM steps, until the requested number is left. The surplus covers regions that a start has missed, and
merging removes components where there are too many.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import Tensor

from cramix.fitting.em import Outcome, maximize
from cramix.fitting.features import Data
from cramix.fitting.problem import Problem
from cramix.fitting.starts import STARTS, start_covariance
from cramix.mixture.covariance import Family, Prior

# EM steps after the start, and after each merge.
PLACING, _SETTLING = 10, 3
# With more dimensions than the first number, components with matrices are merged in as many principal ones as the
# second says: there a step costs hundreds of times less, and covariances need fewer samples.
_MANY, _PRINCIPAL = 16, 12


def merged(problem: Problem, data: Data, surplus: int | None, batch: int) -> Tensor:
    """Return fits with the requested number of components, `(batch, k, F)`, merged from more; see `merged_to`."""
    return next(merged_to(problem, data, [problem.n_components], surplus, batch))[1]


def merged_to(
    problem: Problem, data: Data, wanted: Collection[int], surplus: int | None, batch: int
) -> Iterator[tuple[int, Tensor]]:
    """Yield each wanted number of components k, the largest first, and fits `(batch, k, F)` merged from more.

    Args:
        problem: whose generator draws the starts.
        data: to fit.
        wanted: numbers of components.
        surplus: components to start with in addition to the largest of them, k; k + 4 if None.
        batch: number of fits.
    """
    k = max(wanted)
    most = min(len(data), k + (k + 4 if surplus is None else surplus))
    within = _principal(data)
    start, prior = drawn(problem, within, most, batch), priors(within, batch, k)
    for outcome in merge_down(within, start, prior):
        components = outcome.sums.shape[1]
        problem.note_likelihood("merging", components, outcome.log_likelihood.max())
        if components in wanted:
            yield components, _lifted(data, within, outcome.sums)
        if components == min(wanted):
            return


def merge_down(data: Data, sums: Tensor, prior: Prior | None = None) -> Iterator[Outcome]:
    """Place the components of fits `(B, k, F)`, then merge one pair at a time; yield the fits at k, k - 1, ... 1."""
    outcome = maximize(data, sums, PLACING, prior=prior)
    yield outcome
    while outcome.sums.shape[1] > 1:
        outcome = maximize(data, merge_cheapest(data.family, outcome.sums, prior), _SETTLING, prior=prior)
        yield outcome


def merge_cheapest(family: Family, sums: Tensor, prior: Prior | None = None) -> Tensor:
    """Merge the two components of least cost in each fit, `(B, k, F)`; return `(B, k - 1, F)`."""
    batch, k, _ = sums.shape
    cheapest = family.merge_costs(sums, prior).argmin(-1)
    first, second = family.pairs(k, sums.device)[:, cheapest]
    rows = torch.arange(batch, device=sums.device)
    merged = sums.clone()
    merged[rows, first] += sums[rows, second]
    kept = torch.arange(k - 1, device=sums.device).expand(batch, -1)
    return merged[rows.unsqueeze(-1), kept + (kept >= second.unsqueeze(-1))]


def priors(data: Data, batch: int, k: int) -> Prior:
    """Return a prior of d + 2 pseudo-samples per component, of the shape of starts, for every other fit.

    In many dimensions, where components have few samples for each entry of their covariance, fits with the prior reach
    a higher likelihood; those without it find narrow components.
    """
    samples = torch.arange(batch, device=data.x.device) % 2 * (data.family.dim + 2.0)
    return data.family.prior(samples.double() / len(data), start_covariance(data, k))


def drawn(problem: Problem, data: Data, k: int, batch: int) -> Tensor:
    """Return the starts that the problem asks for, k-means++ by default, as sums `(batch, k, F)`."""
    name = problem.init_params if isinstance(problem.init_params, str) else "k-means++"
    return STARTS[name](data, k, batch, problem.generator)


def _principal(data: Data) -> Data:
    """Return the data in their first principal components if there are many dimensions, else as they are."""
    family = data.family
    if family.kind.axis_aligned or family.dim <= _MANY or data.covariances is not None:
        return data
    covariance = data.covariance
    axes = torch.linalg.eigh(covariance if covariance.ndim == 2 else covariance.mean(0)).eigenvectors[:, -_PRINCIPAL:]
    floor = float(torch.as_tensor(family.floor).min())
    return Data(type(family)(_PRINCIPAL, floor, data.dtype), data.x @ axes, data.weights, dtype=data.dtype)


def _lifted(data: Data, within: Data, sums: Tensor) -> Tensor:
    """Return fits to the data in their principal components as fits to the data, `(B, k, F)`."""
    if within is data:
        return sums
    found = within.family.coefficients(*within.family.parameters(sums))
    return data.sums(within.responsibilities(found))
