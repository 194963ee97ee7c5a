"""MinAtar: algorithms compared on five games, with all runs of a population trained at once on one device.

`python -m experiments.minatar tune` and `train` need torch and numpy only, `report` writes the page.
"""
