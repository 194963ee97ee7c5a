"""
How many components?
====================

Animals of two species and both sexes make four groups. They differ far more in size than in shape, so the groups are
long, thin and nearly parallel. A criterion such as BIC can only choose well among good fits: with EM's it misses
groups.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.mixture import GaussianMixture

import cramix
from cramix.data import parallel_groups
from cramix.plot.figure import COLOURS

plt.rc("axes", titlelocation="left")
plt.rc("axes.spines", top=False, right=False)
ORANGE, BLUE, GREEN = COLOURS[:3]

# %%
# 400 animals, five measurements each, 100 animals in each of four groups.

x, group = parallel_groups()
numbers = range(1, 9)

# %%
# ``select`` fits every number of components. Two criteria choose: BIC, which is meant for the number of groups, and the
# log likelihood of held-out rows, which is meant for predictions. Its choice is the smallest number that is not clearly
# worse than the best.

choice = cramix.select(x, numbers, generator=torch.Generator().manual_seed(0))
print(choice)

# %%
# The same criterion with scikit-learn's EM, the best of ten starts, each run until it has converged. (With the default
# ``tol=1e-3`` EM stops much earlier, and its BIC is higher still.)

em = {}
for k in numbers:
    em[k] = GaussianMixture(k, n_init=10, tol=1e-6, max_iter=2000, random_state=0).fit(x.numpy()).bic(x.numpy())
by_em = min(em, key=em.get)
print(f"BIC chooses {choice.by_bic} of our fits and {by_em} of EM's")

# %%
# A lower BIC is better. From three components on, EM's fits are far above ours: none of ten starts led to a good
# optimum.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
for bic, chosen, colour, name in ((em, by_em, ORANGE, "EM, ten starts"), (choice.bic, choice.by_bic, BLUE, "cramix")):
    left.plot(list(bic), list(bic.values()), color=colour, marker="o", ms=5)
    left.plot(chosen, bic[chosen], "o", ms=14, mfc="none", mec=colour, mew=2)
    left.text(8.2, bic[8], name, color=colour, va="center")
left.set(xlabel="number of components", ylabel="BIC (lower is better)", xlim=(0.7, 10))
left.set_xticks(list(numbers))
left.set_title(f"BIC chooses {choice.by_bic} with cramix, {by_em} with EM. True: 4", fontsize=11)

score = choice.held_out
below = [score[k].mean - score[choice.by_held_out].mean for k in numbers]
right.errorbar(
    list(numbers), below, [score[k].error_of_difference for k in numbers], color=GREEN, marker="o", capsize=3
)
right.plot(choice.by_held_out, 0, "o", ms=14, mfc="none", mec=GREEN, mew=2)
right.set(xlabel="number of components", ylabel="held-out log likelihood,\nrelative to the choice (nats per row)")
right.set_xticks(list(numbers))
right.set_title(f"Held-out rows choose {choice.by_held_out}, and hardly mind more", fontsize=11)
plt.show()
