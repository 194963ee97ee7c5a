"""A blend of two losses that moves from the first to the last: the Cramér loss, then the likelihood, as the paper does.

The Cramér loss finds its way from anywhere, with bounded gradients. The likelihood is sharper about scales once it is
near.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cramix.checks import check_integer, check_number
from cramix.loss.cramer import cramer_loss, sliced_cramer_loss
from cramix.loss.likelihood import negative_log_likelihood_loss
from cramix.loss.modules import Loss
from cramix.loss.reduction import reduce
from cramix.loss.targets import Mixture
from cramix.mixture import NormalMixture

Schedule = Callable[[float], float]


def ramp(begin: float = 0.5, end: float = 0.9) -> Schedule:
    """Return a schedule: 0 up to the part `begin` of the way, 1 from the part `end` on, a straight line between.

    Example:
        >>> [ramp(0.5, 1.0)(part) for part in (0.0, 0.5, 0.75, 1.0)]
        [0.0, 0.0, 0.5, 1.0]
    """
    if not 0 <= begin <= end <= 1:
        raise ValueError(
            f"begin and end must be 0 <= begin <= end <= 1; got {begin} and {end}. They are parts of the way."
        )
    return lambda part: float(part >= end) if end == begin else min(1.0, max(0.0, (part - begin) / (end - begin)))


def blended_loss(
    p: Mixture,
    q: Mixture | Tensor,
    share: float,
    reduction: str = "mean",
    *,
    weights: Tensor | None = None,
    unit: float | Tensor = 1.0,
) -> Tensor:
    """Return `(1 - share) * Cramér loss / unit + share * negative log likelihood`.

    Args:
        p: mixture with batch shape `(*batch)`.
        q: one sample each, `(*batch)` or `(*batch, d)`; several, `(*batch, n)` or `(*batch, n, d)`; or a mixture.
        share: of the likelihood, in [0, 1]; a loss of share 0 is not computed.
        reduction: "none", "mean" or "sum" over the batch.
        weights: of several samples, `(*batch, n)`, of any positive sum.
        unit: the size of the targets, such as their standard deviation: the Cramér loss is a length.

    Example:
        >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
        >>> blended_loss(p, torch.tensor([0.5, 1.0]), share=0.25)
        tensor(0.5643)
    """
    check_share(share)
    parts = []
    if share < 1:
        cramer: Any = cramer_loss if isinstance(p, NormalMixture) else sliced_cramer_loss
        parts.append((1 - share) / unit * cramer(p, q, reduction="none", weights=weights))
    if share > 0:
        parts.append(share * negative_log_likelihood_loss(p, q, weights, "none"))
    return reduce(parts[0] if len(parts) == 1 else parts[0] + parts[1], reduction)


def check_share(share: float) -> None:
    """Require a share of the last loss in [0, 1]."""
    if not 0 <= share <= 1:
        raise ValueError(f"share must be in [0, 1]; got {share!r}. It is the part of the likelihood. See ramp.")


class BlendedLoss(Loss):
    """`blended_loss` as a module that knows how far the training is: call `step` after each step of the optimizer.

    How far it is belongs to its state, `state_dict`, so that training goes on where it stopped.

    Args:
        steps: how many there will be.
        schedule: from the part of the way that is done, in [0, 1], to the share of the likelihood; see `ramp`.
        unit: the size of the targets, such as their standard deviation: the Cramér loss is a length.
        reduction: "none", "mean" or "sum" over the batch.

    Example:
        >>> loss = BlendedLoss(steps=4, schedule=ramp(0.5, 1.0))
        >>> shares = [(loss.step(), loss.share)[1] for _ in range(4)]
        >>> shares, loss(NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1)), torch.tensor([1.0]))
        ([0.0, 0.0, 0.5, 1.0], tensor(1.4189))
    """

    done: Tensor

    def __init__(
        self, steps: int, schedule: Schedule | None = None, *, unit: float = 1.0, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        check_integer("steps", steps, 1)
        check_number("unit", unit, positive=True)
        self.steps, self.schedule, self.unit = steps, ramp() if schedule is None else schedule, unit
        self.register_buffer("done", torch.zeros((), dtype=torch.long))
        self._share = self.schedule(0.0)

    @property
    def share(self) -> float:
        """What the likelihood counts for now."""
        return self._share

    def step(self) -> None:
        """Go on by one step."""
        self.done += 1
        self._look_up()

    def forward(self, p: Mixture, q: Mixture | Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the loss of prediction p and target q, with weights of its samples."""
        return blended_loss(p, q, self._share, self.reduction, weights=weights, unit=self.unit)

    def extra_repr(self) -> str:
        """Say how long the way is, and how the loss is reduced."""
        return f"steps={self.steps}, unit={self.unit:.6g}, {super().extra_repr()}"

    def _look_up(self) -> None:
        # A number of its own, so that no loss has to wait for what a device counts.
        self._share = float(self.schedule(min(1.0, self.done.item() / self.steps)))

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._look_up()
