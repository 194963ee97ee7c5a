"""Gaussian mixtures of returns: GMDQN, learned by the Cramér distance, and its rivals JTDQN and NLLDQN."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from stable_baselines3.common.type_aliases import GymEnv
from torch import Tensor, nn
from torch.nn.functional import softplus

from cramix.checks import check_choice, check_integer, check_number
from cramix.distance.cramer.distance import cramer_squared
from cramix.distance.density import density_l2_squared
from cramix.distance.likelihood import negative_log_likelihood
from cramix.loss.cross_entropy import nodes_of
from cramix.mixture import NormalMixture
from cramix.nn.parametrization import mixture_parameters, precondition
from cramix.rl import pretrained
from cramix.rl.algorithm import DistributionalDQN
from cramix.rl.returns import ActionLinear, Parts, Returns, evenly_spaced


class GaussianReturns(Returns):
    """A mixture of normal distributions for every action; subclasses define the loss.

    Args:
        features: width of the features.
        actions: number of actions.
        dueling: whether actions share a common value, see `ActionLinear`.
        n_components: number of components.
        scales: "softplus", positive by construction, or "penalty": unconstrained, with `penalty_factor * ReLU(-scale)`
            added to the loss, as in the paper; the loss uses the absolute value of a negative scale.
        min_scale: smallest scale, in units of the network.
        penalty_factor: weight of the penalty.
        preconditioned: whether the gradients of means and scales are divided by the weights, see
            `cramix.nn.parametrization.precondition`.
    """

    def __init__(
        self,
        features: int,
        actions: int,
        dueling: bool = False,
        *,
        n_components: int = 3,
        scales: str = "softplus",
        min_scale: float = 0.0,
        penalty_factor: float = 10.0,
        preconditioned: bool = False,
    ):
        super().__init__(features, actions, dueling)
        check_integer("n_components", n_components, 1)
        check_choice("scales", scales, ("softplus", "penalty"))
        check_number("min_scale", min_scale)
        check_number("penalty_factor", penalty_factor)
        check_choice("preconditioned", preconditioned, (True, False))
        self.n_components, self.scales, self.min_scale = n_components, scales, min_scale
        self.penalty_factor, self.preconditioned = penalty_factor, preconditioned
        self.logits = ActionLinear(features, actions, n_components, dueling)
        self.values = ActionLinear(features, actions, 2 * n_components, dueling)
        # Components that start equal have equal gradients and stay equal.
        bias = torch.cat([evenly_spaced(n_components), torch.full((n_components,), 0.5413)])  # softplus(0.5413) = 1
        self.values.shift(bias)

    def forward(self, features: Tensor) -> Parts:  # noqa: D102
        return self.parts(*self.outputs(features))

    def outputs(self, features: Tensor) -> tuple[Tensor, ...]:  # noqa: D102
        return self.logits(features), self.values(features)

    def parts(self, *outputs: Tensor) -> Parts:  # noqa: D102
        logits, values = outputs
        means, raw_scales = values.chunk(2, -1)
        positive = softplus if self.scales == "softplus" else torch.abs
        return Parts(
            *mixture_parameters(logits, means, raw_scales, min_scale=self.min_scale, positive=positive), raw_scales
        )

    def learned(self, prediction: Parts) -> NormalMixture:
        """Return the prediction as the mixture that a loss compares with the target."""
        if self.preconditioned:
            means, scales = precondition(prediction.weights, prediction.means, prediction.scales)
            prediction = prediction._replace(means=means, scales=scales)
        return prediction.mixture()

    def penalty(self, prediction: Parts) -> Tensor:  # noqa: D102
        if self.scales == "softplus" or prediction.extra is None:
            return super().penalty(prediction)
        return self.penalty_factor * (-prediction.extra).relu().sum(-1)

    def rescale(self, factor: float) -> None:
        """Multiply the predicted returns by a factor; scales from a softplus only where they are small."""
        means = torch.full((self.n_components,), factor)
        soft = self.scales == "softplus"
        self.values.multiply(torch.cat([means, torch.ones_like(means) if soft else means]))
        if soft:
            self.values.shift(torch.cat([torch.zeros_like(means), means.log()]))

    def fractions(self) -> list[nn.Parameter]:  # noqa: D102
        return list(self.logits.parameters())


class CramerReturns(GaussianReturns):
    """Gaussian mixtures; the loss is `C2^2` to the target, in closed form (docs/math.md, eq. 4)."""

    def loss(self, prediction: Parts, target: Parts) -> Tensor:  # noqa: D102
        return cramer_squared(self.learned(prediction), target.mixture())


class GMDQN(DistributionalDQN):
    """Deep Q-learning with a Gaussian mixture of returns for every action, by the Cramér distance.

    The arguments are those of `DistributionalDQN`; the options of `returns` are those of `GaussianReturns`.
    `GMDQN.preset("paper")` returns the arguments of Zhang (2023).

    Example:
        >>> model = GMDQN("MlpPolicy", "CartPole-v1", seed=0, learning_starts=50, policy_kwargs={"net_arch": [16]})
        >>> model.learn(100).return_distribution([[0.0, 0.0, 0.0, 0.0]]).batch_shape
        torch.Size([1, 2])
    """

    returns_class = CramerReturns
    presets: ClassVar = {
        **DistributionalDQN.presets,
        "paper": {
            "learning_rate": 5e-5,
            "final_learning_rate": 1.0,
            "fraction_learning_rate": 5e-9,
            "batch_size": 64,
            "buffer_size": 100_000,
            "gamma": 0.99,
            "tau": 1.0,
            "target_update_interval": 200,
            "train_freq": 1,
            "n_steps": 1,
            "max_grad_norm": None,
            "return_scale": 1.0,
            "policy_kwargs": {
                "net_arch": [128, 128],
                "layer_norm": False,
                "members": 1,
                "optimizer_class": "Lion",
            },
            "returns": {"n_components": 3, "scales": "penalty", "penalty_factor": 10.0},
        },
    }

    @classmethod
    def from_pretrained(
        cls, name: str, env: GymEnv | None = None, device: torch.device | str = "auto", **changes: Any
    ) -> Self:
        """Return a pretrained agent of the package; it can act, and continue to learn.

        Args:
            name: of the environment; `cramix.rl.pretrained.names()` lists them.
            env: to continue learning in; None to act only.
            device: of the networks.
            changes: arguments of the constructor to change.
        """
        return cls.load(pretrained.path_of(name), env, device, **changes)


class PositiveScaleReturns(GaussianReturns):
    """Gaussian mixtures for losses that need densities: `min_scale` is 0.05 unless it is given."""

    @classmethod
    def defaults(cls) -> dict[str, Any]:  # noqa: D102
        return {**super().defaults(), "min_scale": 0.05}


class JensenTsallisReturns(PositiveScaleReturns):
    """Gaussian mixtures; the loss is the squared L2 distance of densities (docs/math.md, eq. 15).

    Densities must be finite, so the scales of targets, which are 0 at the end of an episode, are at least `min_scale`.
    """

    def loss(self, prediction: Parts, target: Parts) -> Tensor:  # noqa: D102
        wide = target._replace(scales=target.scales.clamp_min(self.min_scale))
        return density_l2_squared(self.learned(prediction), wide.mixture())


class JTDQN(DistributionalDQN):
    """Deep Q-learning with a Gaussian mixture of returns for every action, by the L2 distance of densities.

    This is the Jensen-Tsallis distance of Choi, Lee and Oh (2019). The arguments are those of `GMDQN`.

    Example:
        >>> model = JTDQN("MlpPolicy", "CartPole-v1", seed=0, learning_starts=50, policy_kwargs={"net_arch": [16]})
        >>> model.learn(100).return_distribution([[0.0, 0.0, 0.0, 0.0]]).mean.shape  # (observations, actions)
        torch.Size([1, 2])
    """

    returns_class = JensenTsallisReturns


class LikelihoodReturns(PositiveScaleReturns):
    """Gaussian mixtures; the loss is the cross entropy, `-E log f(Y)` for Y from the target.

    The expectation is a Gauss-Hermite quadrature over every component of the target, so nothing is sampled.
    """

    def loss(self, prediction: Parts, target: Parts) -> Tensor:  # noqa: D102
        return negative_log_likelihood(self.learned(prediction), *nodes_of(target.mixture()))


class NLLDQN(DistributionalDQN):
    """Deep Q-learning with a Gaussian mixture of returns for every action, by maximum likelihood.

    The arguments are those of `GMDQN`.

    Example:
        >>> model = NLLDQN("MlpPolicy", "CartPole-v1", seed=0, learning_starts=50, policy_kwargs={"net_arch": [16]})
        >>> model.learn(100).return_distribution([[0.0, 0.0, 0.0, 0.0]]).mean.shape  # (observations, actions)
        torch.Size([1, 2])
    """

    returns_class = LikelihoodReturns
