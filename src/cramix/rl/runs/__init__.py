"""Whole runs: training in a folder, evaluation, comparisons of many."""
