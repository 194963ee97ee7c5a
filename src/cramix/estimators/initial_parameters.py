"""Where `CramerMixture` starts: from `init_params`, given weights, means and precisions, or an existing mixture.

Errors about given arrays have scikit-learn's wording.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cramix.arrays import as_tensor
from cramix.checks import check_finite
from cramix.fitting.em import ExpectationMaximization
from cramix.fitting.solve import Options, solve
from cramix.fitting.starts import STARTS
from cramix.mixture import MultivariateNormalMixture, NormalMixture
from cramix.mixture.coordinates import in_coordinates
from cramix.mixture.covariance import FAMILIES, KINDS, Covariance

Start = str | MultivariateNormalMixture | None


class Given(NamedTuple):
    """Initial parameters as tensors, None where the caller gave none: weights, means, and covariances of a kind."""

    weights: Tensor | None
    means: Tensor | None
    covariances: Covariance | None


def read_given(estimator: Any, x: Tensor) -> Given:
    """Check `weights_init`, `means_init` and `precisions_init` of an estimator against samples `(n, d)`."""
    k, dim, kind = estimator.n_components, x.shape[1], estimator.covariance_type
    weights = _array("weights", estimator.weights_init, (k,), x)
    if weights is not None:
        _check_weights(weights)
    means = _array("means", estimator.means_init, (k, dim), x)
    precisions = _array(f"{kind} precision", estimator.precisions_init, KINDS[kind].values_shape(k, dim), x)
    return Given(weights, means, None if precisions is None else _inverse(kind, precisions))


def initial(init_params: Any, given: Given, x: Tensor, k: int, options: Options) -> Start:
    """Return the start of a fit to samples `(n, d)`: a mixture, a name, or None for the method's choice.

    What is not given follows from `init_params`, or k-means if that is None. With given means only, weights are equal
    and covariances are those of the data, reduced so that k components fill the same volume.
    """
    start = read_start(init_params, x)
    if all(part is None for part in given):
        return start
    kind: Covariance
    if given.means is None:
        base = start if isinstance(start, MultivariateNormalMixture) else _start(x, k, start or "kmeans", options)
        means, weights, kind = base.means, base.weights, base.covariance_kind
    else:
        whole = _start(x, 1, "random_from_data", options).covariance_kind
        means, weights = given.means, x.new_full((k,), 1 / k)
        kind = whole.like(whole.values / k ** (2 / x.shape[1]))
    weights = weights if given.weights is None else given.weights / given.weights.sum()
    kind = kind if given.covariances is None else given.covariances
    return MultivariateNormalMixture(weights, means, kind, validate_args=False).to(x)


def read_start(init_params: Any, x: Tensor) -> Start:
    """Return `init_params` as a name or a mixture in the dtype of the samples."""
    start = init_params
    if start is None or isinstance(start, str):
        return start
    if isinstance(start, NormalMixture):
        start = in_coordinates(start)
    elif hasattr(start, "weights_"):
        start = MultivariateNormalMixture.from_sklearn(start)
    if not isinstance(start, MultivariateNormalMixture):
        raise ValueError(
            f"init_params must be one of {', '.join(STARTS)}, a mixture or a fitted model; got {start!r}. Searches "
            "clone estimators, which unfits models: pass MultivariateNormalMixture.from_sklearn(model)."
        )
    return start.detach().to(x)


def _start(x: Tensor, k: int, name: str, options: Options) -> MultivariateNormalMixture:
    """Return the mixture that a start by name leads to, without a step."""
    # `progress` is for the fit that follows; collapsed clusters are no problem for a start.
    options = replace(options, init_params=name, progress=None, reg_covar=options.reg_covar or None)
    return in_coordinates(solve(x, k, ExpectationMaximization(max_iter=0), options).mixture)


def _array(name: str, value: Any, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
    if value is None:
        return None
    array = as_tensor(name, value, like).detach().to(like)
    if array.shape != shape:
        raise ValueError(f"The parameter '{name}' should have the shape of {shape}, but got {tuple(array.shape)}")
    check_finite(**{f"{name.split()[-1].removesuffix('s')}s_init": array})
    return array


def _check_weights(weights: Tensor) -> None:
    least, most, total = weights.min().item(), weights.max().item(), weights.sum().item()
    if least < 0 or most > 1:
        # The order of the two values is scikit-learn's.
        got = f"max value {least:.5f}, min value {most:.5f}"
        raise ValueError(f"The parameter 'weights' should be in the range [0, 1], but got {got}")
    if abs(total - 1) > (1e-6 if weights.dtype == torch.float32 else 1e-8):
        raise ValueError(f"The parameter 'weights' should be normalized, but got sum(weights) = {total:.5f}")


def _inverse(covariance_type: str, precisions: Tensor) -> Covariance:
    """Return the covariances whose inverses are given."""
    kind = FAMILIES[covariance_type].kind
    if kind.axis_aligned:
        if not bool((precisions > 0).all()):
            raise ValueError(f"The parameter '{covariance_type} precision' should be positive")
        return kind(1 / precisions)
    lower, bad = torch.linalg.cholesky_ex(precisions)
    if bool(bad.any()) or not torch.allclose(precisions, precisions.mT):
        raise ValueError(f"The parameter '{covariance_type} precision' should be symmetric, positive-definite")
    return kind(torch.cholesky_inverse(lower))
