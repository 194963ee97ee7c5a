"""GMDQN: Gaussian mixtures of returns, learned by the Cramér distance."""

from __future__ import annotations

from typing import Any, Self

import torch
from stable_baselines3.common.type_aliases import GymEnv
from torch import Tensor

from cramix.distance.cramer.distance import cramer_squared
from cramix.rl import pretrained
from cramix.rl.agents.gaussian import GaussianReturns
from cramix.rl.algorithm import DistributionalDQN
from cramix.rl.returns import Parts
from cramix.rl.settings import Settings


class CramerReturns(GaussianReturns):
    """Gaussian mixtures; the loss is `C2^2` to the target, in closed form (docs/math.md, eq. 4)."""

    def loss(self, prediction: Parts, target: Parts) -> Tensor:  # noqa: D102
        return cramer_squared(prediction.mixture(), target.mixture())


class GMDQN(DistributionalDQN):
    """Deep Q-learning with a Gaussian mixture of returns for every action, by the Cramér distance.

    The other arguments are the fields of `cramix.rl.Settings`, documented there; `help(GMDQN)` lists them with their
    defaults. The options of `returns` are those of `GaussianReturns`.

    Args:
        policy: "MlpPolicy", "CnnPolicy" or "MultiInputPolicy".
        env: an environment with discrete actions, its name, or a vectorised environment.
        preset: "default", or "paper" for the settings of Zhang (2023).
        seed: of weights, exploration, replay and environments.
        device: "auto" takes a GPU if there is one.
        verbose: 1 prints the log.
        tensorboard_log: folder for TensorBoard.
        stats_window_size: number of episodes that the log averages over.

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
            returns={"n_components": 3, "scales": "penalty", "penalty_factor": 10.0},
        ),
    }

    @classmethod
    def from_pretrained(
        cls, name: str, env: GymEnv | None = None, device: torch.device | str = "auto", **settings: Any
    ) -> Self:
        """Return a pretrained agent of the package; it can act, and continue to learn.

        Args:
            name: of the environment; `cramix.rl.pretrained.names()` lists them.
            env: to continue learning in; None to act only.
            device: of the networks.
            settings: fields of `cramix.rl.Settings` to change.
        """
        return cls.load(pretrained.path_of(name), env, device, **settings)
