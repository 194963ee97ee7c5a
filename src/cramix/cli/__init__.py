"""The command line, `cramix` (`pip install "cramix[cli]"`)."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from cramix.cli.app import app
    except ImportError as error:
        sys.exit(f"The cramix command needs typer and rich. Install them with: pip install 'cramix[cli]' ({error})")
    app()
