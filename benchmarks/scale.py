"""Fits to files of 10^6, 10^7 and 10^8 rows: cramix and others, each in a process of its own, on two cores."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import large_files
import numpy as np
import sklearn
import torch
from harness import Store, machine
from large_fits import (
    CONTESTANTS,
    EM,
    EM_EXACT,
    ENGINES,
    OURS,
    OURS_ONE_PASS,
    READ_THRICE,
    REFERENCE,
    SPARK,
    SPARK_MEMORY,
)

import cramix

RESULTS = Path(__file__).with_name("scale.md")
STORED = Path(__file__).parent / ".stored" / "scale.jsonl"
ROWS = 10**6, 10**7, 10**8
ENGINE_ROWS = 10**6
START_UP = 120  # seconds for imports and the start of Java, which do not count
# What is wanted: nats below EM on all rows, speed relative to others, growth of memory, and its size in MB.
LOSS, FASTER_THAN_SPARK, FASTER_THAN_EM, GROWTH, MEGABYTES = 1e-3, 5, 10, 1.1, 1000
SPEED_ROWS = 10**7  # at which the speed is judged
# For the plan: numbers of rows, and of machines of 16 cores each.
PLANNED_ROWS, PLANNED_MACHINES, MACHINE_CORES = (10**10, 10**12), (10, 1000), 16


def run(store: Store, options: argparse.Namespace) -> Iterator[None]:
    """Measure what is not stored yet; yield after each result."""
    for rows in options.rows:
        for name, contestant in CONTESTANTS.items():
            wanted = name.startswith(tuple(options.only)) and (contestant.most is None or rows <= contestant.most)
            if wanted and not store.find(part="fit", rows=rows, method=name):
                folder = large_files.make(options.folder, rows)
                found = measured(name, folder, options.limit)
                store.add(part="fit", rows=rows, method=name, **scored(found, folder, rows))
                yield
        yield from run_costs(store, options, rows)
    for name, engine in ENGINES.items():
        rows = options.engine_rows
        wanted = name.startswith(tuple(options.only)) and not store.find(part="engine", rows=rows, method=name)
        if wanted:
            folder = large_files.make(options.folder, rows, engine.files)
            found = measured(name, folder, options.limit)
            store.add(part="engine", rows=rows, method=name, **scored(found, folder, 0))
            yield


def run_costs(store: Store, options: argparse.Namespace, rows: int) -> Iterator[None]:
    """Measure single passes, with one core and with two; at the largest number of rows they end within seconds."""
    for cores in (1, 2):
        if "costs".startswith(tuple(options.only)) and not store.find(part="costs", rows=rows, cores=cores):
            found = measured("costs", large_files.make(options.folder, rows), options.limit, cores)
            store.add(**{**found, "part": "costs", "rows": rows, "cores": cores})
            yield


def measured(name: str, folder: Path, limit: float, cores: int = 2) -> dict[str, Any]:
    """Run one fit in a process of its own; return what it measured, or that it failed or was stopped."""
    script = Path(__file__).with_name("large_fits.py")
    command = [sys.executable, str(script), name, str(folder)]
    mine = sorted(os.sched_getaffinity(0))[:cores]
    print(f"{folder.name}: {name}", flush=True)
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: os.sched_setaffinity(0, mine),
    ) as process:
        try:
            output, errors = process.communicate(timeout=limit + START_UP)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes it has started
            process.communicate()
            return {"stopped": limit}
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        last = errors.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        return {"error": last[0][:200]}
    found = json.loads(output.strip().splitlines()[-1])
    return {"stopped": limit} if found["seconds"] > limit else found


def scored(found: dict[str, Any], folder: Path, rows: int) -> dict[str, Any]:
    """Replace the parameters of a fit by their scores on new rows, and on the rows of the files if these are few."""
    parameters = found.pop("parameters", None)
    if parameters is None:
        return found
    arrays = tuple(np.array(x) for x in parameters)
    found["held_out"] = large_files.score(arrays, iter(held_out()))
    if 0 < rows <= 10**6:
        found["training"] = large_files.score(arrays, large_files.blocks_of(folder))
    return found


@cache
def held_out() -> list[np.ndarray]:
    return list(large_files.held_out())


@cache
def true_score() -> float:
    return large_files.score(large_files.truth(), iter(held_out()))


def page(store: Store, options: argparse.Namespace) -> list[str]:
    """Return the page of all that is stored."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("pyarrow", "pyspark", "dask", "tgmm"))
    return [
        "# Fits to data of any size",
        "",
        "`python benchmarks/scale.py --folder FOLDER` (part of `make bench`) writes up to 4 GB of files to the folder "
        "and removes them; `--rows`, `--only` and `--limit` run parts of it.",
        "",
        f"{machine(torch, sklearn, cramix)}, {versions}.",
        "",
        f"Rows of a mixture of {large_files.COMPONENTS} components in {large_files.DIM} dimensions, with weights from "
        f"0.03 to 0.22; the most probable component of a row is wrong about once in nine times. They are in "
        f"{large_files.FILES} Parquet files in float32, written with pyarrow's defaults, which were in the page cache. "
        "All fits have as many components and full covariances. Each runs in a process of its own on two cores.",
        "",
        "- **Time** is from the files to the parameters, without imports and without the start of Java. Those who want "
        "an array read it with pyarrow, in float32.",
        "- **Passes** are those over all rows: EM steps for scikit-learn and Spark.",
        "- **Peak memory** is that of the process and all that it starts, with Python and libraries"
        f"{_libraries(store)}.",
        f"- **Held-out** is the mean log likelihood of {large_files.HELD_OUT:,} new rows, computed alike for all; that "
        f"of the true mixture is {true_score():.5f}, and the next column is the difference. **Training** is that of "
        "the rows in the files.",
        "- The **reference** is scikit-learn's EM on all rows, in float64, from the true parameters, which nobody has. "
        "It shows what EM on all rows can reach.",
        "- **scikit-learn** has `n_init=1` unless noted, `max_iter=1000`, and one thread for matrix products or two, "
        "whichever is faster.",
        f"- **Spark** has `local[2]`, `maxIter=100` and {SPARK_MEMORY} of memory. Its `tol` is compared with the log "
        "likelihood of all rows together: 0.01, the default, is a gain of 1e-8 a row at 10^6 rows. In the other line "
        "it is 1e-4 times the number of rows, which takes less time.",
        "- **tgmm** wants a first fit, which gets 20,000 rows and ten starts. Then come `partial_fit`s of 20,000 rows, "
        "as with cramix.",
        "",
        *summary(store),
        *(line for rows in sorted({r["rows"] for r in store.find(part="fit")}) for line in table(store, rows)),
        *engines(store, options),
        *plan(store),
    ]


