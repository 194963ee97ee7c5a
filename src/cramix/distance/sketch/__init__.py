"""Sketches: data sets summarised along fixed directions, in one pass, in a size that does not grow with the data.

- `grid`: bins whose widths are powers of two, so that they nest and do not depend on the order of the data;
- `bins`: what the moments of a bin say about its data;
- `histograms`: the moments of all bins of all slices, which add up;
- `comparison`: the losses between histograms, and `error`: how far they may be from those between the data;
- `totals`: the mean and covariance of rows, which add up, too;
- `sketch`: `SliceSketch`, which people use, and `file`, where it is kept.
"""

from cramix.distance.sketch.sketch import SliceSketch

__all__ = ["SliceSketch"]
