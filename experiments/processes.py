"""Jobs in processes of their own.

Not `concurrent.futures.ProcessPoolExecutor`: before Python 3.14 it cannot stop jobs that are running, and it does not
report which job's process died.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any, cast


def run_jobs(work: Callable[..., Any], jobs: Mapping[str, tuple], count: int) -> Iterator[tuple[str, Any]]:
    """Yield names and results of jobs as they finish. The first error terminates the other jobs and is raised.

    Args:
        work: a function of a module.
        jobs: its arguments, by the name of the job.
        count: number of processes at a time.
    """
    waiting = list(jobs.items())[::-1]
    for name, result in run_queue(work, lambda: waiting.pop() if waiting else None, count):
        if isinstance(result, BaseException):
            raise result
        yield name, result


def run_queue(
    work: Callable[..., Any], choose: Callable[[], tuple[str, tuple] | None], count: int, seconds: float | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield names and results of jobs as they finish, until a time limit. An error of a job is its result.

    Args:
        work: a function of a module.
        choose: returns the name and the arguments of the next job, when a process is free; None if there is none yet.
        count: number of processes at a time.
        seconds: after which jobs that are still running are terminated.
    """
    # Spawned: a fork would share the threads of torch.
    context = multiprocessing.get_context("spawn")
    limit = None if seconds is None else time.monotonic() + seconds
    running: dict[Connection, tuple[str, Any]] = {}
    try:
        while True:
            while len(running) < count and (job := choose()) is not None:
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_job, args=(theirs, work, job[1]))
                process.start()
                theirs.close()
                running[ours] = job[0], process
            left = None if limit is None else limit - time.monotonic()
            if not running or (left is not None and left <= 0):
                return
            for ready in wait(list(running), left):
                ours = cast(Connection, ready)
                result, error = _receive(ours, *running[ours])
                name, _ = running.pop(ours)
                yield name, result if error is None else error
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join()


def _receive(connection: Connection, name: str, process: Any) -> tuple[Any, BaseException | None]:
    """Return the result or the error of a process, or an error if it died."""
    try:
        return connection.recv()
    except EOFError:
        process.join()
        code = process.exitcode
        cause = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        return None, ChildProcessError(f"The process of {name} {cause}. Run again: finished runs are kept.")
    finally:
        process.join()
        connection.close()


def _job(connection: Connection, work: Callable[..., Any], arguments: tuple) -> None:
    """Send the result or the error of the work; exit if the parent process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent, which terminates us
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        answer: tuple[Any, Exception | None] = work(*arguments), None
    except Exception as error:
        error.add_note(traceback.format_exc())
        answer = None, error if _can_be_pickled(error) else RuntimeError("".join(traceback.format_exception(error)))
    connection.send(answer)


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _can_be_pickled(error: Exception) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # of any kind
        return False
    return True
