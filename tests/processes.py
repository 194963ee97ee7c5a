"""Two processes that meet by gloo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def in_two(code: str, folder: Path) -> str:
    """Run code twice, with its rank and a file to meet at as arguments; return what the first printed."""
    commands = [[sys.executable, "-c", code, str(rank), str(folder / "meet")] for rank in (0, 1)]
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    first, second = (subprocess.Popen(command, **pipe) for command in commands)  # type: ignore[call-overload]
    (out, error), (_, other) = first.communicate(timeout=120), second.communicate(timeout=120)
    assert first.returncode == 0, error
    assert second.returncode == 0, other
    return out
