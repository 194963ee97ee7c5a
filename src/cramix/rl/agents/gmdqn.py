"""GMDQN: Gaussian mixtures of returns that learn by the Cramér distance."""

from __future__ import annotations

from typing import Any, Self

import torch
from stable_baselines3.common.type_aliases import GymEnv
from torch import Tensor

from cramix.loss import cramer_loss
from cramix.rl import pretrained
from cramix.rl.agents.gaussian import GaussianReturns
from cramix.rl.algorithm import DistributionalDQN
from cramix.rl.returns import Parts
from cramix.rl.settings import Settings


class CramerReturns(GaussianReturns):
    """Gaussian mixtures; the loss is `C2^2` to the target, in closed form (docs/math.md, eq. 4)."""

    def loss(self, prediction: Parts, target: Parts) -> Tensor:  # noqa: D102
        return cramer_loss(prediction.mixture(), target.mixture(), reduction="none")


class GMDQN(DistributionalDQN):
    """Deep Q-learning with a Gaussian mixture of returns for every action, by the Cramér distance.

    Args:
        policy: "MlpPolicy", "CnnPolicy" or "MultiInputPolicy".
        env: an environment with discrete actions, its name, or a vectorised one.
        preset: "default", or "paper" for the settings of Zhang (2023).
        settings: any field of `cramix.rl.Settings` by name; the preset has the others. What is particular to mixtures
            goes into `returns`, see `GaussianReturns`.

    Example:
        >>> model = GMDQN("MlpPolicy", "CartPole-v1", seed=0, learning_starts=50, policy_kwargs={"net_arch": [16]})
        >>> model.learn(100).return_distribution([[0.0, 0.0, 0.0, 0.0]]).batch_shape
        torch.Size([1, 2])
    """

    returns_class = CramerReturns
    presets = {  # noqa: RUF012
        "default": Settings(),
        "paper": Settings(
            learning_rate=5e-5,
            final_learning_rate=1.0,
            fraction_learning_rate=5e-9,
            optimizer="lion",
            batch_size=64,
            buffer_size=100_000,
            gamma=0.99,
            tau=1.0,
            target_update_interval=200,
            train_freq=1,
            n_steps=1,
            max_grad_norm=None,
            return_scale=1.0,
            policy_kwargs={"net_arch": [128, 128], "layer_norm": False, "members": 1},
            returns={"components": 3, "scales": "penalty", "penalty_factor": 10.0},
        ),
    }

    @classmethod
    def from_pretrained(
        cls, name: str, env: GymEnv | None = None, device: torch.device | str = "auto", **settings: Any
    ) -> Self:
        """Return an agent that comes with the package; it can act, and learn on.

        Args:
            name: of the environment, see `cramix.rl.pretrained.names`.
            env: to go on learning in; None to act only.
            device: where to.
            settings: changes by name, see `cramix.rl.Settings`.
        """
        return cls.load(pretrained.path_of(name), env, device, **settings)
