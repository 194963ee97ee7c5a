"""Do networks recover a known conditional mixture? With the Cramér loss and the likelihood, 20 seeds each.

    python benchmarks/recovery.py

Network body, steps and data are the same for all. Two trainings run at a time, each on one thread.
"""

from __future__ import annotations

import math
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from harness import Page, machine
from torch import Tensor, nn

import cramix
from cramix import (
    CramerLoss,
    Diagonal,
    EnergyScoreLoss,
    MixtureHead,
    MixtureNLLLoss,
    MultivariateNormalMixture,
    NormalMixture,
    cramer_distance,
    sliced_cramer_distance,
)

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from tests.conditional import crossing, growing  # noqa: E402

SEEDS, ROWS, STEPS, BATCH = 20, 2000, 600, 256
# A network has learned the mixture if the mean C2 to it, over 1000 points, is below this.
LIMIT = 0.1
Mixture = NormalMixture | MultivariateNormalMixture


class Problem(NamedTuple):
    truth: Callable[[Tensor], Mixture]
    inputs: int
    dim: int
    outliers: float = 0.0  # fraction of targets at 10^4


def space(x: Tensor) -> MultivariateNormalMixture:
    a, b = x.unbind(-1)
    means = torch.stack([torch.stack([a, b, a * b], -1), torch.stack([-a, 1 - b, -a - b], -1)], -2)
    weights = torch.stack([torch.sigmoid(2 * a), torch.sigmoid(-2 * a)], -1)
    one = torch.ones_like(a)
    scales = torch.stack(
        [
            torch.stack([0.1 * one, 0.2 * one, 0.1 + 0.1 * b.abs()], -1),
            torch.stack([0.2 * one, 0.1 * one, 0.15 * one], -1),
        ],
        -2,
    )
    return MultivariateNormalMixture(weights, means, Diagonal(scales.square()))


def exact(x: Tensor) -> NormalMixture:
    means = torch.cat([torch.zeros_like(x), 1 + x], -1)
    return NormalMixture(
        torch.full_like(means, 0.5), means, torch.cat([torch.zeros_like(x), torch.full_like(x, 0.2)], -1)
    )


PROBLEMS = {
    "two branches that cross": Problem(crossing, 1, 1),
    "noise that grows": Problem(growing, 1, 1),
    "three dimensions": Problem(space, 2, 3),
    "a branch without noise": Problem(exact, 1, 1),
    "0.2 % of targets at 10^4": Problem(crossing, 1, 1, outliers=0.002),
}


class Textbook(nn.Module):
    """A head as it is usually written: softmax for weights, unscaled means, exponential for scales."""

    def __init__(self, in_features: int, n_components: int, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, n_components * (1 + 2 * dim))
        self.n_components, self.dim = n_components, dim

    def forward(self, features: Tensor) -> Mixture:
        sizes = [self.n_components, self.n_components * self.dim, self.n_components * self.dim]
        logits, means, logs = self.linear(features).split(sizes, -1)
        if self.dim == 1:
            return NormalMixture(logits.softmax(-1), means, logs.exp(), validate_args=False)
        means, logs = (x.unflatten(-1, (self.n_components, self.dim)) for x in (means, logs))
        return MultivariateNormalMixture(logits.softmax(-1), means, Diagonal((2 * logs).exp()), validate_args=False)


def draw(problem: Problem, rows: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    x = 2 * torch.rand(rows, problem.inputs, generator=g) - 1
    y = problem.truth(x).sample((), generator=g)
    if problem.outliers:
        y = torch.where(torch.rand(rows, generator=g) < problem.outliers, 1e4, y)
    return x, y


def train(job: tuple[str, str, str, int]) -> float:
    """Return the mean C2 to the truth; NaN if the loss was not finite."""
    name, head, loss, seed = job
    torch.set_num_threads(1)
    problem = PROBLEMS[name]
    g = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    x, y = draw(problem, ROWS, g)
    if head == "MixtureHead":
        top: nn.Module = MixtureHead(64, 4, problem.dim, targets=y, validate_args=False)
    else:
        top = Textbook(64, 4, problem.dim)
    network = nn.Sequential(nn.Linear(problem.inputs, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), top)
    cramer: nn.Module = CramerLoss() if problem.dim == 1 else EnergyScoreLoss(tolerance=1e-5)
    criterion = MixtureNLLLoss() if loss == "likelihood" else cramer
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        index = torch.randint(ROWS, (BATCH,), generator=g)
        optimizer.zero_grad()
        value = criterion(network(x[index]), y[index])
        if not value.isfinite():
            return math.nan
        value.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        x, _ = draw(problem, 1000, g)
        distance = cramer_distance if problem.dim == 1 else sliced_cramer_distance
        return distance(network(x), problem.truth(x)).mean().item()  # type: ignore[operator]


def row(name: str, head: str, loss: str, found: list[float]) -> str:
    whole = sorted(value for value in found if math.isfinite(value))
    learned = sum(value < LIMIT for value in whole)
    shown = f"{statistics.median(whole):.3f} | {whole[-1]:.3f}" if whole else "none | none"
    return f"| {name} | {head} | {loss} | {learned} of {len(found)} | {len(found) - len(whole)} | {shown} |"


def main() -> None:
    intro = [
        "# Recovery of a known conditional mixture",
        "",
        f"`python benchmarks/recovery.py`, {machine(torch, cramix)}.",
        "",
        f"The same body (two layers of 64), four components, {STEPS} steps of Adam at 0.01 with a cosine schedule, "
        f"{BATCH} of {ROWS} rows each, {SEEDS} seeds of data and weights. C2 is the distance to the true "
        f"conditional mixture, a mean over 1000 inputs; the mixture counts as learned if it is below {LIMIT}. A "
        "textbook head has no initialization from targets, no standard units and no lower bound of scales.",
    ]
    page = Page(HERE / "recovery.md", intro)
    head = "| problem | head | loss | learned | ended in NaN | median C2 | worst C2 |"
    page.add([head, "|---|---|---|---|---|---|---|"])
    with ProcessPoolExecutor(2) as pool:
        for name, top, loss in product(PROBLEMS, ("MixtureHead", "textbook"), ("Cramér", "likelihood")):
            jobs = [(name, top, loss, seed) for seed in range(SEEDS)]
            page.extend([row(name, top, loss, list(pool.map(train, jobs)))])


if __name__ == "__main__":
    main()
