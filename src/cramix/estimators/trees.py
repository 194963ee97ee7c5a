"""Boosted trees that learn together, each on all rows but a fold; LightGBM grows them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cramix.boosting import MixtureObjective
from cramix.extras import require
from cramix.fitting import Step
from cramix.mixture import NormalMixture

# Settings of LightGBM that differ from its defaults: trees see half of the rows, leaves may be small.
_PARAMS = {
    "bagging_fraction": 0.5,
    "bagging_freq": 1,
    "feature_fraction_bynode": 0.8,
    "lambda_l2": 1.0,
    "min_sum_hessian_in_leaf": 1e-3,
    "min_data_in_leaf": 5,
    "min_data_in_bin": 1,
    "feature_pre_filter": False,
    "force_row_wise": True,
    "deterministic": True,
    "objective": "none",
    "metric": "none",
    "verbose": -1,
}
# Of fewer rows, each tree sees all.
_MIN_ROWS_TO_SAMPLE = 20
# Rounds end when no tree grows and constants move by less than this.
_LEAST_STEP = 1e-3


@dataclass(frozen=True)
class GrowthOptions:
    """How trees grow; see `MixtureBoostingRegressor`."""

    max_rounds: int
    patience: int
    learning_rate: float
    max_depth: int
    n_jobs: int
    progress: Callable[[Step], None] | None = None


class Trees:
    """What one member has learned: trees, and constants that are added to what they predict.

    LightGBM adds no tree in a round in which no split helps, such as when all rows ask for smaller scales alike. So a
    round first moves the constants by the mean step of the rows, and trees learn the rest.
    """

    def __init__(self, booster: Any, objective: MixtureObjective) -> None:
        self.booster, self.objective, self.n_trees = booster, objective, 0
        self.constants = np.zeros(objective.n_outputs)

    def predict(self, features: np.ndarray) -> NormalMixture:
        """Return mixtures of batch shape `(n,)` for features `(n, f)`."""
        margins = np.tile(self.constants, (len(features), 1))
        if self.n_trees:
            margins = margins + self.booster.predict(features, num_iteration=self.n_trees, raw_score=True)
        return self.objective.mixture(margins)


def grow(
    features: np.ndarray,
    targets: np.ndarray,
    weights: np.ndarray,
    folds: Sequence[np.ndarray],
    objective: MixtureObjective,
    categorical: Sequence[int],
    options: GrowthOptions,
    seed: int,
    score_weights: np.ndarray | None = None,
    seen: Sequence[np.ndarray] | None = None,
) -> tuple[list[Trees], list[float]]:
    """Grow the trees of all members, one round each in turn; return them, and the mean score after each round.

    Member i learns from the rows that are not in `folds[i]`, or from `seen[i]`. Rounds stop when the mean score of all
    folds has not improved for a while, and the members keep the number of rounds with the best score, in which rows
    have the weights `score_weights` if these are given. Folds without rows mean that nothing is held out: then all
    rounds are run, and kept, and scores are those of the rows learned from.
    """
    lightgbm = require("lightgbm", "MixtureBoostingRegressor needs LightGBM. Use: pip install 'cramix[trees]'")
    started = perf_counter()
    params = {
        **_PARAMS,
        "learning_rate": options.learning_rate,
        "max_depth": options.max_depth,
        "num_leaves": 2**options.max_depth,
        "num_class": objective.n_outputs,
        "num_threads": options.n_jobs,
    }
    if len(targets) < _MIN_ROWS_TO_SAMPLE:
        params["bagging_freq"] = 0
    whole = lightgbm.Dataset(
        features, targets, categorical_feature=list(categorical), params=params, free_raw_data=False
    ).construct()
    y, w = torch.from_numpy(targets), torch.from_numpy(weights)
    everyone = np.arange(len(targets))
    counts = w if score_weights is None else torch.from_numpy(score_weights)
    holds_out = len(folds[0]) > 0
    members = []
    for i, fold in enumerate(folds):
        learned = np.setdiff1d(everyone, fold, assume_unique=True) if seen is None else seen[i]
        booster = lightgbm.Booster({**params, "seed": seed + i}, whole.subset(learned.tolist()).construct())
        if holds_out:
            booster.add_valid(whole.subset(fold.tolist()).construct(), "held out")
        scored = fold if holds_out else learned
        rows = y[learned], w[learned], y[scored], counts[scored]
        members.append(_Member(booster, objective, *rows, options.learning_rate, holds_out))
    total = sum(member.score_weight for member in members)
    best, best_round, curve = math.inf, 0, []
    if holds_out:
        best = sum(member.score() for member in members) / total
    for n_rounds in range(1, options.max_rounds + 1):
        moved = [member.grow() for member in members]
        curve.append(sum(member.score() for member in members) / total)
        if curve[-1] < best:
            best, best_round = curve[-1], n_rounds
        if options.progress is not None:
            seconds = perf_counter() - started
            options.progress(Step(f"round {n_rounds}", objective.n_components, curve[-1], seconds))
        if not any(moved) or (holds_out and n_rounds - best_round >= options.patience):
            break
    return [member.finish(best_round if holds_out else len(curve)) for member in members], curve


class _Member:
    """A booster on the rows it learns from, the rows it is scored on, and its constants after each round."""

    def __init__(
        self,
        booster: Any,
        objective: MixtureObjective,
        y: Tensor,
        weights: Tensor,
        y_scored: Tensor,
        score_weights: Tensor,
        learning_rate: float,
        holds_out: bool,
    ) -> None:
        self._booster, self._objective, self._learning_rate = booster, objective, learning_rate
        self._y, self._weights, self._y_scored, self._score_weights = y, weights, y_scored, score_weights
        self._history = [(0, np.zeros(objective.n_outputs))]  # number of trees and constants
        self._holds_out, self.score_weight = holds_out, score_weights.sum().item()

    def grow(self) -> bool:
        """Run one round, and return whether it has changed anything."""
        constants = self._history[-1][1]
        step = np.zeros_like(constants)

        def gradient(margins: np.ndarray, _: Any) -> tuple[np.ndarray, np.ndarray]:
            nonlocal step
            rows = margins.reshape(len(self._y), -1) + constants
            gradient, curvature = self._objective.gradient_and_curvature(rows, self._y, self._weights)
            step = gradient.sum(0) / (curvature.sum(0) + _PARAMS["lambda_l2"])
            return gradient - curvature * step, curvature

        grew = not self._booster.update(fobj=gradient)
        constants = constants - self._learning_rate * step
        self._history.append((self._booster.current_iteration(), constants))
        return grew or bool(np.abs(step).max() > _LEAST_STEP)

    def score(self) -> float:
        """Return the weighted sum of the scores after the last round."""
        n_trees, constants = self._history[-1]
        value = 0.0

        def total(margins: np.ndarray, _: Any) -> tuple[str, float, bool]:
            nonlocal value
            rows = margins.reshape(len(self._y_scored), -1) + constants
            value = (self._score_weights * self._objective.scores(rows, self._y_scored)).sum().item()
            return "score", value, False

        if n_trees == 0:  # LightGBM evaluates nothing before its first tree
            total(np.zeros((len(self._y_scored), len(constants))), None)
        elif self._holds_out:
            self._booster.eval_valid(total)
        else:
            self._booster.eval_train(total)
        return value

    def finish(self, n_rounds: int) -> Trees:
        """Return what was learned in the first rounds."""
        trees = Trees(self._booster.free_dataset(), self._objective)
        trees.n_trees, trees.constants = self._history[n_rounds]
        return trees
