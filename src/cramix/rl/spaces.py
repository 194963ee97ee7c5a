"""Observation and action spaces: which ones are supported, and their description in files."""

from __future__ import annotations

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
    kind = next((known.__name__ for known in _KINDS if isinstance(space, known)), "")  # subclasses too
    if isinstance(space, spaces.Box):
        low, high = (x.ravel().tolist() for x in (space.low, space.high))
        return {
            "kind": kind,
            "low": low[0] if len(set(low)) == 1 else low,
            "high": high[0] if len(set(high)) == 1 else high,
            "shape": list(space.shape),
            "dtype": str(space.dtype),
        }
    if isinstance(space, spaces.Discrete):
        return {"kind": kind, "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": kind, "n": space.n if isinstance(space.n, int) else [int(n) for n in space.n]}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": kind, "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.Dict):
        return {"kind": kind, "spaces": {key: to_json(part) for key, part in space.spaces.items()}}
    raise ValueError(
        f"spaces must be Box, Discrete, MultiBinary, MultiDiscrete or Dict of them; got {space}. Wrap the environment."
    )


def from_json(description: dict[str, Any]) -> spaces.Space:
    """Return the space that `to_json` described."""
    kind = description["kind"]
    if kind == "Box":
        shape, dtype = tuple(description["shape"]), np.dtype(description["dtype"])
        low, high = (
            np.broadcast_to(np.asarray(description[k], dtype), (int(np.prod(shape)),)) for k in ("low", "high")
        )
        return spaces.Box(low.reshape(shape), high.reshape(shape), shape, dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(description["n"], start=description["start"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(description["n"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(description["nvec"], start=description["start"])
    if kind == "Dict":
        # Pairs, because Gymnasium sorts dictionaries, and the order is that of the network's inputs.
        return spaces.Dict([(key, from_json(part)) for key, part in description["spaces"].items()])
    raise ValueError(f"kind must be {', '.join(known.__name__ for known in _KINDS)}; got {kind}. The file is damaged.")


_KINDS = spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete, spaces.Dict
