"""Settings of the algorithms, all in one place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from cramix.checks import check_choice, check_integer, check_number
from cramix.rl.risk import Risk, parse_risk


@dataclass(frozen=True)
class Settings:
    """How an agent learns. Names are those of Stable-Baselines3 where it has one.

    Args:
        learning_rate: at the start; or a function of the progress that remains, from 1 to 0.
        final_learning_rate: part of it that is left at the end, on a line between; 1 keeps it.
        fraction_learning_rate: of the weights of mixtures, at the start; None is `learning_rate`.
        optimizer: "adam" or "lion", or a class of torch's kind.
        optimizer_kwargs: further arguments for it.
        buffer_size: transitions that are remembered.
        learning_starts: steps at random before the first update.
        batch_size: transitions an update.
        tau: part of the way the target network goes to the online one at each of its updates.
        target_update_interval: updates of the online network for one of the target network.
        gamma: discount.
        n_steps: rewards that are summed before the network is asked.
        train_freq: environment steps (of all environments at once) between updates, or `(n, "episode")`.
        gradient_steps: updates each time; -1 is one for each step.
        exploration_fraction: part of the run in which exploration falls from its initial to its final rate.
        exploration_initial_eps: rate of random actions at the start.
        exploration_final_eps: rate of random actions after that.
        max_grad_norm: longest gradient; None for no limit.
        return_scale: rewards are divided by it inside, for steps of the optimiser are of a fixed size and returns are
            not; "auto" is the size of returns seen before learning starts.
        risk: what makes a return good: "mean", "cvar:0.1", "expectile:0.3", "quantile:0.5", or a function of a mixture.
        compile: compile the update: True, False, or "auto", for long runs where a compiler is at hand.
        policy_kwargs: `net_arch`, `activation_fn`, `layer_norm`, `dueling`, `members`, `features_extractor_class`,
            `features_extractor_kwargs`, `normalize_images`.
        returns: what is particular to the kind of returns.
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
        for name in (
            "final_learning_rate",
            "tau",
            "gamma",
            "exploration_fraction",
            "exploration_initial_eps",
            "exploration_final_eps",
        ):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
                raise ValueError(f"{name} must be a number in [0, 1]; got {value!r}. Leave it out for the default.")
        if self.return_scale != "auto":
            check_number("return_scale", self.return_scale, positive=True)
        if isinstance(self.optimizer, str):
            check_choice("optimizer", self.optimizer, ("adam", "lion"))
        if self.compile not in (True, False, "auto"):
            raise ValueError(f'compile must be True, False or "auto"; got {self.compile!r}. Leave it out.')
        if isinstance(self.train_freq, list):  # as files have it
            object.__setattr__(self, "train_freq", tuple(self.train_freq))
        every = self.train_freq if isinstance(self.train_freq, tuple) else (self.train_freq, "step")
        if len(every) != 2 or not isinstance(every[0], int) or every[0] < 1 or every[1] not in ("step", "episode"):
            raise ValueError(
                f'train_freq must be an integer >= 1, (n, "step") or (n, "episode"); got {self.train_freq!r}. Try 1.'
            )
        parse_risk(self.risk)
        for name in ("policy_kwargs", "returns", "optimizer_kwargs"):
            if not isinstance(getattr(self, name), Mapping):
                raise ValueError(f"{name} must be a dictionary; got {getattr(self, name)!r}. Leave it out.")

    def replace(self, **changes: Any) -> Settings:
        """Return settings with changes by name; `policy_kwargs` and `returns` keep what is not named in them."""
        known = [f.name for f in fields(self)]
        for name in changes:
            if name not in known:
                near = get_close_matches(name, known, 1)
                cure = f"Did you mean {near[0]}?" if near else f"There are {', '.join(known)}."
                raise TypeError(f"settings must be fields of cramix.rl.Settings; got {name}. {cure}")
        for name in ("policy_kwargs", "returns", "optimizer_kwargs"):
            if name in changes:
                more = {} if changes[name] is None else changes[name]
                changes[name] = {**getattr(self, name), **more} if isinstance(more, Mapping) else more
        return dataclasses.replace(self, **changes)

    def rate(self, progress_remaining: float) -> float:
        """Return the learning rate when this part of the run remains."""
        if callable(self.learning_rate):
            return self.learning_rate(progress_remaining)
        return self.learning_rate * (self.final_learning_rate + (1 - self.final_learning_rate) * progress_remaining)
