"""`fit`: a mixture for data of any size or for another mixture, by any method."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import torch

from cramix.fitting.diagnosis import convergence_warning
from cramix.fitting.problem import Method
from cramix.fitting.reading import read
from cramix.fitting.result import FitResult, Step
from cramix.fitting.solve import Options, as_method
from cramix.fitting.threads import threads_for
from cramix.mixture import MultivariateNormalMixture, NormalMixture


def fit(
    X: Any,
    n_components: int,
    *,
    method: str | Method = "merge",
    covariance_type: str = "full",
    sample_weight: Any = None,
    init_params: str | NormalMixture | MultivariateNormalMixture | None = None,
    reg_covar: float | None = None,
    shrinkage: float | str = "auto",
    generator: torch.Generator | None = None,
    progress: Callable[[Step], None] | None = None,
    max_passes: int | None = None,
    checkpoint: str | os.PathLike | None = None,
) -> FitResult:
    """Fit a mixture to samples or to another mixture: by default the best optimum of the likelihood.

    The default method runs expectation maximisation (EM) on over-complete fits and merges their components. With fewer
    than ten samples for each number to learn, the best optimum often fails on new samples: held-out scores then choose
    the start and the shrinkage of the covariances.

    Returns a `FitResult` with the `mixture`, its `log_likelihood`, `bic` and `aic`, whether it `converged`, the
    `reason` it stopped and the `history`. The mixture is a `NormalMixture` for samples `(n,)`, and has the dtype and
    the device of X. A fit that did not converge, or has collapsed components, raises a `ConvergenceWarning`.

    A few isolated samples more than a hundred standard deviations from all others are left out, with a warning; see
    `FitResult.outliers`. The methods to compare with keep them.

    Args:
        X: samples `(n, d)` or `(n,)`: a tensor, a NumPy array, or a table of pandas or Polars whose columns are all
            numeric. Or a source of any size, see `cramix.source`: files by path, Arrow streams, memory maps, batches,
            tables of Dask or Spark. Or a mixture without batch.
        n_components: k, at most the number of samples.
        method: "merge", the default; "em", EM from one start; "descent", gradient descent on the sliced Cramér loss.
            To compare with: "sc2", "nll", "sc2+nll", "kmeans", "sliced-wasserstein", "wfr". Or one of the classes in
            `cramix.fitting.METHODS` with settings, such as `GradientDescent(optimizer="adam", batch_size=256)`.
        covariance_type: "full", "tied", "diag" or "spherical".
        sample_weight: weights of the samples, `(n,)`, with any positive sum; for a source, the name of a column.
        init_params: "kmeans", "k-means++", "random", "random_from_data", or a mixture of k components; None for the
            start that suits the method.
        reg_covar: added to every variance, in squared units of the data, as in scikit-learn. None is 1e-6 of the
            variance of each column, or of its middle half where outliers dominate the variance.
        shrinkage: how far covariances are shrunk to what components share: 0 is plain maximum likelihood. Each
            component gets `shrinkage * (d + 2)` pseudo-samples of the covariance pooled over components, with
            `float("inf")` they share it; `shrinkage * 3` for "diag" and "spherical". A "tied" covariance is shrunk to
            its diagonal. "auto" is 0 with ample samples, and what held-out scores choose with few. For the methods
            "merge" and "em", the latter with 0 as "auto".
        generator: for everything random.
        progress: called with each `Step` of the history, and a few times a second during a pass over a source.
        max_passes: for a source, how often it may be read; 10 by default. It is read once to draw a sample of up to a
            million rows, and then until a pass gains less than `tol` or a tenth of the statistical error. With 1 the
            fit is that to the sample.
        checkpoint: for a source, a file that keeps the passes that are done: the same call goes on from there. It is
            removed at the end.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(100, 2, generator=g), 5 + torch.randn(100, 2, generator=g)])
        >>> fit(x, 2, generator=g).mixture.weights.sort().values
        tensor([0.4969, 0.5031])
    """
    options = Options(covariance_type, sample_weight, init_params, reg_covar, generator, progress, shrinkage=shrinkage)
    method = as_method(method)
    reading = read(X, method, options, max_passes, checkpoint, f"fit {n_components}")
    problem = reading.prepare(n_components)
    with torch.no_grad(), threads_for(problem):
        (result,) = reading.conclude([problem], [method.run(problem)])
    for warning in result.warnings:
        warnings.warn(warning, convergence_warning(), stacklevel=2)
    return result
