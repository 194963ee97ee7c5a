"""Mixtures as values: distributions without weights to train."""

from cramix.mixture.normal import NormalMixture

__all__ = ["NormalMixture"]
