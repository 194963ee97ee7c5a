"""Adapters to skpro: mixtures as its distributions, with the exact CRPS, and regressors that predict them.

pip install 'cramix[skpro]'
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from cramix.distance.operands import Mixture
from cramix.estimators import MixtureRegressor
from cramix.estimators.forecasts import marginals
from cramix.loss import crps
from cramix.mixture import NormalMixture

try:
    import pandas as pd
    from sklearn.base import clone
    from sklearn.utils import get_tags
    from skpro.distributions.base import BaseDistribution
    from skpro.regression.base import BaseProbaRegressor
except ImportError:
    raise ImportError("cramix.skpro needs skpro >= 2.16. Use: pip install 'cramix[skpro]'") from None

__all__ = ["MixtureDistribution", "MixtureProbaRegressor"]


class MixtureDistribution(BaseDistribution):
    """A frame of Gaussian mixtures, one for each row and column; one mixture alone is a scalar distribution.

    All is exact: densities, quantiles, and the energies that skpro's `CRPS` is made of. Columns are marginals.

    Args:
        weights: `(n, k)`, of the mixtures of a row, which all columns have in common; or `(n, d, k)`.
        means: `(n, d, k)`, for n rows and d columns.
        scales: `(n, d, k)`, > 0.
        index: of the rows, a `pandas.Index`.
        columns: their names, a `pandas.Index`.

    For a scalar distribution all three are `(k,)`.

    Example:
        >>> p = MixtureDistribution([[0.5, 0.5]], [[[-1.0, 1.0]]], [[[0.1, 0.1]]])  # doctest: +SKIP
        >>> p.cdf(0.0).round(2)  # doctest: +SKIP
             0
        0  0.5
    """

    _tags = {  # noqa: RUF012
        "capabilities:approx": ["pdfnorm"],
        "capabilities:exact": ["mean", "var", "energy", "pdf", "log_pdf", "cdf", "ppf"],
        "distr:measuretype": "continuous",
        "distr:paramtype": "parametric",
    }

    def __init__(self, weights: Any, means: Any, scales: Any, index: Any = None, columns: Any = None) -> None:
        self.weights, self.means, self.scales = weights, means, scales
        w, m, s = (torch.as_tensor(np.asarray(x, dtype=np.float64)) for x in (weights, means, scales))
        if m.ndim not in (1, 3):
            raise ValueError(f"means must be (k,) or (n, d, k); got shape {tuple(m.shape)}.")
        if m.ndim == 3:
            w = w.unsqueeze(1).expand_as(m) if w.ndim == 2 else w
            index = pd.RangeIndex(m.shape[0]) if index is None else index
            columns = pd.RangeIndex(m.shape[1]) if columns is None else columns
        self._mixture = NormalMixture(w, m, s)
        super().__init__(index=index, columns=columns)

    @classmethod
    def of(cls, p: Mixture, index: Any = None, columns: Any = None) -> Self:
        """Return predictions with batch shape `(n,)`, of one target or several, as a distribution of n rows."""
        each = marginals(p)
        means, scales = (torch.stack([getattr(q, name) for q in each], 1) for name in ("means", "scales"))
        parts = [x.double().cpu().numpy() for x in (each[0].weights, means, scales)]
        return cls(parts[0], parts[1], parts[2], index, columns)

    def _mean(self) -> Any:
        return self._numbers(self._mixture.mean)

    def _var(self) -> Any:
        return self._numbers(self._mixture.variance)

    def _pdf(self, x: Any) -> Any:
        return self._numbers(self._mixture.log_prob(_tensor(x)).exp())

    def _log_pdf(self, x: Any) -> Any:
        return self._numbers(self._mixture.log_prob(_tensor(x)))

    def _cdf(self, x: Any) -> Any:
        return self._numbers(self._mixture.cdf(_tensor(x)))

    def _ppf(self, p: Any) -> Any:
        return self._numbers(self._mixture.icdf(_tensor(p)))

    def _energy_x(self, x: Any) -> Any:
        """Return `E|X - x|`, for a frame the sum over the columns."""
        return self._sum_of_columns(self._mean_distance(_tensor(x)))

    def _energy_self(self) -> Any:
        """Return `E|X - X'|`, for a frame the sum over the columns."""
        center = self._mixture.mean
        return self._sum_of_columns(2 * (self._mean_distance(center) - crps(self._mixture, center)))

    def _mean_distance(self, x: Tensor) -> Tensor:
        """Return `E|X - x|` of each mixture."""
        p = self._mixture
        d = p.means - x.unsqueeze(-1)
        z = d / (math.sqrt(2) * p.scales)
        return (p.weights * (d * torch.erf(z) + math.sqrt(2 / math.pi) * p.scales * (-z.square()).exp())).sum(-1)

    def _sum_of_columns(self, x: Tensor) -> Any:
        return self._numbers(x.sum(-1) if x.ndim else x)

    def _numbers(self, x: Tensor) -> Any:
        return x.numpy() if x.ndim else x.item()

    def _iloc(self, rowidx: Any = None, colidx: Any = None) -> Self:
        rows, columns = (slice(None) if i is None else np.atleast_1d(i) for i in (rowidx, colidx))
        p = self._mixture
        weights, means, scales = (x.numpy()[rows][:, columns] for x in (p.weights, p.means, p.scales))
        return type(self)(weights, means, scales, self.index[rows], self.columns[columns])

    def _iat(self, rowidx: Any = None, colidx: Any = None) -> Self:
        p = self._mixture[rowidx, colidx]
        return type(self)(p.weights.numpy(), p.means.numpy(), p.scales.numpy())

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Return parameters for skpro's checks."""
        means = np.arange(12.0).reshape(3, 2, 2)
        frame = {"weights": [[0.3, 0.7], [0.5, 0.5], [1.0, 0.0]], "means": means, "scales": 1 + means / 10}
        named = {**frame, "index": pd.Index([1, 2, 5]), "columns": pd.Index(["a", "b"])}
        scalar = {"weights": [0.4, 0.6], "means": [0.0, 3.0], "scales": [1.0, 2.0]}
        return [frame, named, scalar]


