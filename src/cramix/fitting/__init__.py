"""Fitting mixtures: `fit`, `select` and `compress`, and one file for each method behind them."""

from typing import TYPE_CHECKING, Any

from cramix.fitting.api import fit
from cramix.fitting.compression import compress
from cramix.fitting.descent import GradientDescent, Iterate, descend
from cramix.fitting.diagnosis import convergence_warning
from cramix.fitting.em import ExpectationMaximization
from cramix.fitting.held_out import Score
from cramix.fitting.kmeans import HardAssignment
from cramix.fitting.paper import GradientLikelihood, SlicedCramer, SlicedCramerThenLikelihood
from cramix.fitting.problem import Method
from cramix.fitting.result import FitResult, Step
from cramix.fitting.search import MergeDown
from cramix.fitting.selection import Selection, select
from cramix.fitting.sliced_wasserstein import SlicedWasserstein
from cramix.fitting.solve import METHODS
from cramix.fitting.wfr import WassersteinFisherRao

if TYPE_CHECKING:
    from sklearn.exceptions import ConvergenceWarning

__all__ = [
    "METHODS",
    "ConvergenceWarning",
    "ExpectationMaximization",
    "FitResult",
    "GradientDescent",
    "GradientLikelihood",
    "HardAssignment",
    "Iterate",
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


def __getattr__(name: str) -> Any:
    """Look up the class of warnings on first use: where scikit-learn is installed, it is scikit-learn's."""
    if name == "ConvergenceWarning":
        return convergence_warning()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
