"""How time and memory grow with dimensions and components."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from contestants import EM, OURS, Fit, em, ours, timed
from harness import Store, peak_megabytes, print_growth
from heldout import Row, rows_of, run, warm_up
from problems import Draw, Problem, random_mixture

PART, MEMORY = "growth", "growth, memory"
FIGURE = "fitting_growth.svg"
DIMENSIONS = 2, 5, 10, 20, 50, 100, 200
COMPONENTS = 2, 4, 8, 16, 32, 64
KINDS = "full", "tied", "diag"
SEEDS = 3
WITH_D, WITH_K, LARGE = "dimensions", "components", "large"
FITS: dict[str, Fit] = {EM: em(), OURS: ours()}


def growing() -> list[Problem]:
    by_d = [_problem(WITH_D, 5000, d, 5, kind) for kind in KINDS for d in DIMENSIONS]
    by_k = [_problem(WITH_K, 2000, 2, k, "full") for k in COMPONENTS]
    return [*by_d, *by_k, _problem(LARGE, 20_000, 42, 5, "full"), _problem(LARGE, 60_000, 20, 10, "full")]


def _problem(series: str, n: int, d: int, k: int, kind: str) -> Problem:
    """Components of different shapes, with some overlap in every dimension."""

    def draw(seed: int) -> Draw:
        rng = np.random.default_rng(seed)
        sample = random_mixture(d, k, 3 / d**0.5 if series != WITH_K else 3.0, 40 + d + k)
        (x, classes), (held_out, others) = sample(n, rng), sample(5000, rng)
        return Draw(x, held_out, np.concatenate([classes, others]))

    return Problem(f"{n:,} x {d}", k, kind, draw, series)


def run_all(store: Store, first_seed: int) -> Iterator[None]:
    """Fit what is not stored yet; yield after each problem."""
    yield from run(store, PART, growing(), FITS, range(first_seed, first_seed + SEEDS))
    for method in FITS:
        if not store.find(part=MEMORY, method=method):
            store.add(part=MEMORY, method=method, megabytes=peak_megabytes(__file__, method))
    yield


def lines(store: Store, folder: Path) -> list[str]:
    """Draw the figure, and return it with its table."""
    rows = rows_of(store, PART)
    if not rows:
        return []
    _draw(rows, folder / FIGURE)
    by_problem = {problem: {r.method: r for r in rows if r.problem == problem} for problem in {r.problem for r in rows}}
    table = []
    for problem in dict.fromkeys(row.problem for row in rows):
        cells = []
        for method in FITS:
            row = by_problem[problem].get(method)
            cells.append(f"{_seconds(row):.3f} s" if row and row.fits else "failed")
        mine = by_problem[problem].get(OURS)
        if mine and mine.pairs:
            mean, error = mine.held_out_difference()
            cells += [f"{mine.time_ratio():.2f}", f"{mean:+.4f} ± {error:.4f}"]
        else:
            cells += ["", ""]
        table.append(f"| {problem} | {' | '.join(cells)} |")
    peaks = [f"{r['method']} {r['megabytes']:.0f} MB" for r in store.find(part=MEMORY)]
    return [
        "## Growth with dimensions and components",
        "",
        f"![time against dimensions and components]({FIGURE})",
        "",
        f"Components of different shapes; {SEEDS} seeds. Time: median. Held-out: log likelihood of 5,000 new rows less "
        f"that of {EM}, mean and standard error.",
        "",
        *([f"Growth of the peak memory by a fit to 5,000 x 200, k 5, full: {', '.join(peaks)}.", ""] if peaks else []),
        f"| data | {EM} | {OURS} | relative time | held-out |",
        "|---|---|---|---|---|",
        *table,
    ]


def _seconds(row: Row) -> float:
    return float(np.median([fit["seconds"] for fit in row.fits]))


def _draw(rows: list[Row], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    styles = {
        OURS: {"linestyle": "-", "marker": "o"},
        EM: {"linestyle": "--", "marker": "s", "markerfacecolor": "white"},
    }
    colors = {"full": "tab:blue", "tied": "tab:orange", "diag": "tab:green"}
    figure, (by_d, by_k) = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained")
    for method, style in styles.items():
        mine = [row for row in rows if row.method == method and row.fits]
        for kind, color in colors.items():
            line = [row for row in mine if row.group == WITH_D and row.problem.endswith(kind)]
            by_d.plot([r.d for r in line], [_seconds(r) for r in line], color=color, label=f"{method}, {kind}", **style)
        line = [row for row in mine if row.group == WITH_K]
        by_k.plot([r.k for r in line], [_seconds(r) for r in line], color=colors["full"], label=method, **style)
    by_d.set_xlabel("dimensions (5,000 rows, 5 components)")
    by_k.set_xlabel("components (2,000 rows in the plane, full)")
    for axes, ticks in ((by_d, DIMENSIONS), (by_k, COMPONENTS)):
        if not any(len(line.get_xdata()) for line in axes.lines):  # the run has just begun
            continue
        axes.set(xscale="log", yscale="log", ylabel="seconds")
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1))
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peak", choices=FITS, required=True, help="print the growth of the peak memory by one fit")
    fit = FITS[parser.parse_args().peak]
    warm_up({"": fit})
    problem = _problem(WITH_D, 5000, 200, 5, "full")
    x = problem.draw(0).x

    def once() -> None:
        with suppress(TimeoutError):
            timed(fit, x, problem, 0)

    print_growth(once)


if __name__ == "__main__":
    main()
