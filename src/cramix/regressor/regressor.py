"""`MixtureRegressor`: a scikit-learn regressor that predicts whole distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from cramix.checks import check_choice, check_integer, check_number
from cramix.estimators.inputs import distinct, read_sample_weight
from cramix.estimators.progress import progress_bar
from cramix.heads.start import moments
from cramix.mixture import MultivariateNormalMixture, NormalMixture
from cramix.regressor.networks import Networks
from cramix.regressor.training import STAGES, Plan, Rows, train

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise ImportError("MixtureRegressor needs scikit-learn >= 1.6. Use: pip install 'cramix[sklearn]'") from None

# Rows to predict at a time.
_BLOCK = 1 << 14

Units = tuple[Tensor, Tensor]


class MixtureRegressor(RegressorMixin, BaseEstimator):
    """A regressor whose predictions are Gaussian mixtures, by small networks trained with a proper score.

    Some networks are trained at once, each on rows of its own choice, and stop where they are best on the others; the
    prediction is the mixture of all their mixtures. Features and targets are brought to standard units first. The order
    of samples does not matter, and a weight of 2 is the same as two equal samples.

    Args:
        n_components: k of each network.
        loss: "cramer", the CRPS, of vectors the energy score; "nll", the likelihood; "blend", first the one, then the
            other.
        hidden: widths of the layers.
        n_networks: how many.
        max_iter: the most epochs.
        batch_size: rows in a step.
        learning_rate: of Adam.
        weight_decay: of Adam.
        early_stopping: hold out rows, and stop where the loss on them is best; if not, `max_iter` epochs.
        validation_fraction: of the rows, to hold out, others for each network; none if there are fewer than 20.
        n_iter_no_change: epochs without a better loss on them after which a network has stopped.
        floor: the least scale of a component, as a part of the targets' spread.
        random_state: a seed or a `numpy.random.RandomState`.
        verbose: 1 for a progress bar, 2 for a line of every epoch too.

    Attributes:
        n_iter_: epochs.
        loss_curve_: the mean loss of the networks after each, on the rows held out if there are some.
        n_features_in_, feature_names_in_: what was fitted.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(-1, 1, (300, 1))
        >>> y = rng.choice([-1, 1], 300) * X[:, 0] + rng.normal(0, 0.1, 300)  # two answers
        >>> model = MixtureRegressor(n_networks=2, max_iter=60, random_state=0).fit(X, y)
        >>> p = model.predict_dist([[0.8]])
        >>> p.cdf(torch.tensor([0.0], dtype=p.means.dtype)).round(decimals=1)  # each as likely
        tensor([0.5000], dtype=torch.float64)
        >>> model.predict_quantile([[0.8]], [0.25, 0.75]).round(1)
        array([[-0.8,  0.8]])
    """

    def __init__(
        self,
        n_components: int = 5,
        *,
        loss: str = "cramer",
        hidden: Sequence[int] = (64, 64),
        n_networks: int = 10,
        max_iter: int = 400,
        batch_size: int = 64,
        learning_rate: float = 3e-3,
        weight_decay: float = 1e-3,
        early_stopping: bool = True,
        validation_fraction: float = 0.15,
        n_iter_no_change: int = 30,
        floor: float = 1e-3,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.loss = loss
        self.hidden = hidden
        self.n_networks = n_networks
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.floor = floor
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to features `(n, f)` and targets `(n,)` or `(n, d)`, with weights `(n,)` of any positive sum."""
        self._check_settings()
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        features, targets = torch.from_numpy(np.array(X)), torch.from_numpy(np.array(y, dtype=np.float64))
        self._target_shape = tuple(targets.shape[1:])
        targets = targets.reshape(len(targets), -1)
        weights = read_sample_weight(sample_weight, features)
        rows, weights = distinct(torch.cat((features, targets), -1), weights)
        features, targets = rows[:, : features.shape[1]], rows[:, features.shape[1] :]
        weights = weights / weights.mean()
        self._x_units = _units(features, weights, math.inf)  # a feature that says nothing counts for nothing
        self._y_units = _units(targets, weights, 1.0)
        x, t = (_in_units(*pair).float() for pair in ((features, self._x_units), (targets, self._y_units)))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        networks = Networks(
            self.n_networks, x.shape[1], tuple(self.hidden), self.n_components, t, weights, self.floor, seed
        )
        with progress_bar(self.verbose) as progress:
            plan = Plan(
                STAGES[self.loss],
                self.max_iter,
                self.batch_size,
                self.learning_rate,
                self.weight_decay,
                self.validation_fraction if self.early_stopping else 0.0,
                self.n_iter_no_change,
                progress,
            )
            generator = torch.Generator().manual_seed(seed)
            t = t.squeeze(-1) if t.shape[1] == 1 else t
            course = train(networks, Rows(x, t, weights.float()), plan, generator)
        self._networks, self.n_iter_, self.loss_curve_ = networks, course.epochs, course.losses
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the mean of each prediction, in the shape of the targets, `(n,)` or `(n, d)`."""
        mean = self.predict_dist(X).mean.numpy()
        return mean.reshape(len(mean), *self._target_shape)

    def predict_dist(self, X: Any) -> NormalMixture | MultivariateNormalMixture:
        """Return the predictions: mixtures with batch shape `(n,)`, of targets `(n, d)` with d > 1 in d dimensions."""
        check_is_fitted(self)
        features = torch.from_numpy(np.array(validate_data(self, X, dtype=np.float64, reset=False)))
        x = _in_units(features, self._x_units)
        parts = [self._networks.together(some) for some in x.split(_BLOCK)]
        centre, scales = self._y_units
        weights, means = (torch.cat([getattr(p, name) for p in parts]) for name in ("weights", "means"))
        if isinstance(parts[0], NormalMixture):
            spread = torch.cat([p.scales for p in parts])  # type: ignore[union-attr]
            return NormalMixture(weights, centre + scales * means, scales * spread)
        kinds = [p.covariance_kind for p in parts]  # type: ignore[union-attr]
        kind = kinds[0].like(scales.square() * torch.cat([each.values for each in kinds]))
        return MultivariateNormalMixture(weights, centre + scales * means, kind)

    def predict_quantile(self, X: Any, quantiles: float | Sequence[float] = (0.05, 0.5, 0.95)) -> np.ndarray:
        """Return quantiles of each prediction, `(n, q)`, for one number `(n,)`; of vectors, `(n, d, q)` or `(n, d)`."""
        p = self.predict_dist(X)
        levels = torch.as_tensor(quantiles, dtype=torch.float64)
        if levels.ndim > 1:
            raise ValueError(f"quantiles must be a number or a list; got shape {tuple(levels.shape)}. Flatten it.")
        many = levels.reshape(-1, 1)
        if isinstance(p, NormalMixture):
            found = p.icdf(many).T  # (n, q)
            found = found.reshape(len(found), *self._target_shape, -1)
        else:
            found = torch.stack([p.marginal(i).icdf(many).T for i in range(p.dim)], 1)
        return found.numpy() if levels.ndim else found.squeeze(-1).numpy()

    def _check_settings(self) -> None:
        """Raise a ValueError for what is not valid whatever the data."""
        for name in ("n_components", "n_networks", "max_iter", "batch_size", "n_iter_no_change"):
            check_integer(name, getattr(self, name), 1)
        for width in self.hidden:
            check_integer("hidden", width, 1)
        check_integer("verbose", int(self.verbose) if isinstance(self.verbose, bool) else self.verbose, 0)
        check_choice("loss", self.loss, STAGES)
        check_number("learning_rate", self.learning_rate, positive=True)
        check_number("weight_decay", self.weight_decay)
        check_number("floor", self.floor, positive=True)
        check_number("validation_fraction", self.validation_fraction, positive=True)
        if self.validation_fraction >= 1:
            raise ValueError(
                f"validation_fraction must be < 1; got {self.validation_fraction!r}. It is a part of the rows."
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _units(x: Tensor, weights: Tensor, of_none: float) -> Units:
    """Return centre and unit of each column of rows `(n, d)` with weights `(n,)`, and `of_none` where all are equal."""
    centre, scales = moments(x, weights)
    return centre, torch.where(scales > 0, scales, of_none)


def _in_units(x: Tensor, units: Units) -> Tensor:
    centre, scales = units
    return (x - centre) / scales
