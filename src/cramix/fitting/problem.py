"""What a method of fitting is given, and what it returns."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from cramix.fitting.em import Data
from cramix.fitting.families import Family, SphericalFamily
from cramix.fitting.result import Step
from cramix.mixture import MultivariateNormalMixture

# Samples at a time.
ROWS = 1 << 16
# Standard deviations in those of the middle half of the samples: above the first it is outliers that they tell of, and
# up to the second numbers keep enough digits.
_FAR, _FARTHEST = 30, 1e5


class Units(NamedTuple):
    """A centre `(d,)` and scales `(d,)` to measure the data in, in float64."""

    centre: Tensor
    scale: Tensor

    def of(self, places: Tensor) -> Tensor:
        """Return places `(n, d)` in these units."""
        return (places.double() - self.centre) / self.scale

    @property
    def log_volume(self) -> float:
        """What densities change by, in logarithms."""
        return self.scale.log().sum().item()


class History:
    """The stages of a fit as they come, passed on to who wants to see them."""

    def __init__(self, progress: Callable[[Step], None] | None = None) -> None:
        self.began, self.steps, self._progress = time.perf_counter(), list[Step](), progress

    def add(self, name: str, components: int, loss: float) -> None:
        """Keep a step, and show it."""
        self.steps.append(Step(name, components, loss, self.seconds))
        if self._progress is not None:
            self._progress(self.steps[-1])

    @property
    def seconds(self) -> float:
        """Return the time since the fit began."""
        return time.perf_counter() - self.began


@dataclass(frozen=True)
class Problem:
    """What to fit: a target, which for samples is a mixture of points, and what the result may look like.

    Args:
        target: in the units and the dtype of the caller.
        n_components: k.
        family: the kind of covariances, and their floor in the units.
        units: to compute in.
        start: a name of `starts.STARTS`, a mixture, or None for what the method likes best.
        generator: for all that is random.
        history: where steps are noted.
    """

    target: MultivariateNormalMixture
    n_components: int
    family: Family
    units: Units
    start: str | MultivariateNormalMixture | None = None
    generator: torch.Generator | None = None
    history: History = field(default_factory=History)

    @cached_property
    def data(self) -> Data:
        """Return the target in the units, for likelihoods."""
        spread = None
        if not self.target.only_points:
            covariances = self.target.covariances.double()
            spread = covariances / self.units.scale / self.units.scale.unsqueeze(-1)
        return Data(self.family, self.units.of(self.target.means), self.target.weights.double(), spread)

    def log_likelihood(self, mixture: MultivariateNormalMixture) -> float:
        """Return the mean log likelihood of samples, in the units of the caller."""
        return sum((w @ mixture.log_prob(x.double())).item() for w, x in _blocks(self.target))

    def note_likelihood(self, name: str, components: int, log_likelihood: float) -> None:
        """Note a step of which the mean log likelihood in the units is known."""
        self.history.add(name, components, self.units.log_volume - log_likelihood)


class Found(NamedTuple):
    """A mixture in the units of its problem: weights `(k,)`, means `(k, d)` and values of the kind, and how it went."""

    weights: Tensor
    means: Tensor
    spread: Tensor
    converged: bool
    reason: str
    iterations: int


class Method(ABC):
    """A way to fit a mixture, with its settings; abstract."""

    name: ClassVar[str]

    @abstractmethod
    def run(self, problem: Problem) -> Found:
        """Solve the problem."""

    def units(self, target: MultivariateNormalMixture, family: type[Family]) -> Units:
        """Return units in which the target has mean 0 and variances 1."""
        return standard_units(target, family)


def standard_units(target: MultivariateNormalMixture, family: type[Family]) -> Units:
    """Return mean and standard deviations; one for all directions where covariances know no others.

    Where a few samples are so far out that they alone make the deviation, it is that of the middle half instead, or the
    floor would hide all others.
    """
    centre, variance = moments(target)
    if target.only_points:
        median, middle = _of_middle(target)
        outliers = (middle > 0) & (middle < variance.sqrt() / _FAR)
        centre = torch.where(outliers, median, centre)
        variance = torch.where(outliers, torch.maximum(middle.square(), variance / _FARTHEST**2), variance)
    if family is SphericalFamily:
        variance = variance.mean().expand_as(variance)
    rounding = (16 * torch.finfo(target.means.dtype).eps * centre.abs()).square()
    return Units(centre, torch.where(variance > rounding, variance, 1).sqrt())


def moments(target: MultivariateNormalMixture) -> tuple[Tensor, Tensor]:
    """Return mean and variances `(d,)` in float64, without a copy of the whole in it."""
    # Added up in place: many small tensors between large ones would keep the memory of these from being used again.
    centre, between = target.means.new_zeros(2, target.dim, dtype=torch.float64)
    for w, x in _blocks(target):
        centre += w @ x.double()
    for w, x in _blocks(target):
        between += w @ (x.double() - centre).square()
    if target.only_points:
        return centre, between
    own = target.covariances.diagonal(dim1=-2, dim2=-1).double()
    return centre, between + target.weights.double() @ own / target.weights.sum(dtype=torch.float64)


def _of_middle(target: MultivariateNormalMixture) -> tuple[Tensor, Tensor]:
    """Return medians, and normal standard deviations from quartiles, `(d,)`, of some samples if there are many."""
    step = -(-len(target.weights) // ROWS)
    weights, x = target.weights[::step].double(), target.means[::step].double()
    ordered, order = x.sort(0)
    mass = weights[order].cumsum(0).T.contiguous()  # (d, n)
    wanted = mass[:, -1:] * mass.new_tensor([0.25, 0.5, 0.75])
    index = torch.searchsorted(mass, wanted).clamp_max(len(x) - 1)
    low, median, high = ordered.T.gather(1, index).unbind(1)
    return median, (high - low) / 1.349


def _blocks(target: MultivariateNormalMixture) -> Iterator[tuple[Tensor, Tensor]]:
    """Weights in float64, which sum to one there too, and means, some at a time."""
    total = target.weights.sum(dtype=torch.float64)
    for weights, means in zip(target.weights.split(ROWS), target.means.split(ROWS), strict=True):
        yield weights.double() / total, means
