"""Losses as `nn.Module`s, twins of the functions with the same options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cramix.checks import check_choice
from cramix.distance.operands import Mixture
from cramix.distance.sliced import check_options
from cramix.loss.functional import cramer_loss, energy_score_loss, nll_loss, sliced_cramer_loss
from cramix.loss.reduction import check_reduction


class Loss(nn.Module):
    """A loss of a prediction and its target, reduced over the batch; abstract.

    Args:
        reduction: "none", "mean" (weighted by `sample_weight`) or "sum" over the batch.
        missing: "error" for a NaN in the target, or "ignore" to leave out its observations.
    """

    _loss: ClassVar[Callable[..., Tensor]]  # the function
    _options: ClassVar[tuple[str, ...]] = ()  # the attributes that it takes besides those of every loss

    def __init__(self, *, reduction: str = "mean", missing: str = "error") -> None:
        super().__init__()
        check_reduction(reduction)
        check_choice("missing", missing, ("error", "ignore"))
        self.reduction, self.missing = reduction, missing

    def forward(self, p: Mixture, target: Any, sample_weight: Any = None) -> Tensor:
        """Return the loss of prediction p and its target."""
        options = {name: getattr(self, name) for name in ("reduction", "missing", *self._options)}
        return type(self)._loss(p, target, sample_weight=sample_weight, **options)

    def extra_repr(self) -> str:
        """Show the reduction, and that missing targets are ignored if they are."""
        missing = "" if self.missing == "error" else f", missing={self.missing!r}"
        return f"reduction={self.reduction!r}{missing}"


class CramerLoss(Loss):
    """`cramer_loss` as a module: for one observation per mixture it is the CRPS.

    Args:
        reduction: "none", "mean" (weighted by `sample_weight`) or "sum" over the batch.
        missing: "error" for a NaN in the target, or "ignore" to leave out its observations.

    Example:
        >>> from cramix import NormalMixture
        >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
        >>> CramerLoss()(p, p.affine(1.0, 1.0)), CramerLoss()(p.expand((2,)), torch.tensor([0.0, 2.0]))
        (tensor(0.2709), tensor(0.8432))
    """

    _loss = staticmethod(cramer_loss)


class SlicedCramerLoss(Loss):
    """`sliced_cramer_loss` as a module; random slices are drawn at every call.

    Args:
        directions: "exact", a number of random slices, or directions `(t, d)`, see `cramix.directions`.
        normalization: "mean" over the sphere, "integral" (times its area), or with slices their "sum".
        reduction: "none", "mean" (weighted by `sample_weight`) or "sum" over the batch.
        missing: "error" for a NaN in the target, or "ignore" to leave out its observations.
        tolerance: of "exact", the error of a mean distance relative to the size of the problem; float32 reaches 1e-6.
        target_self_energy: whether to subtract the self energy of the target; see `PreparedTarget`.
        generator: for random slices.

    Example:
        >>> from cramix import MultivariateNormalMixture
        >>> p = MultivariateNormalMixture.from_samples(torch.zeros(1, 2))
        >>> SlicedCramerLoss()(p, torch.tensor([3.0, 4.0]))
        tensor(3.1831)
    """

    _loss = staticmethod(sliced_cramer_loss)
    _options = "directions", "normalization", "tolerance", "target_self_energy", "generator"

    def __init__(
        self,
        *,
        directions: Any = "exact",
        normalization: str = "mean",
        reduction: str = "mean",
        missing: str = "error",
        tolerance: float = 1e-7,
        target_self_energy: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(reduction=reduction, missing=missing)
        check_options(directions, normalization, tolerance)
        if isinstance(directions, Tensor):
            self.register_buffer("directions", directions)
        else:
            self.directions = directions
        self.normalization = normalization
        self.tolerance, self.target_self_energy, self.generator = tolerance, target_self_energy, generator

    def extra_repr(self) -> str:
        """Show the directions and the reduction."""
        shown = tuple(self.directions.shape) if isinstance(self.directions, Tensor) else self.directions
        return f"directions={shown!r}, normalization={self.normalization!r}, {super().extra_repr()}"


class EnergyScoreLoss(Loss):
    """`energy_score_loss` as a module.

    Args:
        reduction: "none", "mean" (weighted by `sample_weight`) or "sum" over the batch.
        missing: "error" for a NaN in the target, or "ignore" to leave out its observations.
        tolerance: of the mean lengths, relative to the size of the problem; float32 reaches 1e-6.

    Example:
        >>> from cramix import MultivariateNormalMixture
        >>> p = MultivariateNormalMixture(torch.ones(1), torch.zeros(1, 2), torch.zeros(1, 2, 2))
        >>> EnergyScoreLoss()(p, torch.tensor([3.0, 4.0]))
        tensor(5.)
    """

    _loss = staticmethod(energy_score_loss)
    _options = ("tolerance",)

    def __init__(self, *, reduction: str = "mean", missing: str = "error", tolerance: float = 1e-7) -> None:
        super().__init__(reduction=reduction, missing=missing)
        check_options("exact", "mean", tolerance)
        self.tolerance = tolerance


class MixtureNLLLoss(Loss):
    """`nll_loss` as a module.

    Args:
        reduction: "none", "mean" (weighted by `sample_weight`) or "sum" over the batch.
        missing: "error" for a NaN in the target, or "ignore" to leave out its observations.

    Example:
        >>> from cramix import NormalMixture
        >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
        >>> MixtureNLLLoss()(p.expand((2,)), torch.tensor([-1.0, 1.0]))
        tensor(1.4189)
    """

    _loss = staticmethod(nll_loss)
