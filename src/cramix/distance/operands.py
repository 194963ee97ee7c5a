"""What a prediction is compared with: one sample an element of its batch, several, weighted ones, or a mixture."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cramix.mixture import MultivariateNormalMixture, NormalMixture

Mixture = NormalMixture | MultivariateNormalMixture


def as_target(p: Mixture | Tensor, q: Mixture | Tensor, weights: Tensor | None) -> Any:
    """Return the target q of a prediction p as distances take it: a mixture, or samples with an axis for them.

    Args:
        p: mixture with batch shape `(*batch)`, or samples, for which q is left as it is unless there are weights.
        q: a mixture; samples `(*batch, n)`, of vectors `(*batch, n, d)`; or a tensor of the shape of one draw of p,
            `(*batch)` or `(*batch, d)`, which is one sample for each element of the batch.
        weights: of several samples, `(*batch, n)`, or None.
    """
    if isinstance(q, Tensor) and isinstance(p, Mixture):
        event = len(p.event_shape)
        one_each = q.shape == p.batch_shape + p.event_shape
        if one_each and weights is not None:
            raise ValueError(
                f"weights must be left out with one sample an element; got {tuple(weights.shape)}. For weights of "
                'elements multiply what reduction="none" returns.'
            )
        if one_each:
            q = q.unsqueeze(-1 - event)
    if weights is None:
        return q
    if not isinstance(q, Tensor):
        raise ValueError(f"weights must be left out unless q is samples; got q {type(q).__name__}. It has its own.")
    vectors = isinstance(p, MultivariateNormalMixture)
    return (MultivariateNormalMixture if vectors else NormalMixture).from_samples(q, weights, name="q")
