"""Pretrained agents: one file per environment, next to this one."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Return the environments that have a pretrained agent."""
    return sorted(path.stem for path in FOLDER.glob("*.zip"))


def path_of(name: str) -> Path:
    """Return the file of the agent for an environment.

    Example:
        >>> path_of("Pong")
        Traceback (most recent call last):
        ValueError: name must be an environment with a pretrained agent; got 'Pong'. ...
    """
    known = names()
    if name not in known:
        cure = f"There are: {', '.join(known)}." if known else "There are none; train one with cramix train."
        raise ValueError(f"name must be an environment with a pretrained agent; got {name!r}. {cure}")
    return FOLDER / f"{name}.zip"
