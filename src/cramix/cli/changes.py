"""Changes to settings on the command line, `name=value`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from cramix.cli.refusal import Refusal


def changes(texts: Sequence[str]) -> dict[str, Any]:
    """Return settings from texts `name=value`; values are JSON or bare words, dotted names are nested.

    Example:
        >>> changes(["gamma=0.9", "optimizer=lion", "policy_kwargs.net_arch=[64, 64]"])
        {'gamma': 0.9, 'optimizer': 'lion', 'policy_kwargs': {'net_arch': [64, 64]}}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"\w+(\.\w+)*", name):
            raise Refusal(f"--set must be NAME=VALUE; got {text!r}. Example: --set gamma=0.99")
        *outer, inner = name.split(".")
        target = found
        for part in outer:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise Refusal(f"--set has both {part} and {name}. Use only one of them.")
        if inner in target:
            raise Refusal(f"--set has {name} twice. Use it once.")
        target[inner] = _value(text, value)
    return found


def _value(text: str, value: str) -> Any:
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        if re.fullmatch(r"[A-Za-z][\w.:-]*", value):
            return value
        raise Refusal(f"--set must have a JSON value; got {text!r}. Example: --set returns.n_components=5") from None
