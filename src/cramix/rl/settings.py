"""Settings: what is required of every hyperparameter, at construction and whenever it is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any

from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit

from cramix.checks import check_integer, check_number
from cramix.rl.risk import parse_risk

# Settings that shape the networks or the replay buffer, and cannot change once these exist.
FIXED = (
    "buffer_size",
    "fraction_learning_rate",
    "optimize_memory_usage",
    "policy_kwargs",
    "replay_buffer_class",
    "replay_buffer_kwargs",
    "returns",
)


def check_setting(name: str, value: Any) -> Any:
    """Return the value of a setting in its normal form; an invalid one raises a ValueError. Other names pass."""
    check = _CHECKS.get(name)
    return value if check is None else check(name, value)


def check_names(argument: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Require known names; the error suggests the nearest one."""
    known = list(known)
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            cure = f"Did you mean {near[0]}?" if near else f"There are {', '.join(known)}."
            raise TypeError(f"{argument} must be known names; got {name}. {cure}")


def _integer(least: int, name: str, value: Any) -> Any:
    check_integer(name, value, least)
    return value


def _rate(name: str, value: Any) -> Any:
    if not callable(value):
        check_number(name, value)
    return value


def _optional(check: Callable[[str, Any], Any], name: str, value: Any) -> Any:
    return None if value is None else check(name, value)


def _number(positive: bool, name: str, value: Any) -> Any:
    check_number(name, value, positive=positive)
    return value


def _fraction(name: str, value: Any) -> Any:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ValueError(f"{name} must be a number in [0, 1]; got {value!r}.")
    return value


def _class(name: str, value: Any) -> Any:
    if not isinstance(value, type):
        raise ValueError(f"{name} must be a class; got {value!r}. The default is None.")
    return value


def _train_freq(name: str, value: Any) -> TrainFreq:
    every = tuple(value) if isinstance(value, tuple | list) else (value, "step")
    units = {unit.value: unit for unit in TrainFrequencyUnit} | {unit: unit for unit in TrainFrequencyUnit}
    if len(every) != 2 or not isinstance(every[0], int) or every[0] < 1 or every[1] not in units:
        raise ValueError(f'{name} must be an integer >= 1, (n, "step") or (n, "episode"); got {value!r}. Try 1.')
    return TrainFreq(every[0], units[every[1]])


def _return_scale(name: str, value: Any) -> Any:
    return value if value == "auto" else _number(True, name, value)


def _compile(name: str, value: Any) -> Any:
    if value not in (True, False, "auto"):
        raise ValueError(f'{name} must be True, False or "auto"; got {value!r}. The default is "auto".')
    return value


def _risk(name: str, value: Any) -> Any:
    parse_risk(value)
    return value


def _mapping(name: str, value: Any) -> Any:
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a dictionary; got {value!r}. The default is None.")
    return {} if value is None else dict(value)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("buffer_size", "batch_size", "target_update_interval", "n_steps"), partial(_integer, 1)),
    "learning_starts": partial(_integer, 0),
    "gradient_steps": partial(_integer, -1),
    "learning_rate": _rate,
    "fraction_learning_rate": partial(_optional, partial(_number, False)),
    "max_grad_norm": partial(_optional, partial(_number, True)),
    **dict.fromkeys(("final_learning_rate", "gamma"), _fraction),
    "tau": partial(_optional, _fraction),
    "replay_buffer_class": partial(_optional, _class),
    **dict.fromkeys(("exploration_fraction", "exploration_initial_eps", "exploration_final_eps"), _fraction),
    "train_freq": _train_freq,
    "return_scale": _return_scale,
    "compile": _compile,
    "risk": _risk,
    **dict.fromkeys(("policy_kwargs", "returns", "replay_buffer_kwargs"), _mapping),
}

# Settings that are checked.
CHECKED = tuple(_CHECKS)
