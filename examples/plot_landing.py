"""
What does the lander think while it lands?
==========================================

``GMDQN`` predicts the whole distribution of the return of every action. Its agent for LunarLander-v3 comes with the
package. Here are eight moments of one episode: above what happens, below what the agent expects of each engine.
"""

import matplotlib.pyplot as plt
import torch

from cramix.plot import episode_panels
from cramix.rl import GMDQN
from cramix.rl.evaluation import make_visible, play

# %%
# The agent, and an episode with a seed that it did not learn from.

model = GMDQN.from_pretrained("LunarLander-v3")
episode = play(model, make_visible("LunarLander-v3"), seed=7)
print(f"score {episode.score:.0f}; the game counts as solved from 200 on")

# %%
# Predictions are mixtures, so that quantiles, CVaR and anything else are exact. In the middle of the flight:

moment = episode.moments[len(episode.moments) // 2]
low, high = moment.returns.icdf(torch.tensor([[0.1], [0.9]]))
for i, name in enumerate(episode.names):
    mean, cvar = moment.returns.mean[i], moment.returns.cvar(0.1)[i]
    print(f"{name:12} return {mean:.0f}, 80 % between {low[i]:.0f} and {high[i]:.0f}, worst tenth {cvar:.0f}")

# %%
# Returns count from the moment shown and are discounted, so they fall as points are collected on the way down.

figure = episode_panels(episode.moments, episode.names, count=8, columns=4)
figure.suptitle(
    f"A landing with a score of {episode.score:.0f}, and the returns that the agent expects", x=0.02, ha="left"
)
plt.figure(figure)  # pyplot shows it
plt.show()
