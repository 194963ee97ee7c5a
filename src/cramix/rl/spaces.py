"""Spaces of observations and actions in words, for files."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces


def to_words(space: spaces.Space) -> dict[str, Any]:
    """Return a space as plain values.

    Example:
        >>> to_words(spaces.Discrete(3))
        {'kind': 'Discrete', 'n': 3, 'start': 0}
    """
    kind = type(space).__name__
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
        return {"kind": kind, "spaces": {key: to_words(part) for key, part in space.spaces.items()}}
    raise ValueError(
        f"spaces must be Box, Discrete, MultiBinary, MultiDiscrete or Dict of them; got {space}. Wrap the environment."
    )


def from_words(words: dict[str, Any]) -> spaces.Space:
    """Return the space that `to_words` described."""
    kind = words["kind"]
    if kind == "Box":
        shape, dtype = tuple(words["shape"]), np.dtype(words["dtype"])
        low, high = (np.broadcast_to(np.asarray(words[k], dtype), (int(np.prod(shape)),)) for k in ("low", "high"))
        return spaces.Box(low.reshape(shape), high.reshape(shape), shape, dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(words["n"], start=words["start"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(words["n"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(words["nvec"], start=words["start"])
    if kind == "Dict":
        return spaces.Dict({key: from_words(part) for key, part in words["spaces"].items()})
    raise ValueError(f"kind must be a kind of space that files hold; got {kind}. Write the file anew.")
