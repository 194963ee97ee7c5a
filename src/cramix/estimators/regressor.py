"""`MixtureRegressor`: a scikit-learn regressor that predicts whole distributions."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from cramix.checks import check_choice, check_integer, check_number
from cramix.distance.operands import Mixture
from cramix.estimators import html
from cramix.estimators.ensemble import Ensemble
from cramix.estimators.forecasts import Forecasts
from cramix.estimators.inputs import Form, distinct, read_sample_weight, read_samples
from cramix.estimators.progress import progress_bar
from cramix.estimators.recalibration import Recalibration, recalibrate
from cramix.estimators.splits import Split, check_cv, membership, of_membership, read_groups, splits
from cramix.estimators.training import STAGES, Rows, TrainingOptions, out_of_sample, train
from cramix.mixture import Diagonal, MultivariateNormalMixture, NormalMixture
from cramix.nn.initialization import weighted_moments

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.model_selection import GroupShuffleSplit
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise ImportError("MixtureRegressor needs scikit-learn >= 1.6. Use: pip install 'cramix[sklearn]'") from None

# Rows predicted at a time.
_BLOCK = 1 << 14
# batch_size="auto": the number of batches in an epoch from which on they grow, and the limits of their size.
_BATCHES_PER_EPOCH, _MIN_BATCH, _MAX_BATCH = 64, 32, 256
# max_iter="auto": the least number of epochs, how many rows are visited besides, and the largest number of epochs.
_MIN_EPOCHS, _VISITS, _MAX_EPOCHS = 10, 1_000_000, 400
# n_iter_no_change="auto": fraction of the epochs, and the lower limit.
_PATIENCE, _MIN_PATIENCE = 0.3, 10


@dataclass(eq=False, repr=False)  # estimators equal only themselves; scikit-learn prints them
class MixtureRegressor(Forecasts, RegressorMixin, BaseEstimator):
    """A regressor that predicts Gaussian mixtures, by an ensemble of small networks trained with a proper score.

    The networks are trained together. Each holds out rows of its own and keeps the weights that are best on them. A
    prediction is the mixture of the mixtures of all networks, recalibrated by the likelihood of the held-out rows:
    scales and distances of components from the mean get common factors, and a wide component of small weight is added
    where outliers ask for it.

    Features and targets are standardized. The order of the rows does not matter, and a row of weight 2 counts as two
    equal rows.

    Args:
        n_components: number of components of each network.
        loss: "cramer" (the CRPS, for several targets the energy score), "nll" (the negative log likelihood) or "blend"
            (first the one, then the other).
        hidden_layer_sizes: widths of the hidden layers.
        n_estimators: number of networks.
        max_iter: number of epochs, for "blend" of each stage; the learning rate rises and falls once in this time.
            "auto" is 10 + 1,000,000 / n for n rows, at most 400.
        batch_size: rows in a batch. "auto" is a 64th of the rows, at least 32 and at most 256; the learning rate grows
            with its square root.
        learning_rate: highest learning rate of AdamW, for batches of 64 rows.
        weight_decay: weight decay of AdamW.
        early_stopping: hold rows out and keep the weights that are best on them; False trains for `max_iter` epochs on
            all rows, without recalibration.
        validation_fraction: fraction of the rows that each network holds out; none of fewer than 20 rows.
        cv: how to hold rows out, if not at random: a splitter of scikit-learn, such as `GroupKFold()` or
            `TimeSeriesSplit()`, a list of pairs of indices, or a number of random folds. Networks take the splits in
            turn, from the last one backwards.
        n_iter_no_change: training stops after this many epochs without a better loss on the held-out rows; "auto" is
            0.3 of all epochs, at least 10.
        min_scale: lower bound of the components' scales, relative to the scale of the targets.
        device: where to train and predict, such as "cuda"; None is torch's default device. Pickles load on the CPU;
            `to` moves a fitted model.
        random_state: a seed or a `numpy.random.RandomState`.
        verbose: 1 shows a progress bar, 2 also prints a line per epoch.

    Attributes:
        n_iter_: number of epochs.
        loss_curve_: mean loss of the networks after each epoch, on the held-out rows if there are any.
        n_features_in_, feature_names_in_: number and names of the features.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(-1, 1, (300, 1))
        >>> y = rng.choice([-1, 1], 300) * X[:, 0] + rng.normal(0, 0.1, 300)  # two branches
        >>> model = MixtureRegressor(n_estimators=2, max_iter=60, random_state=0).fit(X, y)
        >>> p = model.predict_dist([[0.8]])
        >>> p.cdf(torch.tensor([0.0], dtype=p.means.dtype)).round(decimals=1)  # equally likely
        tensor([0.5000], dtype=torch.float64)
        >>> model.predict_quantile([[0.8]], [0.25, 0.75]).round(1)
        array([[-0.8,  0.8]])
        >>> model.predict_interval([[0.8]], coverage=0.5).round(1)
        array([[-0.8,  0.8]])
    """

    n_components: int = 5
    _: KW_ONLY
    loss: str = "cramer"
    hidden_layer_sizes: Sequence[int] = (64, 64)
    n_estimators: int = 10
    max_iter: int | str = "auto"
    batch_size: int | str = "auto"
    learning_rate: float = 2e-2
    weight_decay: float = 1e-3
    early_stopping: bool = True
    validation_fraction: float = 0.15
    cv: Any = None
    n_iter_no_change: int | str = "auto"
    min_scale: float = 1e-3
    device: torch.device | str | None = None
    random_state: Any = None
    verbose: int = 0

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Fit to features `(n, f)` and targets `(n,)` or `(n, d)`, with weights `(n,)` of any positive sum.

        Rows of one of the `groups`, `(n,)`, such as a patient or overlapping windows, are held out together.
        """
        self._check_settings()
        device = torch.get_default_device() if self.device is None else torch.device(self.device)
        with _cpu_by_default():
            return self._fit(X, y, sample_weight, groups, device)

    def _fit(self, X: Any, y: Any, sample_weight: Any, groups: Any, device: torch.device) -> Self:
        X, y = validate_data(self, _on_cpu(X), _on_cpu(y), dtype=np.float64, multi_output=True, y_numeric=True)
        features, targets = torch.from_numpy(np.array(X)), torch.from_numpy(np.array(y, dtype=np.float64))
        self._target_shape = tuple(targets.shape[1:])
        targets = targets.reshape(len(targets), -1)
        weights = read_sample_weight(_on_cpu(sample_weight), features)
        rng = check_random_state(self.random_state)
        found = self._splits(X, y, weights.numpy(), read_groups(groups, len(features)), rng)
        table = torch.from_numpy(membership(found or [], len(features)))
        columns = (features, targets, table)
        rows, weights = distinct(torch.cat(columns, -1), weights)
        features, targets, table = rows.split([part.shape[1] for part in columns], 1)
        weights = weights / weights.mean()
        self._x_units = _Units(features, weights, constant=math.inf)  # a constant feature has no effect
        self._y_units = _Units(targets, weights, constant=1.0)
        x, t = self._x_units.standardize(features).float(), self._y_units.standardize(targets).float()
        seed = int(rng.randint(2**31 - 1))
        ensemble = Ensemble(
            self.n_estimators,
            x.shape[1],
            tuple(self.hidden_layer_sizes),
            self.n_components,
            t,
            weights,
            self.min_scale,
            seed,
        )
        train_rows = Rows(*(part.to(device) for part in (x, t.squeeze(-1) if t.shape[1] == 1 else t, weights.float())))
        batch_size, learning_rate = self._batch_size_and_rate(len(x))
        epochs, patience = self._epochs_and_patience(len(x))
        with progress_bar(self.verbose) as progress:
            options = TrainingOptions(
                STAGES[self.loss],
                epochs,
                batch_size,
                learning_rate,
                self.weight_decay,
                self.validation_fraction if self.early_stopping else 0.0,
                patience,
                progress,
                None if found is None else of_membership(table.numpy()),
            )
            held_out, losses = train(ensemble.to(device), train_rows, options, torch.Generator().manual_seed(seed))
        self._ensemble = ensemble.freeze()
        self._recalibration = Recalibration()
        if held_out.numel():
            p, held_rows = out_of_sample(ensemble, Rows(*(part.double() for part in train_rows)), held_out)
            self._recalibration = recalibrate(p, held_rows.y, held_rows.weights)
        self.n_iter_, self.loss_curve_ = len(losses), losses
        return self

    def _splits(
        self, x: np.ndarray, y: np.ndarray, weights: np.ndarray, groups: np.ndarray | None, rng: np.random.RandomState
    ) -> list[Split] | None:
        """Return the splits that networks take in turn, None for random ones."""
        if not self.early_stopping:
            return None
        by_group = GroupShuffleSplit(self.n_estimators, test_size=self.validation_fraction, random_state=rng)
        return splits(self.cv, by_group, groups, weights, rng, x, y)

    def to(self, device: torch.device | str) -> Self:
        """Move the fitted model to a device, where it then predicts."""
        check_is_fitted(self)
        self._ensemble.to(device)
        return self

    def _predict(self, X: Any) -> tuple[Mixture, Form]:
        """Return the predictions in float64 on the device of the model, and the form of X."""
        check_is_fitted(self)
        with _cpu_by_default():
            features, form = read_samples(self, X, reset=False)
            x = self._x_units.standardize(features.cpu().double()).to(self._ensemble.device)
            parts = [self._recalibration.apply(self._ensemble.combined(block)) for block in x.split(_BLOCK)]
            return self._y_units.restore(type(parts[0]).cat(parts)), form  # type: ignore[arg-type]

    def _summary(self) -> str:
        facts = {
            "networks": str(self._ensemble.n_estimators),
            "factor on scales": f"{self._recalibration.scale_factor:.4g}",
            "factor on the spread of means": f"{self._recalibration.spread_factor:.4g}",
            "weight of the wide component": f"{self._recalibration.tail_weight:.4g}",
        }
        return html.of_regressor(self.n_features_in_, facts, self.loss_curve_, "epoch")

    def _batch_size_and_rate(self, n: int) -> tuple[int, float]:
        if self.batch_size != "auto":
            return int(self.batch_size), self.learning_rate
        size = min(max(n // _BATCHES_PER_EPOCH, _MIN_BATCH), _MAX_BATCH)
        return size, self.learning_rate * math.sqrt(size / 64)

    def _epochs_and_patience(self, n: int) -> tuple[int, int]:
        epochs = self.max_iter
        if epochs == "auto":
            epochs = min(_MIN_EPOCHS + round(_VISITS / n), _MAX_EPOCHS)
        if self.n_iter_no_change != "auto":
            return int(epochs), int(self.n_iter_no_change)
        return int(epochs), max(round(_PATIENCE * int(epochs)), _MIN_PATIENCE)

    def _check_settings(self) -> None:
        """Raise a ValueError for settings that are invalid for any data."""
        for name in ("n_components", "n_estimators"):
            check_integer(name, getattr(self, name), 1)
        for name in ("max_iter", "n_iter_no_change", "batch_size"):
            if getattr(self, name) != "auto":
                check_integer(name, getattr(self, name), 1)
        for width in self.hidden_layer_sizes:
            check_integer("hidden_layer_sizes", width, 1)
        check_integer("verbose", int(self.verbose) if isinstance(self.verbose, bool) else self.verbose, 0)
        check_choice("loss", self.loss, STAGES)
        check_number("learning_rate", self.learning_rate, positive=True)
        check_number("weight_decay", self.weight_decay)
        check_number("min_scale", self.min_scale, positive=True)
        check_cv(self.cv)
        check_number("validation_fraction", self.validation_fraction, positive=True)
        if self.validation_fraction >= 1:
            raise ValueError(f"validation_fraction must be < 1; got {self.validation_fraction!r}.")

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__().copy()
        if "_ensemble" in state:  # a pickle from a GPU loads where there is none
            state["_ensemble"] = copy.deepcopy(state["_ensemble"]).cpu()
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class _Units:
    """Mean and standard deviation of columns, with a given value for constant ones; to standardize, and to undo it."""

    def __init__(self, x: Tensor, weights: Tensor, constant: float) -> None:
        self.mean, scale = weighted_moments(x, weights)
        self.scale = torch.where(scale > 0, scale, constant)

    def standardize(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.scale

    def restore(self, p: NormalMixture | MultivariateNormalMixture) -> NormalMixture | MultivariateNormalMixture:
        """Return mixtures of standardized columns in the original units."""
        mean, scale = self.mean.to(p.device), self.scale.to(p.device)
        if isinstance(p, NormalMixture):
            return p.affine(mean, scale)
        variances = scale.square() * p.covariance_kind.values
        return MultivariateNormalMixture(p.weights, mean + scale * p.means, Diagonal(variances))


def _on_cpu(x: Any) -> Any:
    return x.detach().cpu() if isinstance(x, Tensor) else x


def _cpu_by_default() -> AbstractContextManager:
    """Return a context in which new tensors are on the CPU; nothing to do, and to pay for, if they are anyway."""
    return nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
