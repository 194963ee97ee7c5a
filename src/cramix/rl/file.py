"""Models in files, which hold words and numbers and never code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from cramix.atomic import replacing
from cramix.rl.archive import NONSENSE, pack, unpack
from cramix.rl.learning.optimizers import restore, state_of
from cramix.rl.settings import Settings
from cramix.rl.spaces import from_words, to_words

if TYPE_CHECKING:
    from cramix.rl.stored import StoredAlgorithm

_FORMAT = 1
_COUNTS = ("num_timesteps", "_n_updates", "_episode_num", "_total_timesteps", "_current_progress_remaining")
_ONLINE, _TARGET = "q_net.", "q_net_target."
Model = TypeVar("Model", bound="StoredAlgorithm")


def save(model: StoredAlgorithm, path: str | os.PathLike | BinaryIO, *, acting_only: bool = False) -> None:
    """Write settings, networks, the state of the optimiser and of the random generators.

    Args:
        model: the agent.
        path: of the file, or a file that is open.
        acting_only: leave out the target network and the state of the optimiser, which are three quarters of the file.
            What is loaded then acts the same, and learns on from a target network that equals the online one.
    """
    settings, left_out = _plain(asdict(model.settings))
    words = {
        "format": _FORMAT,
        "algorithm": type(model).__name__,
        "policy": type(model.policy).__name__,
        "settings": settings,
        "left_out": left_out,
        "acting_only": acting_only,
        "observation_space": to_words(model.observation_space),
        "action_space": to_words(model.action_space),
        "n_envs": model.n_envs,
        "seed": model.seed,
        "log": {name: _as(kind, getattr(model, attribute)) for name, (attribute, kind) in _LOG.items()},
        "counts": {name: getattr(model, name) for name in _COUNTS},
        "exploration_rate": model.exploration_rate,
        "updates": model.learner.updates,
        "generators": {
            "exploration": model.exploration.generator.bit_generator.state,
            "replay": model.replay_buffer.generator.bit_generator.state,
        },
    }
    networks, state = model.policy.state_dict(), state_of(model.learner.optimizer)
    if acting_only:
        networks, state = {name: x for name, x in networks.items() if not name.startswith(_TARGET)}, {}
    with _writing(path) as file:
        pack(file, "model", words, networks=networks, optimizer=state)


@contextmanager
def _writing(path: str | os.PathLike | BinaryIO) -> Iterator[BinaryIO]:
    """Give a file to write into."""
    if not isinstance(path, str | os.PathLike):
        yield path
        return
    path = _with_ending(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        yield file


def load(cls: type[Model], path: str | os.PathLike | BinaryIO, env: Any, device: Any, changes: dict[str, Any]) -> Model:
    """Read a model of a class; what is wrong with a file is said before anything is made of it."""
    words, networks, state = _content(path)
    if words["algorithm"] != cls.__name__:
        raise ValueError(
            f"{path} must hold a {cls.__name__}; got a {words['algorithm']}. Use {words['algorithm']}.load."
        )
    with _making_sense(path, changes):
        settings = _settings(words["settings"], path)
        Settings(**settings)
        seen, acts = from_words(words["observation_space"]), from_words(words["action_space"])
    for name in ("policy_kwargs", "returns", "optimizer_kwargs"):
        if name in changes:
            changes[name] = {**settings[name], **changes[name]}
    missing = [name for name in words["left_out"] if not _given(name, changes)]
    if missing:
        raise ValueError(
            f"{path} was made with {', '.join(missing)}, which files do not hold; got none. "
            f"Give {missing[0].partition('.')[0]} to load again."
        )
    policy = changes.pop("policy", words["policy"])
    if isinstance(policy, str) and policy not in cls.policy_aliases:
        raise ValueError(
            f"policy must be one of {', '.join(cls.policy_aliases)}, or a class; got {policy}. "
            "Give the class that the file was made with, policy=..., to load again."
        )
    known = {"seed": words["seed"], **_log(words.get("log")), **settings, **changes}
    model: Model = cast(Any, cls)(policy, env, device=device, _init_setup_model=False, **known)
    if env is None:
        model.n_envs = words["n_envs"]
    elif (model.observation_space, model.action_space) != (seen, acts):
        raise ValueError(
            f"env must have the spaces of the file; got {model.observation_space}, {model.action_space} in place of "
            f"{seen}, {acts}. Make the environment that {path} was learned in."
        )
    # The file's, for keys of a dictionary have an order there, which equal spaces need not have.
    model.observation_space, model.action_space = seen, acts
    with _making_sense(path, changes):
        model._setup_model()
    with _making_sense(path, changes, RuntimeError):
        model.policy.load_state_dict(networks)
        restore(model.learner.optimizer, state)
        for name in _COUNTS:
            setattr(model, name, words["counts"][name])
        model.exploration_rate = float(words["exploration_rate"])
        model.learner.updates = words["updates"]
        model.exploration.generator.bit_generator.state = words["generators"]["exploration"]
        model.replay_buffer.generator.bit_generator.state = words["generators"]["replay"]
    return model


def _log(words: Any) -> dict[str, Any]:
    """Return what a file says of the log, which older ones do not."""
    words = words if isinstance(words, dict) else {}
    return {name: words[name] for name, (_, kind) in _LOG.items() if isinstance(words.get(name), kind)}


def networks(path: str | os.PathLike | BinaryIO) -> dict[str, Tensor]:
    """Return the parameters of the networks in a file, by name."""
    return _content(path)[1]


@contextmanager
def _making_sense(path: Any, changes: dict[str, Any], *more: type[Exception]) -> Iterator[None]:
    """Turn what is raised where a file does not fit its own settings, or those that are changed, into one error."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except NONSENSE + more as error:
        if str(error).startswith(str(path)):
            raise  # it is said already
        wanted = f"its settings with {', '.join(changes)} changed" if changes else "its own settings"
        cure = "Change others." if changes else "Write it anew with save."
        lines = [line.strip() for line in str(error).splitlines() if not line.startswith("Error(s) in loading")]
        got = lines[0].rstrip(".") if lines else type(error).__name__  # of networks torch tells every layer
        raise ValueError(f"{path} must fit {wanted}; got: {got}. {cure}") from error


