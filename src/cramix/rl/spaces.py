"""Observation and action spaces: which ones are supported, and their description in files."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from cramix.rl.masks import KEY


def check_spaces(observations: spaces.Space, actions: spaces.Space) -> None:
    """Require observations that networks accept, and discrete actions."""
    if not isinstance(actions, spaces.Discrete):
        raise ValueError(f"env must have discrete actions; got {actions}. Use another algorithm, or discretise them.")
    parts = observations.spaces if isinstance(observations, spaces.Dict) else {"": observations}
    for key, part in parts.items():
        name = f"observations of {key}" if key else "observations"
        if not isinstance(part, spaces.Box | spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete):
            raise ValueError(
                f"{name} must be Box, Discrete, MultiBinary or MultiDiscrete, or one Dict of them; got {part}. "
                "Wrap the environment."
            )
        if isinstance(part, spaces.Box) and not part.shape:
            raise ValueError(f"{name} must have a shape; got a single number, {part}. Reshape it to (1,).")
        if isinstance(part, spaces.MultiDiscrete) and (part.nvec.ndim != 1 or part.start.any()):
            raise ValueError(
                f"{name} must be a vector of integers from 0; got {' '.join(str(part).split())}. Wrap the environment."
            )
        if key == KEY and part.shape != (actions.n,):
            raise ValueError(f"{KEY} must have shape ({actions.n},), one entry per action; got {part}. Fix the mask.")


def to_json(space: spaces.Space) -> dict[str, Any]:
    """Return the description of a space, in plain values.

    Example:
        >>> to_json(spaces.Discrete(3))
        {'kind': 'Discrete', 'n': 3, 'start': 0}
    """
    if isinstance(space, spaces.Dict):
        return {"kind": "Dict", "spaces": {key: to_json(part) for key, part in space.spaces.items()}}
    for kind, arguments in _ARGUMENTS.items():
        if isinstance(space, kind):  # subclasses too
            return {"kind": kind.__name__, **{name: _plain(name, getattr(space, name)) for name in arguments}}
    raise ValueError(
        f"spaces must be Box, Discrete, MultiBinary, MultiDiscrete or Dict of them; got {space}. Wrap the environment."
    )


def from_json(description: dict[str, Any]) -> spaces.Space:
    """Return the space that `to_json` described."""
    kind, arguments = description["kind"], {name: x for name, x in description.items() if name != "kind"}
    if kind == "Dict":
        # Pairs, because Gymnasium sorts dictionaries, and the order is that of the network's inputs.
        return spaces.Dict([(key, from_json(part)) for key, part in arguments["spaces"].items()])
    if kind == "Box":
        shape, dtype = tuple(arguments["shape"]), np.dtype(arguments["dtype"])
        bounds = (np.broadcast_to(np.asarray(arguments[k], dtype), math.prod(shape)) for k in ("low", "high"))
        low, high = (x.reshape(shape) for x in bounds)
        return spaces.Box(low, high, shape, dtype.type)
    kinds = {known.__name__: known for known in _ARGUMENTS}
    if kind not in kinds:
        raise ValueError(f"kind must be {', '.join(kinds)} or Dict; got {kind}. The file is damaged.")
    return kinds[kind](**arguments)


# Which arguments make a space, by its kind.
_ARGUMENTS: dict[type[spaces.Space], tuple[str, ...]] = {
    spaces.Box: ("low", "high", "shape", "dtype"),
    spaces.Discrete: ("n", "start"),
    spaces.MultiBinary: ("n",),
    spaces.MultiDiscrete: ("nvec", "start"),
}


def _plain(name: str, value: Any) -> Any:
    """Return an argument for JSON; equal bounds of all coordinates become one number."""
    if name in ("low", "high"):
        bounds = value.ravel().tolist()
        return bounds[0] if len(set(bounds)) == 1 else bounds
    return str(value) if name == "dtype" else np.asarray(value).tolist()
