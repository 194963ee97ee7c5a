"""The network: observations to features to return distributions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space, preprocess_obs
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, FlattenExtractor
from torch import Tensor, nn

from cramix.checks import check_choice, check_integer
from cramix.rl.masks import apply_mask, mask_of, without_mask
from cramix.rl.returns import Parts, Returns

Observation = Tensor | dict[str, Tensor]
# Of the features extractor; "bfloat16" is about twice as fast where the processor has instructions for it.
FEATURES_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Architecture:
    """The layers of a network.

    Args:
        net_arch: widths of the hidden layers.
        activation_fn: class of the activations.
        layer_norm: whether each hidden layer is normalised before its activation.
        dueling: whether actions share a common value.
        members: number of networks that learn side by side from different initial weights; the prediction is their
            equally weighted mixture.
        features_extractor_class: the first layers, as in Stable-Baselines3; the members share them.
        features_extractor_kwargs: arguments of `features_extractor_class`.
        normalize_images: whether images are divided by 255.
        features_dtype: of the arithmetic of the features extractor; its parameters stay what they are.
    """

    net_arch: Sequence[int]
    activation_fn: Callable[[], nn.Module] = nn.ReLU
    layer_norm: bool = False
    dueling: bool = False
    members: int = 1
    features_extractor_class: type[BaseFeaturesExtractor] = FlattenExtractor
    features_extractor_kwargs: dict[str, Any] = field(default_factory=dict)
    normalize_images: bool = True
    features_dtype: str = "float32"

    def __post_init__(self):
        if not isinstance(self.net_arch, Sequence) or isinstance(self.net_arch, str):
            raise ValueError(f"net_arch must be a list of widths; got {self.net_arch!r}. Try [128, 128].")
        for width in self.net_arch:
            check_integer("net_arch", width, 1)
        object.__setattr__(self, "net_arch", list(self.net_arch))
        check_integer("members", self.members, 1)
        check_choice("features_dtype", self.features_dtype, FEATURES_DTYPES)
        if not callable(self.activation_fn):
            raise ValueError(f"activation_fn must be a class of layers; got {self.activation_fn!r}. Try torch.nn.ReLU.")

    def layers(self) -> dict[str, Any]:
        """Return what shapes the network, but the features extractor."""
        names = ("net_arch", "activation_fn", "layer_norm", "dueling", "members", "features_dtype")
        return {name: getattr(self, name) for name in names}


class ReturnNetwork(BasePolicy):
    """Observations to the return distribution of every action.

    Args:
        observation_space: of the environment; a key "action_mask" is left out.
        action_space: discrete.
        returns_class: class of the last layer.
        returns: its options.
        architecture: of the other layers.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Discrete,
        returns_class: type[Returns],
        returns: dict[str, Any],
        architecture: Architecture,
    ):
        a = architecture
        super().__init__(observation_space, action_space, normalize_images=a.normalize_images)
        self._arguments = {"returns_class": returns_class, "returns": returns, "architecture": architecture}
        self.observed = without_mask(observation_space)
        kinds = self.observed.spaces if isinstance(self.observed, spaces.Dict) else {"": self.observed}
        self._choices = {
            key: (int(kind.start), int(kind.start + kind.n))
            for key, kind in kinds.items()
            if isinstance(kind, spaces.Discrete)
        }
        # Found once: the test reads all bounds of the space, which takes a while and cannot be compiled.
        self._images = {key for key, kind in kinds.items() if a.normalize_images and is_image_space(kind)}
        self.features_extractor = _features_extractor(a, self.observed)
        self._in_bfloat16 = a.features_dtype == "bfloat16"
        if self._in_bfloat16 and not list(self.features_extractor.parameters()):
            raise ValueError(
                'features_dtype must be "float32" for a features extractor without parameters, such as that of '
                f"MlpPolicy; got {a.features_dtype!r}."
            )
        widths = [self.features_extractor.features_dim, *a.net_arch]

        def trunk() -> nn.Sequential:
            layers: list[nn.Module] = []
            for width, size in pairwise(widths):
                norm = [nn.LayerNorm(size)] if a.layer_norm else []
                layers += [nn.Linear(width, size), *norm, a.activation_fn()]
            return nn.Sequential(*layers)

        def head() -> Returns:
            return returns_class(widths[-1], int(action_space.n), a.dueling, **returns)

        self.each = nn.ModuleList(nn.Sequential(trunk(), head()) for _ in range(a.members))

    def forward(self, observation: Observation) -> Parts:
        """Return the distributions `(batch, actions, k)` of observations `(batch, ...)`."""
        features = self.features(observation)
        outputs = [member[1].outputs(member[0](features)) for member in self.each]  # type: ignore[index]
        if len(outputs) == 1:
            return self.returns.parts(*outputs[0])
        if torch.compiler.is_compiling():
            parts = [self.returns.parts(*x).tensors() for x in outputs]
            return Parts(*map(_stack_batch_last, zip(*parts, strict=True))).join_members()
        # One call for all members, because calls cost more than arithmetic.
        return self.returns.parts(*(torch.stack(x, -2) for x in zip(*outputs, strict=True))).join_members()

    def features(self, observation: Observation) -> Tensor:
        """Return the features `(batch, features)` of observations."""
        inputs = self.preprocess(observation)
        if not self._in_bfloat16:
            return self.features_extractor(inputs)
        with torch.autocast(self.device.type, torch.bfloat16):
            return self.features_extractor(inputs).to(self.each[0][-1].dtype)  # type: ignore[index]

    def preprocess(self, observation: Observation) -> Any:
        """Return the input of the features extractor."""
        space = self.observed
        if isinstance(space, spaces.Dict):
            return {key: self._preprocess(key, part, observation[key]) for key, part in space.spaces.items()}  # type: ignore[index]
        return self._preprocess("", space, observation)

    def _predict(self, observation: Observation, deterministic: bool = True) -> Tensor:
        values = apply_mask(self(observation).mean(), mask_of(observation))
        return values.argmax(-1) + int(self.action_space.start)  # type: ignore[attr-defined]

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {"observation_space": self.observation_space, "action_space": self.action_space, **self._arguments}

    @property
    def members(self) -> int:
        """Number of networks that learn side by side."""
        return len(self.each)

    @property
    def returns(self) -> Returns:
        """The last layer of the first member."""
        return self.each[0][1]  # type: ignore[index]

    def fractions(self) -> list[nn.Parameter]:
        """Return the parameters that predict weights of mixtures, of all members."""
        heads = [member[1] for member in self.each]  # type: ignore[index]
        return [parameter for head in heads for parameter in head.fractions()]

    def _preprocess(self, key: str, space: spaces.Space, observation: Any) -> Any:
        """Return an observation as Stable-Baselines3 does; the one-hot encoding is one that compiles."""
        dtype = self.each[0][-1].dtype  # type: ignore[index]
        if key not in self._choices:
            if key in self._images:
                # Convolutions are faster if channels are the last axis in memory.
                return (observation.contiguous(memory_format=torch.channels_last) / 255.0).to(dtype)
            values: Any = preprocess_obs(observation, space, normalize_images=False)
            return values.to(dtype)
        choices = torch.arange(*self._choices[key], device=observation.device)
        return (observation.long().unsqueeze(-1) == choices).to(dtype)


def _features_extractor(architecture: Architecture, space: spaces.Space) -> BaseFeaturesExtractor:
    kind = architecture.features_extractor_class
    try:
        return kind(space, **architecture.features_extractor_kwargs)
    except (AttributeError, TypeError) as error:
        raise ValueError(
            f"features_extractor_class must fit the observations, {space}, and its arguments; got {kind.__name__}: "
            f"{error}. MlpPolicy, CnnPolicy and MultiInputPolicy have one that fits."
        ) from error


def _stack_batch_last(each: Sequence[Tensor]) -> Tensor:
    """Return `torch.stack(each, -2)` with the first axis the last in memory, as `ActionLinear` has it."""
    return torch.stack([x.movedim(0, -1) for x in each], -3).movedim(-1, 0)


def to_tensor(observation: Any, device: torch.device) -> Observation:
    """Return arrays as tensors on a device."""
    if isinstance(observation, dict):
        return {key: torch.as_tensor(x, device=device) for key, x in observation.items()}
    return torch.as_tensor(observation, device=device)
