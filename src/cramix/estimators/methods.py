"""The method that the parameters of a `CramerMixture` ask for."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from cramix.checks import check_choice, check_integer, check_number
from cramix.estimators.initial_parameters import Start
from cramix.fitting import METHODS, ExpectationMaximization, GradientDescent, MergeDown, Method
from cramix.fitting.starts import STARTS
from cramix.mixture import MultivariateNormalMixture
from cramix.mixture.covariance import FAMILIES

# Parameters that methods have under the same name.
_SETTINGS = "tol", "max_iter", "optimizer", "learning_rate", "batch_size"


def check_parameters(model: Any) -> None:
    """Raise a ValueError for parameters of a `CramerMixture` that are invalid whatever the data."""
    check_integer("n_components", model.n_components, 1)
    check_integer("n_init", model.n_init, 1)
    check_integer("verbose", int(model.verbose) if isinstance(model.verbose, bool) else model.verbose, 0)
    check_integer("verbose_interval", model.verbose_interval, 1)
    for name, least in (("max_iter", 0), ("batch_size", 1)):
        if getattr(model, name) is not None:
            check_integer(name, getattr(model, name), least)
    for name in ("tol", "reg_covar"):
        if getattr(model, name) is not None:
            check_number(name, getattr(model, name))
    check_choice("covariance_type", model.covariance_type, FAMILIES)
    check_choice("objective", model.objective, ("likelihood", "cramer"))
    if model.optimizer is not None:
        check_choice("optimizer", model.optimizer, ("lbfgs", "adam", "lion", "rmsprop"))
    if model.method is not None and not isinstance(model.method, Method):
        check_choice("method", model.method, METHODS)
    if isinstance(model.init_params, str):
        check_choice("init_params", model.init_params, STARTS)


def chosen_method(model: Any, start: Start) -> tuple[Method, int]:
    """Return the method that the parameters ask for, and how often to run it."""
    asked = {name: getattr(model, name) for name in _SETTINGS if getattr(model, name) is not None}
    existing = isinstance(start, MultivariateNormalMixture)
    times = 1 if existing else int(model.n_init)
    if model.method is not None and model.objective != "likelihood":
        raise ValueError("objective must be left out if there is a method, which has its own; got 'cramer'.")
    if isinstance(model.method, Method):
        _refuse(asked, "a method with settings of its own")
        return model.method, times
    kind: type[Method]
    if model.method is not None:
        kind = METHODS[model.method]
    elif model.max_iter == 0:
        kind = ExpectationMaximization
    elif model.objective == "cramer" or model.optimizer is not None:
        kind, asked["objective"] = GradientDescent, model.objective
    else:
        kind = ExpectationMaximization if existing else MergeDown
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    what = f'method="{kind.name}"' if model.method else f'objective="{model.objective}", optimizer={model.optimizer!r}'
    _refuse({name: value for name, value in asked.items() if name not in known}, what)
    if "n_init" in known:
        asked["n_init"], times = times * (1 if existing else kind().n_init), 1  # type: ignore[attr-defined]
    return kind(**asked), times


def reads_batches(model: Any) -> bool:
    """Return whether each step reads only some of the samples, which may then lie in a file."""
    if isinstance(model.method, Method):
        return getattr(model.method, "batch_size", None) is not None
    return model.batch_size is not None


def _refuse(asked: dict[str, Any], what: str) -> None:
    """Raise a ValueError for parameters that would have no effect."""
    for name, value in asked.items():
        raise ValueError(f"{name} has no effect with {what}; got {value!r}. Leave it out, or choose another method.")
