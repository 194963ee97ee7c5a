"""Data sets that are generated on the spot, with a seed."""

from cramix.data.datasets import parallel_groups, ring_line_square

__all__ = ["parallel_groups", "ring_line_square"]
