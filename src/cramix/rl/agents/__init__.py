"""The algorithms: each file defines one kind of return distribution and the algorithm that learns it."""
