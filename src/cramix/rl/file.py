"""Files of models: JSON and tensors, which cannot hold code."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import numpy as np
import torch
from stable_baselines3.common import buffers, torch_layers, utils
from stable_baselines3.her import her_replay_buffer
from torch import Tensor, nn

from cramix.atomic import replacing
from cramix.rl import features, replay
from cramix.rl.archive import MALFORMED, pack, unpack
from cramix.rl.learner import optimizer_state, restore_optimizer
from cramix.rl.spaces import from_json, to_json

if TYPE_CHECKING:
    from cramix.rl.algorithm import DistributionalDQN

_FORMAT = 4
_COUNTERS = (
    "num_timesteps",
    "_n_updates",
    "_n_calls",
    "_scaled_at",
    "_episode_num",
    "_total_timesteps",
    "_current_progress_remaining",
)
_ONLINE, _TARGET = "q_net.", "q_net_target."
_OMITTED = object()
# Classes that files may name.
_MODULES = {
    module.__name__: module for module in (nn, torch.optim, torch_layers, features, buffers, her_replay_buffer, replay)
}
_SCHEDULES = (utils.LinearSchedule, utils.ConstantSchedule)
# A function of the remaining progress is stored as a table of this many values.
_TABLE = 1001
_FIELDS: dict[str, Any] = {
    "algorithm": str,
    "policy": str,
    "arguments": dict,
    "left_out": list,
    "observation_space": dict,
    "action_space": dict,
    "n_envs": int,
    "counts": dict,
    "exploration_rate": int | float,
    "generators": dict,
    "optimizer": str,
}
# Arguments of the constructor that are not settings, and settings without which there is no network.
_OTHERS = ("policy", "env", "device", "_init_setup_model")
_NEEDED = ("policy_kwargs", "returns")
_DAMAGED = "Restore it from a copy, or delete it and train again."
Model = TypeVar("Model", bound="DistributionalDQN")


class Table:
    """A schedule: values at evenly spaced times, between which it is linear.

    Args:
        values: from the end, where no progress remains, to the start.

    Example:
        >>> Table([0.0, 1.0, 4.0])(0.75)
        2.5
    """

    def __init__(self, values: list[float]):
        self.values = values

    def __call__(self, progress_remaining: float) -> float:
        """Return the value when this fraction of the run remains."""
        return float(np.interp(progress_remaining, np.linspace(0, 1, len(self.values)), self.values))


def save(
    model: DistributionalDQN,
    path: str | os.PathLike | BinaryIO,
    exclude: Iterable[str] = (),
    include: Iterable[str] = (),
    *,
    acting_only: bool = False,
) -> None:
    """Write settings, networks, and the states of the optimiser and of the random generators.

    Args:
        model: the agent.
        path: of the file, or an open file.
        exclude: settings to leave out.
        include: settings of `exclude` to keep after all.
        acting_only: leave out the target network and the state of the optimiser, which are three quarters of the file.
            The loaded agent acts the same; if it learns on, its target network starts as a copy of the online network.
    """
    arguments = {name: getattr(model, name) for name in _names(type(model))}
    arguments["tau"] = model._tau  # None depends on another setting, which may change
    # Everything that shapes the network: files must not depend on the defaults of a later version.
    policy: Any = getattr(model.policy, "_orig_mod", model.policy)  # the policy that torch.compile wraps
    arguments["policy_kwargs"] = {**model.policy_kwargs, **policy.architecture.layers()}
    arguments["returns"] = policy.returns_options
    for name in include:
        if name not in arguments:
            raise ValueError(
                f"include must be settings; got {name!r}. There are {', '.join(arguments)}; "
                "save_replay_buffer writes the replay buffer."
            )
    exclude = set(exclude) - set(include)
    for name in exclude:
        if name in _NEEDED or not hasattr(model, name):
            raise ValueError(
                f"exclude must be settings that a network can be built without; got {name!r}. "
                f"There are {', '.join(x for x in arguments if x not in _NEEDED)}."
            )
    encoded, left_out = _encode({name: x for name, x in arguments.items() if name not in exclude})
    generators = {"exploration": model.exploration.generator.bit_generator.state}
    if isinstance(model.replay_buffer, replay.Replay):
        generators["replay"] = model.replay_buffer.generator.bit_generator.state
    metadata = {
        "format": _FORMAT,
        "algorithm": type(model).__name__,
        "policy": type(policy).__name__,
        "arguments": encoded,
        "left_out": left_out,
        "acting_only": acting_only,
        "observation_space": to_json(model.observation_space),
        "action_space": to_json(model.action_space),
        "n_envs": model.n_envs,
        "counts": {name: getattr(model, name) for name in _COUNTERS},
        "exploration_rate": model.exploration_rate,
        "generators": generators,
        "optimizer": type(policy.optimizer).__name__,
    }
    networks = policy.state_dict()
    state = optimizer_state(policy.optimizer, dict(policy.q_net.named_parameters()))
    if acting_only:
        networks, state = {name: x for name, x in networks.items() if not name.startswith(_TARGET)}, {}
    with _writing(path) as file:
        pack(file, "model", metadata, networks=networks, optimizer=state)


def _names(cls: type) -> list[str]:
    """Return the settings of an algorithm: the arguments of its constructor, but a few."""
    from cramix.rl.algorithm import DistributionalDQN

    known = {**inspect.signature(DistributionalDQN).parameters, **inspect.signature(cls).parameters}
    kinds = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    return [name for name, p in known.items() if name not in _OTHERS and p.kind not in kinds]


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
        arguments = _decode(metadata["arguments"], path)
        for name in arguments:
            if name not in _names(cls):
                raise ValueError(
                    f"{path} must have settings of this version of cramix; got {name}. Use the version that saved it."
                )
        observations, actions = from_json(metadata["observation_space"]), from_json(metadata["action_space"])
        optimizer = metadata["optimizer"], arguments["policy_kwargs"].get("optimizer_kwargs") or {}
    for name, value in changes.items():
        if isinstance(arguments.get(name), dict) and isinstance(value, dict):
            changes[name] = {**arguments[name], **value}
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
    model: Model = cast(Any, cls)(policy, env, device=device, _init_setup_model=False)
    with _consistent(path, {}):
        for name, value in arguments.items():
            setattr(model, name, value)
    for name, value in changes.items():
        setattr(model, name, value)
    if env is None:
        model.n_envs = metadata["n_envs"]
        if issubclass(model.replay_buffer_class or replay.Replay, her_replay_buffer.HerReplayBuffer):
            raise ValueError(
                f"env must be an environment with HerReplayBuffer; got None. Pass it to load, with the file {path}."
            )
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
        policy = model.policy
        policy.to(next((x.dtype for name, x in networks.items() if name.startswith(_ONLINE)), torch.float32))
        policy.load_state_dict(networks)
        if optimizer == (type(policy.optimizer).__name__, policy.optimizer_kwargs):
            restore_optimizer(policy.optimizer, state, dict(policy.q_net.named_parameters()))
        elif state:
            warnings.warn(
                f"{path} has the state of another optimiser, {optimizer[0]} with {optimizer[1] or 'no options'}. "
                "This one starts without a state.",
                stacklevel=3,
            )
        for name in _COUNTERS:
            setattr(model, name, metadata["counts"][name])
        model.exploration_rate = float(metadata["exploration_rate"])
        if "seed" not in changes:
            model.exploration.generator.bit_generator.state = metadata["generators"]["exploration"]
            if "replay" in metadata["generators"] and isinstance(model.replay_buffer, replay.Replay):
                model.replay_buffer.generator.bit_generator.state = metadata["generators"]["replay"]
    return model


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


def _encode(arguments: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return arguments as plain values, and the names of those that have none."""
    left_out: list[str] = []

    def encoded(value: Any, name: str) -> Any:
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            pairs = ((k, encoded(v, f"{name}.{k}" if name else k)) for k, v in value.items())
            return {key: x for key, x in pairs if x is not _OMITTED}
        if isinstance(value, list | tuple):
            several = [encoded(x, name) for x in value]
            return _OMITTED if any(x is _OMITTED for x in several) else several
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, Enum):
            value = value.value
        if isinstance(value, os.PathLike):
            value = str(value)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if name == "learning_rate" and callable(value):
            return _encode_schedule(value)
        if isinstance(value, type):
            name_of_class = getattr(value, "__name__", "")
            for where, module in _MODULES.items():
                if vars(module).get(name_of_class) is value:
                    return {where: name_of_class}
            if value.__module__.startswith("lion_pytorch"):
                return name_of_class
        left_out.append(name)
        return _OMITTED

    return encoded(arguments, ""), left_out


