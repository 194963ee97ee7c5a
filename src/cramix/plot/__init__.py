"""Pictures of mixtures and of agents, with matplotlib (`pip install cramix[plot]`)."""

from cramix.plot.calibration import cdf_and_sample, pit_histogram, reliability
from cramix.plot.episodes import episode_panels, film
from cramix.plot.figure import require_matplotlib
from cramix.plot.forecast import fan_chart, mixture_over_input
from cramix.plot.plane import panels
from cramix.plot.points import mixture_and_points
from cramix.plot.return_calibration import return_calibration
from cramix.plot.returns import return_distributions
from cramix.plot.video import write_video

__all__ = [
    "cdf_and_sample",
    "episode_panels",
    "fan_chart",
    "film",
    "mixture_and_points",
    "mixture_over_input",
    "panels",
    "pit_histogram",
    "reliability",
    "require_matplotlib",
    "return_calibration",
    "return_distributions",
    "write_video",
]