def table(store: Store, rows: int) -> list[str]:
    """Return the table of the fits to so many rows."""
    records = store.find(part="fit", rows=rows)
    training = any("training" in r for r in records)
    head = ["method", "seconds", "passes", "peak memory", "rows/s", "held-out", "less the truth"]
    head += ["training"] if training else []
    lines = [f"## {rows:,} rows", "", _line(head), _ruler(len(head))]
    for record in sorted(records, key=lambda r: list(CONTESTANTS).index(r["method"])):
        if "seconds" not in record:
            lines.append(_line([record["method"], _failure(record), *[""] * (len(head) - 2)]))
            continue
        cells = [
            record["method"],
            f"{record['seconds']:.1f}" + (f" (Java: {record['start']:.0f} more)" if "start" in record else ""),
            _passes(record),
            f"{record['megabytes']:,.0f} MB",
            f"{rows / record['seconds']:,.0f}",
            f"{record['held_out']:.5f}" if "held_out" in record else "",
            f"{record['held_out'] - true_score():+.5f}" if "held_out" in record else "",
        ]
        lines.append(_line(cells + ([f"{record['training']:.5f}" if "training" in record else ""] if training else [])))
    return [*lines, ""]


def engines(store: Store, options: argparse.Namespace) -> list[str]:
    """Return the table of the kinds of data that cramix takes."""
    records = store.find(part="engine", rows=options.engine_rows)
    if not records:
        return []
    head = ["data", "seconds", "peak memory", "one EM pass: rows/s", "held-out, less the truth"]
    lines = [
        f"## cramix on {options.engine_rows:,} rows from different places",
        "",
        "A fit to up to a million rows reads them once, and is then that to an array. With more rows it goes on with "
        "EM passes, one of which was timed. Dask and Spark ran on this machine, with one thread for each task. Their "
        "time does not count their start, but the first imports of their workers.",
        "",
        _line(head),
        _ruler(len(head)),
    ]
    for r in records:
        if "seconds" not in r:
            lines.append(_line([r["method"], _failure(r), "", "", ""]))
            continue
        memory, speed = f"{r['megabytes']:,.0f} MB", f"{r['pass_rows_per_second']:,.0f}"
        cells = [r["method"], f"{r['seconds']:.1f}", memory, speed, f"{r['held_out'] - true_score():+.5f}"]
        lines.append(_line(cells))
    return [*lines, ""]


