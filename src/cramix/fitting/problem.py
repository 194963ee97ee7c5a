"""What a method of fitting gets, a `Problem`, and what it returns, a `Solution`."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from cramix.fitting.features import Data
from cramix.fitting.outliers import Outliers, quartiles
from cramix.fitting.result import Step
from cramix.fitting.samples import rows_at_a_time
from cramix.mixture import MultivariateNormalMixture
from cramix.mixture.covariance import Family, Prior, Spherical

# If a standard deviation is this many times that of the middle half of the samples, outliers dominate it; the units
# then follow the middle half, as long as the outliers lie within the second number of them, for the sake of rounding.
FAR, _FARTHEST = 30, 1e5
# The least variance, relative to that of the data, that float64 resolves.
_LEAST_FLOOR = 1e-12
# Reasons to stop before a method has converged: all steps are taken, none was asked for, or a source must not be read
# again.
OUT_OF_ITERATIONS, NO_ITERATIONS = "max_iter was reached", "max_iter is 0"
OUT_OF_PASSES = "max_passes was reached"


class Units(NamedTuple):
    """A centre `(d,)` and scales `(d,)` in float64: the origin and the units of the coordinates of a fit."""

    centre: Tensor
    scale: Tensor

    def of(self, x: Tensor) -> Tensor:
        """Return points `(n, d)` in these units."""
        return torch.sub(x, self.centre).div_(self.scale)  # in float64, as the centre, and one copy only

    def of_in(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the same in a dtype. From float32 to float32 nothing is computed in float64 on the way."""
        if x.dtype != torch.float32 or dtype != torch.float32:
            return self.of(x).to(dtype)
        near = (
            self.centre.float()
        )  # a difference to it has hardly a rounding error, and the rest of the centre is small
        rest = ((near.double() - self.centre) / self.scale).float()
        return torch.addcmul(rest, x - near, (1 / self.scale).float())

    @property
    def log_volume(self) -> float:
        """The log density in these units less that in the units of the data."""
        return self.scale.log().sum().item()


class Components(NamedTuple):
    """Weights `(k,)`, means `(k, d)`, and covariances as the values of their kind, in the units of a problem."""

    weights: Tensor
    means: Tensor
    covariances: Tensor


class Solution(NamedTuple):
    """The components a method has found, how it ended after how many steps of its last stage, and the shrinkage.

    Also the mean log likelihood of the samples in the units of the problem, where the method knows it.
    """

    components: Components
    converged: bool
    reason: str
    n_iter: int
    shrinkage: float = 0.0
    log_likelihood: float | None = None


class History:
    """The steps of a fit, each of which is also passed to `progress`."""

    def __init__(self, progress: Callable[[Step], None] | None = None) -> None:
        self.began, self._steps, self._progress = time.perf_counter(), list[Step](), progress
        self._unread = dict[int, Tensor]()

    def add(self, name: str, n_components: int, loss: float | Tensor) -> None:
        """Append a step. A loss on a GPU, for which the host has to wait, is read when somebody looks."""
        if isinstance(loss, Tensor):
            if loss.is_cuda and self._progress is None:
                self._unread[len(self._steps)] = loss
                loss = math.nan
            else:
                loss = loss.item()
        self._steps.append(Step(name, n_components, loss, self.seconds))
        if self._progress is not None:
            self._progress(self._steps[-1])

    @property
    def steps(self) -> list[Step]:
        """Return the steps so far."""
        if self._unread:
            for i, loss in zip(self._unread, torch.stack(list(self._unread.values())).tolist(), strict=True):
                self._steps[i] = replace(self._steps[i], loss=loss)
            self._unread.clear()
        return self._steps

    @property
    def seconds(self) -> float:
        """Return the time since the fit began."""
        return time.perf_counter() - self.began


@dataclass(frozen=True)
class Problem:
    """A target, and what the fitted mixture may look like.

    Args:
        target: in the units and the dtype of the caller; samples are a mixture of points.
        n_components: k.
        family: the kind of covariances, with the floor of variances in `units`.
        units: to compute in.
        init_params: a name of `starts.STARTS`, a mixture, or None for the start that suits the method.
        generator: for everything random.
        history: where steps are recorded.
        univariate: whether the result is to be a `NormalMixture`.
        standard: units in which the target has variances 1; None if `units` are those.
        shrinkage: the strength with which covariances are shrunk; None for the method to choose.
        n_samples: the number of samples that shrinkage is relative to.
        outliers: samples that the target lacks because they lie too far out.
    """

    target: MultivariateNormalMixture
    n_components: int
    family: Family
    units: Units
    init_params: str | MultivariateNormalMixture | None = None
    generator: torch.Generator | None = None
    history: History = field(default_factory=History)
    univariate: bool = False
    standard: Units | None = None
    shrinkage: float | None = 0.0
    n_samples: float = 1.0
    outliers: Outliers = field(default_factory=Outliers)

    @cached_property
    def data(self) -> Data:
        """Return the target in the units, for likelihoods."""
        covariances = None
        if not self.target.is_empirical:
            covariances = self.target.covariances.double() / self.units.scale / self.units.scale.unsqueeze(-1)
        return Data(self.family, self.units.of(self.target.means), self.target.weights.double(), covariances)

    def release(self) -> None:
        """Drop the copy of the target in the units; it is made again where it is needed."""
        vars(self).pop("data", None)

    def log_likelihood(self, mixture: MultivariateNormalMixture) -> float:
        """Return the mean log likelihood of the samples, in the units of the caller."""
        blocks = _blocks(self.target, mixture.n_components)
        return sum((w @ mixture.log_prob(x.double())).item() for w, x in blocks)

    def shrinkage_prior(self, strength: float, batch: int) -> Prior | None:
        """Return the prior that shrinks the covariances of a batch of fits to all samples; None for a strength of 0."""
        if not strength:
            return None
        strengths = torch.full((batch,), strength, dtype=torch.float64, device=self.target.means.device)
        return self.family.shrinkage(strengths, self.n_samples)

    def note_likelihood(self, name: str, n_components: int, log_likelihood: float | Tensor) -> None:
        """Record a step by its mean log likelihood in the units of the problem."""
        self.history.add(name, n_components, self.log_volume - log_likelihood)

    @cached_property
    def log_volume(self) -> float:
        """The log density in the units less that in the units of the data."""
        return self.units.log_volume


