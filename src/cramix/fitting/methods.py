"""The methods by their names."""

from __future__ import annotations

from cramix.fitting.descent import GradientDescent
from cramix.fitting.expectation import ExpectationMaximization
from cramix.fitting.merge import MergeDown
from cramix.fitting.problem import Method

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (MergeDown, ExpectationMaximization, GradientDescent)
}
