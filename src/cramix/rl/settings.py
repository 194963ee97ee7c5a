"""Settings: the hyperparameters of all algorithms."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from inspect import Parameter
from typing import Any

from cramix.checks import check_choice, check_integer, check_number
from cramix.rl.risk import Risk, parse_risk

_DICTIONARIES = ("policy_kwargs", "returns", "optimizer_kwargs")
_FRACTIONS = (
    "final_learning_rate",
    "tau",
    "gamma",
    "exploration_fraction",
    "exploration_initial_eps",
    "exploration_final_eps",
)


@dataclass(frozen=True)
class Settings:
    """The hyperparameters of an algorithm. Names are those of Stable-Baselines3 where it has them.

    Args:
        learning_rate: initial rate; or a function of the remaining progress, which falls from 1 to 0.
        final_learning_rate: the rate falls linearly to this fraction of `learning_rate`; 1 keeps it constant.
        fraction_learning_rate: initial rate of the layers that predict weights; None is `learning_rate`.
        optimizer: "adam", "lion", or a class like those of `torch.optim`.
        optimizer_kwargs: its further arguments.
        buffer_size: number of transitions in the replay buffer.
        learning_starts: random steps before the first update.
        batch_size: number of transitions of an update.
        tau: fraction by which the target network moves towards the online network; 1 copies it.
        target_update_interval: updates of the online network per update of the target network.
        gamma: discount factor.
        n_steps: number of rewards in a target before it bootstraps from the network.
        train_freq: environment steps (of all environments at once) between updates, or `(n, "episode")`.
        gradient_steps: updates each time; -1 takes one for each step.
        exploration_fraction: fraction of the run in which exploration falls from its initial to its final rate.
        exploration_initial_eps: initial rate of random actions.
        exploration_final_eps: final rate of random actions.
        max_grad_norm: gradients are clipped to this norm; None does not clip them.
        return_scale: rewards are divided by it, because the steps of the optimiser are of a fixed size and returns are
            not; "auto" measures the returns before learning starts.
        risk: the measure that makes an action the best: "mean", "cvar:0.1", "expectile:0.3", "quantile:0.5", or a
            function of a mixture.
        compile: whether the update is compiled: True, False, or "auto": in long runs, if there is a compiler.
        policy_kwargs: fields of `cramix.rl.network.Architecture`: `net_arch`, `activation_fn`, `layer_norm`, `dueling`,
            `members`, `features_extractor_class`, `features_extractor_kwargs`, `normalize_images`.
        returns: options of the kind of return distribution.
    """

    learning_rate: float | Callable[[float], float] = 5e-4
    final_learning_rate: float = 0.0
    fraction_learning_rate: float | None = None
    optimizer: str | type = "adam"
    optimizer_kwargs: Mapping[str, Any] = field(default_factory=dict)
    buffer_size: int = 50_000
    learning_starts: int = 1000
    batch_size: int = 64
    tau: float = 0.005
    target_update_interval: int = 1
    gamma: float = 0.995
    n_steps: int = 3
    train_freq: int | tuple[int, str] = 1
    gradient_steps: int = 1
    exploration_fraction: float = 0.1
    exploration_initial_eps: float = 1.0
    exploration_final_eps: float = 0.01
    max_grad_norm: float | None = 10.0
    return_scale: float | str = "auto"
    risk: Risk = "mean"
    compile: bool | str = "auto"
    policy_kwargs: Mapping[str, Any] = field(default_factory=dict)
    returns: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        for name in ("buffer_size", "batch_size", "target_update_interval", "n_steps"):
            check_integer(name, getattr(self, name), 1)
        check_integer("learning_starts", self.learning_starts, 0)
        check_integer("gradient_steps", self.gradient_steps, -1)
        if not callable(self.learning_rate):
            check_number("learning_rate", self.learning_rate, positive=True)
        if self.fraction_learning_rate is not None:
            check_number("fraction_learning_rate", self.fraction_learning_rate)
        if self.max_grad_norm is not None:
            check_number("max_grad_norm", self.max_grad_norm, positive=True)
        for name in _FRACTIONS:
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
                default = type(self).__dataclass_fields__[name].default
                raise ValueError(f"{name} must be a number in [0, 1]; got {value!r}. The default is {default}.")
        if self.return_scale != "auto":
            check_number("return_scale", self.return_scale, positive=True)
        if isinstance(self.optimizer, str):
            check_choice("optimizer", self.optimizer, ("adam", "lion"))
        if self.compile not in (True, False, "auto"):
            raise ValueError(f'compile must be True, False or "auto"; got {self.compile!r}. The default is "auto".')
        if isinstance(self.train_freq, list):  # a tuple in JSON
            object.__setattr__(self, "train_freq", tuple(self.train_freq))
        every = self.train_freq if isinstance(self.train_freq, tuple) else (self.train_freq, "step")
        if len(every) != 2 or not isinstance(every[0], int) or every[0] < 1 or every[1] not in ("step", "episode"):
            raise ValueError(
                f'train_freq must be an integer >= 1, (n, "step") or (n, "episode"); got {self.train_freq!r}. Try 1.'
            )
        parse_risk(self.risk)
        for name in _DICTIONARIES:
            if not isinstance(getattr(self, name), Mapping):
                raise ValueError(f"{name} must be a dictionary; got {getattr(self, name)!r}. The default is {{}}.")

    def replace(self, **changes: Any) -> Settings:
        """Return settings with some fields changed; dictionaries are merged with those of these settings."""
        check_fields("settings", changes, Settings)
        for name in _DICTIONARIES:
            if name in changes:
                more = {} if changes[name] is None else changes[name]
                changes[name] = {**getattr(self, name), **more} if isinstance(more, Mapping) else more
        return dataclasses.replace(self, **changes)

    def rate(self, progress_remaining: float) -> float:
        """Return the learning rate when this fraction of the run remains."""
        if callable(self.learning_rate):
            return self.learning_rate(progress_remaining)
        return self.learning_rate * (self.final_learning_rate + (1 - self.final_learning_rate) * progress_remaining)

    def parameters(self) -> list[Parameter]:
        """Return the fields as keyword-only parameters of a signature, with these settings as their defaults."""
        return [
            Parameter(f.name, Parameter.KEYWORD_ONLY, default=getattr(self, f.name), annotation=f.type)
            for f in fields(self)
        ]


def check_fields(argument: str, names: Iterable[str], cls: type) -> None:
    """Require names of fields of a dataclass; the error suggests the nearest one."""
    known = [f.name for f in fields(cls)]
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            cure = f"Did you mean {near[0]}?" if near else f"There are {', '.join(known)}."
            raise TypeError(f"{argument} must be fields of {cls.__module__}.{cls.__name__}; got {name}. {cure}")
