"""Processes of a comparison: all that are done are told, an error ends the others at once, and none outlives us."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.processes import run_jobs, run_queue


def double(x: int) -> int:
    return 2 * x


def fail_at(x: int, bad: int) -> int:
    if x == bad:
        raise ValueError(f"{x} must be another one")
    time.sleep(600)
    return x


class Odd(Exception):
    """An error that cannot go from one process to another."""

    def __init__(self, a, b):
        super().__init__("odd")


def oddly(x: int) -> None:
    raise Odd(x, x)


def end_by(how: str) -> None:
    if how == "code":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


def test_all_are_told_some_at_a_time():
    found = dict(run_jobs(double, {str(i): (i,) for i in range(5)}, 2))
    assert found == {str(i): 2 * i for i in range(5)}


@pytest.mark.parametrize(("bad", "count"), [(0, 1), (1, 2)])
def test_the_first_error_ends_all(bad, count):
    """The others would take ten minutes."""
    with pytest.raises(ValueError, match="must be another one") as caught:
        list(run_jobs(fail_at, {str(i): (i, bad) for i in range(4)}, count))
    assert "in fail_at" in caught.value.__notes__[0]
    assert not multiprocessing.active_children()


def test_an_error_of_any_kind_is_told():
    with pytest.raises(RuntimeError, match="Odd: odd"):
        list(run_jobs(oddly, {"a": (1,)}, 1))


@pytest.mark.parametrize(("how", "words"), [("signal", "was killed by signal 9"), ("code", "exited with code 3")])
def test_a_process_that_ends_without_a_word_is_named(how, words):
    with pytest.raises(ChildProcessError, match=f"The process of seed 7 {words}. Run again"):
        list(run_jobs(end_by, {"seed 7": (how,)}, 1))


def sleep_or_fail(seconds: float) -> float:
    if seconds < 0:
        raise ValueError("time goes forward")
    time.sleep(seconds)
    return seconds


@pytest.mark.slow
def test_a_queue_goes_on_after_errors_and_stops_at_its_limit():
    jobs = [("long", (600.0,)), ("short", (0.0,)), ("wrong", (-1.0,))]
    found = dict(run_queue(sleep_or_fail, lambda: jobs.pop() if jobs else None, 2, seconds=20.0))
    assert set(found) == {"short", "wrong"}
    assert found["short"] == 0.0
    assert str(found["wrong"]) == "time goes forward"
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
def test_none_outlives_the_one_that_started_it(by, tmp_path):
    script, told = tmp_path / "outer.py", tmp_path / "pid"
    script.write_text("""
import os, pathlib, sys, time

def work(path):
    pathlib.Path(path).write_text(str(os.getpid()))
    time.sleep(600)

if __name__ == "__main__":
    from experiments.processes import run_jobs

    list(run_jobs(work, {"a": (sys.argv[1],)}, 1))
""")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}  # the script lies elsewhere
    outer = subprocess.Popen([sys.executable, str(script), str(told)], env=environment)
    waited_for(lambda: told.exists() and told.read_text())
    outer.send_signal(by)
    outer.wait()
    waited_for(lambda: not lives(int(told.read_text())))


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # one that nobody has asked after has ended too


def waited_for(what) -> None:
    """Return when it is so, within two minutes."""
    for _ in range(1200):
        if what():
            return
        time.sleep(0.1)
    raise AssertionError("it never came")
