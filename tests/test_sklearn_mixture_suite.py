"""scikit-learn's own tests of `GaussianMixture`, from the installed version, with `CramerMixture` in its place."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
from sklearn.mixture import BayesianGaussianMixture

from cramix import CramerMixture

MODULES = "test_gaussian_mixture", "test_mixture"

# Warnings are no errors in scikit-learn's tests, which fit a few samples with many components.
pytestmark = pytest.mark.filterwarnings("default::sklearn.exceptions.ConvergenceWarning")

# Tests that cannot pass, with the reason; the same list is in docs/sklearn.md.
_FIVE_ITERATIONS = "asks that a fit be unfinished after five iterations; ours start after a search and are accelerated"
EXCEPTIONS: dict[str, str] = {
    "test_warm_start[0]": _FIVE_ITERATIONS,
    "test_warm_start[1]": _FIVE_ITERATIONS,
    "test_warm_start[2]": _FIVE_ITERATIONS,
    "test_gaussian_mixture_precisions_init": "calls private methods of GaussianMixture",
    "test_gaussian_mixture_raises_where_array_api_not_implemented": "asks for a refusal of tensors, which we take",
    "test_gaussian_mixture_all_init_does_not_estimate_gaussian_parameters": "counts calls of a private function",
}


class GaussianMixture(CramerMixture):
    """`CramerMixture` under the name that scikit-learn's tests expect in error messages."""


@pytest.fixture(params=[np.float64, np.float32])
def global_dtype(request: pytest.FixtureRequest) -> type:
    return request.param


@pytest.fixture(params=[0, 42])
def global_random_seed(request: pytest.FixtureRequest) -> int:
    return request.param


def exchanged(module: str) -> Iterator[tuple[str, Callable]]:
    """Yield the tests of a module of scikit-learn that was imported with the class exchanged."""
    found = importlib.util.find_spec(f"sklearn.mixture.tests.{module}")
    assert found is not None
    assert found.origin is not None
    spec = importlib.util.spec_from_file_location(f"cramix_{module}", found.origin)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    with mock.patch("sklearn.mixture.GaussianMixture", GaussianMixture):
        spec.loader.exec_module(copy)
    yield from ((name, test) for name, test in vars(copy).items() if name.startswith("test_") and callable(test))


def marked(name: str, test: Callable) -> Callable:
    """Return a test without the cases of other classes, with exceptions marked as expected failures."""

    @functools.wraps(test)
    def copy(*args: Any, **kwargs: Any) -> None:
        test(*args, **kwargs)

    copy.pytestmark = [of_ours(name, mark) for mark in getattr(test, "pytestmark", [])]  # type: ignore[attr-defined]
    return failing(name)(copy) if name in EXCEPTIONS else copy


def of_ours(name: str, mark: pytest.Mark) -> pytest.Mark:
    """Drop the parameters that are models of another class, and mark those that are exceptions."""
    if mark.name != "parametrize":
        return mark
    names, values, *rest = mark.args
    kept = [value for value in values if not isinstance(value, BayesianGaussianMixture)]
    single = isinstance(names, str) and "," not in names
    for i, value in enumerate(kept):
        if single and f"{name}[{value}]" in EXCEPTIONS:
            kept[i] = pytest.param(value, marks=failing(f"{name}[{value}]"))
    return pytest.mark.parametrize(names, kept, *rest, **mark.kwargs).mark


def failing(name: str) -> pytest.MarkDecorator:
    return pytest.mark.xfail(reason=EXCEPTIONS[name], strict=True)


for _module in MODULES:
    for _name, _test in exchanged(_module):
        globals()[_name] = marked(_name, _test)
