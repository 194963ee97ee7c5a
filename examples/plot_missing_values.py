"""
My columns have holes. What belongs there?
==========================================

A mixture of complete rows is also a model of every column given the others: ``condition`` returns the distribution of
what is missing. Where that has two peaks, the usual fill-in by regression falls between them. (Fits need complete rows
today; boosted trees take holes in their features as they are.)
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_iris
from sklearn.linear_model import LinearRegression

import cramix
from cramix.plot.figure import COLOURS

plt.rc("axes", titlelocation="left")
plt.rc("axes.spines", top=False, right=False)
ORANGE, BLUE, GREEN = COLOURS[:3]

# %%
# Two columns of iris, the lengths of sepals and petals, in which half of the petal lengths get lost.

rng = np.random.default_rng(0)
x = load_iris().data[:, [0, 2]] + rng.uniform(-0.05, 0.05, (150, 2))  # they are rounded to 0.1 cm
hole = rng.random(len(x)) < 0.5
known, missing = x[~hole], x[hole]
print(f"{len(known)} complete rows, {len(missing)} with a hole")

# %%
# Regression fills each hole with one number.

regression = LinearRegression().fit(known[:, :1], known[:, 1])
filled_by_regression = regression.predict(missing[:, :1])

# %%
# The mixture of the complete rows gives a distribution for each hole, all in one call. To fill in, draw from it.

generator = torch.Generator().manual_seed(0)
choice = cramix.select(known, range(1, 6), generator=generator)
mixture = choice.results[choice.by_bic].mixture
given = mixture.condition([0], missing[:, :1]).marginal(0)  # one distribution for each row
filled_by_mixture = given.sample(generator=generator).numpy()
low, high = given.icdf(torch.tensor([[0.05], [0.95]], dtype=torch.float64)).numpy()
inside = np.mean((low <= missing[:, 1]) & (missing[:, 1] <= high))
print(f"{choice.by_bic} components; {inside:.0%} of the lost values are in their 90 % intervals")

# %%
# How far is the table that was filled in from the one that was lost?

filled = {
    "regression": np.column_stack([missing[:, 0], filled_by_regression]),
    "mixture": np.column_stack([missing[:, 0], filled_by_mixture]),
}
distances = {name: cramix.sliced_cramer_distance(table, missing) for name, table in filled.items()}
print({name: round(float(distance), 3) for name, distance in distances.items()})

# %%
# Coloured dots are the values that were filled in, grey ones the rows that were complete.

figure, axes = plt.subplots(1, 3, figsize=(11, 4), layout="constrained", sharex=True, sharey=True)
titles = {
    "regression": f"Regression fills the gap between\nspecies, {distances['regression']:.2f} from the truth",
    "mixture": f"The mixture fills in what fits,\n{distances['mixture']:.2f} from the truth",
}
tables = (
    ("what was lost", missing, "0.15"),
    ("regression", filled["regression"], ORANGE),
    ("mixture", filled["mixture"], BLUE),
)
for one, (name, table, colour) in zip(axes, tables, strict=True):
    one.scatter(*known.T, s=12, color="0.8", lw=0)
    one.scatter(*table.T, s=16, color=colour, lw=0, alpha=0.8)
    one.set_xlabel("sepal length (cm)")
    one.set_title(titles.get(name, "What was lost:\nhalf of the petal lengths"), fontsize=11)
axes[0].set_ylabel("petal length (cm)")
plt.show()
