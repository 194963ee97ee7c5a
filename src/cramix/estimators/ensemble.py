"""An ensemble: networks of one architecture that learn together; their mixtures combined are a prediction."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from cramix.distance.operands import Mixture
from cramix.fitting import Step
from cramix.loss import crps, energy_score, nll_loss
from cramix.mixture import NormalMixture
from cramix.nn import MixtureHead

Loss = Callable[[Mixture, Tensor], Tensor]


class Ensemble(nn.Module):
    """E networks with weights of their own: batched linear layers, and a `MixtureHead` that also sees the features.

    Args:
        n_estimators: number of networks, E.
        in_features: number of features.
        hidden_layer_sizes: widths of the hidden layers.
        n_components: components of each network, k.
        targets: `(n, d)`, to initialize from.
        sample_weight: of the targets, `(n,)`.
        min_scale: lower bound of the scales, relative to the scale of the targets.
        seed: of the initial weights.
    """

    def __init__(
        self,
        n_estimators: int,
        in_features: int,
        hidden_layer_sizes: Sequence[int],
        n_components: int,
        targets: Tensor,
        sample_weight: Tensor,
        min_scale: float,
        seed: int,
    ) -> None:
        super().__init__()
        self.n_estimators, self.n_components = n_estimators, n_estimators * n_components
        widths = [in_features, *hidden_layer_sizes]
        head_features = in_features + (widths[-1] if hidden_layer_sizes else 0)
        with torch.random.fork_rng(devices=[]):  # layers draw their weights from the global generator
            torch.manual_seed(seed)
            layers, heads = [], []
            for _ in range(n_estimators):
                layers.append([nn.Linear(a, b) for a, b in pairwise(widths)])
                heads.append(
                    MixtureHead(head_features, n_components, targets.shape[1], min_scale=min_scale, validate_args=False)
                )
        for head in heads:
            head.initialize(targets, sample_weight)
        self.hidden = nn.ModuleList(map(_BatchedLinear, zip(*layers, strict=True)))
        # The heads differ in their linear layers only, so the first one serves all.
        self.head = heads[0]
        self.head.linear = _BatchedLinear([head.linear for head in heads])  # type: ignore[assignment]

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return self.head.unit.device

    def forward(self, x: Tensor) -> Mixture:
        """Return the mixture of each network for its own features `(E, n, in_features)`: batch shape `(E, n)`."""
        z = x
        for layer in self.hidden:
            z = silu(layer(z))
        return self.head(torch.cat((z, x), -1) if self.hidden else x)

    @torch.no_grad()
    def combined(self, x: Tensor) -> Mixture:
        """Return the mixture of all networks for features `(n, in_features)`: batch shape `(n,)`, `E k` components."""
        p = self(x.expand(self.n_estimators, *x.shape))
        # From (E, n, k, *) to (n, E k, *).
        weights, means, values = (part.movedim(0, 1).flatten(1, 2) for part in p._whole())
        return p._of_whole(weights / self.n_estimators, means, values)

    def freeze(self) -> Self:
        """End training. In float64 a row has the same prediction in a batch of any size."""
        return self.double().requires_grad_(False)


class _BatchedLinear(nn.Module):
    """E linear layers at once, for inputs `(E, n, in_features)`."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach() for layer in layers]).unsqueeze(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


def _cramer(p: Mixture, y: Tensor) -> Tensor:
    return crps(p, y) if isinstance(p, NormalMixture) else energy_score(p, y)


def _nll(p: Mixture, y: Tensor) -> Tensor:
    return nll_loss(p, y, reduction="none")


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


def train(
    ensemble: Ensemble, rows: Rows, options: TrainingOptions, generator: torch.Generator
) -> tuple[Tensor, list[float]]:
    """Train the networks in batches, and restore the weights of each that were best on rows it had not seen.

    Return the rows that each network did not see, `(E, m)` indices, and the mean loss of the networks after each epoch.
    """
    n, started = len(rows.x), perf_counter()
    n_held_out = int(options.validation_fraction * n) if n >= _MIN_ROWS else 0
    order = torch.stack([torch.randperm(n, generator=generator) for _ in range(ensemble.n_estimators)])
    held_out, seen = order[:, :n_held_out], order[:, n_held_out:]
    curve: list[float] = []
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
            curve.append(losses.mean().item())
            if options.progress is not None:
                name, seconds = f"epoch {len(curve)}", perf_counter() - started
                options.progress(Step(name, ensemble.n_components, curve[-1], seconds))
            if n_held_out and bool((best.epochs_since >= options.patience).all()):
                break
        best.restore()
    return held_out, curve


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
