"""Shared by the benchmarks: turns, time limits, the paper's formula, peak memory, stored results, pages of results.

The methods of a table take turns, so that a slow period of the machine affects all of them. Ratios are medians over the
turns, followed by the smallest and the largest.
"""

from __future__ import annotations

import json
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F

TURNS = 9


def paper_unit(m1: torch.Tensor, s1: torch.Tensor, m2: torch.Tensor, s2: torch.Tensor) -> torch.Tensor:
    """The unit of the paper's appendix B: twice GELU minus z plus a Gaussian, times the standard deviation."""
    scale = torch.sqrt(s1**2 + s2**2 + 1e-20)
    z = (m1 - m2) / scale
    return scale * (2 * F.gelu(z) - z + 0.797884560802865356 * torch.exp(-(z**2) / 2))


def paper_term(p: list[torch.Tensor], q: list[torch.Tensor]) -> torch.Tensor:
    (w1, m1, s1), (w2, m2, s2) = [t.unsqueeze(-1) for t in p], [t.unsqueeze(-2) for t in q]
    return (w1 * w2 * paper_unit(m1, s1, m2, s2)).sum((-1, -2))


def with_gradients(loss: Callable[[], torch.Tensor], leaves: list[torch.Tensor]) -> Callable[[], None]:
    return lambda: torch.autograd.grad(loss(), leaves)


def take_turns(contestants: dict[str, Callable[[], object]], turns: int = TURNS) -> dict[str, list[float]]:
    """Return the seconds per call of each method, one number per turn."""
    repeats = {}
    for name, run in contestants.items():
        run(), run()
        started = time.perf_counter()
        run()
        repeats[name] = max(1, min(2000, int(0.15 / (time.perf_counter() - started))))
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(turns):
        for name, run in contestants.items():
            started = time.perf_counter()
            for _ in range(repeats[name]):
                run()
            times[name].append((time.perf_counter() - started) / repeats[name])
    return times


def report(times: dict[str, list[float]], baseline: str) -> list[str]:
    """Return the rows of a table: method, median time, speed relative to the baseline (smallest to largest)."""
    rows = []
    for name, seconds in times.items():
        ratios = sorted(b / t for b, t in zip(times[baseline], seconds, strict=True))
        speed = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})" if name != baseline else "1"
        rows.append(f"| {name} | {1e3 * statistics.median(seconds):.3g} ms | {speed} |")
    return rows


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block after so many seconds, as soon as it returns to Python."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Store:
    """Results in a file of JSON lines, so that a benchmark which was stopped goes on where it was."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / ".gitignore").write_text("*\n")
        self.path = path
        self.records: list[dict[str, Any]] = []
        if path.exists():
            self.records = [json.loads(line) for line in path.read_text().splitlines()]

    def add(self, **record: Any) -> None:
        self.records.append(record)
        with self.path.open("a") as file:
            print(json.dumps(record), file=file)

    def find(self, **fields: Any) -> list[dict[str, Any]]:
        """Return the records with these values."""
        return [r for r in self.records if all(r.get(name) == value for name, value in fields.items())]

    def forget(self, **fields: Any) -> None:
        gone = self.find(**fields)
        self.records = [record for record in self.records if record not in gone]
        self.path.write_text("".join(json.dumps(record) + "\n" for record in self.records))


class Page:
    """A page of results, printed as it grows."""

    def __init__(self, path: Path, intro: list[str]) -> None:
        self.path = path
        self.lines: list[str] = []
        self.add(intro)

    def add(self, block: list[str]) -> None:
        self._write([*block, ""])

    def extend(self, rows: list[str]) -> None:
        """Add rows to the last table."""
        self.lines.pop()
        self._write([*rows, ""])

    def _write(self, lines: list[str]) -> None:
        self.lines += lines
        print("\n".join(lines), flush=True)
        self.path.write_text("\n".join(self.lines))

    def section(self, title: str, rows: list[str], note: str = "") -> None:
        head = [f"## {title}", "", *([note, ""] if note else [])]
        self.add([*head, "| method | time | speed relative to the first row |", "|---|---|---|", *rows])


def peak_megabytes(script: str, which: str) -> float:
    """Return the growth of the peak resident memory by one evaluation with gradients, in a separate process."""
    command = [sys.executable, script, "--peak", which]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_growth(run: Callable[[], object]) -> None:
    """Print the growth of the peak resident memory in megabytes; the caller warms up before."""
    Path("/proc/self/clear_refs").write_text("5")  # Linux: resets the peak
    before = _status("VmRSS")
    run()
    print((_status("VmHWM") - before) / 1024)


def _status(field: str) -> int:
    """Return a field of the status of the process, in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def machine(*modules: ModuleType) -> str:
    cpu = platform.processor()
    if Path("/proc/cpuinfo").exists():
        names = [x.split(":")[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x]
        cpu = names[0] if names else cpu
    versions = {m.__name__: m.__version__ for m in modules}
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{cpu}, {torch.get_num_threads()} threads; Python {platform.python_version()}, {listed}"
