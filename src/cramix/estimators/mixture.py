"""`CramerMixture`: a scikit-learn estimator around `cramix.fit`, with no mathematics of its own."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from cramix.checks import check_integer
from cramix.estimator.arrays import Form, distinct, read_samples, read_weights
from cramix.estimator.progress import progress_bar
from cramix.estimator.settings import Settings
from cramix.fitting import ConvergenceWarning, FitResult
from cramix.fitting.door import solve
from cramix.mixture import MultivariateNormalMixture
from cramix.mixture.weights import draw

try:
    from sklearn.base import DensityMixin
    from sklearn.exceptions import ConvergenceWarning as SklearnConvergenceWarning
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted
except ImportError:
    raise ImportError("CramerMixture needs scikit-learn >= 1.6. Use: pip install 'cramix[sklearn]'") from None

# Numbers in the offsets of samples to components at a time.
_BLOCK = 1 << 22


class MixtureWarning(ConvergenceWarning, SklearnConvergenceWarning):
    """A fit did not arrive, or arrived at a component that has collapsed; as scikit-learn warns and as cramix does."""


class CramerMixture(DensityMixin, Settings):
    """A Gaussian mixture with the contract of `sklearn.mixture.GaussianMixture`, and more.

    It takes `sample_weight`, keeps float32, and takes torch tensors on any device as well as arrays and tables; what
    comes back is of the kind that went in, and fitted attributes are of the kind that was fitted. The order of samples
    does not matter, and a weight of 2 is the same as two equal samples.

    Args:
        n_components: k, at most the number of distinct samples.
        covariance_type: "full", "tied", "diag" or "spherical".
        tol: gain at which to stop; the method's own if None.
        reg_covar: added to every variance, as a part of the variance of the data, so that units do not matter; in
            `GaussianMixture` it is a variance itself.
        max_iter: iterations of the last stage; the method's own if None.
        n_init: how many times as many starts as the method has by itself. The best is kept.
        init_params: "kmeans", "k-means++", "random", "random_from_data", or an existing mixture: a
            `MultivariateNormalMixture`, or a fitted `GaussianMixture` or `CramerMixture`; the method's own if None.
        weights_init: `(k,)`, with `means_init`; equal if None.
        means_init: `(k, d)`, to start from instead of `init_params`.
        precisions_init: in the shape of `precisions_`, with `means_init`; those of the data, narrowed, if None.
        random_state: a seed or a `numpy.random.RandomState`, for fits and for samples.
        warm_start: start from the last fit, if there is one.
        verbose: 1 for a progress bar, 2 for a line of every step too.
        objective: "combined", the best optimum of the likelihood from any start; "cramer", the Cramér distance alone,
            or "nll", the likelihood alone, both by gradient descent.
        optimizer: "lbfgs", "adam" or "lion", of gradient descent.
        learning_rate: of gradient descent, a number, three, or a mapping from some of "weights", "means" and
            "covariances".
        batch_size: of gradient descent by "adam" or "lion": samples in a step, read where they lie, be it a file; all
            if None.
        method: a name of `cramix.fitting.METHODS` or one of them with settings, instead of an objective. From an
            existing mixture "combined" takes the steps of "em". Parameters that a method does not know are refused.

    Attributes:
        weights_, means_, covariances_, precisions_, precisions_cholesky_: as in `GaussianMixture`.
        converged_, n_iter_: how the last stage went.
        lower_bound_: mean log likelihood of the data.
        lower_bounds_: what the steps with k components have gained: minus their losses.
        n_features_in_, feature_names_in_: what was fitted.
        mixture_: the `MultivariateNormalMixture`, in the dtype of the data.
        history_: the steps of the fit, each a `cramix.fitting.Step`.
        result_: the `cramix.FitResult`, with the mixture in float64, which all methods use.

    Example:
        >>> import numpy as np
        >>> from cramix import CramerMixture
        >>> rng = np.random.default_rng(0)
        >>> X = np.concatenate([rng.normal(0, 1, (50, 2)), rng.normal(6, 1, (50, 2))])
        >>> model = CramerMixture(2, random_state=0).fit(X, sample_weight=np.repeat([1, 3], 50))
        >>> model.weights_[model.predict([[0, 0], [6, 6]])].round(3)
        array([0.25, 0.75])
        >>> model.history_[-1].name, model.converged_, model.mixture_
        ('polishing', True, MultivariateNormalMixture(batch_shape=(), n_components=2, dim=2, covariances=full))
    """

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the mixture to samples `(n, d)`, with weights `(n,)` of any positive sum; y is ignored."""
        self._check_settings()
        x, form = read_samples(self, X, reset=True)
        weights = read_weights(sample_weight, x)
        if self._in_batches():
            # Few dtypes hold large weights as they are.
            shares = None if sample_weight is None else (weights / weights.max()).to(x.dtype)
            result = self._solve(x, shares)
        else:
            rows, weights = distinct(x, weights)
            result = replace(self._solve(rows.double(), weights / weights.max()), n_samples=len(x))
        self._keep(result, form)
        for warning in result.warnings:
            text = f"{warning} (The floor is reg_covar; max_iter and tol say when to stop.)"
            warnings.warn(text, MixtureWarning, stacklevel=2)
        return self

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Fit the mixture, and return the component of each sample, `(n,)`."""
        return self.fit(X, y, sample_weight).predict(X)

    def predict(self, X: Any) -> Any:
        """Return the most probable component of each sample, `(n,)`."""
        return self._each(X, lambda p, x: p.responsibilities(x).argmax(-1))

    def predict_proba(self, X: Any) -> Any:
        """Return the probability of each component given each sample, `(n, k)`."""
        return self._each(X, MultivariateNormalMixture.responsibilities)

    def score_samples(self, X: Any) -> Any:
        """Return the log density at each sample, `(n,)`."""
        return self._each(X, MultivariateNormalMixture.log_prob)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the mean log likelihood of samples, weighted if there are weights; y is ignored."""
        return self._likelihood(X, sample_weight)[0]

    def bic(self, X: Any, sample_weight: Any = None) -> float:
        """Return the Bayesian information criterion, the lower the better; a weight counts as so many samples."""
        mean, count = self._likelihood(X, sample_weight)
        return -2 * mean * count + self.mixture_.n_parameters * math.log(count)

    def aic(self, X: Any, sample_weight: Any = None) -> float:
        """Return Akaike's information criterion, the lower the better; a weight counts as so many samples."""
        mean, count = self._likelihood(X, sample_weight)
        return -2 * mean * count + 2 * self.mixture_.n_parameters

    def sample(self, n_samples: int = 1) -> tuple[Any, Any]:
        """Draw samples `(n, d)` and return them with their components `(n,)`, in the order of the components."""
        check_is_fitted(self)
        check_integer("n_samples", n_samples, 1)
        mixture = self.result_.mixture
        generator = self._generator(mixture.means.device)
        labels = draw(mixture.weights, torch.Size((n_samples,)), generator).sort().values
        x = mixture.means.new_empty(n_samples, mixture.dim)
        for i in labels.unique():
            x[labels == i] = mixture.component(int(i)).sample((int((labels == i).sum()),), generator)
        return self._form.give(x), self._form.give(labels)

    def _solve(self, x: Tensor, weights: Tensor | None) -> FitResult:
        """Fit so often as the method does not by itself, and return the best."""
        if self.n_components > len(x):
            raise ValueError(
                f"n_components must be at most the number of distinct samples with a weight, n_samples = {len(x)}; "
                f"got {self.n_components}. Ask for fewer."
            )
        start = self._chosen_start(x, weights)
        method, times = self._chosen_method(start)
        generator = self._generator(x.device)
        with progress_bar(self.verbose) as progress:
            results = [
                solve(
                    x,
                    self.n_components,
                    method=method,
                    covariances=self.covariance_type,
                    weights=weights,
                    start=start,
                    floor=self.reg_covar,
                    generator=generator,
                    progress=progress,
                )
                for _ in range(times)
            ]
        losses = [result.history[-1].loss for result in results]
        best = results[losses.index(min(losses, key=lambda loss: (math.isnan(loss), loss)))]
        return replace(best, mixture=best.mixture.to(torch.float64))

    def _keep(self, result: FitResult, form: Form) -> None:
        model = result.mixture.to_sklearn()
        names = "weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"
        values = {name: form.give(torch.from_numpy(getattr(model, name))) for name in names}
        if not all(math.isfinite(abs(x).max()) for x in values.values()):
            scale = result.mixture.variance.sqrt().min().item()
            raise ValueError(
                f"X must have variances and inverse variances in the range of {form.dtype}; got a standard deviation "
                f"of {scale:.3g}. Use float64, or rescale it."
            )
        for name, x in values.items():
            setattr(self, name, x)
        self._form, self.result_, self.history_ = form, result, result.history
        self.mixture_ = result.mixture.to(form.dtype)
        self.converged_, self.n_iter_, self.lower_bound_ = result.converged, result.iterations, result.log_likelihood
        self.lower_bounds_ = [-step.loss for step in result.history if step.components == self.n_components]

    def _each(self, X: Any, of: Callable[[MultivariateNormalMixture, Tensor], Tensor]) -> Any:
        """Return something of each sample, in the form they came in."""
        x, form = self._read(X)
        return form.give(self._of_blocks(x, of))

    def _likelihood(self, X: Any, sample_weight: Any) -> tuple[float, float]:
        """Return the mean log likelihood, and how many samples there are."""
        x, _ = self._read(X)
        weights = read_weights(sample_weight, x)
        likelihood = self._of_blocks(x, MultivariateNormalMixture.log_prob).to(x.device)
        # What has no weight may be anywhere, and large weights may not overflow.
        shares, likelihood = weights / weights.max(), torch.where(weights > 0, likelihood, 0)
        return (shares @ likelihood / shares.sum()).item(), weights.sum().item()

    def _read(self, X: Any) -> tuple[Tensor, Form]:
        check_is_fitted(self)
        return read_samples(self, X, reset=False)

    def _of_blocks(self, x: Tensor, of: Callable[[MultivariateNormalMixture, Tensor], Tensor]) -> Tensor:
        mixture = self.result_.mixture
        rows = max(1, _BLOCK // mixture.means.numel())
        return torch.cat([of(mixture, part.to(mixture.means)) for part in x.split(rows)])

    def _generator(self, device: torch.device) -> torch.Generator:
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        return torch.Generator(device).manual_seed(int(seed))
