"""The main job in small: fit a mixture to a built-in sample by gradient descent on the Cramér loss."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from torch import Tensor

from cramix import data
from cramix.distance.cramer import cramer_distance
from cramix.loss import cramer_loss
from cramix.mixture import NormalMixture
from cramix.parameters import LOG_POSITIVE, WEIGHTS

# Two more than the sample has modes: with just five, a start at quantiles leaves two modes to one component.
COMPONENTS = 7


class Fit(NamedTuple):
    """A fitted mixture, and what it took."""

    method: str
    mixture: NormalMixture
    loss: float
    steps: int
    seconds: float


def start(x: Tensor, k: int) -> NormalMixture:
    """Return k equal components at evenly spaced quantiles of the sample, as wide as their distance."""
    levels = (torch.arange(k, dtype=x.dtype) + 0.5) / k
    means = NormalMixture.from_samples(x).icdf(levels)
    return NormalMixture(torch.full_like(means, 1 / k), means, torch.full_like(means, (x.std() / k).item()))


def fit(x: Tensor, k: int, method: str) -> Fit:
    """Fit k components to the points by the named optimiser of torch, "Adam" or "L-BFGS"."""
    begin = start(x, k)
    free = [WEIGHTS.free(begin.weights), begin.means.clone(), LOG_POSITIVE.free(begin.scales)]
    for tensor in free:
        tensor.requires_grad_()
    if method == "Adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam(free, lr=0.03)
        rounds = 400
    else:
        optimizer = torch.optim.LBFGS(
            free, max_iter=150, history_size=20, tolerance_change=1e-12, line_search_fn="strong_wolfe"
        )
        rounds = 1
    steps = 0

    def closure() -> Tensor:
        nonlocal steps
        steps += 1
        optimizer.zero_grad()
        loss = cramer_loss(_mixture(free), x)
        loss.backward()
        return loss

    started = time.perf_counter()
    for _ in range(rounds):
        optimizer.step(closure)  # type: ignore[arg-type] # torch's annotation forgets that a loss is a tensor
    seconds = time.perf_counter() - started
    with torch.no_grad():
        fitted = _mixture(free).sort()
        return Fit(method, fitted, cramer_loss(fitted, x).item(), steps, seconds)


def run() -> tuple[Tensor, NormalMixture, list[Fit]]:
    """Fit the built-in sample, in float32; return it, the density it was drawn from, and the start and the fits."""
    truth = data.truth()
    truth = NormalMixture(truth.weights.float(), truth.means.float(), truth.scales.float())
    x = data.sample().float()
    begin = start(x, COMPONENTS)
    fits = [Fit("start", begin, cramer_loss(begin, x).item(), 0, 0.0)]
    fits += [fit(x, COMPONENTS, method) for method in ("Adam", "L-BFGS")]
    return x, truth, fits


def rows(x: Tensor, truth: NormalMixture, fits: list[Fit]) -> list[tuple[str, str, str, str, str]]:
    """Return the table: method, loss to the sample, C2 to the truth, evaluations, seconds."""
    table = [
        (f.method, f"{f.loss:.2e}", f"{cramer_distance(f.mixture, truth).item():.4f}", str(f.steps), f"{f.seconds:.2f}")
        for f in fits
    ]
    sample_loss = cramer_loss(truth, x).item()
    return [*table, ("the truth itself", f"{sample_loss:.2e}", "0", "", "")]


def _mixture(free: list[Tensor]) -> NormalMixture:
    return NormalMixture(WEIGHTS.valid(free[0]), free[1], LOG_POSITIVE.valid(free[2]))
