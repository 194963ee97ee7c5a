"""Experiments, outside the package: comparisons over seeds, ablations, populations on a GPU, the paper's figures.

Each is a command: `python -m experiments.lunarlander`, `experiments.minatar`, `experiments.ablation`,
`experiments.screening`, and `experiments.figures`, which is also `make reproduce`.
"""
