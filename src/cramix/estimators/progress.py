"""A progress bar for fits, drawn by rich."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cramix.fitting import Step


@contextmanager
def progress_bar(verbose: int) -> Iterator[Callable[[Step], None] | None]:
    """Yield what `fit` calls with every step: None for 0, a bar from 1 on, lines too from 2 on."""
    if not verbose:
        yield None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    except ImportError:
        raise ImportError("A progress bar needs rich. Use: pip install 'cramix[sklearn]'") from None
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), TimeElapsedColumn()
    # A console of its own, since one console shows one thing at a time, and fits may run beside each other.
    with Progress(*columns, console=Console()) as bar:
        task = bar.add_task("starting", total=None)

        def show(step: Step) -> None:
            text = f"{step.name}, {step.components} components, loss {step.loss:.6g}"
            bar.update(task, description=text)
            if verbose > 1:
                bar.console.print(f"{step.seconds:8.2f} s  {text}", highlight=False)

        yield show
        bar.update(task, total=1, completed=1)
