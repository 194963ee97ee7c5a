"""Boosted trees that learn together, each on all rows but a fold; LightGBM grows them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch

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
    """The trees of one member: as many rounds as did best, perhaps none."""

    def __init__(self, booster: Any, objective: MixtureObjective) -> None:
        self.booster, self.objective, self.n_rounds = booster, objective, 0

    def predict(self, features: np.ndarray) -> NormalMixture:
        """Return mixtures of batch shape `(n,)` for features `(n, f)`."""
        margins = np.zeros((len(features), self.objective.n_outputs))
        if self.n_rounds:
            margins = self.booster.predict(features, num_iteration=self.n_rounds, raw_score=True)
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
) -> tuple[list[Trees], list[float]]:
    """Grow the trees of all members, one round each in turn; return them, and the mean score after each round.

    Member i learns from the rows that are not in `folds[i]`. Rounds stop when the mean score of all folds has not
    improved for a while, and the members keep the number of rounds with the best score, in which rows have the weights
    `score_weights` if these are given. Folds without rows mean that nothing is held out: then all rounds are run, and
    kept, and scores are those of the rows learned from.
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
    members, state = [], []
    for i, fold in enumerate(folds):
        seen = np.setdiff1d(everyone, fold, assume_unique=True)
        booster = lightgbm.Booster({**params, "seed": seed + i}, whole.subset(seen.tolist()).construct())
        if len(fold):
            booster.add_valid(whole.subset(fold.tolist()).construct(), "held out")
        members.append(Trees(booster, objective))
        state.append((booster, seen, fold))

    counts = w if score_weights is None else torch.from_numpy(score_weights)

    def gradient(rows: np.ndarray, margins: np.ndarray, _: Any) -> tuple[np.ndarray, np.ndarray]:
        return objective.gradient_and_curvature(margins.reshape(len(rows), -1), y[rows], w[rows])

    def score(rows: np.ndarray, margins: np.ndarray) -> float:
        return (counts[rows] * objective.scores(margins.reshape(len(rows), -1), y[rows])).sum().item()

    def named_score(rows: np.ndarray, margins: np.ndarray, _: Any) -> tuple[str, float, bool]:
        return "score", score(rows, margins), False

    holds_out = len(folds[0]) > 0
    scored = [fold if holds_out else seen for _, seen, fold in state]
    total = sum(counts[rows].sum().item() for rows in scored)
    best, best_rounds, curve = math.inf, 0, []
    if holds_out:
        nothing = np.zeros((len(targets), objective.n_outputs))
        best = sum(score(rows, nothing[rows]) for rows in scored) / total
    growing = [True] * len(state)
    for n_rounds in range(1, options.max_rounds + 1):
        for i, (booster, seen, _) in enumerate(state):
            growing[i] = growing[i] and not booster.update(fobj=partial(gradient, seen))
        value = 0.0
        for (booster, _, _), rows in zip(state, scored, strict=True):
            feval = partial(named_score, rows)
            value += (booster.eval_valid(feval) if holds_out else booster.eval_train(feval))[0][2]
        curve.append(value / total)
        if curve[-1] < best:
            best, best_rounds = curve[-1], n_rounds
        if options.progress is not None:
            seconds = perf_counter() - started
            options.progress(Step(f"round {n_rounds}", objective.n_components, curve[-1], seconds))
        if not any(growing) or (holds_out and n_rounds - best_rounds >= options.patience):
            break
    for member, (booster, _, _) in zip(members, state, strict=True):
        member.n_rounds = best_rounds if holds_out else booster.current_iteration()
        member.booster = booster.free_dataset()
    return members, curve
