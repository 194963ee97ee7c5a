"""Policies in the sense of Stable-Baselines3: online and target network, the optimiser, and the choice of actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, cast

import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
)
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor, nn

from cramix.fitting.learning_rates import require_lion
from cramix.mixture import NormalMixture
from cramix.rl.features import find_features_extractor
from cramix.rl.masks import apply_mask, mask_of
from cramix.rl.network import Architecture, Observation, ReturnNetwork
from cramix.rl.recalibration import Recalibration
from cramix.rl.returns import Returns
from cramix.rl.risk import Measure, Risk, parse_risk

# Optimisers with one kernel for all parameters.
_FUSED = (torch.optim.Adam, torch.optim.AdamW)


class ReturnPolicy(BasePolicy):
    """Acts by the return distributions of a network. The arguments after `lr_schedule` are `policy_kwargs`.

    Args:
        observation_space: of the environment.
        action_space: discrete.
        lr_schedule: learning rate as a function of the remaining progress.
        net_arch: widths of the hidden layers; None is [128, 128], and [] for `CnnPolicy`.
        activation_fn: class of the activations.
        features_extractor_class: the first layers: a class as in Stable-Baselines3, or the name of one there or of
            `SmallCNN`, for images; None depends on the policy.
        features_extractor_kwargs: its arguments.
        normalize_images: whether images are divided by 255.
        optimizer_class: a class like those of `torch.optim`, the name of one there, or "Lion"; Adam has `eps=1e-4` if
            `optimizer_kwargs` has no other.
        optimizer_kwargs: its further arguments.
        layer_norm: whether each hidden layer is normalised before its activation.
        dueling: whether actions share a common value.
        members: number of networks that learn side by side; the prediction is their equally weighted mixture.
        features_dtype: "float32", or "bfloat16" for the arithmetic of the features extractor: twice as fast for images
            on processors with instructions for it, and slower on others.
        returns_class: the kind of return distributions; the algorithm sets it.
        returns: its options; the argument `returns` of the algorithm.
        fraction_learning_rate: initial rate of the layers that predict weights; an argument of the algorithm.
        risk: the measure of the best action; an argument of the algorithm.
    """

    default_extractor: type[BaseFeaturesExtractor] = FlattenExtractor
    default_arch: tuple[int, ...] = (128, 128)
    unit: Tensor

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        net_arch: list[int] | None = None,
        activation_fn: Callable[[], nn.Module] = nn.ReLU,
        features_extractor_class: type[BaseFeaturesExtractor] | str | None = None,
        features_extractor_kwargs: dict[str, Any] | None = None,
        normalize_images: bool = True,
        optimizer_class: type[torch.optim.Optimizer] | str = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        layer_norm: bool = False,
        dueling: bool = False,
        members: int = 2,
        features_dtype: str = "float32",
        *,
        returns_class: type[Returns],
        returns: dict[str, Any] | None = None,
        fraction_learning_rate: float | None = None,
        risk: Risk = "mean",
    ):
        super().__init__(
            observation_space,
            action_space,
            find_features_extractor(features_extractor_class or self.default_extractor),
            dict(features_extractor_kwargs or {}),
            normalize_images=normalize_images,
            optimizer_class=find_optimizer(optimizer_class),
            optimizer_kwargs=dict(optimizer_kwargs or {}),
        )
        self.architecture = Architecture(
            self.default_arch if net_arch is None else net_arch,
            activation_fn,
            layer_norm,
            dueling,
            members,
            self.features_extractor_class,
            self.features_extractor_kwargs,
            normalize_images,
            features_dtype,
        )
        self.net_arch, self.activation_fn = self.architecture.net_arch, activation_fn
        self.returns_class, self.returns_options = returns_class, {**returns_class.defaults(), **(returns or {})}
        self.fraction_learning_rate = fraction_learning_rate
        self.q_net, self.q_net_target = self.make_q_net(), self.make_q_net()
        self.q_net_target.load_state_dict(self.q_net.state_dict())
        self.q_net_target.requires_grad_(False)
        self.q_net_target.set_training_mode(False)
        # One unit of the networks in units of the rewards.
        self.register_buffer("unit", torch.ones(()))
        self.first_action = int(action_space.start)
        self.set_risk(risk)
        self.recalibration = Recalibration(members)
        self.has_modes = any(_has_modes(module) for module in self.q_net.modules())
        # Statistics that an update changes in place, which a compiled one cannot.
        self.has_statistics = any(isinstance(x, nn.modules.batchnorm._NormBase) for x in self.q_net.modules())
        self.optimizer = self.make_optimizer(dict(self.q_net.named_parameters()), lr_schedule(1))

    def set_risk(self, risk: Risk) -> None:
        """Set the measure of the best action."""
        self.risk = risk
        self.measure: Measure | None = None if risk == "mean" else parse_risk(risk)

    def make_q_net(self) -> ReturnNetwork:
        """Return a network with random weights."""
        assert isinstance(self.action_space, spaces.Discrete)
        return ReturnNetwork(
            self.observation_space, self.action_space, self.returns_class, self.returns_options, self.architecture
        )

    def make_optimizer(self, parameters: dict[str, nn.Parameter], rate: float) -> torch.optim.Optimizer:
        """Return an optimiser; the learning rate of a group is a fixed multiple of that of the schedule.

        Args:
            parameters: of the online network, or of several side by side, by their names in it.
            rate: initial learning rate.
        """
        kwargs = dict(self.optimizer_kwargs)
        if self.optimizer_class is torch.optim.Adam:
            kwargs = {"eps": 1e-4, **kwargs}
        if self.optimizer_class in _FUSED and not {"foreach", "fused", "capturable", "differentiable"} & set(kwargs):
            kwargs["fused"] = True
        fractions, factor = {id(p) for p in self.q_net.fractions()}, self.returns_class.fraction_factor
        if self.fraction_learning_rate is not None and fractions:
            if rate <= 0:
                raise ValueError(
                    f"fraction_learning_rate must be None if learning_rate starts at 0; got "
                    f"{self.fraction_learning_rate}. It is relative to the initial learning rate, so start above 0."
                )
            factor = self.fraction_learning_rate / rate
        slow = {name for name, p in self.q_net.named_parameters() if id(p) in fractions} if factor != 1 else set()
        groups: list[dict[str, Any]] = [
            {"params": [p for name, p in parameters.items() if (name in slow) == chosen], "rate_factor": x}
            for chosen, x in ((False, 1.0), (True, factor))
        ]
        return self.optimizer_class([group for group in groups if group["params"]], lr=rate, **kwargs)  # type: ignore[call-arg]

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {
            **super()._get_constructor_parameters(),
            **self.architecture.layers(),
            "lr_schedule": self._dummy_schedule,
            "features_extractor_class": self.features_extractor_class,
            "features_extractor_kwargs": self.features_extractor_kwargs,
            "optimizer_class": self.optimizer_class,
            "optimizer_kwargs": self.optimizer_kwargs,
            "returns_class": self.returns_class,
            "returns": self.returns_options,
            "risk": self.risk,
        }

    def set_training_mode(self, mode: bool) -> None:
        """Set the mode of the online network; the target network is always in that of evaluation."""
        if self.has_modes:  # visiting all layers at every step would be slow
            self.q_net.set_training_mode(mode)
        self.training = mode

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Convert the optimiser with the parameters, to another device or type."""
        super()._apply(fn, recurse)
        if hasattr(self, "optimizer"):
            self.optimizer.load_state_dict(self.optimizer.state_dict())  # it converts its state to the parameters'
        return self

    def rescale(self, unit: float) -> None:
        """Change the unit of the networks; where the kind of returns allows it, predictions stay as they are."""
        factor = float(self.unit) / unit
        for network in (self.q_net, self.q_net_target):
            for member in network.each:
                member[-1].rescale(factor)  # type: ignore[index]
        self.unit.fill_(unit)

    def restart_returns(self) -> None:
        """Give the last layers new random weights, equal in both networks."""
        fresh = self.make_q_net()
        for network in (self.q_net, self.q_net_target):
            for member, new in zip(network.each, fresh.each, strict=True):
                member[-1].load_state_dict(new[-1].state_dict())  # type: ignore[index]

    def forward(self, obs: Observation, deterministic: bool = True) -> Tensor:
        """Return the best actions `(batch)`."""
        return self._predict(obs, deterministic)

    def _predict(self, observation: Observation, deterministic: bool = True) -> Tensor:
        return self.best(observation, self.measure) + self.first_action

    def best(self, observation: Observation, measure: Measure | None) -> Tensor:
        """Return the index `(batch)` of the best action by a risk measure; None is the mean."""
        values = self.q_net(observation).mean() if measure is None else measure(self.returns(observation))
        return apply_mask(values, mask_of(observation)).argmax(-1)

    def returns(self, observation: Observation) -> NormalMixture:
        """Return the return distributions `(batch, actions)` in units of the rewards, calibrated if the agent is."""
        if not self.recalibration.active:
            return self.q_net(observation).mixture(self.unit)
        return self.recalibration(*self.raw_returns(observation))

    def raw_returns(self, observation: Observation) -> tuple[NormalMixture, Tensor]:
        """Return the return distributions of the network, and the actions `(batch)` that are preferred by them."""
        raw = self.q_net(observation).mixture(self.unit)
        values = raw.mean if self.measure is None else self.measure(raw)
        return raw, apply_mask(values, mask_of(observation)).argmax(-1)


def find_optimizer(kind: type[torch.optim.Optimizer] | str) -> type[torch.optim.Optimizer]:
    """Return a class of optimisers by its name, or the class itself."""
    if not isinstance(kind, str):
        return kind
    if kind == "Lion":
        return cast(type[torch.optim.Optimizer], require_lion())
    found = getattr(torch.optim, kind, None)
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        raise ValueError(f'optimizer_class must be a class, its name in torch.optim, or "Lion"; got {kind!r}.')
    return found


def _has_modes(module: nn.Module) -> bool:
    """Whether a layer may differ between training and evaluation; layers of unknown packages may."""
    known = type(module).__module__.split(".")[0] in ("torch", "cramix", "stable_baselines3")
    layers = nn.modules.batchnorm._NormBase | nn.modules.dropout._DropoutNd
    return not known or isinstance(module, layers) or getattr(module, "has_modes", False)


class MlpPolicy(ReturnPolicy):
    """For vectors."""


class CnnPolicy(ReturnPolicy):
    """For images: the convolutions of Mnih et al. (2015), then one linear layer."""

    default_extractor = NatureCNN
    default_arch = ()


class MultiInputPolicy(ReturnPolicy):
    """For dictionaries of vectors and images."""

    default_extractor = CombinedExtractor
