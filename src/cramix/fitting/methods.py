"""The methods by their names."""

from __future__ import annotations

from cramix.fitting.descent import GradientDescent
from cramix.fitting.expectation import ExpectationMaximization
from cramix.fitting.kmeans import HardAssignment
from cramix.fitting.merge import MergeDown
from cramix.fitting.nll import GradientLikelihood
from cramix.fitting.problem import Method
from cramix.fitting.sc2 import SlicedCramer
from cramix.fitting.sc2_nll import SlicedCramerThenLikelihood
from cramix.fitting.sliced_wasserstein import SlicedWasserstein
from cramix.fitting.wfr import WassersteinFisherRao

_METHODS: tuple[type[Method], ...] = (
    MergeDown,
    ExpectationMaximization,
    GradientDescent,
    SlicedCramer,
    GradientLikelihood,
    SlicedCramerThenLikelihood,
    HardAssignment,
    SlicedWasserstein,
    WassersteinFisherRao,
)

METHODS: dict[str, type[Method]] = {method.name: method for method in _METHODS}
