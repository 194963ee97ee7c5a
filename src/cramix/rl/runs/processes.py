"""Jobs in processes of their own, some at a time; all end together."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any, cast


def each_in_its_own(work: Callable[..., Any], jobs: Mapping[str, tuple], count: int) -> Iterator[tuple[str, Any]]:
    """Yield names and results of jobs as they are done. The first error ends all of them, and is raised here.

    Args:
        work: a function of a module.
        jobs: its arguments, by the name of the job.
        count: processes at a time.
    """
    # A new process for each: a fork would share the threads of torch with us.
    context = multiprocessing.get_context("spawn")
    waiting = list(jobs.items())[::-1]
    running: dict[Connection, tuple[str, Any]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < count:
                name, arguments = waiting.pop()
                here, there = context.Pipe(duplex=False)
                process = context.Process(target=_job, args=(there, work, arguments))
                process.start()
                there.close()
                running[here] = name, process
            for ready in wait(list(running)):
                here = cast(Connection, ready)
                name, process = running[here]
                result, error = _received(here, name, process)
                del running[here]
                if error is not None:
                    raise error
                yield name, result
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join()


def _received(connection: Connection, name: str, process: Any) -> tuple[Any, BaseException | None]:
    """Return what a process has sent, or that it has ended without a word."""
    try:
        return connection.recv()
    except EOFError:
        process.join()
        code = process.exitcode
        ended = f"by signal {-code}" if code < 0 else f"with code {code}"
        return None, ChildProcessError(f"the process of {name} ended {ended}. Start again: what is done stays done.")
    finally:
        process.join()
        connection.close()


def _job(connection: Connection, work: Callable[..., Any], arguments: tuple) -> None:
    """Send what work returns or raises, in a process that ends with the one that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that started us, which ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        answer: tuple[Any, Exception | None] = work(*arguments), None
    except Exception as error:
        error.add_note(traceback.format_exc())
        answer = None, error if _can_be_sent(error) else RuntimeError("".join(traceback.format_exception(error)))
    connection.send(answer)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _can_be_sent(error: Exception) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # of all kinds
        return False
    return True
