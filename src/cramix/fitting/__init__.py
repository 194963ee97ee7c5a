"""Fitting mixtures: one way in, `fit`, and a file for each method behind it."""

from cramix.fitting.descending import Descent, descend
from cramix.fitting.descent import GradientDescent
from cramix.fitting.door import ConvergenceWarning, fit
from cramix.fitting.expectation import ExpectationMaximization
from cramix.fitting.merge import MergeDown
from cramix.fitting.methods import METHODS
from cramix.fitting.problem import Method
from cramix.fitting.result import FitResult, Step

__all__ = [
    "METHODS",
    "ConvergenceWarning",
    "Descent",
    "ExpectationMaximization",
    "FitResult",
    "GradientDescent",
    "MergeDown",
    "Method",
    "Step",
    "descend",
    "fit",
]
