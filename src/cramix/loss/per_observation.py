"""Scores of predictions, one value for each observation; the lower the better."""

from __future__ import annotations

from typing import Any

from cramix.arrays import is_number
from cramix.distance.cramer.autograd import cramer_of_mixtures
from cramix.distance.operands import Mixture, as_observations, in_kind_of, require_mixture
from cramix.distance.sliced import check_options
from cramix.loss.functional import energy_scores
from cramix.mixture import NormalMixture


def crps(p: NormalMixture, y: Any) -> Any:
    """Return the continuous ranked probability score of each observation, `integral (F(x) - 1{y <= x})^2 dx`.

    Args:
        p: mixture with batch shape `(*batch)`.
        y: one observation for each mixture, `(*batch)`; for a p without batch one observation, or several, `(n,)`.

    Returns:
        Scores in the shape of y; a NumPy array if y is an array or a column of a table.

    Example:
        >>> import torch
        >>> p = NormalMixture(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([1.0]))
        >>> crps(p, torch.tensor([0.0, 2.0]))
        tensor([0.2337, 1.4528])
    """
    require_mixture("p", p, NormalMixture)
    p, x = as_observations(p, y)
    scores = cramer_of_mixtures(p, NormalMixture._of_samples("y", x.unsqueeze(-1), None, p._validate_args))
    return scores if is_number(y) else in_kind_of(scores, y)


def energy_score(p: Mixture, y: Any, *, tolerance: float = 1e-7) -> Any:
    """Return the energy score `E|X - y| - 1/2 E|X - X'|` of each observation; on the line it is the CRPS.

    Args:
        p: mixture with batch shape `(*batch)`.
        y: one observation for each mixture, `(*batch)` or `(*batch, d)`; for a p without batch one, or several, `(n,)`
            or `(n, d)`.
        tolerance: of the mean lengths, relative to the size of the problem; float32 reaches 1e-6.

    Returns:
        Scores `(*batch)` or `(n,)`; a NumPy array if y is an array or a table.

    Example:
        >>> import torch
        >>> from cramix import MultivariateNormalMixture
        >>> p = MultivariateNormalMixture(torch.ones(1), torch.zeros(1, 2), torch.zeros(1, 2, 2))
        >>> energy_score(p, torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
        tensor([5., 1.])
    """
    require_mixture("p", p)
    check_options("exact", "mean", tolerance)
    p, x = as_observations(p, y)
    q = type(p)._of_samples("y", x.unsqueeze(-1 - len(p.event_shape)), None, p._validate_args)
    scores = energy_scores(p, q, tolerance)
    return scores if is_number(y) else in_kind_of(scores, y)