class MixtureProbaRegressor(BaseProbaRegressor):
    """A regressor of skpro that predicts Gaussian mixtures, by one that follows scikit-learn.

    Args:
        estimator: a regressor with methods `fit` and `predict_dist`, such as `MixtureRegressor`, which None stands for,
            or `MixtureBoostingRegressor`.

    Attributes:
        estimator_: the fitted regressor.

    Example:
        >>> from skpro.metrics import CRPS  # doctest: +SKIP
        >>> model = MixtureProbaRegressor(MixtureRegressor(random_state=0)).fit(X, y)  # doctest: +SKIP
        >>> CRPS()(y_new, model.predict_proba(X_new))  # doctest: +SKIP
    """

    _tags = {  # noqa: RUF012
        "capability:multioutput": True,
        "capability:missing": False,
        "X_inner_mtype": "pd_DataFrame_Table",
        "y_inner_mtype": "pd_DataFrame_Table",
    }

    def __init__(self, estimator: Any = None) -> None:
        self.estimator = estimator
        super().__init__()
        tags = get_tags(MixtureRegressor() if estimator is None else estimator)
        self.set_tags(
            **{
                "capability:multioutput": tags.target_tags.multi_output,
                "capability:missing": tags.input_tags.allow_nan,
            }
        )

    def _fit(self, X: Any, y: Any, C: Any = None) -> Self:
        self.estimator_ = MixtureRegressor() if self.estimator is None else clone(self.estimator)
        self._columns = y.columns
        self.estimator_.fit(_named(X), y.to_numpy(dtype=np.float64).squeeze(1) if y.shape[1] == 1 else y.to_numpy())
        return self

    def _predict_proba(self, X: Any) -> MixtureDistribution:
        return MixtureDistribution.of(self.estimator_.predict_dist(_named(X)), index=X.index, columns=self._columns)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Return parameters for skpro's checks."""
        small = MixtureRegressor(2, n_estimators=2, hidden_layer_sizes=(8,), max_iter=5, random_state=0)
        return [{"estimator": small}, {"estimator": small.__class__(1, n_estimators=1, max_iter=3)}]


def _tensor(x: Any) -> Tensor:
    return torch.as_tensor(np.asarray(x, dtype=np.float64))


def _named(X: Any) -> Any:
    """Return a frame whose columns have names, which scikit-learn wants to be text."""
    return X.set_axis([str(name) for name in X.columns], axis=1)
