"""Fitting mixtures: one way in, `fit`, and a file for each method behind it."""

from cramix.fitting.descending import Descent, descend
from cramix.fitting.descent import GradientDescent
from cramix.fitting.door import ConvergenceWarning, fit
from cramix.fitting.expectation import ExpectationMaximization
from cramix.fitting.merge import MergeDown
from cramix.fitting.methods import METHODS
from cramix.fitting.problem import Method
from cramix.fitting.result import FitResult, Step
from cramix.fitting.selection import Score, Selection, select

__all__ = [
    "METHODS",
    "ConvergenceWarning",
    "Descent",
    "ExpectationMaximization",
    "FitResult",
    "GradientDescent",
    "MergeDown",
    "Method",
    "Score",
    "Selection",
    "Step",
    "descend",
    "fit",
    "select",
]
