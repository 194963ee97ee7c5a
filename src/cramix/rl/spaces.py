"""Spaces of observations and actions: which ones agents can live in, and how files describe them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from cramix.rl.masks import KEY


def check_spaces(observations: spaces.Space, actions: spaces.Space) -> None:
    """Require spaces that networks can see, and discrete actions."""
    if not isinstance(actions, spaces.Discrete):
        raise ValueError(f"env must have discrete actions; got {actions}. Wrap it, or use an algorithm for those.")
    parts = observations.spaces if isinstance(observations, spaces.Dict) else {"": observations}
    for key, part in parts.items():
        name = f"observations of {key}" if key else "observations"
        if not isinstance(part, spaces.Box | spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete):
            raise ValueError(
                f"{name} must be Box, Discrete, MultiBinary or MultiDiscrete, or one Dict of them; got {part}. "
                "Wrap the environment."
            )
        if isinstance(part, spaces.Box) and not part.shape:
            raise ValueError(f"{name} must have a shape; got a single number, {part}. Make it one of shape (1,).")
        if isinstance(part, spaces.MultiDiscrete) and (part.nvec.ndim != 1 or part.start.any()):
            raise ValueError(
                f"{name} must be numbers from 0 on in a row; got {' '.join(str(part).split())}. Wrap the environment."
            )
        if key == KEY and part.shape != (actions.n,):
            raise ValueError(f"{KEY} must have a place for each of {actions.n} actions; got {part}. Mend the mask.")


def to_words(space: spaces.Space) -> dict[str, Any]:
    """Return a space as plain values.

    Example:
        >>> to_words(spaces.Discrete(3))
        {'kind': 'Discrete', 'n': 3, 'start': 0}
    """
    kind = next((known.__name__ for known in _KINDS if isinstance(space, known)), "")  # so are classes of one's own
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
        # In pairs, for a dictionary would be sorted, and networks see the parts in this order.
        return spaces.Dict([(key, from_words(part)) for key, part in words["spaces"].items()])
    raise ValueError(f"kind must be a kind of space that files hold; got {kind}. Write the file anew.")


_KINDS = spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete, spaces.Dict
