"""`ConformalRegressor`: intervals with finite-sample coverage, around any regressor that predicts mixtures.

The score of a row is its tail: the smaller of the probabilities that its prediction gives to the two sides of the
observation. An interval reaches from the quantile at a tail level to the one at the same level from above, where the
level is a low order statistic of the scores of rows that the model has not seen (Chernozhukov, Wüthrich and Zhu, 2021,
doi:10.1073/pnas.2107794118). With folds the ends of all intervals are ranked instead (CV+; Barber, Candès, Ramdas and
Tibshirani, 2021, doi:10.1214/20-AOS1965, and for scores as here Gupta, Kuchibhotla and Ramdas, 2022,
doi:10.1016/j.patcog.2021.108496).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from cramix.checks import check_number
from cramix.distance.operands import Mixture
from cramix.estimators import html
from cramix.estimators.forecasts import Forecasts, check_coverage, marginals
from cramix.estimators.inputs import Form
from cramix.estimators.regressor import MixtureRegressor
from cramix.estimators.splits import Nested, Split, check_cv, read_groups, splits, take
from cramix.mixture import NormalMixture

try:
    from sklearn.base import BaseEstimator, MetaEstimatorMixin, RegressorMixin, clone
    from sklearn.ensemble._base import _set_random_states
    from sklearn.model_selection import GroupShuffleSplit
    from sklearn.utils import check_random_state, get_tags, indexable
    from sklearn.utils.validation import check_is_fitted
except ImportError:
    raise ImportError("ConformalRegressor needs scikit-learn >= 1.6. Use: pip install 'cramix[sklearn]'") from None

# Levels are lowered by this fraction, so that rounding never excludes a row that is equal to one of the scored ones.
_SLACK = 1e-9
# Bisections of the ends of intervals.
_BISECTIONS = 60


@dataclass(eq=False, repr=False)
class ConformalRegressor(Forecasts, MetaEstimatorMixin, RegressorMixin, BaseEstimator):
    """A regressor whose intervals have finite-sample coverage, whatever the model and the data.

    It fits a regressor to some of the rows and scores its predictions on the rest. An interval of `coverage` 0.9 then
    contains the target of a new row with probability at least 0.9, if the new row and the scored ones are exchangeable,
    such as independent draws from one distribution. With m scored rows and continuous targets the probability is also
    at most 0.9 + 1 / (m + 1). This holds on average over rows and over the draw of the data: not for each value of
    the features, and not for time series or data that drift. For several targets it holds for each of them.

    With `cv` all rows are used both to fit and to score: one model for each fold, scored on that fold. The guarantee is
    then weaker, `1 - 2 (1 - coverage)` up to a term of order 1 / sqrt(n), though `coverage` is what is usually reached.

    Other predictions are those of the regressor; with `cv`, those of an equal mixture of the regressors.

    Args:
        estimator: a regressor with methods `fit` and `predict_dist`, such as `MixtureRegressor`, which None stands for.
        calibration_fraction: fraction of the rows that are scored, without `cv`.
        cv: number of folds of random rows, a list of pairs of indices, or a splitter of scikit-learn, such as
            `GroupKFold()` or `TimeSeriesSplit()`, also for an estimator whose `cv` is None; None splits once.
        random_state: a seed or a `numpy.random.RandomState`, of the split and, unless None, of the regressors.

    Attributes:
        estimators_: the fitted regressors, one or `cv`.
        n_features_in_, feature_names_in_: number and names of the features.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(-1, 1, (400, 1))
        >>> y = X[:, 0] + rng.normal(0, 0.1, 400)
        >>> model = ConformalRegressor(MixtureRegressor(n_estimators=2, max_iter=30, random_state=0), random_state=0)
        >>> low, high = model.fit(X[:300], y[:300]).predict_interval(X[300:], coverage=0.8).T
        >>> bool(0.7 < np.mean((low <= y[300:]) & (y[300:] <= high)) < 0.9)
        True
    """

    estimator: Any = None
    _: KW_ONLY
    calibration_fraction: float = 0.2
    cv: Any = None
    random_state: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Fit to features `(n, f)` and targets `(n,)` or `(n, d)`, with weights `(n,)`.

        Rows of weight 0 are left out. Otherwise weights have an effect on the models only: each scored row counts once,
        so coverage is that of rows, not of weights. Rows of one of the `groups`, `(n,)`, are scored together, by models
        that have seen none of them; then coverage is that of rows of new groups.
        """
        self._check_settings()
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        X, y = indexable(X, _on_cpu(y))
        members = read_groups(groups, len(y))
        present = np.ones(len(y), dtype=bool)
        if sample_weight is not None:
            sample_weight = _on_cpu(sample_weight)
            if sample_weight.shape != y.shape[:1]:
                raise ValueError(f"sample_weight must have shape {y.shape[:1]}; got {sample_weight.shape}.")
            present = sample_weight != 0
            if not present.any():
                raise ValueError("sample_weight must have a positive sum; got zeros only.")
        random_state = check_random_state(self.random_state)
        estimators, scores = [], []
        found = self._splits(X, y, present, members, random_state)
        nested = Nested(self.cv, found, members, present)
        for seen, scored in found:
            model = MixtureRegressor() if self.estimator is None else clone(self.estimator)
            if self.random_state is not None:
                _set_random_states(model, random_state)
            model, inner = nested.prepare(model, seen)
            weights = {} if sample_weight is None else {"sample_weight": sample_weight[seen]}
            model.fit(take(X, seen), y[seen], **weights, **inner)
            estimators.append(model)
            scores.append(_tails(model.predict_dist(take(X, scored)), y[scored]).sort(0).values)
        self.estimators_, self._scores, self._target_shape = estimators, scores, y.shape[1:]
        return self

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Any:
        """Return the lower and upper end of each interval, `(n, 2)`; of each target for `(n, d)`, `(n, d, 2)`.

        A new target lies in its interval with probability at least `coverage`, see the class. Ends are infinite if
        there are too few scored rows for that: fewer than `coverage / (1 - coverage)`.
        """
        check_coverage(coverage)
        check_is_fitted(self)
        predictions = [model.predict_dist(X) for model in self.estimators_]
        form = _form(X, predictions[0])
        n_scored = sum(len(scores) for scores in self._scores)
        rank = math.floor((1 - coverage) * (n_scored + 1) + 1e-9)  # coverage is a decimal number, rounded
        ends = []
        for target, mixtures in enumerate(
            zip(*(marginals(p.to(dtype=torch.float64)) for p in predictions), strict=True)
        ):
            scores = [fold[:, target].to(mixtures[0].device) for fold in self._scores]
            low = _lower_end(mixtures, scores, rank)
            high = -_lower_end([p.affine(0.0, -1.0) for p in mixtures], scores, rank)
            ends.append(torch.stack((low, torch.maximum(low, high)), -1))
        return form.give(torch.stack(ends, 1).reshape(-1, *self._target_shape, 2))

    @property
    def n_features_in_(self) -> int:
        """Number of features."""
        check_is_fitted(self)
        return self.estimators_[0].n_features_in_

    @property
    def feature_names_in_(self) -> np.ndarray:
        """Names of the features, if they have any."""
        if not hasattr(self, "estimators_"):
            raise AttributeError("feature_names_in_ exists after fit.")
        return self.estimators_[0].feature_names_in_

    def _predict(self, X: Any) -> tuple[Mixture, Form]:
        check_is_fitted(self)
        parts = [model.predict_dist(X) for model in self.estimators_]
        p = parts[0] if len(parts) == 1 else type(parts[0]).mix(parts, [1 / len(parts)] * len(parts))
        return p, _form(X, p)

    def _summary(self) -> str:
        n_scored = sum(len(scores) for scores in self._scores)
        facts = {
            "regressors": str(len(self.estimators_)),
            "scored rows": f"{n_scored:,}",
            "largest finite coverage": f"{n_scored / (n_scored + 1):.4g}",
        }
        return html.of_regressor(self.n_features_in_, facts)

    def _splits(
        self, X: Any, y: np.ndarray, present: np.ndarray, groups: np.ndarray | None, random_state: np.random.RandomState
    ) -> list[Split]:
        """Return the rows to fit and the rows to score, of those that are present."""
        by_group = GroupShuffleSplit(1, test_size=self.calibration_fraction, random_state=random_state)
        found = splits(self.cv, by_group, groups, present, check_random_state(self.random_state), X, y)
        if found is not None:
            return found
        rows = np.flatnonzero(present)
        n = len(rows)
        n_scored = math.ceil(self.calibration_fraction * n)
        if n_scored >= n:
            raise ValueError(f"ConformalRegressor needs rows to fit and rows to score; got n_samples = {n}.")
        order = random_state.permutation(n)
        return [(rows[np.sort(order[n_scored:])], rows[np.sort(order[:n_scored])])]

    def _check_settings(self) -> None:
        """Raise an error for settings that are invalid for any data."""
        check_number("calibration_fraction", self.calibration_fraction, positive=True)
        if self.calibration_fraction >= 1:
            raise ValueError(f"calibration_fraction must be < 1; got {self.calibration_fraction!r}.")
        check_cv(self.cv)
        if self.estimator is not None and not hasattr(self.estimator, "predict_dist"):
            name = type(self.estimator).__name__
            raise TypeError(f"estimator must have a method predict_dist; {name} has none.")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(MixtureRegressor() if self.estimator is None else self.estimator)
        tags.target_tags.multi_output = inner.target_tags.multi_output
        tags.input_tags = inner.input_tags
        return tags


