"""A blend of two losses that moves from the first to the second: the Cramér loss, then the likelihood, as in the paper.

The Cramér loss converges from any start, with bounded gradients. The likelihood determines scales more sharply once it
is near.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cramix.checks import check_integer, check_number
from cramix.distance.operands import Mixture, as_target
from cramix.loss.functional import cramer_losses, negative_log_likelihoods
from cramix.loss.modules import Loss
from cramix.loss.reduction import check_reduction, reduce

Schedule = Callable[[float], float]


def ramp(begin: float = 0.5, end: float = 0.9) -> Schedule:
    """Return a schedule: 0 up to the fraction `begin` of the training, 1 from the fraction `end` on, linear between.

    Example:
        >>> [ramp(0.5, 1.0)(fraction) for fraction in (0.0, 0.5, 0.75, 1.0)]
        [0.0, 0.0, 0.5, 1.0]
    """
    if not 0 <= begin <= end <= 1:
        raise ValueError(f"begin and end must be fractions with 0 <= begin <= end <= 1; got {begin} and {end}.")
    if begin == end:
        return lambda fraction: float(fraction >= end)
    return lambda fraction: min(1.0, max(0.0, (fraction - begin) / (end - begin)))


def blended_loss(
    p: Mixture,
    target: Any,
    *,
    share: float,
    unit: float | Tensor = 1.0,
    sample_weight: Any = None,
    reduction: str = "mean",
    missing: str = "error",
) -> Tensor:
    """Return `(1 - share) * Cramér loss / unit + share * negative log likelihood`.

    Args:
        p: mixture with batch shape `(*batch)`.
        target: one observation each, `(*batch)` or `(*batch, d)`; a mixture; or for a p without batch a set of samples
            `(n,)` or `(n, d)`.
        share: weight of the likelihood, in [0, 1]; a loss of weight 0 is not computed.
        unit: the scale of the targets, such as their standard deviation, since the Cramér loss is a length.
        sample_weight: weights of the losses, `(*batch)`, or for a set of samples of these, `(n,)`.
        reduction: "none", "mean" (weighted by `sample_weight`) or "sum" over the batch.
        missing: "error" for a NaN in the target, or "ignore" to leave out its observations.

    Example:
        >>> from cramix import NormalMixture
        >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
        >>> blended_loss(p, torch.tensor([0.5, 1.0]), share=0.25)
        tensor(0.5643)
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share must be in [0, 1]; got {share!r}.")
    check_reduction(reduction)
    found = as_target(p, target, sample_weight, missing)
    parts = []
    if share < 1:
        parts.append((1 - share) / unit * cramer_losses(found))
    if share > 0:
        parts.append(share * negative_log_likelihoods(found))
    return reduce(parts[0] if len(parts) == 1 else parts[0] + parts[1], found, reduction)


class BlendedLoss(Loss):
    """`blended_loss` as a module that follows a schedule: call `step` after each step of the optimizer.

    The number of steps done is part of its `state_dict`, so that training can be resumed.

    Args:
        steps: the planned number of optimizer steps.
        schedule: a function from the completed fraction of the training, in [0, 1], to the share of the likelihood; see
            `ramp`.
        unit: the scale of the targets, such as their standard deviation, since the Cramér loss is a length.
        reduction: "none", "mean" (weighted by `sample_weight`) or "sum" over the batch.
        missing: "error" for a NaN in the target, or "ignore" to leave out its observations.

    Example:
        >>> from cramix import NormalMixture
        >>> loss = BlendedLoss(steps=4, schedule=ramp(0.5, 1.0))
        >>> shares = [(loss.step(), loss.share)[1] for _ in range(4)]
        >>> shares, loss(NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1)), torch.tensor([1.0]))
        ([0.0, 0.0, 0.5, 1.0], tensor(1.4189))
    """

    _loss = staticmethod(blended_loss)
    _options = "share", "unit"
    done: Tensor

    def __init__(
        self,
        steps: int,
        schedule: Schedule | None = None,
        *,
        unit: float = 1.0,
        reduction: str = "mean",
        missing: str = "error",
    ) -> None:
        super().__init__(reduction=reduction, missing=missing)
        check_integer("steps", steps, 1)
        check_number("unit", unit, positive=True)
        self.steps, self.schedule, self.unit = steps, ramp() if schedule is None else schedule, unit
        self.register_buffer("done", torch.zeros((), dtype=torch.long))
        self._share = self.schedule(0.0)

    @property
    def share(self) -> float:
        """The current weight of the likelihood."""
        return self._share

    def step(self) -> None:
        """Advance the schedule by one step."""
        self.done += 1
        self._look_up()

    def extra_repr(self) -> str:
        """Show the number of steps, the unit and the reduction."""
        return f"steps={self.steps}, unit={self.unit:.6g}, {super().extra_repr()}"

    def _look_up(self) -> None:
        # A Python number, so that no loss has to wait for the device that holds the counter.
        self._share = float(self.schedule(min(1.0, self.done.item() / self.steps)))

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._look_up()
