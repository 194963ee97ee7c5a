"""Rare outcomes: a wide component for episodes that go differently, which a fit of the usual spread does not see.

With probability `w` the return is `mean + N(shift, scale^2)` instead of what is predicted. `w` is logistic in a few
features of the state; all is fitted by expectation maximisation.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# Errors of so many spreads are far, and start the fit.
_FAR = 4.0
# With fewer rare episodes, even the order of magnitude of their frequency is unknown. Of those, this share of the steps
# is far.
_MIN_EPISODES, _SHARE_OF_STEPS = 5, 0.05
_STEPS = 60
# The smallest log density that is believed: predictions are never as sure as their tails say.
_FLOOR = -30.0


class Tail(NamedTuple):
    """A rare outcome.

    Args:
        weight: intercept and slopes of the logit of its probability, `(1 + features)`.
        shift: its mean, minus that of the prediction.
        scale: its standard deviation.
    """

    weight: Tensor
    shift: Tensor
    scale: Tensor

    def probability(self, features: Tensor) -> Tensor:
        """Return the probability of the rare outcome for features `(*batch, f)`."""
        return torch.sigmoid(self.weight[0] + features @ self.weight[1:])

    def gain(self, features: Tensor, errors: Tensor, log_densities: Tensor) -> Tensor:
        """Return by how much the log likelihood of each row is larger than without the tail."""
        log_densities = log_densities.clamp_min(_FLOOR)
        w = self.probability(features)
        both = torch.stack([torch.log1p(-w) + log_densities, w.log() + self.log_density(errors)])
        return both.logsumexp(0) - log_densities

    def log_density(self, errors: Tensor) -> Tensor:
        """Return the log density of the rare outcome at returns minus predicted means."""
        z = (errors - self.shift) / self.scale
        return -0.5 * z.square() - self.scale.log() - 0.5 * math.log(2 * math.pi)


def fit_tail(features: Tensor, errors: Tensor, spreads: Tensor, log_densities: Tensor, episodes: Tensor) -> Tail | None:
    """Return the rare outcome of returns, or None if it is not sure that it makes predictions of new episodes better.

    There must be at least five rare episodes. The tail is fitted to the episodes of even number and tried on the
    others, and the reverse; the gain in log likelihood, as a mean over episodes, must be more than its standard error.

    Args:
        features: of the state, standardised, `(n, f)`.
        errors: returns minus predicted means, `(n)`.
        spreads: predicted standard deviations, `(n)`.
        log_densities: predicted, at the returns, `(n)`.
        episodes: number of the episode, `(n)`.
    """
    rows = features.double(), errors.double(), spreads.double(), log_densities.double()
    _, episodes, lengths = episodes.unique(return_inverse=True, return_counts=True)
    if len(lengths) < 2 or not bool(torch.isfinite(rows[3]).all()):  # atoms have no density
        return None
    far = (rows[1].abs() > _FAR * rows[2]).double()
    shares = far.new_zeros(len(lengths)).index_add(0, episodes, far) / lengths
    if int((shares > _SHARE_OF_STEPS).sum()) < _MIN_EPISODES:
        return None
    # Steps of an episode go right or wrong together, so the prior counts as much as one of them.
    prior = lengths.double().mean()
    gains = torch.zeros(len(errors), dtype=torch.float64, device=errors.device)
    for fold in (0, 1):
        unseen = episodes % 2 == fold
        seen = [x[~unseen] for x in rows]
        tail = _fit(seen[0], seen[1], seen[2], seen[3], prior)
        gains[unseen] = tail.gain(rows[0][unseen], rows[1][unseen], rows[3][unseen])
    each = torch.zeros(len(lengths), dtype=torch.float64, device=gains.device).index_add(0, episodes, gains) / lengths
    if not each.mean() > each.std() / len(each) ** 0.5:
        return None
    return _fit(*rows, prior)


def _fit(features: Tensor, errors: Tensor, spreads: Tensor, log_densities: Tensor, prior: Tensor) -> Tail:
    """Return the tail by expectation maximisation, which starts from the rows that are far.

    The prior counts as so many rows, with slopes of 0 and errors of mean 0 that are as large as those of the rows that
    are far.
    """
    far = errors.abs() > _FAR * spreads
    size = torch.maximum((far * errors.square()).sum() / far.sum().clamp_min(1), (_FAR * spreads.mean()).square())
    log_densities = log_densities.clamp_min(_FLOOR)
    inputs = torch.cat([torch.ones_like(errors).unsqueeze(-1), features], -1)
    penalty = prior * torch.ones_like(inputs[0])
    penalty[0] = 0.0
    weight = torch.zeros_like(inputs[0])
    weight[0] = torch.logit(far.double().mean(), 1e-3)
    tail = Tail(weight, torch.zeros_like(size), size.sqrt())
    for _ in range(_STEPS):
        w = tail.probability(features)
        share = torch.sigmoid(w.logit() + tail.log_density(errors) - log_densities)  # of the rare outcome in each row
        total = share.sum() + prior
        shift = (share * errors).sum() / total
        scale = (((share * (errors - shift).square()).sum() + prior * (size + shift.square())) / total).sqrt()
        # A Newton step of the logistic regression.
        curvature = (inputs * (w * (1 - w)).unsqueeze(-1)).T @ inputs + penalty.diag()
        step = torch.linalg.solve(curvature, inputs.T @ (share - w) - penalty * tail.weight)
        tail = Tail(tail.weight + step.clamp(-1.0, 1.0), shift, scale)
    return tail
