"""Losses as `nn.Module`s, twins of the functions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cramix.distance.sliced import check_options
from cramix.loss.cramer import cramer_loss, energy_score, sliced_cramer_loss
from cramix.loss.likelihood import negative_log_likelihood_loss
from cramix.loss.reduction import share_of
from cramix.loss.targets import Mixture
from cramix.mixture import MultivariateNormalMixture, NormalMixture


class Loss(nn.Module):
    """A loss of a prediction and a target, reduced over the batch; abstract."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        share_of(reduction)
        self.reduction = reduction

    def extra_repr(self) -> str:
        """Say how the loss is reduced."""
        return f"reduction={self.reduction!r}"


class CramerLoss(Loss):
    """`cramer_loss` as a module: to one sample for each mixture it is the CRPS.

    Example:
        >>> import torch
        >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
        >>> CramerLoss()(p, p.affine(1.0, 1.0)), CramerLoss()(p.expand((2,)), torch.tensor([0.0, 2.0]))
        (tensor(0.2709), tensor(0.8432))
    """

    def forward(self, p: NormalMixture | Tensor, q: NormalMixture | Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the loss of prediction p and target q, with weights of its samples."""
        return cramer_loss(p, q, self.reduction, weights=weights)


class SlicedCramerLoss(Loss):
    """`sliced_cramer_loss` as a module; random slices are drawn anew in every call.

    Example:
        >>> import torch
        >>> SlicedCramerLoss()(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]))
        tensor(3.1831)
    """

    def __init__(
        self,
        directions: str | int | Tensor = "exact",
        normalization: str = "mean",
        reduction: str = "mean",
        *,
        tolerance: float = 1e-7,
        target_term: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(reduction)
        check_options(directions, normalization, tolerance)
        if isinstance(directions, Tensor):
            self.register_buffer("directions", directions)
        else:
            self.directions = directions
        self.normalization = normalization
        self.tolerance, self.target_term, self.generator = tolerance, target_term, generator

    def forward(
        self,
        p: MultivariateNormalMixture | Tensor,
        q: MultivariateNormalMixture | Tensor,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of prediction p and target q, with weights of its samples."""
        return sliced_cramer_loss(
            p,
            q,
            self.directions,
            self.normalization,
            self.reduction,
            weights=weights,
            tolerance=self.tolerance,
            target_term=self.target_term,
            generator=self.generator,
        )

    def extra_repr(self) -> str:
        """Say which directions there are, and how the loss is reduced."""
        shown = tuple(self.directions.shape) if isinstance(self.directions, Tensor) else self.directions
        return f"directions={shown!r}, normalization={self.normalization!r}, reduction={self.reduction!r}"


class EnergyScore(Loss):
    """`energy_score` as a module.

    Example:
        >>> import torch
        >>> p = MultivariateNormalMixture(torch.ones(1), torch.zeros(1, 2), torch.zeros(1, 2, 2))
        >>> EnergyScore()(p, torch.tensor([3.0, 4.0]))
        tensor(5.)
    """

    def __init__(self, reduction: str = "mean", *, tolerance: float = 1e-7) -> None:
        super().__init__(reduction)
        check_options("exact", "mean", tolerance)
        self.tolerance = tolerance

    def forward(self, p: Mixture, q: Mixture | Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the score of prediction p and target q, with weights of its samples."""
        return energy_score(p, q, self.reduction, weights=weights, tolerance=self.tolerance)


class NLLLoss(Loss):
    """`negative_log_likelihood_loss` as a module.

    Example:
        >>> import torch
        >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
        >>> NLLLoss()(p.expand((2,)), torch.tensor([-1.0, 1.0]))
        tensor(1.4189)
    """

    def forward(self, p: Mixture, q: Mixture | Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the loss of prediction p and target q, with weights of its samples."""
        return negative_log_likelihood_loss(p, q, weights, self.reduction)
