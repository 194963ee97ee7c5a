"""MinAtar: algorithms compared on five games, with all runs of a population trained at once on one device.

`python -m experiments.minatar train` needs torch and numpy only; `python -m experiments.minatar report` writes the page.
"""
