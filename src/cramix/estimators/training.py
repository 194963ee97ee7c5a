"""Training of an ensemble: AdamW with a learning rate of one cycle, and the best weights on rows held out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cramix.distance.operands import Mixture
from cramix.estimators.ensemble import Ensemble
from cramix.estimators.splits import Split
from cramix.fitting import Step
from cramix.loss import energy_score, nll_loss
from cramix.nn.output_crps import crps_of_outputs

# Losses `(E, n)` of networks for features `(E, n, f)` and targets `(E, n)` or `(E, n, d)`.
Loss = Callable[[Ensemble, Tensor, Tensor], Tensor]


def _cramer(ensemble: Ensemble, x: Tensor, y: Tensor) -> Tensor:
    head = ensemble.head
    if head.event_dim > 1:
        return energy_score(ensemble(x), y)
    return crps_of_outputs(head, head.linear(ensemble.head_features(x)), y)


def _nll(ensemble: Ensemble, x: Tensor, y: Tensor) -> Tensor:
    return nll_loss(ensemble(x), y, reduction="none")


# The losses that each setting of the regressor trains with, one stage after the other.
STAGES: dict[str, list[Loss]] = {"cramer": [_cramer], "nll": [_nll], "blend": [_cramer, _nll]}
# Factor on the learning rate of later stages, which start close to their optimum.
_LATER_RATE = 0.3
# With fewer rows none are held out.
_MIN_ROWS = 20
# The rows held out by each network that are evaluated after an epoch, at most, and evaluated at a time.
_MAX_EVALUATED, _BLOCK = 1 << 13, 1 << 12
# The learning rate rises to its peak in this fraction of the steps, from this fraction of the peak, and then falls to 0
# along a cosine.
_WARM_UP, _FIRST_RATE = 0.1, 0.1
# A short memory of squared gradients, as there are few steps.
_BETAS = 0.9, 0.99
# Predictions out of sample are of rows that two networks or more have not seen if there are this many, otherwise one;
# and of at most so many.
_MIN_OUT_OF_SAMPLE, _MAX_OUT_OF_SAMPLE = 50, 1 << 12
# Squared errors are reduced to this share at most.
_LEAST_SHARE = 0.2


class Rows(NamedTuple):
    """Features `(n, f)`, targets `(n,)` or `(n, d)`, and weights `(n,)` with mean 1."""

    x: Tensor
    y: Tensor
    weights: Tensor


@dataclass(frozen=True)
class TrainingOptions:
    """How to train; see `MixtureRegressor`."""

    stages: list[Loss]
    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    validation_fraction: float  # 0 holds no rows out
    patience: int
    progress: Callable[[Step], None] | None = None
    splits: list[Split] | None = None  # None holds random rows out


def train(
    ensemble: Ensemble, rows: Rows, options: TrainingOptions, generator: torch.Generator
) -> tuple[Tensor, list[float]]:
    """Train the networks in batches, and restore the weights of each that were best on rows it had not seen.

    Return the rows that each network did not see, `(E, m)` indices, and the mean loss of the networks after each epoch.
    """
    n, started = len(rows.x), perf_counter()
    if options.splits is None:
        n_held_out = int(options.validation_fraction * n) if n >= _MIN_ROWS else 0
        order = torch.stack([torch.randperm(n, generator=generator) for _ in range(ensemble.n_estimators)])
        held_out, seen = order[:, :n_held_out], order[:, n_held_out:]
    else:
        # From the last one backwards: that of a time series has the latest and the most rows.
        in_turn = [options.splits[-1 - i % len(options.splits)] for i in range(ensemble.n_estimators)]
        seen, held_out = (_of_equal_length(sides, generator) for sides in zip(*in_turn, strict=True))
        n_held_out = held_out.shape[1]
    n_batches = max(1, round(seen.shape[1] / options.batch_size))
    curve: list[float] = []
    for stage, loss in enumerate(options.stages):
        rate = options.learning_rate * (_LATER_RATE if stage else 1)
        optimizer = torch.optim.AdamW(
            ensemble.parameters(), rate, betas=_BETAS, weight_decay=options.weight_decay, fused=True
        )
        rates = (rate * factor for factor in _one_cycle(n_batches * options.epochs))
        best = _BestWeights(ensemble)
        if n_held_out:
            best.update(_mean_losses(ensemble, loss, rows, held_out))
        for _ in range(options.epochs):
            losses = _train_epoch(ensemble, loss, rows, seen, n_batches, optimizer, rates, generator)
            if n_held_out:
                losses = _mean_losses(ensemble, loss, rows, held_out)
            best.update(losses)
            curve.append(losses.mean().item())
            if options.progress is not None:
                name, seconds = f"epoch {len(curve)}", perf_counter() - started
                options.progress(Step(name, ensemble.n_components, curve[-1], seconds))
            if n_held_out and bool((best.epochs_since >= options.patience).all()):
                break
        best.restore()
    return held_out, curve


def _of_equal_length(sides: Iterable[np.ndarray], generator: torch.Generator) -> Tensor:
    """Return indices of rows in random order, `(E, m)`; rows of shorter lists come again."""
    index = [torch.from_numpy(side)[torch.randperm(len(side), generator=generator)] for side in sides]
    longest = max(map(len, index))
    return torch.stack([rows.repeat(-(-longest // len(rows)))[:longest] for rows in index])


def _one_cycle(steps: int) -> Iterator[float]:
    """Yield the factor on the learning rate of each step."""
    warm_up = max(1, round(_WARM_UP * steps))
    for step in range(warm_up):
        yield _FIRST_RATE + (1 - _FIRST_RATE) * step / warm_up
    for step in range(steps - warm_up):
        yield 0.5 * (1 + math.cos(math.pi * step / (steps - warm_up)))


def _train_epoch(
    ensemble: Ensemble,
    loss: Loss,
    rows: Rows,
    seen: Tensor,
    n_batches: int,
    optimizer: torch.optim.Optimizer,
    rates: Iterator[float],
    generator: torch.Generator,
) -> Tensor:
    """Pass once over the rows with indices `(E, m)`, each network in its own order; return mean losses `(E,)`."""
    order = torch.stack([torch.randperm(seen.shape[1], generator=generator) for _ in seen])
    total = torch.zeros(len(seen), device=ensemble.device)
    for index in seen.gather(1, order).to(ensemble.device).tensor_split(n_batches, 1):
        optimizer.zero_grad()
        losses = (rows.weights[index] * loss(ensemble, rows.x[index], rows.y[index])).mean(1)
        losses.sum().backward()  # networks share no weights, so each gets the gradient of its own loss
        optimizer.param_groups[0]["lr"] = next(rates)
        optimizer.step()
        total += losses.detach() * index.shape[1]
    return total / seen.shape[1]


@torch.no_grad()
def _mean_losses(ensemble: Ensemble, loss: Loss, rows: Rows, index: Tensor) -> Tensor:
    total = weight = torch.zeros(len(index), device=ensemble.device)
    for block in index[:, :_MAX_EVALUATED].to(ensemble.device).split(_BLOCK, 1):
        weights = rows.weights[block]
        total = total + (weights * loss(ensemble, rows.x[block], rows.y[block])).sum(1)
        weight = weight + weights.sum(1)
    return total / weight


class _BestWeights:
    """The weights of each network at its lowest loss; a loss of NaN never counts as lowest."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._current = list(ensemble.parameters())
        self._best = [p.detach().clone() for p in self._current]
        self._losses = torch.full((ensemble.n_estimators,), math.inf, device=ensemble.device)
        self.epochs_since = torch.zeros(ensemble.n_estimators, device=ensemble.device)

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


