"""Fitting mixtures: one way in, `fit`, and a file for each method behind it."""

from cramix.fitting.compression import compress
from cramix.fitting.descending import Descent, descend
from cramix.fitting.descent import GradientDescent
from cramix.fitting.door import ConvergenceWarning, fit
from cramix.fitting.expectation import ExpectationMaximization
from cramix.fitting.kmeans import HardAssignment
from cramix.fitting.merge import MergeDown
from cramix.fitting.methods import METHODS
from cramix.fitting.nll import GradientLikelihood
from cramix.fitting.problem import Method
from cramix.fitting.result import FitResult, Step
from cramix.fitting.sc2 import SlicedCramer
from cramix.fitting.sc2_nll import SlicedCramerThenLikelihood
from cramix.fitting.selection import Score, Selection, select
from cramix.fitting.sliced_wasserstein import SlicedWasserstein
from cramix.fitting.wfr import WassersteinFisherRao

__all__ = [
    "METHODS",
    "ConvergenceWarning",
    "Descent",
    "ExpectationMaximization",
    "FitResult",
    "GradientDescent",
    "GradientLikelihood",
    "HardAssignment",
    "MergeDown",
    "Method",
    "Score",
    "Selection",
    "SlicedCramer",
    "SlicedCramerThenLikelihood",
    "SlicedWasserstein",
    "Step",
    "WassersteinFisherRao",
    "compress",
    "descend",
    "fit",
    "select",
]