def summary(store: Store) -> list[str]:
    """Return how the results compare with what is wanted."""
    lines = ["## Summary", "", _line(["wanted", "measured", ""]), _ruler(3)]
    ours = {r["rows"]: r for r in store.find(part="fit", method=OURS) if "seconds" in r}
    for rows, mine in sorted(ours.items()):
        for name in (REFERENCE, EM_EXACT, EM):
            for other in store.find(part="fit", method=name, rows=rows):
                if "held_out" in other:
                    difference = mine["held_out"] - other["held_out"]
                    wanted = f"held-out log likelihood at {rows:,} rows at most {LOSS:g} below {name}"
                    lines.append(_verdict(wanted, f"{difference:+.5f}", difference >= -LOSS))
        for name, factor in ((SPARK, FASTER_THAN_SPARK), (EM, FASTER_THAN_EM), (EM_EXACT, FASTER_THAN_EM)):
            for other in store.find(part="fit", method=name, rows=rows):
                if "seconds" in other or "stopped" in other:
                    ratio = other.get("seconds", other.get("stopped")) / mine["seconds"]
                    text = f"{'more than ' if 'stopped' in other else ''}{ratio:.1f} times"
                    wanted = f"at {rows:,} rows {factor} times as fast as {name}"
                    wanted = wanted if rows == SPEED_ROWS else f"speed at {rows:,} rows relative to {name}"
                    lines.append(_verdict(wanted, text, ratio >= factor if rows == SPEED_ROWS else None))
        for read in store.find(part="fit", method=READ_THRICE, rows=rows):
            ratio = mine["seconds"] / read["seconds"]
            reading = f"{ratio:.1f} times, in {_passes(mine)} passes"
            lines.append(_verdict(f"time at {rows:,} rows relative to three reads of the files", reading, None))
    if ours:
        peaks = {rows: mine["megabytes"] for rows, mine in sorted(ours.items())}
        listed = ", ".join(f"{x:,.0f}" for x in peaks.values()) + " MB"
        growth, numbers = max(peaks.values()) / min(peaks.values()), ", ".join(f"{rows:,}" for rows in peaks)
        if len(peaks) > 1:
            lines.append(_verdict(f"peak memory at {numbers} rows within 10 %", listed, growth < GROWTH))
        lines.append(_verdict("peak memory below 1 GB", listed, max(peaks.values()) < MEGABYTES))
    return [*lines, ""] if ours else []


def plan(store: Store) -> list[str]:
    """Return the cost of the passes, and what follows from it for more rows and more machines."""
    records = [r for r in store.find(part="costs") if "survey_rows_per_second" in r]
    if not records:
        return []
    rows = max(r["rows"] for r in records)
    lines = [
        "## What a pass costs",
        "",
        f"{rows:,} rows. The first pass draws the sample of a million rows; each of the others is one EM step.",
        "",
        "| pass | cores | rows/s | rows/s and core | sent to each worker | sent back by all together |",
        "|---|---|---|---|---|---|",
    ]
    for name, text in (("survey", "first"), ("expectation", "EM")):
        for r in sorted((r for r in records if r["rows"] == rows), key=lambda r: r["cores"]):
            speed, back = r[f"{name}_rows_per_second"], r[f"{name}_bytes_back"]
            each = f"{_bytes(back)} once: the sample" if name == "survey" else f"{_bytes(back)} by each task"
            sent = _bytes(r[f"{name}_bytes_out"])
            lines.append(f"| {text} | {r['cores']} | {speed:,.0f} | {speed / r['cores']:,.0f} | {sent} | {each} |")
    largest = [r for r in records if r["rows"] == rows]
    return [*lines, "", *_limits(largest), *_planned(store, largest)]


def _limits(records: list[dict[str, Any]]) -> list[str]:
    """Return what a pass takes at least: core time of reading and of the arithmetic, for each row."""
    records = [r for r in records if "read_ns" in r]
    if not records:
        return []
    r = max(records, key=lambda r: r["cores"])
    arithmetic = r["densities_ns"] + r["sums_ns"] + r["exponentials_ns"]
    fastest = r["flops"] / r["gigaflops"] + r["exponentials_ns"]
    return [
        "## Why not as fast as reading three times",
        "",
        "Core time for each row, in nanoseconds. Matrix products are timed for the shapes of a pass, and for large "
        f"square matrices, where a core reaches {r['gigaflops']:.0f} GFlop/s.",
        "",
        _line(["", "ns"]),
        _ruler(2),
        _line(["reading with pyarrow, once", f"{r['read_ns']:.1f}"]),
        _line([f"matrix products for log densities, {r['flops'] / 2:,.0f} flop", f"{r['densities_ns']:.1f}"]),
        _line([f"matrix products for sums, {r['flops'] / 2:,.0f} flop", f"{r['sums_ns']:.1f}"]),
        _line(["exponentials", f"{r['exponentials_ns']:.1f}"]),
        _line(["an EM pass in all", f"{r['pass_ns']:.1f}"]),
        _line(["three reads", f"{3 * r['read_ns']:.0f}"]),
        _line(["three reads and the arithmetic of two EM passes", f"{3 * r['read_ns'] + 2 * arithmetic:.0f}"]),
        _line(["the same if products were as fast as large ones", f"{3 * r['read_ns'] + 2 * fastest:.0f}"]),
        "",
        "A fit reads the files three times and computes two EM steps on the way, so it cannot be as fast as three "
        "reads alone, however the steps are written.",
        "",
    ]


