"""How networks are trained: in batches, each network stopping where it was best on rows it does not see."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.fitting import Step
from cramix.loss import crps, energy_score, nll_loss
from cramix.mixture import MultivariateNormalMixture, NormalMixture
from cramix.regressor.networks import Networks

Mixture = NormalMixture | MultivariateNormalMixture
Loss = Callable[[Mixture, Tensor], Tensor]


def _cramer(p: Mixture, y: Tensor) -> Tensor:
    return crps(p, y) if isinstance(p, NormalMixture) else energy_score(p, y)


def _likelihood(p: Mixture, y: Tensor) -> Tensor:
    return nll_loss(p, y, reduction="none")


# What each loss of the regressor trains by, one after the other.
STAGES: dict[str, list[Loss]] = {"cramer": [_cramer], "nll": [_likelihood], "blend": [_cramer, _likelihood]}
# A stage after the first begins near its end, and steps are smaller.
_LATER_RATE = 0.3
# With fewer rows none are held out.
_LEAST_ROWS = 20


class Rows(NamedTuple):
    """Features `(n, f)`, targets `(n,)` or `(n, d)`, and weights `(n,)` of mean 1."""

    x: Tensor
    y: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Plan:
    """How to train; see `MixtureRegressor`."""

    stages: list[Loss]
    max_epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    held_out: float  # the share of rows, 0 for none
    patience: int
    progress: Callable[[Step], None] | None = None


@dataclass
class Course:
    """How training went: the mean loss of the networks after each epoch, and epochs in all."""

    losses: list[float] = field(default_factory=list)

    @property
    def epochs(self) -> int:
        """How many there were."""
        return len(self.losses)


def train(networks: Networks, rows: Rows, plan: Plan, generator: torch.Generator) -> Course:
    """Train networks on rows, and keep the best of each."""
    n, started = len(rows.x), perf_counter()
    held = int(plan.held_out * n) if n >= _LEAST_ROWS else 0
    numbers = torch.stack([torch.randperm(n, generator=generator) for _ in range(networks.count)])
    unseen, seen = numbers[:, :held], numbers[:, held:]
    course = Course()
    for stage, loss in enumerate(plan.stages):
        rate = plan.learning_rate * (_LATER_RATE if stage else 1)
        optimizer = torch.optim.AdamW(networks.parameters.values(), rate, weight_decay=plan.weight_decay)
        best = _Best(networks)
        if held:
            best.compare(_mean_losses(networks, loss, rows, unseen))
        for _ in range(plan.max_epochs):
            learned = _epoch(networks, loss, rows, seen, plan.batch_size, optimizer, generator)
            values = _mean_losses(networks, loss, rows, unseen) if held else learned
            best.compare(values)
            course.losses.append(values.mean().item())
            if plan.progress is not None:
                name, seconds = f"epoch {course.epochs}", perf_counter() - started
                plan.progress(Step(name, networks.n_components, course.losses[-1], seconds))
            if held and bool((best.since >= plan.patience).all()):
                break
        best.restore()
    networks.keep(networks.parameters)
    return course


def _epoch(
    networks: Networks,
    loss: Loss,
    rows: Rows,
    seen: Tensor,
    batch_size: int,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
) -> Tensor:
    """Go once through the rows with numbers `(E, m)`, in another order for each network; return mean losses `(E,)`."""
    order = torch.stack([torch.randperm(seen.shape[1], generator=generator) for _ in seen])
    batches = max(1, round(seen.shape[1] / batch_size))
    total = torch.zeros(len(seen))
    for index in seen.gather(1, order).tensor_split(batches, 1):
        optimizer.zero_grad()
        losses = (rows.weights[index] * loss(networks(rows.x[index]), rows.y[index])).mean(1)
        losses.sum().backward()  # the networks share no weights, so each has its own gradient
        optimizer.step()
        total += losses.detach() * index.shape[1]
    return total / seen.shape[1]


def _mean_losses(networks: Networks, loss: Loss, rows: Rows, index: Tensor) -> Tensor:
    with torch.no_grad():
        shares = rows.weights[index]
        return (shares * loss(networks(rows.x[index]), rows.y[index])).sum(1) / shares.sum(1)


class _Best:
    """The weights with which each network was best; a loss that is no number is none."""

    def __init__(self, networks: Networks) -> None:
        self.networks = networks
        self.parameters = {name: p.detach().clone() for name, p in networks.parameters.items()}
        self.values = torch.full((networks.count,), math.inf)
        self.since = torch.zeros(networks.count)

    def compare(self, values: Tensor) -> None:
        better = values < self.values
        self.values = torch.where(better, values, self.values)
        self.since = torch.where(better, 0, self.since + 1)
        for name, p in self.networks.parameters.items():
            self.parameters[name][better] = p.detach()[better]

    def restore(self) -> None:
        with torch.no_grad():
            for name, p in self.networks.parameters.items():
                p.copy_(self.parameters[name])
