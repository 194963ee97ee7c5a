"""The learner: one update of the networks from a batch, compiled where that pays."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from cramix.rl.bellman import bellman
from cramix.rl.flat import FlatParameters
from cramix.rl.masks import allowed, mask_of
from cramix.rl.network import ReturnNetwork
from cramix.rl.replay import Transitions
from cramix.rl.returns import Parts
from cramix.rl.risk import Measure
from cramix.rl.settings import Settings

# What an update reports, in this order.
METRICS = ("gradient_norm", "loss", "penalty", "smallest_scale", "entropy", "value")


class Learner:
    """Holds the online and the target network and takes steps of the optimiser.

    Args:
        online: the network that learns.
        target: the one that predicts what comes next.
        unit: returns are this many times the network's numbers, a tensor of one number.
        settings: of the algorithm.
        measure: what the best next action is judged by; None is the mean.
    """

    def __init__(
        self,
        online: ReturnNetwork,
        target: ReturnNetwork,
        unit: Tensor,
        settings: Settings,
        measure: Measure | None = None,
    ):
        self.online, self.unit, self.settings, self.measure = online, unit, settings, measure
        fractions = online.returns.fractions() if settings.fraction_learning_rate is not None else []
        self._flat = FlatParameters(online, [fractions])
        self._leaves = [nn.Parameter(vector) for vector in self._flat.vectors]
        self._target = FlatParameters(target, [_same(target, online, fractions)])
        self.optimizer = _optimizer(self._leaves, _shares(len(self._leaves), bool(fractions), settings), settings)
        self.compiled = False
        self._gradient: Callable[..., tuple[Sequence[Tensor], Tensor]] = self._eager_gradient
        self.updates = 0

    def compile(self) -> None:
        """Compile the update; where that fails it stays as it is, and says so."""

        # One graph for prediction, target, loss and gradient: layers of this size cost less than calls of them.
        def whole(*state: Any) -> tuple[Sequence[Tensor], Tensor]:
            gradients, (_, metrics) = grad_and_value(self._loss, has_aux=True)(*state)
            return _clip(gradients, metrics, self.settings.max_grad_norm)

        # In one piece or not at all: an update in many pieces is slower than one that is not compiled.
        graph = torch.compile(whole, dynamic=False, fullgraph=True)
        works = False

        def gradient(vectors: Sequence[Tensor], *rest: Any) -> tuple[Sequence[Tensor], Tensor]:
            nonlocal works
            try:
                with torch.no_grad():
                    result = graph(vectors, *rest)
                works = True
                return result
            except Exception as error:
                if works:
                    raise
                warnings.warn(
                    f"the update could not be compiled and runs as it is, slower: {_first_line(error)}. "
                    "Install a C++ compiler, or use compile=False.",
                    stacklevel=2,
                )
                self.compiled, self._gradient = False, self._eager_gradient
                return self._eager_gradient(vectors, *rest)

        self.compiled, self._gradient = True, gradient

    def update(self, batch: Transitions, rate: float) -> Tensor:
        """Take one step at a learning rate and return `METRICS` as one tensor."""
        gradients, metrics = self._gradient(self._flat.vectors, self._target.vectors, batch)
        for leaf, gradient in zip(self._leaves, gradients, strict=True):
            leaf.grad = gradient
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        self.optimizer.step()
        self.updates += 1
        if self.updates % self.settings.target_update_interval == 0:
            _approach(self._target.vectors, self._flat.vectors, self.settings.tau)
        return metrics

    def _eager_gradient(
        self, vectors: Sequence[Tensor], targets: Sequence[Tensor], batch: Transitions
    ) -> tuple[Sequence[Tensor], Tensor]:
        leaves = [vector.detach().requires_grad_() for vector in vectors]
        loss, metrics = self._loss(leaves, targets, batch)
        return _clip(torch.autograd.grad(loss, leaves), metrics, self.settings.max_grad_norm)

    def _loss(self, vectors: Sequence[Tensor], targets: Sequence[Tensor], batch: Transitions) -> tuple[Tensor, Tensor]:
        """Return the mean loss of a batch, and numbers to look at."""
        with torch.no_grad():
            target = self._target_parts([vector.detach() for vector in vectors], targets, batch)
        everything = self._predict(vectors, batch.observations)
        prediction = everything.of(batch.actions)
        penalty = self.online.returns.penalty(prediction).mean()
        loss = self.online.returns.loss(prediction, target).mean()
        return loss + penalty, torch.stack([loss.detach(), penalty.detach(), *_looks(prediction)])

    def _target_parts(self, vectors: Sequence[Tensor], targets: Sequence[Tensor], batch: Transitions) -> Parts:
        """Return what the batch says the returns are: the best next action by one network, its returns by the other."""
        candidates = self._predict(vectors, batch.next_observations)
        values = candidates.mean() if self.measure is None else self.measure(candidates.mixture(self.unit))
        best = allowed(values, mask_of(batch.next_observations)).argmax(-1)
        return bellman(
            self._predict(targets, batch.next_observations).of(best), batch.rewards / self.unit, batch.discounts
        )

    def _predict(self, vectors: Sequence[Tensor], observations: Any) -> Parts:
        return functional_call(self.online, self._flat.named(vectors), (observations,))


def _clip(gradients: Sequence[Tensor], metrics: Tensor, limit: float | None) -> tuple[Sequence[Tensor], Tensor]:
    """Return gradients no longer than a limit altogether, and metrics with their length in front."""
    norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
    metrics = torch.cat([norm.unsqueeze(0), metrics])
    if limit is None:
        return gradients, metrics
    shrink = (limit / norm.clamp_min(1e-12)).clamp_max(1.0)
    return [gradient * shrink for gradient in gradients], metrics


def _looks(prediction: Parts) -> list[Tensor]:
    """Return the smallest scale, the mean entropy of the weights and the mean return of a prediction."""
    weights = prediction.weights.detach()
    entropy = -torch.xlogy(weights, weights).sum(-1).mean()
    return [prediction.scales.detach().min(), entropy, prediction.mean().detach().mean()]


def _same(module: nn.Module, other: nn.Module, parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Return the parameters of a module that have the names of some of another."""
    wanted = {id(p) for p in parameters}
    names = {name for name, p in other.named_parameters() if id(p) in wanted}
    return [p for name, p in module.named_parameters() if name in names]


