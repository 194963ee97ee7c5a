"""Recalibration of an ensemble by rows that its networks have not seen.

Networks trained on the CRPS tend to have scales that are slightly too small and no density where outliers are: the CRPS
hardly changes by either, the likelihood a lot. Two numbers correct it: a factor on all scales, and the weight of one
wide component at the mean of the prediction.
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from cramix.distance.operands import Mixture
from cramix.estimators.ensemble import Ensemble
from cramix.estimators.training import Rows
from cramix.mixture import NormalMixture

# What is tried. Larger values can improve the likelihood further, but worsen the CRPS.
_SCALE_FACTORS = 1.0, 1.05, 1.1
_TAIL_WEIGHTS = 0.0, 0.002, 0.005, 0.01, 0.02
# The scale of the wide component, relative to the standard deviation of the prediction.
_TAIL_WIDTH = 3.0
# A row is used if many networks have not seen it, as long as this fraction of the rows, and this many, qualify.
_MIN_FRACTION, _MIN_ROWS = 0.1, 100
# At most this many rows are used.
_MAX_ROWS = 1 << 14


class Recalibration(NamedTuple):
    """A factor on the scales of all components, and the weight of a wide component at the mean."""

    scale_factor: float = 1.0
    tail_weight: float = 0.0

    def apply(self, p: Mixture) -> Mixture:
        """Return predictions with batch shape `(n,)`, recalibrated."""
        weights, means = p.weights, p.means
        variances = p.scales.square() if isinstance(p, NormalMixture) else p.covariance_kind.values
        variances = self.scale_factor**2 * variances
        if self.tail_weight:
            tail = weights.new_full((len(weights), 1), self.tail_weight)
            weights = torch.cat(((1 - self.tail_weight) * weights, tail), 1)
            means = torch.cat((means, p.mean.unsqueeze(1)), 1)
            variances = torch.cat((variances, _TAIL_WIDTH**2 * p.variance.unsqueeze(1)), 1)
        return p._of_whole(weights, means, variances.sqrt() if isinstance(p, NormalMixture) else variances)


@torch.no_grad()
def recalibrate(ensemble: Ensemble, rows: Rows, held_out: Tensor) -> Recalibration:
    """Return the recalibration with the highest likelihood of rows held out, `(E, m)` indices for E networks.

    A row is predicted by the networks that have not seen it. Fewer networks need wider scales than the whole ensemble,
    so rows that several networks have not seen are preferred.
    """
    if not held_out.numel():
        return Recalibration()
    unseen = torch.zeros(len(held_out), len(rows.x), dtype=torch.bool).scatter_(1, held_out, True)
    index = _rows_unseen_by_most(unseen.sum(0))[:_MAX_ROWS]
    share = (unseen[:, index] / unseen[:, index].sum(0)).T.to(rows.x)  # (n, E)
    index = index.to(rows.x.device)
    p = ensemble.combined(rows.x[index])
    weights, means, values = p._whole()
    k = p.n_components // ensemble.n_estimators
    p = p._of_whole(weights * ensemble.n_estimators * share.repeat_interleave(k, 1), means, values)
    y, sample_weight = rows.y[index], rows.weights[index]

    def likelihood(choice: Recalibration) -> float:
        value = (sample_weight * choice.apply(p).log_prob(y)).mean().item()
        return value if math.isfinite(value) else -math.inf

    return max((Recalibration(*pair) for pair in product(_SCALE_FACTORS, _TAIL_WEIGHTS)), key=likelihood)


def _rows_unseen_by_most(counts: Tensor) -> Tensor:
    """Return the rows that at least c networks have not seen, for the largest c that leaves enough of them."""
    enough = max(_MIN_FRACTION * len(counts), _MIN_ROWS)
    for least in range(int(counts.max()), 1, -1):
        index = (counts >= least).nonzero().squeeze(1)
        if len(index) >= enough:
            return index
    return counts.nonzero().squeeze(1)
