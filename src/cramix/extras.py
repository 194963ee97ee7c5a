"""Packages that only some features need, installed with an extra such as `cramix[io]`."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def require(module: str, message: str) -> Any:
    """Return a module, or raise an ImportError with a message that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(message) from error