def _approach(vectors: Sequence[Tensor], goals: Sequence[Tensor], part: float) -> None:
    for vector, goal in zip(vectors, goals, strict=True):
        vector.lerp_(goal, part)


def _shares(groups: int, fractions: bool, settings: Settings) -> list[float]:
    """Return the share of the learning rate of every group; fractions are the last, and may be all there is."""
    if not fractions:
        return [1.0]
    start, own = settings.rate(1.0), settings.fraction_learning_rate or 0.0
    if start <= 0:
        raise ValueError(
            f"fraction_learning_rate must be None where learning_rate starts at 0; got {own}. "
            "It is a share of the first learning rate, so start above 0."
        )
    return [1.0, own / start][-groups:]


def _optimizer(leaves: Sequence[nn.Parameter], shares: Sequence[float], settings: Settings) -> torch.optim.Optimizer:
    """Return the optimiser; each group has the share of the learning rate that is its own."""
    start = settings.rate(1.0)
    groups = [{"params": [leaf], "share": share} for leaf, share in zip(leaves, shares, strict=True)]
    arguments = dict(settings.optimizer_kwargs)
    if settings.optimizer == "adam":
        return torch.optim.Adam(groups, lr=start, fused=True, **{"eps": 1e-4, **arguments})
    if settings.optimizer == "lion":
        try:
            from lion_pytorch import Lion
        except ImportError:
            raise ImportError("Lion needs lion-pytorch. Use: pip install 'cramix[lion]'") from None
        return Lion(groups, lr=start, **arguments)
    return settings.optimizer(groups, lr=start, **arguments)  # type: ignore[operator]


def can_compile(device: torch.device) -> bool:
    """Whether there is a compiler for code on the device."""
    if device.type == "cuda":
        return True
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
