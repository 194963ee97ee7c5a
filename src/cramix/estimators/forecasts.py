"""What regressors that predict mixtures have in common: means, quantiles and intervals of their predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cramix.distance.operands import Mixture
from cramix.estimators.html import FittedHTML
from cramix.estimators.inputs import Form
from cramix.mixture import MultivariateNormalMixture, NormalMixture


class Forecasts(FittedHTML):
    """The predictions of a fitted regressor, in several forms; a base of regressors.

    A regressor has a method `_predict(X)`, which returns mixtures with batch shape `(n,)` in float64 and the form of X,
    and an attribute `_target_shape`, `()` or `(d,)`.
    """

    _target_shape: tuple[int, ...]

    def _predict(self, X: Any) -> tuple[Mixture, Form]:
        raise NotImplementedError

    def predict(self, X: Any) -> Any:
        """Return the mean of each prediction, in the shape of the targets, `(n,)` or `(n, d)`, as the kind of X."""
        p, form = self._predict(X)
        return form.give(p.mean.reshape(len(p.mean), *self._target_shape))

    def predict_dist(self, X: Any) -> NormalMixture | MultivariateNormalMixture:
        """Return the predictions as mixtures with batch shape `(n,)`, in d dimensions for targets `(n, d)` with d > 1.

        They have the dtype and the device of X, float64 for integers.
        """
        p, form = self._predict(X)
        return p.to(form.device, form.dtype)

    def predict_quantile(self, X: Any, quantiles: float | Sequence[float] = (0.05, 0.5, 0.95)) -> Any:
        """Return quantiles of each prediction, `(n, q)`, or `(n,)` for one number.

        For targets `(n, d)` they are the quantiles of each target, `(n, d, q)` or `(n, d)`.
        """
        p, form = self._predict(X)
        levels = torch.as_tensor(quantiles, dtype=p.means.dtype, device=p.means.device)
        if levels.ndim > 1:
            raise ValueError(f"quantiles must be a number or one-dimensional; got shape {tuple(levels.shape)}.")
        if not bool(((levels >= 0) & (levels <= 1)).all()):
            raise ValueError(f"quantiles must be in [0, 1]; got {quantiles!r}.")
        values = torch.stack([q.icdf(levels.reshape(-1, 1)).T for q in marginals(p)], 1)  # (n, d, q)
        return form.give(values.reshape(len(values), *self._target_shape, *levels.shape))

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Any:
        """Return the lower and upper end of the central interval of each prediction, `(n, 2)`.

        By the prediction, the interval contains the target with probability `coverage`, and as much probability lies
        below as above it. For a guarantee that does not rely on the model use `ConformalRegressor`. For targets
        `(n, d)` there is an interval for each, `(n, d, 2)`.
        """
        check_coverage(coverage)
        return self.predict_quantile(X, [0.5 - coverage / 2, 0.5 + coverage / 2])


def marginals(p: Mixture) -> list[NormalMixture]:
    """Return the predictions of each target."""
    return [p] if isinstance(p, NormalMixture) else [p.marginal(i) for i in range(p.dim)]


def check_coverage(coverage: Any) -> None:
    """Require a number in (0, 1)."""
    if isinstance(coverage, bool) or not isinstance(coverage, int | float) or not 0 < coverage < 1:
        raise ValueError(f"coverage must be a number in (0, 1); got {coverage!r}.")
