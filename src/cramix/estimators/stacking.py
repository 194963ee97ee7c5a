"""`MixtureStackingRegressor`: the mixture of what several regressors predict, weighted by rows they have not seen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from cramix.arrays import column_names
from cramix.checks import check_number
from cramix.estimators import html
from cramix.estimators.boosting import MixtureBoostingRegressor
from cramix.estimators.features import ordered, read_features, read_targets
from cramix.estimators.forecasts import Forecasts
from cramix.estimators.inputs import Form, read_sample_weight
from cramix.estimators.pooling import pool_weights
from cramix.estimators.recalibration import Recalibration, recalibrate
from cramix.estimators.regressor import MixtureRegressor
from cramix.estimators.splits import Nested, Split, check_cv, n_groups, read_groups, splits, take
from cramix.mixture import NormalMixture

try:
    from sklearn.base import BaseEstimator, RegressorMixin, clone
    from sklearn.model_selection import GroupKFold
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted
except ImportError:
    raise ImportError(
        "MixtureStackingRegressor needs scikit-learn >= 1.6. Use: pip install 'cramix[sklearn]'"
    ) from None

# With fewer rows none are held out, and all regressors have the same weight.
_MIN_ROWS = 20
# Folds are held out in turn until there are this many held-out rows; at most so many folds.
_ENOUGH, _MAX_FOLDS = 200, 4


@dataclass(eq=False, repr=False)  # estimators equal only themselves; scikit-learn prints them
class MixtureStackingRegressor(Forecasts, RegressorMixin, BaseEstimator):
    """A regressor that predicts the mixture of what several regressors predict, by default trees and networks.

    Their weights are those with the least CRPS of held-out rows, by regressors fitted to the other rows. The mixture is
    then recalibrated by the same rows: a mixture of calibrated predictions is too wide. All regressors are also fitted
    to all rows. Of fewer than 1,000 rows, two to four folds are held out in turn. For one target. A row of weight 2
    counts as two equal rows, if it does for all of them.

    Args:
        estimators: regressors with a method `predict_dist`; None for a `MixtureBoostingRegressor` and a
            `MixtureRegressor`.
        validation_fraction: fraction of the rows to hold out at a time; none of fewer than 20 rows.
        cv: how to hold rows out, if not at random: a splitter of scikit-learn, such as `GroupKFold()` or
            `TimeSeriesSplit()`, a list of pairs of indices, or a number of random folds. A splitter is also for
            regressors whose `cv` is None.
        random_state: a seed or a `numpy.random.RandomState`, also for regressors that have none of their own.

    Attributes:
        estimators_: the fitted regressors.
        weights_: their weights, `(j,)`.
        n_features_in_, feature_names_in_: number and names of the features.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(-1, 1, (300, 2))
        >>> y = X[:, 0] + 0.1 * rng.normal(size=300)
        >>> trees, networks = MixtureBoostingRegressor(n_estimators=2), MixtureRegressor(n_estimators=2, max_iter=20)
        >>> model = MixtureStackingRegressor([trees, networks], random_state=0).fit(X, y)
        >>> model.predict([[0.5, 0.0]]).round(1), round(float(model.weights_.sum()), 6)
        (array([0.5]), 1.0)
    """

    estimators: Sequence[Any] | None = None
    _: KW_ONLY
    validation_fraction: float = 0.2
    cv: Any = None
    random_state: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Fit to features `(n, f)` and targets `(n,)`, with weights `(n,)` of any positive sum.

        Rows of one of the `groups`, `(n,)`, such as a patient or overlapping windows, are held out together; also by
        regressors whose `fit` takes groups.
        """
        check_cv(self.cv)
        check_number("validation_fraction", self.validation_fraction, positive=True)
        if self.validation_fraction >= 1:
            raise ValueError(f"validation_fraction must be < 1; got {self.validation_fraction!r}.")
        x, _, _ = read_features(self, X, None)
        targets = read_targets(y, len(x))
        weights = read_sample_weight(sample_weight, torch.from_numpy(np.array(x))).numpy()
        X = X if isinstance(X, Tensor) or column_names(X) is not None else x
        rng = check_random_state(self.random_state)
        regressors = [_seeded(regressor, rng) for regressor in self._regressors()]
        members = read_groups(groups, len(x))
        found = self._splits(x, targets, weights, members, rng)
        nested = Nested(self.cv, found, members, weights)
        self.estimators_ = [_fitted(regressor, X, targets, weights, nested) for regressor in regressors]
        self.weights_ = np.full(len(regressors), 1 / len(regressors))
        self._recalibration = Recalibration()
        if found:
            parts: list[list[NormalMixture]] = []
            held_out, counts = [], []
            for seen, all_unseen in found:
                order, first = ordered(x[all_unseen], targets[all_unseen], weights[all_unseen])
                unseen = all_unseen[order[first]]  # equal rows are one row with the sum of their weights
                counts.append(np.add.reduceat(weights[all_unseen][order], first))
                parts.append(
                    [
                        _fitted(regressor, X, targets, weights, nested, seen)
                        .predict_dist(take(X, unseen))
                        .to(torch.float64)
                        for regressor in regressors
                    ]
                )
                held_out.append(unseen)
            predictions = [_joined(same) for same in zip(*parts, strict=True)]
            rows = np.concatenate(held_out)
            w_rows = np.concatenate(counts)
            y_held_out, w_held_out = torch.from_numpy(targets[rows]), torch.from_numpy(w_rows / w_rows.mean())
            share = pool_weights(predictions, y_held_out, w_held_out)
            self.weights_ = share.numpy()
            self._recalibration = recalibrate(_pool(predictions, share), y_held_out, w_held_out)
        self._target_shape = ()
        return self

    def _splits(
        self, x: np.ndarray, y: np.ndarray, weights: np.ndarray, groups: np.ndarray | None, rng: np.random.RandomState
    ) -> list[Split]:
        """Return the rows to fit and the rows to hold out in turn; none of few rows."""
        if self.cv is None and groups is None:
            order, first = ordered(x, y, weights)
            masks = self._folds(first, len(order), rng) if len(first) >= _MIN_ROWS else ()
            return [(order[~is_held_out], order[is_held_out]) for is_held_out in masks]
        n_folds = max(2, min(round(1 / self.validation_fraction), n_groups(groups, weights)))
        by_group = GroupKFold(n_folds, shuffle=True, random_state=rng)
        found = splits(self.cv, by_group, groups, weights, rng, x, y) or []
        return found if self.cv is not None else found[: self._n_folds(int((weights > 0).sum()) // n_folds)]

    def _folds(self, first: np.ndarray, n: int, rng: np.random.RandomState) -> Iterator[np.ndarray]:
        """Yield which of n sorted rows to hold out; equal rows, which begin at `first`, stay together."""
        size = max(1, int(self.validation_fraction * len(first)))
        n_folds = min(self._n_folds(size), len(first) // size)
        shuffled = rng.permutation(len(first))
        for i in range(n_folds):
            chosen = np.isin(np.arange(len(first)), shuffled[i * size : (i + 1) * size])
            yield np.repeat(chosen, np.diff(np.r_[first, n]))

    @staticmethod
    def _n_folds(size: int) -> int:
        """Return how many folds of this size are held out in turn."""
        return min(math.ceil(_ENOUGH / max(1, size)), _MAX_FOLDS)

    def _regressors(self) -> list[Any]:
        if self.estimators is None:
            return [MixtureBoostingRegressor(), MixtureRegressor()]
        if not len(self.estimators):
            raise ValueError("estimators must hold at least one regressor; got none.")
        return list(self.estimators)

    def _predict(self, X: Any) -> tuple[NormalMixture, Form]:
        check_is_fitted(self)
        used = [(w, e) for w, e in zip(self.weights_, self.estimators_, strict=True) if w > 0]
        predictions = [regressor.predict_dist(X) for _, regressor in used]
        p = self._recalibration.apply(_pool(predictions, torch.tensor([w for w, _ in used])))
        assert isinstance(p, NormalMixture)
        return p, Form(not isinstance(X, Tensor), p.means.dtype, p.means.device)

    def _summary(self) -> str:
        pairs = enumerate(zip(self.estimators_, self.weights_, strict=True))
        weights = {f"weight {i}, {type(regressor).__name__}": f"{weight:.4g}" for i, (regressor, weight) in pairs}
        return html.of_regressor(self.n_features_in_, weights)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = all(r.__sklearn_tags__().input_tags.allow_nan for r in self._regressors())
        return tags


def _fitted(
    regressor: Any, X: Any, y: np.ndarray, weights: np.ndarray, nested: Nested, rows: np.ndarray | None = None
) -> Any:
    """Return a copy of a regressor, fitted to some of the rows."""
    model, arguments = nested.prepare(clone(regressor), rows)
    if rows is not None:
        X, y, weights = take(X, rows), y[rows], weights[rows]
    return model.fit(X, y, weights, **arguments)


def _pool(predictions: Sequence[NormalMixture], weights: Tensor) -> NormalMixture:
    means = predictions[0].means
    return NormalMixture.mix(predictions, weights.to(means).expand(len(means), -1))


def _joined(parts: Sequence[NormalMixture]) -> NormalMixture:
    """Return predictions one after the other, with components of weight 0 where they have fewer than others."""
    k = max(p.n_components for p in parts)

    def padded(p: NormalMixture) -> NormalMixture:
        more = k - p.n_components
        weights = torch.cat((p.weights, p.weights.new_zeros(len(p.weights), more)), 1)
        means, scales = (torch.cat((part, part[:, :1].expand(-1, more)), 1) for part in (p.means, p.scales))
        return NormalMixture(weights, means, scales, validate_args=False)

    return NormalMixture.cat([padded(p) for p in parts])


def _seeded(regressor: Any, rng: np.random.RandomState) -> Any:
    """Return an unfitted copy of a regressor, with a seed if it has none."""
    seed, copy = int(rng.randint(2**31 - 1)), clone(regressor)
    return copy.set_params(random_state=seed) if copy.get_params().get("random_state", 0) is None else copy
