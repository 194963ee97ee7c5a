"""The Bellman operator on parts of mixtures."""

from __future__ import annotations

from torch import Tensor

from cramix.rl.returns import Parts


def bellman(parts: Parts, rewards: Tensor, discounts: Tensor) -> Parts:
    """Return the distribution of `reward + discount * X`; a discount of zero makes an atom at the reward.

    Args:
        parts: of X, `(batch, k)`.
        rewards: `(batch)`, in units of the parts.
        discounts: `(batch)`.
    """
    reward, discount = rewards.unsqueeze(-1), discounts.unsqueeze(-1)
    return Parts(parts.weights, reward + discount * parts.means, discount * parts.scales)
