"""Pictures of mixtures, with matplotlib (`pip install cramix[plot]`)."""

from cramix.plot.curves import densities_and_cdfs
from cramix.plot.figure import require_matplotlib
from cramix.plot.points import mixture_and_points

__all__ = ["densities_and_cdfs", "mixture_and_points", "require_matplotlib"]
