"""Progress of fits: a bar, drawn by rich or in a notebook, or lines as scikit-learn prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cramix.extras import require
from cramix.fitting import Step
from cramix.fitting.held_out import HELD_OUT
from cramix.notebook import NotebookBar, in_notebook

Say = Callable[[str], None]


def line_printer(verbose: int, interval: int) -> Callable[[Step], None] | None:
    """Return what `fit` calls with every step: None for 0, a line every `interval` steps for 1, with details for 2.

    Held-out scores are always printed: they explain the shrinkage.
    """
    if not verbose:
        return None
    count = 0

    def show(step: Step) -> None:
        nonlocal count
        count += 1
        if step.name.startswith(HELD_OUT):
            print(f"  {step.name}: mean log likelihood {-step.loss:.6g}")
            return
        if count % interval:
            return
        details = f"\t {step.name}, {step.n_components} components, loss {step.loss:.6g}, {step.seconds:.2f} s"
        print(f"  Iteration {count}" + (details if verbose > 1 else ""))

    return show


@contextmanager
def progress_bar(verbose: int) -> Iterator[Callable[[Step], None] | None]:
    """Yield what is called with every step: None for 0, a bar from 1 on, lines too from 2 on."""
    if not verbose:
        yield None
        return
    with _notebook_bar() if in_notebook() else _terminal_bar() as (update, say):

        def show(step: Step) -> None:
            text = f"{step.name}, {step.n_components} components, loss {step.loss:.6g}"
            update(text)
            if verbose > 1:
                say(f"{step.seconds:8.2f} s  {text}")

        yield show


@contextmanager
def _terminal_bar() -> Iterator[tuple[Say, Say]]:
    """Yield what shows a text beside a bar, and what prints a line above it."""
    require("rich", "A progress bar needs rich. Use: pip install 'cramix[sklearn]'")
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), TimeElapsedColumn()
    # A console of its own: one console shows one bar at a time, and fits may run in parallel.
    with Progress(*columns, console=Console()) as bar:
        task = bar.add_task("starting", total=None)
        yield (
            lambda text: bar.update(task, description=text),
            lambda text: bar.console.print(text, highlight=False),
        )
        bar.update(task, total=1, completed=1)


@contextmanager
def _notebook_bar() -> Iterator[tuple[Say, Say]]:
    """Yield the same for a notebook, whose lines are below the bar."""
    bar = NotebookBar()
    yield bar.update, print
    bar.close()
