"""Changes to settings as the command line has them, `name=value`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from cramix.cli.refusal import Refusal


def changes(texts: Sequence[str]) -> dict[str, Any]:
    """Return settings from texts `name=value`; values are JSON or plain words, a dotted name is one inside another.

    Example:
        >>> changes(["gamma=0.9", "optimizer=lion", "policy_kwargs.net_arch=[64, 64]"])
        {'gamma': 0.9, 'optimizer': 'lion', 'policy_kwargs': {'net_arch': [64, 64]}}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"\w+(\.\w+)*", name):
            raise Refusal(f"--set must be NAME=VALUE; got {text!r}. As in: --set gamma=0.99")
        *outer, inner = name.split(".")
        place = found
        for part in outer:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise Refusal(f"--set gives {part} twice, whole and by {name}. Give it once.")
        if inner in place:
            raise Refusal(f"--set gives {name} twice. Give it once.")
        place[inner] = _value(text, value)
    return found


def _value(text: str, value: str) -> Any:
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        if re.fullmatch(r"[A-Za-z][\w.:-]*", value):
            return value
        raise Refusal(f"--set must have a value in JSON; got {text!r}. As in: --set returns.components=5") from None
