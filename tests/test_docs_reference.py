"""The API reference has every public name, and each has an example that runs."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

REFERENCE = Path(__file__).parents[1] / "docs/api/index.md"
MODULES = [
    "cramix",
    "cramix.boosting",
    "cramix.data",
    "cramix.estimators",
    "cramix.fitting",
    "cramix.loss",
    "cramix.metrics",
    "cramix.mixture",
    "cramix.nn",
    "cramix.plot",
    "cramix.rl",
    "cramix.skpro",
]
# A class of scikit-learn, where it is installed.
WITHOUT_EXAMPLE = {"ConvergenceWarning"}


def listed() -> set[str]:
    return set(re.findall(r"^(?:   |\.\. py:data:: )(cramix\.[\w.]+)$", REFERENCE.read_text(), re.M))


def resolve(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def public(module: str) -> list[tuple[str, Any]]:
    found = importlib.import_module(module)
    assert found.__all__
    return [(name, getattr(found, name)) for name in found.__all__]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    """Under its own name, or that of the package that it is exported by; modules by their functions."""
    if module == "cramix.skpro":  # it may be missing; its names do not depend on that
        source = (REFERENCE.parents[2] / "src/cramix/skpro.py").read_text()
        names = re.findall(r'"(\w+)"', re.search(r"__all__ = \[(.*?)\]", source, re.S)[1])  # type: ignore[index]
        assert {f"cramix.skpro.{name}" for name in names} <= listed()
        return
    there = [resolve(name) for name in listed() if not name.startswith("cramix.skpro.")]
    for name, thing in public(module):
        if inspect.ismodule(thing):
            own = [n for n, o in vars(thing).items() if inspect.isfunction(o) and o.__module__ == thing.__name__]
            missing = {f"{thing.__name__}.{n}" for n in own if not n.startswith("_")} - listed()
            assert not missing, missing
        else:
            assert any(thing is other for other in there), f"{module}.{name} is missing in docs/api/index.md"


def test_a_listed_name_exists_and_is_listed_once() -> None:
    names = re.findall(r"^(?:   |\.\. py:data:: )(cramix\.[\w.]+)$", REFERENCE.read_text(), re.M)
    assert len(names) == len(set(names)) > 100


@pytest.mark.parametrize("module", [m for m in MODULES if m != "cramix.skpro"])
def test_every_public_name_has_an_example(module: str) -> None:
    for name, thing in public(module):
        if name not in WITHOUT_EXAMPLE and (inspect.isclass(thing) or inspect.isfunction(thing)):
            assert ">>> " in (inspect.getdoc(thing) or ""), f"{module}.{name} has no example in its docstring"


@pytest.mark.parametrize("module", [m for m in MODULES if m != "cramix.skpro"])
def test_functions_describe_all_their_arguments(module: str) -> None:
    for name, thing in public(module):
        if inspect.isfunction(thing) and "Args:" in (thing.__doc__ or ""):
            described = set(re.findall(r"^ +\*{0,2}(\w+):", thing.__doc__.split("Args:")[1], re.M))
            missing = set(inspect.signature(thing).parameters) - described
            assert not missing, f"{module}.{name} does not describe {missing}"
