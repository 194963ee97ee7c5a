"""Commands: one-line errors, and the options that several commands share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import typer
from typer.core import TyperCommand

Out = Annotated[Path, typer.Option(help="Folder of the runs and tables; an interrupted command resumes.")]
Env = Annotated[str, typer.Option(help="The environment.")]
Steps = Annotated[int, typer.Option(help="Environment steps of a run.", min=1)]
Episodes = Annotated[int, typer.Option(help="Evaluation episodes of each final agent.", min=1)]
Workers = Annotated[int | None, typer.Option(help="Processes at a time; one per core by default.", min=1)]
Device = Annotated[str | None, typer.Option(help="cuda trains the seeds of an algorithm jointly.")]


class Command(TyperCommand):
    """A command whose expected errors are one line. Exit codes: 0 success, 2 invalid input, 1 internal error."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command and exit."""
        try:
            return super().main(*args, **options)
        except (ValueError, gymnasium.error.UnregisteredEnv) as error:
            code, message = 2, str(error)
        except (ImportError, ChildProcessError, gymnasium.error.DependencyNotInstalled) as error:
            code, message = 1, str(error)
        print(f"error: {message}", file=sys.stderr, flush=True)
        sys.exit(code)
