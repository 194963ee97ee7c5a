"""`objective`: a mixture as the objective of LightGBM and XGBoost, with its metric and its predictions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cramix.boosting.derivatives import crps_derivatives, nll_derivatives
from cramix.checks import check_choice, check_integer, check_number
from cramix.mixture import NormalMixture
from cramix.nn.initialization import initialization_from_targets, standard_initialization

LOSSES = {"crps": crps_derivatives, "nll": nll_derivatives}
# The longest step of a row: in logits, in scales of the component, and in logarithms of scales.
_LONGEST_STEP = 3.0
# Scales stay below this multiple of the scale of the targets.
_MAX_SCALE = 50.0
# Rows count at least this much, relative to their mean.
_LEAST_COUNT = 1e-6
_TINY = 1e-30


class MixtureObjective:
    """What `xgboost.train` and `lightgbm.train` need to predict Gaussian mixtures; see `objective`.

    Attributes:
        n_components: k.
        loss: "crps" or "nll".
        n_outputs: numbers that trees predict for a row: logits, means and log scales, `3 k`; for k = 1 mean and log
            scale, 2.
        start: the mixture that zeros mean.

    Example:
        >>> mixture = objective(2, loss="crps", targets=[0.0, 1.0, 2.0, 3.0])
        >>> mixture.n_outputs, mixture.mixture(np.zeros((5, 6))).batch_shape  # margins (n, outputs)
        (6, torch.Size([5]))
    """

    def __init__(self, start: NormalMixture, loss: str = "crps", min_scale: float = 1e-3) -> None:
        check_choice("loss", loss, LOSSES)
        check_number("min_scale", min_scale, positive=True)
        self.start, self.loss, self.n_components = start.to(torch.float64), loss, start.n_components
        self.n_outputs = 3 * self.n_components if self.n_components > 1 else 2
        spread = start.variance.sqrt().item() or 1.0
        self._unit = torch.tensor(spread, dtype=torch.float64)
        self._log_limits = math.log(min_scale * spread), math.log(_MAX_SCALE * spread)

    def parameters(self, margins: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, means and log scales, each `(n, k)` in float64, for predictions of trees `(n, n_outputs)`."""
        margins = np.ascontiguousarray(margins, dtype=np.float64)
        if margins.ndim != 2 or margins.shape[1] != self.n_outputs:
            raise ValueError(f"margins must be (n, {self.n_outputs}); got shape {margins.shape}.")
        parts = torch.from_numpy(margins).split(self.n_components, -1)
        logits, means, log_scales = (parts[0].new_zeros(len(margins), 1), *parts) if len(parts) == 2 else parts
        log_scales = (self.start.scales.log() + log_scales).clamp(*self._log_limits)
        return self.start.weights.log() + logits, self.start.means + self._unit * means, log_scales

    def mixture(self, margins: Any) -> NormalMixture:
        """Return the mixtures, batch shape `(n,)`, for predictions of trees `(n, n_outputs)`."""
        logits, means, log_scales = self.parameters(margins)
        return NormalMixture(logits.softmax(-1), means, log_scales.exp(), validate_args=False)

    def scores(self, margins: Any, y: Tensor) -> Tensor:
        """Return the scores of targets `(n,)`."""
        return LOSSES[self.loss](*self.parameters(margins), y).value

    def steps(self, margins: Any, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the step that each row asks of its margins, `(n, n_outputs)`, and how much it counts.

        A step is the natural gradient with the diagonal bound of the metric, at most three scales of a component long.
        Rows count by the share of the component; a large scale counts as much as a small one.
        """
        logits, means, log_scales = self.parameters(margins)
        _, gradient, curvature, shares = LOSSES[self.loss](logits, means, log_scales, y)
        scales, ones = log_scales.exp(), torch.ones_like(means)
        longest = _LONGEST_STEP * torch.cat((ones, scales, ones), -1)
        steps = gradient / torch.maximum(curvature, gradient.abs() / longest).clamp(min=_TINY)
        steps[:, self.n_components : 2 * self.n_components] /= self._unit  # margins of means are in units of the spread
        counts = torch.cat((logits.softmax(-1), shares, shares), -1)
        return steps[:, -self.n_outputs :], counts[:, -self.n_outputs :]

    def gradient_and_curvature(
        self, margins: Any, y: Tensor, sample_weight: Tensor | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return both as trees take them, `(n, n_outputs)`. The mean curvature of each output is 1.

        So the value of a leaf is the mean step of its rows, and settings such as `min_child_weight` and `lambda_l2`
        count rows.
        """
        steps, counts = self.steps(margins, y)
        if sample_weight is not None:
            counts = counts * sample_weight.unsqueeze(-1)
        counts = (counts / counts.mean(0).clamp(min=_TINY)).clamp(min=_LEAST_COUNT)
        return (steps * counts).numpy(), counts.numpy()

    def __call__(self, margins: np.ndarray, data: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return gradient and curvature for predictions of trees and their `xgboost.DMatrix` or `lightgbm.Dataset`."""
        y, sample_weight = _labels_and_weights(data)
        return self.gradient_and_curvature(_by_row(margins, len(y)), y, sample_weight)

    def metric(self, margins: np.ndarray, data: Any) -> tuple:
        """Return the name and the weighted mean of the score, for LightGBM also that a higher one is not better."""
        y, sample_weight = _labels_and_weights(data)
        value = self.scores(_by_row(margins, len(y)), y)
        mean = (value if sample_weight is None else value * sample_weight / sample_weight.mean()).mean().item()
        return (self.loss, mean, False) if _is_lightgbm(data) else (self.loss, mean)


def objective(
    n_components: int,
    loss: str = "crps",
    *,
    targets: Any = None,
    sample_weight: Any = None,
    min_scale: float = 1e-3,
) -> MixtureObjective:
    """Return an objective with which `xgboost.train` or `lightgbm.train` learn to predict Gaussian mixtures.

    Trees predict `objective.n_outputs` numbers a row. `objective.metric` is the score for early stopping, and
    `objective.mixture` turns predictions into a `NormalMixture`. Gradients are exact; the curvature is a diagonal bound
    of the score's metric. Weights of the data set count.

    Args:
        n_components: number of components.
        loss: "crps" or "nll", the negative log likelihood.
        targets: `(n,)`, to start from: components that cover them. None starts from mean 0 and variance 1.
        sample_weight: weights of the targets, `(n,)`.
        min_scale: lower bound of the scales, relative to the scale of the targets.

    Example:
        >>> import lightgbm
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(-1, 1, (2000, 1))
        >>> y = rng.choice([-1, 1], 2000) * X[:, 0] + rng.normal(0, 0.1, 2000)  # two branches
        >>> mixture = objective(2, targets=y)
        >>> params = {"objective": mixture, "num_class": mixture.n_outputs, "min_data_in_leaf": 50, "max_depth": 3}
        >>> trees = lightgbm.train({**params, "verbose": -1}, lightgbm.Dataset(X, y), 50)
        >>> p = mixture.mixture(trees.predict([[0.8]], raw_score=True))
        >>> p.means.sort().values.round(decimals=1)
        tensor([[-0.8000,  0.7000]], dtype=torch.float64)
    """
    check_integer("n_components", n_components, 1)
    return MixtureObjective(covering(n_components, targets, sample_weight), loss, min_scale)


def covering(n_components: int, targets: Any = None, sample_weight: Any = None) -> NormalMixture:
    """Return equal components that cover targets `(n,)`, as those of a `MixtureHead` do."""
    found = (
        standard_initialization(n_components, 1)
        if targets is None
        else initialization_from_targets(targets, sample_weight, n_components, 1)
    )
    return NormalMixture(torch.full((n_components,), 1 / n_components), found.means.squeeze(-1), found.scale)


def _labels_and_weights(data: Any) -> tuple[Tensor, Tensor | None]:
    y = torch.from_numpy(np.asarray(data.get_label(), dtype=np.float64))
    weights = data.get_weight()
    if weights is None or len(weights) == 0:
        return y, None
    return y, torch.from_numpy(np.asarray(weights, dtype=np.float64))


def _by_row(margins: np.ndarray, n: int) -> np.ndarray:
    return margins.reshape(n, -1)


def _is_lightgbm(data: Any) -> bool:
    return type(data).__module__.split(".")[0] == "lightgbm"
