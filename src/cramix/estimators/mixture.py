"""`CramerMixture`: a scikit-learn estimator around `cramix.fit`."""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from cramix.data import is_source_like, source
from cramix.estimators import file, html, sources
from cramix.estimators.incremental import Incremental
from cramix.estimators.initial_parameters import Given, Start, initial, read_given
from cramix.estimators.inputs import Form, distinct, read_sample_weight, read_samples
from cramix.estimators.methods import check_parameters, chosen_method, reads_batches
from cramix.estimators.per_sample import Of, labels, of_blocks
from cramix.estimators.progress import line_printer
from cramix.fitting import FitResult, Method
from cramix.fitting.diagnosis import convergence_warning
from cramix.fitting.outliers import Outliers, find_outliers
from cramix.fitting.reading import refuse_passes, takes_passes
from cramix.fitting.samples import n_samples
from cramix.fitting.solve import Options, solve
from cramix.mixture import MultivariateNormalMixture
from cramix.mixture.coordinates import in_coordinates
from cramix.mixture.weights import draw

try:
    from sklearn.base import BaseEstimator, DensityMixin, clone
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted
except ImportError:
    raise ImportError("CramerMixture needs scikit-learn >= 1.6. Use: pip install 'cramix[sklearn]'") from None


@dataclass(eq=False, repr=False)  # estimators equal only themselves; scikit-learn prints them
class CramerMixture(html.FittedHTML, DensityMixin, BaseEstimator):
    """A Gaussian mixture at the best optimum of the likelihood, by EM on merged over-complete fits.

    It is a drop-in replacement for `sklearn.mixture.GaussianMixture`, with the same parameters, attributes and methods.
    In addition it takes `sample_weight`, and torch tensors on any device as well as arrays and data frames; results
    have the kind of the input, and fitted attributes that of the data they were fitted to. The order of samples does
    not matter, and a sample of weight 2 counts as two equal samples; beyond a million samples that holds to the
    tolerance of the fit, which then searches with a part of them. `objective="cramer"` follows the paper: it minimises
    the sliced Cramér distance by gradient descent.

    Args:
        n_components: k, at most the number of samples.
        covariance_type: "full", "tied", "diag" or "spherical".
        tol: gain at which to stop; None for the method's default.
        reg_covar: added to every variance, in squared units of the data. None is 1e-6 of the variance of each column.
        max_iter: the largest number of iterations of the last stage; None for the method's default. 0 returns the
            start of an EM fit.
        shrinkage: how far covariances are shrunk to what components share, see `cramix.fit`: "auto", a number, or 0 for
            plain maximum likelihood, as in `GaussianMixture`. With few samples for each number to learn, "auto" is what
            held-out scores choose; else, and for fits from a given start, it is 0.
        n_init: number of searches, or of starts for methods without one; the best fit is kept. With 1, a search ends as
            soon as two fits agree. More of them take longer and never end worse.
        init_params: "kmeans", "k-means++", "random", "random_from_data", or an existing mixture: a
            `MultivariateNormalMixture`, or a fitted `GaussianMixture` or `CramerMixture`; None for the start that suits
            the method.
        weights_init: `(k,)`, in place of those of `init_params`.
        means_init: `(k, d)`, in place of those of `init_params`.
        precisions_init: in the shape of `precisions_`, in place of those of `init_params`.
        random_state: a seed or a `numpy.random.RandomState`, for fits and for samples.
        warm_start: whether to start from the last fit, if there is one.
        verbose: 1 prints a line every `verbose_interval` iterations, 2 adds the stage, the loss and the time.
        verbose_interval: number of iterations between two lines.
        objective: "likelihood" or "cramer".
        optimizer: None, the default, is EM for the likelihood and L-BFGS for the Cramér distance. "lbfgs", "adam",
            "lion" or "rmsprop" minimise either objective by gradient descent.
        learning_rate: of gradient descent: a number, three, or a mapping from some of "weights", "means" and
            "covariances"; None for the default of the optimizer.
        batch_size: of gradient descent by "adam", "lion" or "rmsprop": samples in a step, which are read where they
            lie, even in a file; None for all.
        method: a name of `cramix.fitting.METHODS`, or one of these classes with settings, in place of an objective.
        forgetting: of `partial_fit`, the part of their weight that earlier samples lose with each new one: some
            `1 / forgetting` of the last samples count. 0 forgets nothing.
        max_passes: how often data are read that take passes: sources, and arrays of more than a million rows; 10 if
            None. See `cramix.fit`.
        checkpoint: a file that keeps finished passes over such data, so that the same fit goes on from there; it is
            removed at the end.

    A start from an existing mixture, or from given means, weights or precisions, is followed by EM without a search.
    Parameters that the chosen method does not have are refused.

    Attributes:
        weights_, means_, covariances_, precisions_, precisions_cholesky_: as in `GaussianMixture`.
        converged_, n_iter_: whether the last stage converged, and its number of iterations.
        shrinkage_: the shrinkage of the covariances, chosen or given.
        lower_bound_: mean log likelihood of the data, without the samples in `result_.outliers`: a few isolated ones
            that lie absurdly far out are left out of the fit, with a warning.
        lower_bounds_: the mean log likelihood, or minus the loss, at the iterations of the last stage.
        n_features_in_, feature_names_in_: of the data.
        mixture_: the `MultivariateNormalMixture`, in the dtype of the data.
        history_: the steps of the fit, each a `cramix.fitting.Step`.
        result_: the `cramix.FitResult`, whose mixture is in float64 and serves all methods.

    Example:
        >>> import numpy as np
        >>> from cramix import CramerMixture
        >>> rng = np.random.default_rng(0)
        >>> X = np.concatenate([rng.normal(0, 1, (50, 2)), rng.normal(6, 1, (50, 2))])
        >>> model = CramerMixture(2, random_state=0).fit(X, sample_weight=np.repeat([1, 3], 50))
        >>> model.weights_[model.predict([[0, 0], [6, 6]])].round(3)
        array([0.25, 0.75])
        >>> model.history_[-1].name, model.converged_
        ('polishing', True)
    """

    n_components: int = 1
    _: KW_ONLY
    covariance_type: str = "full"
    tol: float | None = None
    reg_covar: float | None = None
    shrinkage: float | str = "auto"
    max_iter: int | None = None
    n_init: int = 1
    init_params: Any = None
    weights_init: Any = None
    means_init: Any = None
    precisions_init: Any = None
    random_state: Any = None
    warm_start: bool = False
    verbose: int = 0
    verbose_interval: int = 10
    objective: str = "likelihood"
    optimizer: str | None = None
    learning_rate: Any = None
    batch_size: int | None = None
    method: str | Method | None = None
    forgetting: float = 0.0
    max_passes: int | None = None
    checkpoint: str | os.PathLike | None = None

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the mixture to samples `(n, d)`, with weights `(n,)` of any positive sum; y is ignored.

        X may also be a source of any size, see `cramix.source`, such as the path of a Parquet file; `sample_weight` is
        then the name of a column.
        """
        check_parameters(self)
        if is_source_like(X):
            result = sources.fit(self, source(X, sample_weight=sample_weight))
        else:
            result = self._fit_rows(X, sample_weight)
        for warning in result.warnings:
            warnings.warn(warning, convergence_warning(), stacklevel=2)
        return self

    def _fit_rows(self, X: Any, sample_weight: Any, passes: bool = True) -> FitResult:
        """Fit the mixture to samples in memory, in passes if they are many and these are not forbidden."""
        x, form = read_samples(self, X, reset=True)
        if self.n_components > len(x):
            raise ValueError(
                f"Expected n_samples >= n_components but got n_components = {self.n_components}, n_samples = {len(x)}"
            )
        given = read_given(self, x)
        weights = read_sample_weight(sample_weight, x)
        if passes and takes_passes(x, chosen_method(self, None)[0]):
            return sources.fit(self, source(x, sample_weight=None if sample_weight is None else weights), form)
        if passes:
            refuse_passes(max_passes=self.max_passes, checkpoint=self.checkpoint)
        if reads_batches(self):
            result = self._solve(x, None if sample_weight is None else weights, given)
        else:
            outliers = self._outliers(x, weights)
            weights = weights.index_fill(0, torch.tensor(outliers.rows, dtype=torch.int64, device=x.device), 0)
            rows, mass = distinct(x, weights)
            if self.n_components > len(rows):  # as in scikit-learn, repeated samples may have several components
                rows, mass = x[weights > 0], weights[weights > 0]
            if self.n_components > len(rows):
                raise ValueError(
                    f"Expected n_samples >= n_components but got n_components = {self.n_components}, "
                    f"n_samples = {len(rows)} with a sample_weight > 0"
                )
            result = self._solve(rows.double(), mass / mass.max(), given, outliers, n_samples(weights))
            result = replace(result, n_samples=len(x) - len(outliers.rows))
        self._keep(result, form, weights.sum().item())
        return result

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Continue the fit with further samples `(n, d)`, which are not needed again; y is ignored.

        It goes on from the last call, from `fit`, or from the first batch, by stepwise EM: one step for each batch.
        The first 20,000 samples, or ten for each parameter, are kept, and the search is repeated when their number has
        doubled. Earlier samples count as much as new ones, unless `forgetting` is set. `lower_bound_` is then the mean
        log likelihood of the batch before it was learned from.
        """
        check_parameters(self)
        if is_source_like(X):
            raise ValueError(
                f"X must be a batch in memory; got {type(X).__name__}. Use fit, or partial_fit with each batch."
            )
        begun = hasattr(self, "result_")
        x, form = read_samples(self, X, reset=not begun)
        weights = read_sample_weight(sample_weight, x)
        state = self._incremental if begun else Incremental()
        with torch.no_grad():
            state, result = (state or Incremental.after(self, self._weight)).updated(self, x, weights, self._searched)
        self._keep(result, form, incremental=state)
        for warning in result.warnings:
            warnings.warn(warning, convergence_warning(), stacklevel=2)
        return self

    def save(self, path: str | os.PathLike) -> None:
        """Write the fitted model to a file, which holds no code, with all that `predict` and `partial_fit` need."""
        check_is_fitted(self)
        file.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Read a model that `save` has written."""
        return file.load(cls, path)

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Fit the mixture, and return the component of each sample, `(n,)`."""
        return self.fit(X, y, sample_weight).predict(X)

    def predict(self, X: Any) -> Any:
        """Return the most probable component of each sample, `(n,)`."""
        return self._each(X, labels)

    def predict_proba(self, X: Any) -> Any:
        """Return the probability of each component given each sample, `(n, k)`."""
        return self._each(X, MultivariateNormalMixture.responsibilities)

    def score_samples(self, X: Any) -> Any:
        """Return the log density at each sample, `(n,)`."""
        return self._each(X, MultivariateNormalMixture.log_prob)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the mean log likelihood of samples, weighted if there are weights; y is ignored."""
        if is_source_like(X):
            return sources.likelihood(self, X, sample_weight)[0]
        if sample_weight is None:
            return float(self.score_samples(X).mean())  # in the dtype of X, as in scikit-learn
        return self._likelihood(X, sample_weight)[0]

    def bic(self, X: Any, sample_weight: Any = None) -> float:
        """Return the Bayesian information criterion; lower is better. A weight counts as that many samples.

        As in scikit-learn, all parameters count; those of shrunk covariances count in part in `result_.bic`.
        """
        mean, count = self._likelihood(X, sample_weight)
        return -2 * mean * count + self._n_parameters() * math.log(count)

    def aic(self, X: Any, sample_weight: Any = None) -> float:
        """Return Akaike's information criterion; lower is better. A weight counts as that many samples."""
        mean, count = self._likelihood(X, sample_weight)
        return -2 * mean * count + 2 * self._n_parameters()

    def sample(self, n_samples: int = 1) -> tuple[Any, Any]:
        """Draw samples `(n, d)` and return them with their components `(n,)`, sorted by component."""
        check_is_fitted(self)
        if isinstance(n_samples, bool) or not n_samples >= 1:
            raise ValueError(f"Invalid value for 'n_samples': {n_samples}. The sampling requires at least one sample.")
        mixture = self._mixture()
        generator = self._generator(mixture.means.device)
        labels = draw(mixture.weights, torch.Size((int(n_samples),)), generator).sort().values
        x = mixture.means.new_empty(int(n_samples), mixture.dim)
        for i in labels.unique():
            x[labels == i] = mixture.component(int(i)).sample((int((labels == i).sum()),), generator)
        return self._form.give(x), self._form.give(labels)

    def _searched(self, x: Tensor, weights: Tensor) -> FitResult:
        """Return the result of a fit to all samples of the first batches."""
        return clone(self)._fit_rows(x, weights, passes=False)

    def _outliers(self, x: Tensor, weights: Tensor) -> Outliers:
        """Return the samples to leave out, before equal ones are merged: the caller knows them by their index."""
        method, _ = chosen_method(self, None)
        if not method.sets_outliers_aside:
            return Outliers()
        return find_outliers(x, weights / weights.max(), self.n_components)  # large weights must not overflow

    def _solve(
        self,
        x: Tensor,
        weights: Tensor | None,
        given: Given,
        outliers: Outliers | None = None,
        count: float | None = None,
    ) -> FitResult:
        """Run the method as often as `n_init` asks beyond its own starts, and return the best fit."""
        options = replace(self._options(x.device), sample_weight=weights, outliers=outliers, n_samples=count)
        start, options = self._start(x, given, options)
        method, times = chosen_method(self, start)
        options, results = replace(options, init_params=start), []
        for i in range(times):
            if self.verbose:
                print(f"Initialization {i}")
            results.append(solve(x, self.n_components, method, options))
            if self.verbose:
                print(f"Initialization {'converged' if results[-1].converged else 'did not converge'}.")
        losses = [result.history[-1].loss if result.history else math.nan for result in results]
        best = results[losses.index(min(losses, key=lambda loss: (math.isnan(loss), loss)))]
        return replace(best, mixture=best.mixture.to(dtype=torch.float64))

    def _options(self, device: torch.device) -> Options:
        """Return the options of a fit to data on a device."""
        return Options(
            self.covariance_type,
            reg_covar=self.reg_covar,
            generator=self._generator(device),
            progress=line_printer(self.verbose, self.verbose_interval),
            shrinkage=self.shrinkage,
        )

    def _start(self, x: Tensor, given: Given, options: Options) -> tuple[Start, Options]:
        """Return the start of a fit to samples, and its options: those of the last fit if it goes on from there."""
        if not self._continues():
            return initial(self.init_params, given, x, self.n_components, options), options
        if self.shrinkage == "auto":
            options = replace(options, shrinkage=self.shrinkage_)
        return self._last_mixture(x), options

    def _continues(self) -> bool:
        return bool(self.warm_start) and hasattr(self, "result_")

    def _last_mixture(self, x: Tensor) -> MultivariateNormalMixture:
        last = self._mixture()
        if (last.n_components, last.dim) != (self.n_components, x.shape[1]):
            raise ValueError(
                f"warm_start continues a fit with n_components = {last.n_components} to {last.dim} features; got "
                f"{self.n_components} and {x.shape[1]}. Set warm_start=False."
            )
        return last.to(x)

    def _keep(self, result: FitResult, form: Form, weight: float = 0.0, incremental: Incremental | None = None) -> None:
        """Store the fitted attributes, with the weight of the samples or the state of `partial_fit`."""
        mixture = in_coordinates(result.mixture)
        model = mixture.to_sklearn()
        names = "weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"
        values = {name: form.give(torch.from_numpy(getattr(model, name))) for name in names}
        if not all(math.isfinite(abs(x).max()) for x in values.values()):
            scale = mixture.variance.sqrt().min().item()
            raise ValueError(
                f"X must have variances and inverse variances in the range of {form.dtype}; got a standard deviation "
                f"of {scale:.3g}. Use float64, or rescale it."
            )
        for name, x in values.items():
            setattr(self, name, x)
        self._form, self._weight, self._incremental = form, weight, incremental
        self.result_, self.history_ = result, result.history
        self.mixture_ = mixture.to(form.dtype)
        self.converged_, self.n_iter_, self.lower_bound_ = result.converged, result.n_iter, result.log_likelihood
        self.shrinkage_ = result.shrinkage
        last = [-step.loss for step in result.history if step.name == result.history[-1].name]
        self.lower_bounds_ = last[-result.n_iter :] if result.n_iter else []

    def _summary(self) -> str:
        return html.of_mixture(self.result_, getattr(self, "feature_names_in_", None))

    def _n_parameters(self) -> int:
        """Return the number of free parameters, under the name scikit-learn has for it."""
        return self.mixture_.n_parameters

    def _each(self, X: Any, of: Of) -> Any:
        """Return something of each sample, in the form they came in."""
        if is_source_like(X):
            return sources.of_model(self, X).map(partial(of_blocks, self._mixture(), of))
        x, form = self._read(X)
        return form.give(of_blocks(self._mixture(), of, x))

    def _likelihood(self, X: Any, sample_weight: Any) -> tuple[float, float]:
        """Return the mean log likelihood, and the number of samples."""
        if is_source_like(X):
            return sources.likelihood(self, X, sample_weight)
        x, _ = self._read(X)
        weights = read_sample_weight(sample_weight, x)
        likelihood = of_blocks(self._mixture(), MultivariateNormalMixture.log_prob, x).to(x.device)
        # Samples without weight may lie anywhere, and large weights must not overflow.
        shares, likelihood = weights / weights.max(), torch.where(weights > 0, likelihood, 0)
        return (shares @ likelihood / shares.sum()).item(), weights.sum().item()

    def _read(self, X: Any) -> tuple[Tensor, Form]:
        check_is_fitted(self)
        return read_samples(self, X, reset=False)

    def _mixture(self) -> MultivariateNormalMixture:
        """Return the fitted mixture in float64."""
        return in_coordinates(self.result_.mixture)

    def _generator(self, device: torch.device) -> torch.Generator:
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        return torch.Generator(device).manual_seed(int(seed))