def _tails(p: Mixture, y: np.ndarray) -> Tensor:
    """Return for each target the smaller of the probabilities below and above it, `(n, d)`."""
    p = p.to(dtype=torch.float64)
    targets = torch.as_tensor(y.astype(np.float64), device=p.device).reshape(len(y), -1)
    sides = [(q.cdf(t), q.affine(0.0, -1.0).cdf(-t)) for q, t in zip(marginals(p), targets.T, strict=True)]
    return torch.stack([torch.minimum(*pair) for pair in sides], -1).cpu()


def _lower_end(mixtures: Sequence[NormalMixture], scores: Sequence[Tensor], rank: int) -> Tensor:
    """Return for each row the `rank`-th smallest quantile of all models at the levels of sorted scores, `(n,)`."""
    if rank == 0:
        return mixtures[0].means.new_full(mixtures[0].batch_shape, -math.inf)
    levels = [(1 - _SLACK) * fold for fold in scores]
    if len(levels) == 1:
        return mixtures[0].icdf(levels[0][rank - 1])
    low = torch.stack([p.icdf(fold[0]) for p, fold in zip(mixtures, levels, strict=True)]).amin(0)
    high = torch.stack([p.icdf(fold[-1]) for p, fold in zip(mixtures, levels, strict=True)]).amax(0)
    for _ in range(
        _BISECTIONS
    ):  # the number of quantiles up to x is that of levels up to the distribution functions at x
        middle = 0.5 * (low + high)
        below = [torch.searchsorted(fold, p.cdf(middle), right=True) for p, fold in zip(mixtures, levels, strict=True)]
        enough = torch.stack(below).sum(0) >= rank
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return low


def _on_cpu(y: Any) -> np.ndarray:
    return np.asarray(y.detach().cpu() if isinstance(y, Tensor) else y)


def _form(X: Any, p: Mixture) -> Form:
    return Form(not isinstance(X, Tensor), p.means.dtype, p.device)
