"""Pictures of mixtures, with matplotlib (`pip install cramix[plot]`)."""

from cramix.plot.calibration import cdf_and_sample, pit_histogram, reliability
from cramix.plot.figure import require_matplotlib
from cramix.plot.forecast import fan_chart, mixture_over_input
from cramix.plot.panels import panels
from cramix.plot.points import mixture_and_points

__all__ = [
    "cdf_and_sample",
    "fan_chart",
    "mixture_and_points",
    "mixture_over_input",
    "panels",
    "pit_histogram",
    "reliability",
    "require_matplotlib",
]