def _planned(store: Store, records: list[dict[str, Any]]) -> list[str]:
    """Return the time of fits to more rows on more machines, from the speed of a core."""
    rows = records[0]["rows"]
    fits = [r for r in store.find(part="fit", method=OURS) if "seconds" in r and r["rows"] > ENGINE_ROWS]
    single = [r for r in store.find(part="fit", method=OURS_ONE_PASS, rows=rows) if "seconds" in r]
    if not fits or not single:
        return []
    both = max(records, key=lambda r: r["cores"])
    first, later = (both[f"{name}_rows_per_second"] / both["cores"] for name in ("survey", "expectation"))
    search = max(0.0, single[0]["seconds"] - rows / both["survey_rows_per_second"])
    passes = max(r["passes"] for r in fits)
    lines = [
        "## More rows, more machines",
        "",
        f"Computed, not measured: one first pass and {passes - 1} EM passes, the most that a fit here took, at the "
        f"speed of a core above, and {search:.0f} s of search on one machine. It assumes that files are read as fast "
        f"as rows are computed, {_bytes(4 * large_files.DIM * max(first, later))}/s for each core, and that no time is "
        f"lost to the engine; a machine has {MACHINE_CORES} cores.",
        "",
        f"| rows | {' | '.join(f'{machines:,} machines' for machines in PLANNED_MACHINES)} |",
        f"|---|{'---|' * len(PLANNED_MACHINES)}",
    ]
    for planned in PLANNED_ROWS:
        times = []
        for machines in PLANNED_MACHINES:
            cores = machines * MACHINE_CORES
            times.append(_duration(search + planned / cores * (1 / first + (passes - 1) / later)))
        lines.append(f"| {planned:.0e} | {' | '.join(times)} |".replace("e+", "e"))
    return [*lines, ""]


def _libraries(store: Store) -> str:
    found = [r["megabytes_libraries"] for r in store.find(part="costs") if "megabytes_libraries" in r]
    return f"; those of cramix take {max(found):,.0f} MB" if found else ""


def _passes(record: dict[str, Any]) -> str:
    return "in memory" if record["passes"] is None else str(record["passes"])


def _failure(record: dict[str, Any]) -> str:
    return f"not within {record['stopped']:,.0f} s" if "stopped" in record else f"failed: {record.get('error')}"


def _verdict(wanted: str, found: str, reached: bool | None) -> str:
    return _line([wanted, found, "" if reached is None else "yes" if reached else "**no**"])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _ruler(columns: int) -> str:
    return "|" + "---|" * columns


def _bytes(n: float) -> str:
    return f"{n / 1e6:.0f} MB" if n >= 1e7 else f"{n / 1e6:.1f} MB" if n >= 1e6 else f"{n / 1e3:.1f} kB"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="*", type=lambda x: int(float(x)), default=list(ROWS))
    parser.add_argument("--engine-rows", type=lambda x: int(float(x)), default=ENGINE_ROWS)
    parser.add_argument("--only", nargs="*", default=[""], help='first words of contestants, engines, or "costs"')
    parser.add_argument("--folder", type=Path, help="where to write the files; a temporary folder by default")
    parser.add_argument("--keep", action="store_true", help="leave the files there")
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds that one fit may take")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--stored", type=Path, default=STORED, help="results of single fits")
    parser.add_argument("--again", nargs="*", default=[], help="methods whose stored results are forgotten")
    options = parser.parse_args()
    store = Store(options.stored)
    for name in options.again:
        store.forget(method=name)
        store.forget(part=name)
    given, options.folder = options.folder, Path(tempfile.mkdtemp(dir=options.folder, prefix="cramix_rows_"))
    if options.keep and given is not None:
        options.folder.rmdir()
        options.folder = given
    try:
        for _ in run(store, options):
            options.out.write_text("\n".join(page(store, options)).strip() + "\n")
    finally:
        if not options.keep:
            shutil.rmtree(options.folder, ignore_errors=True)
    options.out.write_text("\n".join(page(store, options)).strip() + "\n")
    print("\n".join(summary(store)))


if __name__ == "__main__":
    main()
