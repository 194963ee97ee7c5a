"""Training of an ensemble in batches; each network stops where it is best on rows that it has not seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.estimators.ensemble import Ensemble, Mixture
from cramix.fitting import Step
from cramix.loss import cramer_loss, energy_score, negative_log_likelihood_loss
from cramix.mixture import NormalMixture

Loss = Callable[[Mixture, Tensor], Tensor]


def _cramer(p: Mixture, y: Tensor) -> Tensor:
    return cramer_loss(p, y, "none") if isinstance(p, NormalMixture) else energy_score(p, y, "none")


def _nll(p: Mixture, y: Tensor) -> Tensor:
    return negative_log_likelihood_loss(p, y, reduction="none")


# The losses that each setting of the regressor trains with, one stage after the other.
STAGES: dict[str, list[Loss]] = {"cramer": [_cramer], "nll": [_nll], "blend": [_cramer, _nll]}
# Factor on the learning rate of later stages, which start close to their optimum.
_LATER_RATE = 0.3
# With fewer rows none are held out.
_MIN_ROWS = 20


class Rows(NamedTuple):
    """Features `(n, f)`, targets `(n,)` or `(n, d)`, and weights `(n,)` with mean 1."""

    x: Tensor
    y: Tensor
    weights: Tensor


@dataclass(frozen=True)
class TrainingOptions:
    """How to train; see `MixtureRegressor`."""

    stages: list[Loss]
    max_epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    validation_fraction: float  # 0 holds no rows out
    patience: int
    progress: Callable[[Step], None] | None = None


@dataclass
class TrainingResult:
    """The rows that each network did not see, `(E, m)` indices, and the mean loss of the networks after each epoch."""

    held_out: Tensor
    losses: list[float] = field(default_factory=list)


def train(ensemble: Ensemble, rows: Rows, options: TrainingOptions, generator: torch.Generator) -> TrainingResult:
    """Train the networks, and restore the best weights of each."""
    n, started = len(rows.x), perf_counter()
    n_held_out = int(options.validation_fraction * n) if n >= _MIN_ROWS else 0
    order = torch.stack([torch.randperm(n, generator=generator) for _ in range(ensemble.n_networks)])
    held_out, seen = order[:, :n_held_out], order[:, n_held_out:]
    result = TrainingResult(held_out)
    for stage, loss in enumerate(options.stages):
        rate = options.learning_rate * (_LATER_RATE if stage else 1)
        optimizer = torch.optim.AdamW(ensemble.parameters(), rate, weight_decay=options.weight_decay, fused=True)
        best = _BestWeights(ensemble)
        if n_held_out:
            best.update(_mean_losses(ensemble, loss, rows, held_out))
        for _ in range(options.max_epochs):
            losses = _train_epoch(ensemble, loss, rows, seen, options.batch_size, optimizer, generator)
            if n_held_out:
                losses = _mean_losses(ensemble, loss, rows, held_out)
            best.update(losses)
            result.losses.append(losses.mean().item())
            if options.progress is not None:
                name, seconds = f"epoch {len(result.losses)}", perf_counter() - started
                options.progress(Step(name, ensemble.n_components, result.losses[-1], seconds))
            if n_held_out and bool((best.epochs_since >= options.patience).all()):
                break
        best.restore()
    return result


def _train_epoch(
    ensemble: Ensemble,
    loss: Loss,
    rows: Rows,
    seen: Tensor,
    batch_size: int,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
) -> Tensor:
    """Pass once over the rows with indices `(E, m)`, each network in its own order; return mean losses `(E,)`."""
    order = torch.stack([torch.randperm(seen.shape[1], generator=generator) for _ in seen])
    n_batches = max(1, round(seen.shape[1] / batch_size))
    total = torch.zeros(len(seen), device=ensemble.device)
    for index in seen.gather(1, order).to(ensemble.device).tensor_split(n_batches, 1):
        optimizer.zero_grad()
        losses = (rows.weights[index] * loss(ensemble(rows.x[index]), rows.y[index])).mean(1)
        losses.sum().backward()  # networks share no weights, so each gets the gradient of its own loss
        optimizer.step()
        total += losses.detach() * index.shape[1]
    return total / seen.shape[1]


@torch.no_grad()
def _mean_losses(ensemble: Ensemble, loss: Loss, rows: Rows, index: Tensor) -> Tensor:
    index = index.to(ensemble.device)
    weights = rows.weights[index]
    return (weights * loss(ensemble(rows.x[index]), rows.y[index])).sum(1) / weights.sum(1)


class _BestWeights:
    """The weights of each network at its lowest loss; a loss of NaN never counts as lowest."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._current = list(ensemble.parameters())
        self._best = [p.detach().clone() for p in self._current]
        self._losses = torch.full((ensemble.n_networks,), math.inf, device=ensemble.device)
        self.epochs_since = torch.zeros(ensemble.n_networks, device=ensemble.device)

    @torch.no_grad()
    def update(self, losses: Tensor) -> None:
        better = losses < self._losses
        self._losses = torch.where(better, losses, self._losses)
        self.epochs_since = torch.where(better, 0, self.epochs_since + 1)
        for best, p in zip(self._best, self._current, strict=True):
            best[better] = p[better]

    @torch.no_grad()
    def restore(self) -> None:
        for best, p in zip(self._best, self._current, strict=True):
            p.copy_(best)
