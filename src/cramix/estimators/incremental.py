"""`partial_fit`: searches while samples are few, stepwise EM afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cramix.checks import check_number
from cramix.fitting.result import FitResult, Step
from cramix.fitting.stepwise import Stepwise
from cramix.mixture.coordinates import in_coordinates
from cramix.mixture.covariance import FAMILIES

# Samples that are kept to repeat the search, at least, and for each parameter of the mixture.
_KEPT, _KEPT_EACH = 20_000, 10
# Samples of a batch that lie farther out, in standard deviations of the mixture, are left out if they are at most so
# many, with at most this fraction of the weight.
_DEVIATIONS, _MOST_OUTLIERS, _FRACTION = 100.0, 10, 0.05
# The name of the steps in the history.
STEPWISE = "stepwise EM"


@dataclass(frozen=True)
class Incremental:
    """The state of a fit that gets its samples batch by batch.

    The first samples are kept, and the search is repeated whenever their number has doubled: a start from a small first
    batch would stay poor whatever came later. Batches in between, and all that follow, are steps of EM.

    Args:
        fit: the stepwise fit; None before the first batch.
        n_rows: number of all samples so far.
        kept: the first samples, `(n, d)`; None when there are enough.
        weights: of these, `(n,)`.
        searched: number of samples at the last search.
    """

    fit: Stepwise | None = None
    n_rows: int = 0
    kept: Tensor | None = None
    weights: Tensor | None = None
    searched: int = 0

    @classmethod
    def after(cls, model: Any, weight: float) -> Incremental:
        """Return the state after a model has been fitted to samples of some weight."""
        mixture = in_coordinates(model.result_.mixture)
        fit = Stepwise.after(mixture, model.covariance_type, weight, model.reg_covar)
        return cls(fit, model.result_.n_samples)

    def updated(
        self, model: Any, x: Tensor, weights: Tensor, search: Callable[[Tensor, Tensor], FitResult]
    ) -> tuple[Incremental, FitResult]:
        """Return the state and the result after a batch.

        Args:
            model: the estimator, for its parameters.
            x: samples `(n, d)`.
            weights: `(n,)` in float64.
            search: fits the estimator to samples and weights.
        """
        forgetting = model.forgetting
        check_number("forgetting", forgetting)
        if forgetting >= 1:
            raise ValueError(f"forgetting must be below 1; got {forgetting!r}.")
        state = self._with_kept(x, weights, forgetting)
        if state.kept is not None and state.weights is not None:
            enough = max(_KEPT, _KEPT_EACH * _n_parameters(model, x.shape[1]))
            full = len(state.kept) >= enough
            if state.fit is None or full or len(state.kept) >= 2 * state.searched:
                result = search(state.kept, state.weights)
                mixture = in_coordinates(result.mixture)
                weight = state.weights.sum().item()
                fit = Stepwise.after(mixture, model.covariance_type, weight, model.reg_covar)
                searched = len(state.kept)
                state = replace(state, fit=fit, searched=searched)
                if full:
                    state = replace(state, kept=None, weights=None)
                return state, replace(result, n_samples=state.n_rows)
        assert state.fit is not None
        weights, warnings = _without_outliers(state.fit, x, weights)
        fit, likelihood = state.fit.updated(x, weights, forgetting)
        step = Step(STEPWISE, model.n_components, -likelihood, 0.0)
        result = replace(
            model.result_,
            mixture=fit.mixture,
            log_likelihood=likelihood,
            converged=True,
            reason="a batch is one step",
            n_iter=1,
            history=(step,),
            n_samples=state.n_rows,
            warnings=warnings,
            outliers=(),
        )
        return replace(state, fit=fit), result

    def _with_kept(self, x: Tensor, weights: Tensor, forgetting: float) -> Incremental:
        """Return the state with a batch added to the samples that are kept, if some still are."""
        n_rows = self.n_rows + len(x)
        if self.fit is not None and self.kept is None:
            return replace(self, n_rows=n_rows)
        if self.kept is None or self.weights is None:
            return replace(self, n_rows=n_rows, kept=x.double(), weights=weights)
        earlier = self.weights * (1 - forgetting) ** weights.sum().item()
        kept = torch.cat((self.kept, x.double()))
        return replace(self, n_rows=n_rows, kept=kept, weights=torch.cat((earlier, weights)))


def _without_outliers(fit: Stepwise, x: Tensor, weights: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """Return weights of 0 for the few samples of a batch that lie absurdly far out, and a warning if there are some.

    More of them are a group, which the fit follows.
    """
    distances = fit.units.of(x).abs().amax(-1)
    far = (distances > _DEVIATIONS) & (weights > 0)
    count = int(far.sum())
    if not 0 < count <= _MOST_OUTLIERS or weights[far].sum() > _FRACTION * weights.sum():
        return weights, ()
    text = (
        f"{count} of {len(x)} samples of the batch lie up to {distances[far].max().item():.2g} standard deviations "
        "from the mean of the mixture, and were left out. Check or remove them."
    )
    return torch.where(far, 0, weights), (text,)


def _n_parameters(model: Any, dim: int) -> int:
    return FAMILIES[model.covariance_type](dim, 0.0).n_parameters(model.n_components)