def _as(kind: Any, value: Any) -> Any:
    """Return a value as files have it, a path as a string for instance."""
    return None if value is None else kind(value)


def describe(path: str | os.PathLike) -> dict[str, Any]:
    """Return what a file says in words: `algorithm`, `settings`, `counts`, ..."""
    return _content(path)[0]


def _content(path: str | os.PathLike | BinaryIO) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    if isinstance(path, str | os.PathLike) and not Path(path).exists():
        path = _with_ending(path)
    try:
        words, (networks, state) = unpack(path, "model", "networks", "optimizer")
    except ValueError as error:
        raise ValueError(f"{path} must be a whole model of cramix; got: {error}. {_CURE}") from None
    if not isinstance(words, dict) or words.get("format") != _FORMAT:
        found = words.get("format") if isinstance(words, dict) else None
        raise ValueError(f"{path} must be of format {_FORMAT}; got {found}. Write it with this version.")
    for name, kind in _PARTS.items():
        if name not in words or not isinstance(words[name], kind):
            found = repr(words[name]) if name in words else "a file without"
            raise ValueError(f"{path} must have {name} in it; got {found}. {_CURE}")
    if words.get("acting_only"):
        copies = {name.replace(_ONLINE, _TARGET, 1): x for name, x in networks.items() if name.startswith(_ONLINE)}
        networks |= copies
    return words, networks, state


def _plain(settings: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return settings in words, and the names of those that have none."""
    left_out: list[str] = []

    def words(value: Any, name: str) -> Any:
        if isinstance(value, dict):
            return {
                key: x
                for key, x in ((k, words(v, f"{name}.{k}" if name else k)) for k, v in value.items())
                if x is not _NONE
            }
        if isinstance(value, list | tuple):
            several = [words(x, name) for x in value]
            return _NONE if any(x is _NONE for x in several) else several
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool | int | float | str):
            return value
        for where, module in _MODULES.items():
            if isinstance(value, type) and vars(module).get(getattr(value, "__name__", "")) is value:
                return {where: getattr(value, "__name__", "")}
        left_out.append(name)
        return _NONE

    return words(settings, ""), left_out


_NONE = object()
# Classes that files may name.
_MODULES = {"torch.nn": nn, "torch.optim": torch.optim}
_PARTS: dict[str, Any] = {
    "algorithm": str,
    "policy": str,
    "settings": dict,
    "left_out": list,
    "observation_space": dict,
    "action_space": dict,
    "n_envs": int,
    "seed": int | None,
    "counts": dict,
    "exploration_rate": int | float,
    "updates": int,
    "generators": dict,
}
# How a model tells of itself: arguments, where they are kept, and of which kind they are.
_LOG: dict[str, tuple[str, Any]] = {
    "verbose": ("verbose", int),
    "tensorboard_log": ("tensorboard_log", str),
    "stats_window_size": ("_stats_window_size", int),
}
_CURE = "Use a copy of it, or delete it and learn anew."


def _settings(words: dict[str, Any], path: Any) -> dict[str, Any]:
    """Return settings from words; classes are looked up in torch's own modules and nowhere else."""

    def decoded(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for where, module in _MODULES.items():
            if set(value) == {where}:
                found = vars(module).get(value[where])
                if not isinstance(found, type):
                    raise ValueError(f"{path} must name classes of {where}; got {value[where]}. {_CURE}")
                return found
        return {key: decoded(x) for key, x in value.items()}

    for name in words:
        if name not in Settings.__dataclass_fields__:
            raise ValueError(f"{path} must have settings of this version; got {name}. Read it with the one it is of.")
    return decoded(words)


def _given(name: str, changes: dict[str, Any]) -> bool:
    """Whether changes have a name with dots, one dictionary in another."""
    first, _, rest = name.partition(".")
    return first in changes and (not rest or _given(rest, changes[first]))


def _with_ending(path: str | os.PathLike) -> Path:
    """Return a path that ends in .zip where it has no ending, as Stable-Baselines3 has it."""
    return Path(path) if Path(path).suffix else Path(path).with_suffix(".zip")
