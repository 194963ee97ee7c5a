"""The command line, `cramix` (`pip install "cramix[cli]"`)."""

from __future__ import annotations

import sys

from cramix import __version__


def main() -> None:
    """Run the command line; --version works without typer, too."""
    if sys.argv[1:] == ["--version"]:
        print(f"cramix {__version__}")
        return
    try:
        from cramix.cli.app import app
    except ImportError as error:
        sys.exit(f"The cramix command needs typer and rich. Install them with: pip install 'cramix[cli]' ({error})")
    app()
