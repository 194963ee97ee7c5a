"""EM on a sample whose sums are corrected to those of all rows, so that few passes over all rows do.

The log likelihood of a sample differs from that of all rows mostly by its slope: the curvature of the two is the same
to one over the root of the number of samples. So the likelihood of the sample, plus a linear function of the
coefficients that gives it the slope of all rows at one point, is maximised in place of that of all rows (Jordan, Lee
and Yang 2019). The slope in the coefficients are the sums of features, hence an EM step with such a correction is the
step with the sample, plus a constant, and never loses. One pass over all rows gives sums at the optimum of the last
correction; the distance to the optimum of all rows shrinks by a large factor with each pass, where EM steps over all
rows shrink it by a factor close to one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.fitting.em import Outcome, Stepping, driven, polish, polishing_of, with_log_prior
from cramix.fitting.features import LEAST_WEIGHT, Data
from cramix.mixture.covariance import Prior

# Rows of a sample: the first of these numbers, or the second times as many as there are, if that is more. Compared with
# a step over all rows, one with it then takes little time.
_LEAST_SAMPLE, _SAMPLE = 100_000, 0.005
# With fewer samples than so many times the least number, all are used.
_MANY = 4
# Steps with the sample after a pass, at most, and the gain at which they end, relative to that of a pass.
_STEPS, _OF_TOL = 200, 0.01
# A prediction is trusted after one of which at least this part came true.
_TRUE = 0.5


class Corrected:
    """A sample in place of all rows, with the likelihood and the sums of all rows at one point.

    Args:
        sample: of the rows.
        point: sums of features `(1, k, F)` of the mixture at which all rows are known.
        sums: of all rows, after an EM step at the point.
        log_likelihood: mean over all rows, at the point, `(1,)`.
        prior: pseudo-samples.
    """

    def __init__(
        self, sample: Data, point: Tensor, sums: Tensor, log_likelihood: Tensor, prior: Prior | None = None
    ) -> None:
        self.family, self.sample = sample.family, sample
        at = self.family.coefficients(*self.family.parameters(point, prior))
        found, value = sample.expect(at)
        self.difference = sums - found
        self.offset = log_likelihood - value - (self.difference * at).sum((-2, -1))

    @property
    def is_large(self) -> bool:
        """Whether a step on a GPU takes longer than the host waits for its result."""
        return self.sample.is_large

    def step(self, sums: Tensor, prior: Prior | None = None) -> tuple[Tensor, Tensor]:
        """Return the sums `(1, k, F)` after one EM step, and an estimate of the mean log likelihood before it, `(1,)`.

        A LinAlgError says that the correction has left a component without weight.
        """
        coefficients = self.family.coefficients(*self.family.parameters(sums, prior))
        new, value = self.sample.expect(coefficients)
        new += self.difference
        if not bool((new[..., 0] > LEAST_WEIGHT).all()):
            raise torch.linalg.LinAlgError("The corrected weight of a component is not positive.")
        return new, value + (self.difference * coefficients).sum((-2, -1)) + self.offset


def sample_of(data: Data, n_rows: int, generator: torch.Generator | None) -> Data:
    """Return samples to predict steps over all rows with.

    Args:
        data: some of the rows, or all.
        n_rows: the number of all rows.
        generator: for the draw.
    """
    size = max(_LEAST_SAMPLE, int(_SAMPLE * n_rows))
    return data if len(data) <= size else data.like(data.resample(size, generator))


def polish_large(
    data: Data,
    sums: Tensor,
    max_iter: int,
    tol: float,
    watch: Callable[[float], None],
    prior: Prior | None,
    generator: torch.Generator | None,
) -> Outcome:
    """Do what `polish` does, with a sample if there are many more data.

    Args:
        data: the target.
        sums: the start, `(1, k, F)`.
        max_iter: the largest number of steps over all data.
        tol: gain of the mean log likelihood at which to stop.
        watch: called with the mean log likelihood before each step.
        prior: pseudo-samples.
        generator: to draw the sample.
    """
    if len(data) < _MANY * _LEAST_SAMPLE or max_iter == 0:
        return polish(data, sums, max_iter, tol, watch, prior)
    sample = sample_of(data, len(data), generator)
    return driven(data, refining_of(sample, sums, max_iter, tol, watch, prior), prior)


class _Prediction(NamedTuple):
    """Where the steps with a corrected sample have led, `(1, k, F)`, how much they gained, and if they converged."""

    sums: Tensor
    gain: float
    converged: bool


def refining_of(
    sample: Data,
    sums: Tensor,
    max_iter: int,
    tol: float,
    watch: Callable[[float], None] = lambda log_likelihood: None,
    prior: Prior | None = None,
) -> Stepping:
    """Yield points to take an EM step over all rows at, and return the outcome; as `polishing_of` does.

    After each of these steps the corrected sample predicts the optimum, which is the next point. It ends where the
    prediction gains less than `tol`. The last prediction is the result if one before it came true, otherwise the last
    step over all rows, which never loses. A prediction that loses is not used, and plain steps over all rows go on.

    Args:
        sample: of the rows.
        sums: the start, `(1, k, F)`.
        max_iter: the largest number of steps over all rows, at least 1.
        tol: gain of the mean log likelihood at which to stop.
        watch: called with the mean log likelihood before each step.
        prior: pseudo-samples.
    """
    family, history = sample.family, list[float]()
    point, following, value, gain = sums, sums, -math.inf, math.inf
    for taken in range(1, max_iter + 1):
        new, likelihood = yield point
        history.append(likelihood.item())
        watch(history[-1])
        found = sum(with_log_prior(family, point, likelihood, prior).tolist())
        if not found > value:  # NaN, too
            break
        trusted = found - value >= _TRUE * gain
        following, value = new, found
        prediction = _predict(Corrected(sample, point, new, likelihood, prior), point, tol, prior)
        if prediction is None:
            break
        if prediction.converged and prediction.gain < tol:
            end = prediction.sums if trusted else following
            return Outcome(end, likelihood, taken, True, prior, tuple(history))
        point, gain = prediction.sums, prediction.gain
    if taken == max_iter:
        return Outcome(following, sums.new_tensor([max(history)]), taken, False, prior, tuple(history))
    outcome = yield from polishing_of(family, following, max_iter - taken, tol, watch, prior)
    return outcome._replace(n_iter=taken + outcome.n_iter, history=(*history, *outcome.history))


def _predict(corrected: Corrected, point: Tensor, tol: float, prior: Prior | None) -> _Prediction | None:
    """Return where EM steps with a corrected sample lead; None if to no valid mixture."""
    try:
        outcome = polish(corrected, point, _STEPS, _OF_TOL * tol, prior=prior)
        values = [
            sum(with_log_prior(corrected.family, x, corrected.step(x, prior)[1], prior).tolist())
            for x in (point, outcome.sums)
        ]
    except torch.linalg.LinAlgError:
        return None
    gain = values[1] - values[0]
    return _Prediction(outcome.sums, gain, outcome.converged) if math.isfinite(gain) else None