def _encode_schedule(schedule: Callable[[float], float]) -> dict[str, Any]:
    """Return a schedule as plain values: a function of the user's as a table."""
    while isinstance(schedule, utils.FloatSchedule):
        schedule = schedule.value_schedule
    if isinstance(schedule, _SCHEDULES):
        return {"schedule": type(schedule).__name__, **{name: float(x) for name, x in vars(schedule).items()}}
    if isinstance(schedule, Table):
        return {"schedule": "Table", "values": schedule.values}
    return {"schedule": "Table", "values": [float(schedule(left)) for left in np.linspace(0, 1, _TABLE).tolist()]}


def _decode(arguments: dict[str, Any], path: Any) -> dict[str, Any]:
    """Return arguments from plain values; classes are looked up in a few modules and nowhere else."""
    schedules: dict[str, Any] = {kind.__name__: kind for kind in (*_SCHEDULES, Table)}

    def decoded(value: Any, name: str = "") -> Any:
        if not isinstance(value, dict):
            return value
        if name == "learning_rate":
            if "schedule" not in value:
                raise ValueError(f"{path} must have a schedule as learning_rate; got {value}. {_DAMAGED}")
            if value["schedule"] not in schedules:
                raise ValueError(f"{path} must have a known schedule; got {value['schedule']}. {_DAMAGED}")
            return schedules[value["schedule"]](**{name: x for name, x in value.items() if name != "schedule"})
        for where, module in _MODULES.items():
            if set(value) == {where}:
                found = vars(module).get(value[where])
                if not isinstance(found, type):
                    raise ValueError(f"{path} must name classes of {where}; got {value[where]}. {_DAMAGED}")
                return found
        return {key: decoded(x, key if not name else f"{name}.{key}") for key, x in value.items()}

    return decoded(arguments)


def _given(name: str, changes: dict[str, Any]) -> bool:
    """Whether nested dictionaries have a dotted name."""
    first, _, rest = name.partition(".")
    return first in changes and (not rest or _given(rest, changes[first]))


def _with_suffix(path: str | os.PathLike) -> Path:
    """Return a path with the suffix .zip if it has none, as in Stable-Baselines3."""
    return Path(path) if Path(path).suffix else Path(path).with_suffix(".zip")
