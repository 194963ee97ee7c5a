"""Distances between distributions, one a file, unreduced: `(*batch)` in, `(*batch)` out."""
