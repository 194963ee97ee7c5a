"""Pictures of mixtures, with matplotlib (`pip install cramix[plot]`)."""

from cramix.plot.figure import require_matplotlib
from cramix.plot.panels import panels
from cramix.plot.points import mixture_and_points

__all__ = ["mixture_and_points", "panels", "require_matplotlib"]
