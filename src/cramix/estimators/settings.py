"""The parameters of `CramerMixture`: which are valid, which method of fitting they ask for, and where it starts."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cramix.checks import check_choice, check_finite, check_integer, check_number
from cramix.fitting import METHODS, ExpectationMaximization, FitResult, GradientDescent, MergeDown, Method
from cramix.fitting.door import solve
from cramix.fitting.families import FAMILIES
from cramix.fitting.starts import STARTS
from cramix.mixture import Covariance, MultivariateNormalMixture, NormalMixture
from cramix.mixture.coordinates import in_coordinates

try:
    from sklearn.base import BaseEstimator
except ImportError:
    raise ImportError("CramerMixture needs scikit-learn >= 1.6. Use: pip install 'cramix[sklearn]'") from None

_OBJECTIVES = "combined", "cramer", "nll"
_OPTIMIZERS = "lbfgs", "adam", "lion"
# Parameters for the method, and what methods call those that scikit-learn has other names for.
_PASSED_ON = "tol", "max_iter", "learning_rate", "batch_size", "objective", "optimizer"
_NAMES = {"tol": ("tolerance",), "max_iter": ("max_iterations", "steps")}


class Settings(BaseEstimator):
    """Parameters, stored as they come and looked at when a fit begins; see `CramerMixture`."""

    result_: FitResult  # of the last fit

    def __init__(
        self,
        n_components: int = 1,
        *,
        covariance_type: str = "full",
        tol: float | None = None,
        reg_covar: float = 1e-6,
        max_iter: int | None = None,
        n_init: int = 1,
        init_params: Any = None,
        weights_init: Any = None,
        means_init: Any = None,
        precisions_init: Any = None,
        random_state: Any = None,
        warm_start: bool = False,
        verbose: int = 0,
        objective: str = "combined",
        optimizer: str = "lbfgs",
        learning_rate: Any = None,
        batch_size: int | None = None,
        method: str | Method | None = None,
    ) -> None:
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.tol = tol
        self.reg_covar = reg_covar
        self.max_iter = max_iter
        self.n_init = n_init
        self.init_params = init_params
        self.weights_init = weights_init
        self.means_init = means_init
        self.precisions_init = precisions_init
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.objective = objective
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.method = method

    def _check_settings(self) -> None:
        """Raise a ValueError for what is not valid whatever the data."""
        check_integer("n_components", self.n_components, 1)
        check_integer("n_init", self.n_init, 1)
        check_integer("verbose", int(self.verbose) if isinstance(self.verbose, bool) else self.verbose, 0)
        if self.max_iter is not None:
            check_integer("max_iter", self.max_iter, 1)
        if self.batch_size is not None:
            check_integer("batch_size", self.batch_size, 1)
        if self.tol is not None:
            check_number("tol", self.tol)
        check_number("reg_covar", self.reg_covar, positive=True)
        check_choice("covariance_type", self.covariance_type, FAMILIES)
        check_choice("objective", self.objective, _OBJECTIVES)
        check_choice("optimizer", self.optimizer, _OPTIMIZERS)
        if self.method is not None and not isinstance(self.method, Method):
            check_choice("method", self.method, METHODS)
        if isinstance(self.init_params, str):
            check_choice("init_params", self.init_params, STARTS)

    def _chosen_method(self, start: object) -> tuple[Method, int]:
        """Return the method that is asked for, and how often to run it."""
        times = 1 if self._goes_on() else int(self.n_init)
        asked = self._asked()
        if isinstance(self.method, Method):
            _refuse(asked, "an object as the method, which has its own settings")
            return self.method, times
        kind: type[Method]
        if self.method is not None:
            kind = METHODS[self.method]
        elif self.objective != "combined":
            kind = GradientDescent
        else:
            # A mixture that is there already needs polishing only.
            kind = ExpectationMaximization if isinstance(start, MultivariateNormalMixture) else MergeDown
        known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
        given = {}
        for name in list(asked):
            for theirs in known.intersection(_NAMES.get(name, (name,))):
                given[theirs] = asked.pop(name)
        _refuse(asked, f'the method "{kind.name}"')
        if "starts" in known:
            given["starts"], times = times * kind.starts, 1  # type: ignore[attr-defined]
        return kind(**given), times

    def _asked(self) -> dict[str, Any]:
        """Return what is to be passed on to the method: all that is not left out."""
        left_out = {"objective": self.objective == _OBJECTIVES[0], "optimizer": self.optimizer == _OPTIMIZERS[0]}
        values = {name: getattr(self, name) for name in _PASSED_ON}
        return {name: x for name, x in values.items() if not left_out.get(name, x is None)}

    def _in_batches(self) -> bool:
        """Whether only some of the samples are looked at in each step, so that all of them may lie in a file."""
        if isinstance(self.method, Method):
            return getattr(self.method, "batch_size", None) is not None
        return self.batch_size is not None and (self.method is not None or self.objective != "combined")

    def _chosen_start(self, x: Tensor, weights: Tensor | None) -> str | MultivariateNormalMixture | None:
        """Return where a fit to samples `(n, d)` starts: a mixture, a name, or None for the method's own choice."""
        if self._goes_on():
            last = self.result_.mixture
            if (last.n_components, last.dim) != (self.n_components, x.shape[1]):
                raise ValueError(
                    f"warm_start must go on with n_components = {last.n_components} and {last.dim} features; got "
                    f"{self.n_components} and {x.shape[1]}. Set warm_start=False."
                )
            return _moved(last, x)
        if self.means_init is not None:
            return self._of_parts(x, weights)
        if self.weights_init is not None or self.precisions_init is not None:
            raise ValueError("means_init must come with weights_init or precisions_init; got None. Use init_params.")
        start = self.init_params
        if start is None or isinstance(start, str):
            return start
        if isinstance(start, NormalMixture):
            start = in_coordinates(start)
        elif hasattr(start, "weights_"):
            start = MultivariateNormalMixture.from_sklearn(start)
        if not isinstance(start, MultivariateNormalMixture):
            raise ValueError(
                f"init_params must be one of {', '.join(STARTS)}, a mixture or a fitted model; got {start!r}. Where "
                "scikit-learn clones, which forgets fits, give MultivariateNormalMixture.from_sklearn(model)."
            )
        return _moved(start, x)

    def _goes_on(self) -> bool:
        return bool(self.warm_start) and hasattr(self, "result_")

    def _of_parts(self, x: Tensor, weights: Tensor | None) -> MultivariateNormalMixture:
        """Return the mixture of `weights_init`, `means_init` and `precisions_init`."""
        k, dim = self.n_components, x.shape[1]
        shares = x.new_full((k,), 1 / k) if self.weights_init is None else self._given("weights_init", (k,), x)
        means = self._given("means_init", (k, dim), x)
        if self.precisions_init is None:
            whole = solve(
                x,
                1,
                method=ExpectationMaximization(),
                covariances=self.covariance_type,
                weights=weights,
                start="random_from_data",
                floor=self.reg_covar,
                generator=torch.Generator(x.device),
                progress=None,
            ).mixture.covariance_kind
            # As wide as lets k of them share the space of the data.
            return MultivariateNormalMixture(shares, means, whole.like(whole.values / k ** (2 / dim)))
        shapes = {"full": (k, dim, dim), "tied": (dim, dim), "diag": (k, dim), "spherical": (k,)}
        precisions = self._given("precisions_init", shapes[self.covariance_type], x)
        return MultivariateNormalMixture(shares, means, _inverse(FAMILIES[self.covariance_type].kind, precisions))

    def _given(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        value = getattr(self, name)
        value = (value.detach() if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))).to(like)
        if value.shape != shape:
            raise ValueError(f"{name} must have shape {shape}; got {tuple(value.shape)}. Give one entry a component.")
        check_finite(**{name: value})
        return value


def _refuse(asked: dict[str, Any], method: str) -> None:
    """Raise a ValueError for parameters that would have no effect."""
    for name, value in asked.items():
        raise ValueError(f"{name} must be left out for {method}; got {value!r}. Ask for another method or objective.")


def _moved(mixture: MultivariateNormalMixture, like: Tensor) -> MultivariateNormalMixture:
    weights, means, kind = mixture.weights, mixture.means, mixture.covariance_kind
    parts = (x.detach().to(like) for x in (weights, means, kind.values))
    return MultivariateNormalMixture(next(parts), next(parts), kind.like(next(parts)))


def _inverse(kind: type[Covariance], precisions: Tensor) -> Covariance:
    """Return covariances of precisions."""
    lower, bad = (precisions, precisions <= 0) if kind.axis_aligned else torch.linalg.cholesky_ex(precisions)
    if bad.any():
        raise ValueError(
            f"precisions_init must be positive definite; got {int(bad.count_nonzero())} that are not. They are inverse "
            "covariances."
        )
    return kind(1 / precisions if kind.axis_aligned else torch.cholesky_inverse(lower))
