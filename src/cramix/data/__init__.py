"""Where rows come from: `source` reads them in parts from files, Arrow data, arrays and batches.

Also data sets that are generated on the spot, with a seed.
"""

from cramix.data.datasets import parallel_groups, ring_line_square
from cramix.data.kinds import is_source_like, source
from cramix.data.source import BadRowsError, Batch, Source

__all__ = ["BadRowsError", "Batch", "Source", "is_source_like", "parallel_groups", "ring_line_square", "source"]
