"""Files of models: JSON and tensors, which cannot hold code."""

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
from cramix.rl.archive import MALFORMED, pack, unpack
from cramix.rl.learner import optimizer_state, restore_optimizer
from cramix.rl.settings import Settings
from cramix.rl.spaces import from_json, to_json

if TYPE_CHECKING:
    from cramix.rl.algorithm import DistributionalDQN

_FORMAT = 2
_COUNTERS = ("num_timesteps", "_n_updates", "_episode_num", "_total_timesteps", "_current_progress_remaining")
_ONLINE, _TARGET = "q_net.", "q_net_target."
_OMITTED = object()
# Classes that files may name.
_MODULES = {"torch.nn": nn, "torch.optim": torch.optim}
_FIELDS: dict[str, Any] = {
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
# Arguments of the log.
_LOG = {"verbose": int, "tensorboard_log": str, "stats_window_size": int}
_DAMAGED = "Restore it from a copy, or delete it and train again."
Model = TypeVar("Model", bound="DistributionalDQN")


def save(model: DistributionalDQN, path: str | os.PathLike | BinaryIO, *, acting_only: bool = False) -> None:
    """Write settings, networks, and the states of the optimiser and of the random generators.

    Args:
        model: the agent.
        path: of the file, or an open file.
        acting_only: leave out the target network and the state of the optimiser, which are three quarters of the file.
            The loaded agent acts the same; if it learns on, its target network starts as a copy of the online network.
    """
    settings, left_out = _encode(asdict(model.settings))
    metadata = {
        "format": _FORMAT,
        "algorithm": type(model).__name__,
        "policy": type(model.policy).__name__,
        "settings": settings,
        "left_out": left_out,
        "acting_only": acting_only,
        "observation_space": to_json(model.observation_space),
        "action_space": to_json(model.action_space),
        "n_envs": model.n_envs,
        "seed": model.seed,
        "log": {
            "verbose": int(model.verbose),
            "tensorboard_log": None if model.tensorboard_log is None else str(model.tensorboard_log),
            "stats_window_size": int(model._stats_window_size),
        },
        "counts": {name: getattr(model, name) for name in _COUNTERS},
        "exploration_rate": model.exploration_rate,
        "updates": model.learner.updates,
        "generators": {
            "exploration": model.exploration.generator.bit_generator.state,
            "replay": model.replay_buffer.generator.bit_generator.state,
        },
    }
    networks, state = model.policy.state_dict(), optimizer_state(model.learner.optimizer)
    if acting_only:
        networks, state = {name: x for name, x in networks.items() if not name.startswith(_TARGET)}, {}
    with _writing(path) as file:
        pack(file, "model", metadata, networks=networks, optimizer=state)


@contextmanager
def _writing(path: str | os.PathLike | BinaryIO) -> Iterator[BinaryIO]:
    if not isinstance(path, str | os.PathLike):
        yield path
        return
    path = _with_suffix(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        yield file


def load(cls: type[Model], path: str | os.PathLike | BinaryIO, env: Any, device: Any, changes: dict[str, Any]) -> Model:
    """Read a model of a class; the file is checked before the model is built."""
    metadata, networks, state = _read(path)
    if metadata["algorithm"] != cls.__name__:
        raise ValueError(
            f"{path} must hold a {cls.__name__}; got a {metadata['algorithm']}. Use {metadata['algorithm']}.load."
        )
    with _consistent(path, changes):
        settings = _decode(metadata["settings"], path)
        Settings(**settings)
        observations, actions = from_json(metadata["observation_space"]), from_json(metadata["action_space"])
    for name in ("policy_kwargs", "returns", "optimizer_kwargs"):
        if name in changes:
            changes[name] = {**settings[name], **changes[name]}
    missing = [name for name in metadata["left_out"] if not _given(name, changes)]
    if missing:
        raise ValueError(
            f"{path} was made with {', '.join(missing)}, which files do not hold; got none. "
            f"Pass {missing[0].partition('.')[0]} to load."
        )
    policy = changes.pop("policy", metadata["policy"])
    if isinstance(policy, str) and policy not in cls.policy_aliases:
        raise ValueError(
            f"policy must be one of {', '.join(cls.policy_aliases)}, or a class; got {policy}. "
            "Pass the class that the file was made with, policy=..., to load."
        )
    arguments = {"seed": metadata["seed"], **_log_arguments(metadata.get("log")), **settings, **changes}
    model: Model = cast(Any, cls)(policy, env, device=device, _init_setup_model=False, **arguments)
    if env is None:
        model.n_envs = metadata["n_envs"]
    elif (model.observation_space, model.action_space) != (observations, actions):
        raise ValueError(
            f"env must have the spaces of the file; got {model.observation_space}, {model.action_space} instead of "
            f"{observations}, {actions}. Use the environment that {path} was trained in."
        )
    # Those of the file: equal Dict spaces may differ in the order of their keys, the order of the network's inputs.
    model.observation_space, model.action_space = observations, actions
    with _consistent(path, changes):
        model._setup_model()
    with _consistent(path, changes, RuntimeError):
        model.policy.load_state_dict(networks)
        restore_optimizer(model.learner.optimizer, state)
        for name in _COUNTERS:
            setattr(model, name, metadata["counts"][name])
        model.exploration_rate = float(metadata["exploration_rate"])
        model.learner.updates = metadata["updates"]
        model.exploration.generator.bit_generator.state = metadata["generators"]["exploration"]
        model.replay_buffer.generator.bit_generator.state = metadata["generators"]["replay"]
    return model


def _log_arguments(log: Any) -> dict[str, Any]:
    """Return the arguments of the log that a file has."""
    log = log if isinstance(log, dict) else {}
    return {name: log[name] for name, kind in _LOG.items() if isinstance(log.get(name), kind)}


def networks(path: str | os.PathLike | BinaryIO) -> dict[str, Tensor]:
    """Return the parameters of the networks in a file, by name."""
    return _read(path)[1]


def describe(path: str | os.PathLike) -> dict[str, Any]:
    """Return the metadata of a file: `algorithm`, `settings`, `counts`, ..."""
    return _read(path)[0]


@contextmanager
def _consistent(path: Any, changes: dict[str, Any], *more: type[Exception]) -> Iterator[None]:
    """Replace errors of a file that does not fit its settings, or the changed ones, by one ValueError."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except MALFORMED + more as error:
        if str(error).startswith(str(path)):
            raise  # it names the file already
        wanted = f"its settings with {', '.join(changes)} changed" if changes else "its own settings"
        cure = "Change other settings." if changes else _DAMAGED
        lines = [line.strip() for line in str(error).splitlines() if not line.startswith("Error(s) in loading")]
        got = lines[0].rstrip(".") if lines else type(error).__name__  # torch lists every layer
        raise ValueError(f"{path} must fit {wanted}; got: {got}. {cure}") from error


def _read(path: str | os.PathLike | BinaryIO) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    if isinstance(path, str | os.PathLike) and not Path(path).exists():
        path = _with_suffix(path)
    try:
        metadata, (networks, state) = unpack(path, "model", "networks", "optimizer")
    except ValueError as error:
        raise ValueError(f"{path} must be an intact cramix model; got: {error}. {_DAMAGED}") from None
    if not isinstance(metadata, dict) or metadata.get("format") != _FORMAT:
        found = metadata.get("format") if isinstance(metadata, dict) else None
        raise ValueError(f"{path} must have format {_FORMAT}; got {found}. Save it with this version of cramix.")
    for name, kind in _FIELDS.items():
        if name not in metadata or not isinstance(metadata[name], kind):
            found = repr(metadata[name]) if name in metadata else "a file without it"
            raise ValueError(f"{path} must have a valid {name}; got {found}. {_DAMAGED}")
    if metadata.get("acting_only"):
        copies = {name.replace(_ONLINE, _TARGET, 1): x for name, x in networks.items() if name.startswith(_ONLINE)}
        networks |= copies
    return metadata, networks, state


def _encode(settings: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return settings as plain values, and the names of those that have none."""
    left_out: list[str] = []

    def encoded(value: Any, name: str) -> Any:
        if isinstance(value, dict):
            pairs = ((k, encoded(v, f"{name}.{k}" if name else k)) for k, v in value.items())
            return {key: x for key, x in pairs if x is not _OMITTED}
        if isinstance(value, list | tuple):
            several = [encoded(x, name) for x in value]
            return _OMITTED if any(x is _OMITTED for x in several) else several
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool | int | float | str):
            return value
        for where, module in _MODULES.items():
            if isinstance(value, type) and vars(module).get(getattr(value, "__name__", "")) is value:
                return {where: getattr(value, "__name__", "")}
        left_out.append(name)
        return _OMITTED

    return encoded(settings, ""), left_out


def _decode(settings: dict[str, Any], path: Any) -> dict[str, Any]:
    """Return settings from plain values; classes are looked up in modules of torch and nowhere else."""

    def decoded(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for where, module in _MODULES.items():
            if set(value) == {where}:
                found = vars(module).get(value[where])
                if not isinstance(found, type):
                    raise ValueError(f"{path} must name classes of {where}; got {value[where]}. {_DAMAGED}")
                return found
        return {key: decoded(x) for key, x in value.items()}

    for name in settings:
        if name not in Settings.__dataclass_fields__:
            raise ValueError(
                f"{path} must have settings of this version of cramix; got {name}. Use the version that saved it."
            )
    return decoded(settings)


def _given(name: str, changes: dict[str, Any]) -> bool:
    """Whether nested dictionaries have a dotted name."""
    first, _, rest = name.partition(".")
    return first in changes and (not rest or _given(rest, changes[first]))


def _with_suffix(path: str | os.PathLike) -> Path:
    """Return a path with the suffix .zip if it has none, as in Stable-Baselines3."""
    return Path(path) if Path(path).suffix else Path(path).with_suffix(".zip")
