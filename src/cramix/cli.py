"""The command line, `cramix` (`pip install cramix[cli]`)."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Run the command line."""
    try:
        app = _app()
    except ImportError as error:
        sys.exit(f"The cramix command needs typer and rich. Install them with: pip install 'cramix[cli]' ({error})")
    app()


def _app():
    import typer
    from rich.console import Console
    from rich.table import Table

    app = typer.Typer(no_args_is_help=True, add_completion=False, help="Gaussian mixtures by gradient descent.")

    @app.callback()
    def about() -> None:
        """Gaussian mixtures by gradient descent, with Cramér distances."""

    @app.command()
    def demo(out: Path = typer.Option(Path("demo.png"), help="Where the picture goes.")) -> None:  # noqa: B008
        """Fit a built-in sample of five modes, print a table and draw densities and distribution functions."""
        from cramix import demo as job
        from cramix.plot import densities_and_cdfs

        if not out.parent.is_dir():
            raise typer.BadParameter(f"{out.parent} is not a folder. Make it first.", param_hint="--out")
        console = Console()
        with console.status("Fitting seven components to 5000 points by gradient descent on the Cramér loss"):
            x, truth, fits = job.run()
        table = Table("method", "loss C2² to the sample", "C2 to the truth", "evaluations", "seconds")
        for row in job.rows(x, truth, fits):
            table.add_row(*row)
        console.print(table)
        densities_and_cdfs({f.method: f.mixture for f in fits}, x, truth).savefig(out, dpi=150)
        console.print(f"Picture: {out}")

    return app
