"""All commands in one program. Exit codes: 0 success, 2 invalid input, 1 internal error, 130 stopped by Ctrl-C."""

from __future__ import annotations

import errno
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import cramix
from cramix.cli.compare import compare
from cramix.cli.compress import compress
from cramix.cli.demo import demo
from cramix.cli.examples import epilog
from cramix.cli.fit import fit
from cramix.cli.play import play
from cramix.cli.predict import predict
from cramix.cli.refusal import Interrupted, Refusal
from cramix.cli.sample import sample
from cramix.cli.train import train

# File errors that come from the path the user gave; others, such as a full disk, do not.
_WRONG_PATH = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)
# What typer returns after Ctrl-C, without a message.
_INTERRUPTED = 130


class Commands(TyperGroup):
    """Commands that report errors in one line on standard error, and with --json as an object on standard output."""

    def main(self, args: Sequence[str] | None = None, **options: Any) -> Any:  # type: ignore[override]
        """Run a command and exit with its code."""
        args = sys.argv[1:] if args is None else list(args)
        try:
            code = super().main(args, **options | {"standalone_mode": False})
        except Interrupted as interrupted:
            print(interrupted, file=sys.stderr)
            sys.exit(_INTERRUPTED)
        except Exception as error:  # nothing escapes as a bare traceback
            code = _end(error, as_json="--json" in args)
        if code == _INTERRUPTED:
            print("stopped", file=sys.stderr)
        sys.exit(code if isinstance(code, int) else 0)


def _end(error: Exception, as_json: bool) -> int:
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        # The reader of our output is gone; without this, Python would report it once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    code, message = _verdict(error)
    if as_json:
        print(json.dumps({"error": {"message": message, "exit_code": code}}, ensure_ascii=False))
    print(f"error: {message}", file=sys.stderr, flush=True)
    return code


def _verdict(error: Exception) -> tuple[int, str]:
    """The exit code and the line to print; an unexpected error also prints its traceback."""
    if isinstance(error, Refusal):
        return 2, str(error)
    if isinstance(error, typer.Abort):
        return 1, "stopped"
    if hasattr(error, "format_message"):  # a usage error, in whichever module typer keeps that class
        where = getattr(getattr(error, "ctx", None), "command_path", "cramix")
        message = error.format_message().rstrip(".")
        return 2, f"{message}{'' if message.endswith('?') else '.'} See: {where} --help"
    if isinstance(error, OSError) and error.filename is not None:
        return 2 if isinstance(error, _WRONG_PATH) else 1, f"{error.filename}: {error.strerror}"
    if isinstance(error, ImportError | ChildProcessError):
        return 1, str(error)
    traceback.print_exception(error)
    return 1, f"unexpected {type(error).__name__}: {error}"


def _paragraphs(command: Callable[..., None]) -> str:
    """Return a command's description with a line for each paragraph, which typer wraps at the terminal's width."""
    return "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(command) or "").split("\n\n"))


app = typer.Typer(
    cls=Commands,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success, 2 invalid input, 1 internal error.",
)


@app.callback()
def about(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Gaussian mixtures: fit them to tables, compare, compress and sample them; train agents with them."""
    if version:
        print(f"cramix {cramix.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


for command in (demo, fit, predict, compare, compress, sample, train, play):
    app.command(help=_paragraphs(command), epilog=epilog(command.__name__))(command)
