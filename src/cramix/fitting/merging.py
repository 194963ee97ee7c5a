"""Merging components of many fits at once, by adding up their sums of features."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from cramix.fitting.em import Data, Outcome, maximize
from cramix.fitting.families import Family, Prior
from cramix.fitting.starts import start_covariance

# Steps of expectation maximisation after the start, and after each merge.
PLACING, _SETTLING = 20, 5


def merging(data: Data, sums: Tensor, prior: Prior | None = None) -> Iterator[Outcome]:
    """Place the components of fits `(B, k, F)` and merge them one by one; yield what there is at k, k - 1, to 1."""
    outcome = maximize(data, sums, PLACING, prior=prior)
    yield outcome
    while outcome.sums.shape[1] > 1:
        outcome = maximize(data, merge_cheapest(data.family, outcome.sums, prior), _SETTLING, prior=prior)
        yield outcome


def merge_cheapest(family: Family, sums: Tensor, prior: Prior | None = None) -> Tensor:
    """Merge the two components of each fit, `(B, k, F)`, that cost least; return `(B, k - 1, F)`."""
    batch, k, _ = sums.shape
    cheapest = family.merge_costs(sums, prior).argmin(-1)
    first, second = family.pairs(k).to(sums.device)[:, cheapest]
    rows = torch.arange(batch, device=sums.device)
    merged = sums.clone()
    merged[rows, first] += sums[rows, second]
    keep = torch.ones(batch, k, dtype=torch.bool, device=sums.device)
    keep[rows, second] = False
    return merged[keep].view(batch, k - 1, -1)


def priors(data: Data, batch: int, k: int) -> Prior:
    """Give the components of every other fit d + 2 samples of the shape that starts have.

    In many dimensions, where components have few samples for each number in their covariance, those fits end higher;
    those without find narrow components.
    """
    samples = torch.arange(batch, device=data.x.device) % 2 * (data.family.dim + 2.0)
    return data.family.prior(samples.double() / len(data), start_covariance(data, k))
