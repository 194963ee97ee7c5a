"""Scorers for model selection with scikit-learn: proper scores of predicted distributions, greater is better."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from cramix.distance.operands import Mixture
from cramix.loss import crps, energy_score
from cramix.mixture import NormalMixture


def crps_scorer(estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
    """Return the negative mean CRPS of an estimator's predictions, for several targets the negative mean energy score.

    Pass it as `scoring=` to `GridSearchCV`, `cross_val_score` and the like. The estimator, or the last step of its
    pipeline, has a method `predict_dist`, as `MixtureRegressor` does.

    Args:
        estimator: a fitted estimator.
        X: features, `(n, f)`.
        y: targets, `(n,)` or `(n, d)`.
        sample_weight: weights of the rows, `(n,)`.

    Example:
        >>> from sklearn.model_selection import GridSearchCV
        >>> from cramix import MixtureRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(-1, 1, (200, 1))
        >>> y = rng.choice([-1, 1], 200) * X[:, 0] + rng.normal(0, 0.1, 200)  # two branches
        >>> model = MixtureRegressor(n_estimators=2, max_iter=40, random_state=0)
        >>> search = GridSearchCV(model, {"n_components": [1, 3]}, scoring=crps_scorer, cv=2).fit(X, y)
        >>> search.best_params_
        {'n_components': 3}
    """
    p, y = _predictions(estimator, X, y)
    scores = crps(p, y) if isinstance(p, NormalMixture) else energy_score(p, y)
    return -_average(scores, sample_weight)


def log_likelihood_scorer(estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
    """Return the mean log likelihood of the targets under an estimator's predictions; see `crps_scorer`.

    Args:
        estimator: a fitted estimator.
        X: features, `(n, f)`.
        y: targets, `(n,)` or `(n, d)`.
        sample_weight: weights of the rows, `(n,)`.

    Example:
        >>> from sklearn.model_selection import cross_val_score
        >>> from cramix import MixtureRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(-1, 1, (200, 1))
        >>> model = MixtureRegressor(n_estimators=2, max_iter=20, random_state=0)
        >>> cross_val_score(model, X, X[:, 0], scoring=log_likelihood_scorer, cv=2).shape
        (2,)
    """
    p, y = _predictions(estimator, X, y)
    return _average(p.log_prob(y), sample_weight)


def _predictions(estimator: Any, X: Any, y: Any) -> tuple[Mixture, Tensor]:
    """Return the predictions, and the targets in their shape and dtype."""
    p = _predict_dist(estimator, X)
    y = torch.as_tensor(np.asarray(y) if not isinstance(y, Tensor) else y, dtype=p.means.dtype, device=p.means.device)
    shape = p.batch_shape + p.event_shape
    if y.shape not in (shape, (*shape, 1)):
        raise ValueError(f"y must have shape {tuple(shape)}, one target for each row of X; got {tuple(y.shape)}.")
    return p, y.reshape(shape)


def _predict_dist(estimator: Any, X: Any) -> Mixture:
    if hasattr(estimator, "predict_dist"):
        return estimator.predict_dist(X)
    if hasattr(estimator, "best_estimator_"):  # a search
        return _predict_dist(estimator.best_estimator_, X)
    if hasattr(estimator, "steps"):  # a pipeline, which forwards only the methods that scikit-learn knows
        return _predict_dist(estimator[-1], estimator[:-1].transform(X) if len(estimator) > 1 else X)
    raise TypeError(f"estimator must have a method predict_dist; {type(estimator).__name__} has none.")


def _average(scores: Tensor, sample_weight: Any) -> float:
    return float(np.average(scores.cpu().numpy(), weights=None if sample_weight is None else np.asarray(sample_weight)))
