"""Progress in notebooks: a bar that is updated in place, without widgets to install."""

from __future__ import annotations

import sys
import time
from html import escape

# Seconds between two updates, at least.
_INTERVAL = 0.1


def in_notebook() -> bool:
    """Return whether this is the kernel of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


class NotebookBar:
    """A bar with a text beside it, in the output of the cell that runs.

    Args:
        total: what is to be done; None if that is not known, and the bar only shows that something happens.
    """

    def __init__(self, total: int | None = None) -> None:
        from IPython.display import display

        self._total, self._done, self._text, self._shown = total, 0, "", time.monotonic()
        self._handle = display(self._content(), raw=True, display_id=True)

    def update(self, text: str, done: int = 0) -> None:
        """Show a text and how much is done, unless the last update was a moment ago."""
        self._text, self._done = text, done
        if time.monotonic() >= self._shown + _INTERVAL:
            self._show()

    def close(self) -> None:
        """Show the last update; without a total all is then done."""
        if self._total is None:
            self._total = self._done = 1
        self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        self._handle.update(self._content(), raw=True)

    def _content(self) -> dict[str, str]:
        value = "" if self._total is None else f' value="{self._done}" max="{self._total}"'
        return {"text/html": f"<progress{value}></progress> {escape(self._text)}", "text/plain": self._text}
