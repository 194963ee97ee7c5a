"""`MixtureBoostingRegressor`: a scikit-learn regressor that predicts whole distributions by boosted trees."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch

from cramix.checks import check_choice, check_integer, check_number
from cramix.estimators import html
from cramix.estimators.boosted import STAGES, Rows, boost, disjoint_folds
from cramix.estimators.features import ordered, read_features, read_targets
from cramix.estimators.forecasts import Forecasts
from cramix.estimators.inputs import Form, read_sample_weight
from cramix.estimators.progress import progress_bar
from cramix.estimators.splits import Split, check_cv, membership, n_groups, of_membership, read_groups, splits
from cramix.estimators.trees import GrowthOptions
from cramix.mixture import NormalMixture
from cramix.nn.initialization import weighted_moments

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.model_selection import GroupKFold
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted
except ImportError:
    raise ImportError(
        "MixtureBoostingRegressor needs scikit-learn >= 1.6. Use: pip install 'cramix[sklearn]'"
    ) from None

# Rows predicted at a time.
_BLOCK = 1 << 14
# With fewer rows none are held out.
_MIN_ROWS = 20
# n_estimators="auto": this many rows are enough for all members together; their number has limits.
_ROWS_OF_MEMBERS, _MIN_MEMBERS, _MAX_MEMBERS = 60_000, 4, 10
# max_depth="auto": the depth of trees, of few rows and of many.
_DEPTH, _DEPTH_OF_MANY, _MANY_ROWS = 4, 6, 5000


@dataclass(eq=False, repr=False)  # estimators equal only themselves; scikit-learn prints them
class MixtureBoostingRegressor(Forecasts, RegressorMixin, BaseEstimator):
    """A regressor that predicts Gaussian mixtures, by boosted trees trained with a proper score.

    Each member of an ensemble learns from all rows but a fold, in two stages: first a normal distribution, then a
    mixture for the standardized residuals of the rows in the folds, which the first stage has not seen. So scales are
    those of errors on new rows. Both stages stop when the score of held-out rows gets no better. A prediction is the
    mixture of the mixtures of all members. LightGBM grows the trees.

    Features may be NaN, which means missing. Columns of data frames may be text or categories; those that `fit` has not
    seen are missing. The order of the rows does not matter, and a row of weight 2 counts as two equal rows.

    Args:
        n_components: number of components of each member.
        loss: "cramer" (the CRPS), "nll" (the negative log likelihood) or "blend" (the CRPS in the first stage, the
            likelihood in the second).
        n_estimators: number of members. "auto" is 10, and fewer from 6,000 rows on, 4 from 15,000 on.
        max_iter: maximum number of rounds of each stage.
        learning_rate: factor on what each round adds; half of it in the second stage.
        max_depth: maximum depth of trees. "auto" is 4, and 6 from 5,000 rows on.
        early_stopping: hold rows out and keep the rounds that are best on them; False runs `max_iter` rounds on all
            rows, in one stage that learns the whole mixture.
        validation_fraction: largest fraction of the rows that a member holds out, or of the groups, but at least one of
            them; none of fewer than 20 rows.
        cv: how to hold rows out, if not at random: a splitter of scikit-learn, such as `GroupKFold()` or
            `TimeSeriesSplit()`, a list of pairs of indices, or a number of random folds. There is one member for each
            split.
        n_iter_no_change: a stage stops after this many rounds without a better score of the held-out rows.
        min_scale: lower bound of scales, relative to the scale of the targets, and in the second stage to that of the
            residuals.
        n_jobs: number of threads; None is LightGBM's default, all cores.
        random_state: a seed or a `numpy.random.RandomState`.
        verbose: 1 shows a progress bar, 2 also prints a line per round.

    Attributes:
        n_iter_: number of rounds of both stages.
        loss_curve_: mean score after each round, of the held-out rows if there are any; of standardized targets in the
            first stage, of standardized residuals in the second.
        n_features_in_, feature_names_in_: number and names of the features.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(-1, 1, (600, 1))
        >>> y = rng.choice([-1, 1], 600) * X[:, 0] + rng.normal(0, 0.1, 600)  # two branches
        >>> model = MixtureBoostingRegressor(n_estimators=3, random_state=0).fit(X, y)
        >>> model.predict_quantile([[0.8]], [0.1, 0.75]).round(1)
        array([[-0.8,  0.8]])
        >>> model.predict_dist([[0.8]])
        NormalMixture(batch_shape=(1,), n_components=9, dtype=torch.float64)
    """

    n_components: int = 3
    _: KW_ONLY
    loss: str = "cramer"
    n_estimators: int | str = "auto"
    max_iter: int = 2000
    learning_rate: float = 0.1
    max_depth: int | str = "auto"
    early_stopping: bool = True
    validation_fraction: float = 0.1
    cv: Any = None
    n_iter_no_change: int = 50
    min_scale: float = 1e-3
    n_jobs: int | None = None
    random_state: Any = None
    verbose: int = 0

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Fit to features `(n, f)` and targets `(n,)`, with weights `(n,)` of any positive sum.

        Rows of one of the `groups`, `(n,)`, such as a patient or overlapping windows, are held out together.
        """
        self._check_settings()
        x, _, categories = read_features(self, X, None)
        y = read_targets(y, len(x))
        weights = read_sample_weight(sample_weight, torch.from_numpy(np.array(x))).numpy()
        rng = check_random_state(self.random_state)
        found = self._splits(x, y, weights, read_groups(groups, len(x)), rng)
        n_features = x.shape[1]
        table = membership(found or [], len(x))
        rows_and_table, y, weights = _distinct(np.concatenate((x, table), 1), y, weights)
        x, table = rows_and_table[:, :n_features], rows_and_table[:, n_features:]
        weights = weights / weights.mean()
        self._categories, self._target_shape = categories, ()
        center, scale = weighted_moments(torch.from_numpy(y).unsqueeze(-1), torch.from_numpy(weights))
        self._center, self._scale = center.item(), scale.item() or 1.0
        rows = Rows(x, (y - self._center) / self._scale, weights)
        seen, n_members = None, self._n_members(len(x))
        if found is not None:
            seen, folds = map(list, zip(*of_membership(table), strict=True))
        elif self.early_stopping and len(x) >= _MIN_ROWS:
            folds = disjoint_folds(len(x), n_members, self.validation_fraction, rng)
        else:
            folds = [np.arange(0)] * n_members
        with progress_bar(self.verbose) as progress:
            options = GrowthOptions(
                self.max_iter,
                self.n_iter_no_change,
                self.learning_rate,
                self._depth(len(x)),
                self.n_jobs or 0,
                progress,
            )
            seed = int(rng.randint(2**30))
            self._boosted, losses = boost(
                rows, folds, self.n_components, self.loss, self.min_scale, sorted(categories), options, seed, seen
            )
        self.n_iter_, self.loss_curve_ = len(losses), losses
        return self

    def _predict(self, X: Any) -> tuple[NormalMixture, Form]:
        """Return the predictions in float64 on the CPU, and the form of X."""
        check_is_fitted(self)
        x, form, _ = read_features(self, X, self._categories)
        parts = [self._boosted.predict(x[i : i + _BLOCK]) for i in range(0, len(x), _BLOCK)]
        center, scale = (torch.tensor(value, dtype=torch.float64) for value in (self._center, self._scale))
        return NormalMixture.cat(parts).affine(center, scale), form

    def _summary(self) -> str:
        return html.of_regressor(
            self.n_features_in_, {"members": str(len(self._boosted.base))}, self.loss_curve_, "round"
        )

    def _splits(
        self, x: np.ndarray, y: np.ndarray, weights: np.ndarray, groups: np.ndarray | None, rng: np.random.RandomState
    ) -> list[Split] | None:
        """Return the split of each member, None for random ones."""
        if not self.early_stopping or (self.cv is None and groups is None):
            return None
        n_members, n = self._n_members(int((weights > 0).sum())), n_groups(groups, weights)
        if self.cv is None and self.n_estimators != "auto" and n_members > n:
            raise ValueError(f'n_estimators must be "auto" or at most the number of groups, {n}; got {n_members}.')
        # Members may leave groups that none of them holds out, but no group is held out twice.
        n_folds = min(max(2, n_members, math.ceil(1 / self.validation_fraction)), n)
        by_group = GroupKFold(max(2, n_folds), shuffle=True, random_state=rng)
        found = splits(self.cv, by_group, groups, weights, rng, x, y)
        if self.cv is None or found is None:
            return None if found is None else found[:n_members]
        if self.n_estimators not in ("auto", len(found)):
            raise ValueError(
                f'n_estimators must be "auto" or the number of splits of cv, {len(found)}; got {self.n_estimators}.'
            )
        return found

    def _n_members(self, n: int) -> int:
        if self.n_estimators != "auto":
            return int(self.n_estimators)
        return min(max(round(_ROWS_OF_MEMBERS / n), _MIN_MEMBERS), _MAX_MEMBERS)

    def _depth(self, n: int) -> int:
        if self.max_depth != "auto":
            return int(self.max_depth)
        return _DEPTH if n < _MANY_ROWS else _DEPTH_OF_MANY

    def _check_settings(self) -> None:
        """Raise a ValueError for settings that are invalid for any data."""
        for name in ("n_components", "max_iter", "n_iter_no_change"):
            check_integer(name, getattr(self, name), 1)
        for name in ("n_estimators", "max_depth"):
            if getattr(self, name) != "auto":
                check_integer(name, getattr(self, name), 1)
        if self.n_jobs is not None:
            check_integer("n_jobs", self.n_jobs, 1)
        check_integer("verbose", int(self.verbose) if isinstance(self.verbose, bool) else self.verbose, 0)
        check_choice("loss", self.loss, STAGES)
        check_cv(self.cv)
        for name in ("learning_rate", "min_scale", "validation_fraction"):
            check_number(name, getattr(self, name), positive=True)
        if self.validation_fraction >= 1:
            raise ValueError(f"validation_fraction must be < 1; got {self.validation_fraction!r}.")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def _distinct(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows of weight > 0 in ascending order, with equal ones merged and their weights added."""
    order, first = ordered(x, y, weights)
    return x[order[first]], y[order[first]], np.add.reduceat(weights[order], first)