class Method(ABC):
    """A method of fitting with its settings; abstract.

    Example:
        >>> from cramix.fitting import METHODS
        >>> METHODS["em"].name, issubclass(METHODS["em"], Method)
        ('em', True)
    """

    name: ClassVar[str]
    shrinks: ClassVar[bool] = False  # whether it can shrink covariances

    @abstractmethod
    def run(self, problem: Problem) -> Solution:
        """Solve the problem."""

    def units(self, standard: Units) -> Units:
        """Return the units to compute in, given those in which the target has mean 0 and variances 1."""
        return standard

    @property
    def sets_outliers_aside(self) -> bool:
        """Whether the few samples that lie absurdly far out are left out of the fit, with a warning."""
        return True


def floor_in(units: Units, standard: Units, reg_covar: float | None, relative: float) -> float | Tensor:
    """Return what is added to variances in some units: one number, or one a coordinate, `(d,)`.

    `reg_covar` is a variance in the units of the data; None is relative to the variances of the data. Below 1e-12 of
    these, float64 could not resolve the density of a collapsed component: a smaller one, such as 0, becomes that.
    """
    ratio = standard.scale / units.scale
    if reg_covar is None:
        floor = relative * ratio.square()
    else:
        floor = torch.maximum(reg_covar / units.scale.square(), _LEAST_FLOOR * ratio.square())
    return floor[0].item() if bool((floor == floor[0]).all()) else floor


def standard_units(target: MultivariateNormalMixture, family: type[Family]) -> Units:
    """Return means and standard deviations; one deviation for all coordinates of spherical covariances.

    Where a few samples are so far out that they alone determine the standard deviation, that of the middle half of the
    samples takes its place: otherwise the floor would exceed the variances of all other samples.
    """
    centre, variance = moments(target)
    if target.is_empirical:
        median, middle, outliers = outlying(target, variance)
        centre = torch.where(outliers, median, centre)
        variance = torch.where(outliers, torch.maximum(middle.square(), variance / _FARTHEST**2), variance)
    same = constant(target, centre, variance)
    if family is Spherical.family:
        variance, same = variance.mean().expand_as(variance), same.all().expand_as(same)
    return Units(centre, torch.where(same, 1, variance).sqrt())


def constant(target: MultivariateNormalMixture, centre: Tensor, variance: Tensor) -> Tensor:
    """Return which coordinates do not vary beyond rounding, `(d,)`, given their means and variances."""
    rounding = 64 * torch.finfo(target.means.dtype).eps * centre.abs()
    found = variance <= rounding.square()
    if target.is_empirical:
        # The rounding error of a mean grows with the number of samples, and with it the variance of equal ones.
        present = target.weights > 0
        x = target.means if bool(present.all()) else target.means[present]
        found |= x.amax(0).double() - x.amin(0).double() <= rounding
    return found


def moments(target: MultivariateNormalMixture) -> tuple[Tensor, Tensor]:
    """Return means and variances `(d,)` in float64, without a float64 copy of the target."""
    # Accumulated in place: many small tensors between large ones would fragment the memory.
    centre, between = target.means.new_zeros(2, target.dim, dtype=torch.float64)
    for w, x in _blocks(target):
        centre += _weighted_sum(w, x.double())
    for w, x in _blocks(target):
        between += _weighted_sum(w, (x.double() - centre).square())
    if target.is_empirical:
        return centre, between
    within = target.covariances.diagonal(dim1=-2, dim2=-1).double()
    return centre, between + target.weights.double() @ within / target.weights.sum(dtype=torch.float64)


def outlying(target: MultivariateNormalMixture, variance: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return medians, deviations from quartiles, and where these are far below the standard deviations, `(d,)` each.

    There, outliers dominate the standard deviations of the samples.
    """
    variance = moments(target)[1] if variance is None else variance
    low, median, high = quartiles(target.means, target.weights)
    middle = (high - low) / 1.349  # the standard deviation of a normal distribution with these quartiles
    return median, middle, (middle > 0) & (middle < variance.sqrt() / FAR)


def _blocks(target: MultivariateNormalMixture, numbers: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield weights in float64, which sum to one in it, and means, some rows at a time; see `rows_at_a_time`."""
    total = target.weights.sum(dtype=torch.float64)
    rows = rows_at_a_time(target.means, numbers)
    for weights, means in zip(target.weights.split(rows), target.means.split(rows), strict=True):
        yield weights.double() / total, means


def _weighted_sum(weights: Tensor, x: Tensor) -> Tensor:
    """Return the sum of rows `(n, d)` times weights `(n,)`."""
    # A product of a matrix with few columns occupies few multiprocessors of a GPU.
    return (weights.unsqueeze(-1) * x).sum(0) if x.is_cuda else weights @ x
