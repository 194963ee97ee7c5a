"""
What do three absurd rows do to a fit?
======================================

A sensor that reports 9999 instead of nothing, or a decimal point in the wrong place: a few such rows are in most
tables. EM spends components on them, and the clusters have to share the rest. ``CramerMixture`` leaves a few isolated,
absurdly distant rows out, and tells you which.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from cramix import CramerMixture, MultivariateNormalMixture
from cramix.plot.figure import COLOURS
from cramix.plot.plane import draw_components

plt.rc("axes", titlelocation="left")
plt.rc("axes.spines", top=False, right=False)

# %%
# Three clusters, and three of 603 rows with the code 9999 for a missing number.

rng = np.random.default_rng(0)
centres = np.array([[0.0, 0.0], [4.0, 1.0], [1.5, 4.5]])
truth = np.repeat(range(3), 200)
clean = centres[truth] + rng.normal(0, [0.8, 0.6], (600, 2))
x = np.concatenate([clean, [[9999, 1.0], [9999, 9999], [2.0, 9999]]])

# %%
# scikit-learn's EM, the best of ten starts:

em = GaussianMixture(3, n_init=10, random_state=0).fit(x)

# %%
# ``CramerMixture`` warns, and says what to check.

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model = CramerMixture(3, random_state=0).fit(x)
print(caught[0].message)
print("left out:", model.result_.outliers)

# %%
# How well do the components agree with the true clusters? 1 is perfect, 0 is chance.

agreement = {
    "scikit-learn": adjusted_rand_score(truth, em.predict(clean)),
    "cramix": adjusted_rand_score(truth, model.predict(clean)),
}
print(agreement)

# %%
# The three rows are far outside of the picture.

figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained", sharex=True, sharey=True)
fits = {"scikit-learn": MultivariateNormalMixture.from_sklearn(em), "cramix": model.mixture_}
for one, (name, mixture) in zip(axes, fits.items(), strict=True):
    labels = mixture.responsibilities(clean).argmax(-1)
    one.scatter(*clean.T, s=9, lw=0, alpha=0.6, color=np.array(COLOURS)[labels])
    draw_components(one, mixture)
    near = int((np.abs(mixture.means.numpy()) < 100).all(-1).sum())
    one.set_title(f"{name}: {near} of 3 components\non the data, Rand index {agreement[name]:.2f}", fontsize=11)
    one.set(xlim=(-3, 7), ylim=(-2.5, 7), aspect="equal", xlabel="first column", ylabel="second column")
axes[1].set_ylabel("")
plt.show()