@torch.no_grad()
def out_of_sample(ensemble: Ensemble, rows: Rows, held_out: Tensor) -> tuple[Mixture, Rows]:
    """Return predictions for rows by the networks that did not see them, `(E, m)` indices, and these rows.

    The mean of the c networks that have not seen a row is less accurate than that of all E: with networks of variance v
    its squared error is larger by `v (1/c - 1/E)`, and the variance of their mixture is smaller by as much. Targets are
    moved towards the prediction by both, so that what is right for the few is right for all.
    """
    unseen = torch.zeros(len(held_out), len(rows.x), dtype=torch.bool).scatter_(1, held_out, True)
    counts = unseen.sum(0)
    index = (counts >= 2).nonzero().squeeze(1)
    if len(index) < _MIN_OUT_OF_SAMPLE:
        index = counts.nonzero().squeeze(1)
    index = index[torch.linspace(0, len(index) - 1, min(len(index), _MAX_OUT_OF_SAMPLE)).long()]
    rows = Rows(*(part[index.to(part.device)] for part in rows))
    unseen, counts = unseen[:, index].T.to(rows.x), counts[index].to(rows.x)
    p = ensemble.combined(rows.x, unseen / counts.unsqueeze(-1))
    return p, rows._replace(y=_towards_mean(p, rows.y, ensemble.means(rows.x), unseen, counts))


def _towards_mean(p: Mixture, y: Tensor, means: Tensor, unseen: Tensor, counts: Tensor) -> Tensor:
    """Return targets `(n,)` or `(n, d)`, moved for networks with means `(E, n)` or `(E, n, d)`."""
    unseen, counts = unseen.T, counts
    while unseen.ndim < means.ndim:
        unseen, counts = unseen.unsqueeze(-1), counts.unsqueeze(-1)
    between = (unseen * (means - p.mean).square()).sum(0) / (counts - 1).clamp(min=1)
    excess = 2 * between * (1 / counts - 1 / len(means))
    return p.mean + (1 - excess / p.variance).clamp(min=_LEAST_SHARE).sqrt() * (y - p.mean)
