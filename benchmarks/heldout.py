"""Real tables and simulated data: held-out likelihood, agreement with the classes and time of each library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from contestants import EM, EM_ONE_THREAD, FAILURES, OURS, Fit, timed
from harness import Store
from problems import FEW_DIMENSIONS, MANY_DIMENSIONS, SIMULATED, Draw, Problem

GROUPS = FEW_DIMENSIONS, MANY_DIMENSIONS, SIMULATED
LEAST_DIFFERENCE = 1e-3  # of held-out scores; where two fits find the same optimum, less depends on their tolerance
INTRO = (
    "Every seed is a new split of a table, 70 % of the rows to fit and 30 % held out, or a new draw. Columns of tables "
    "have unit variance. Log likelihoods are means over rows, under the fitted parameters. The difference is to "
    f"{EM} on the same rows, with its standard error over the seeds. The Rand index is the adjusted one, of all rows "
    "against their classes: mean over the seeds. Time: median, and median ratio. Collapsed: fits with a component that "
    "has almost no variance in some direction beside the 1e-6 which is added for all. The Bayesian mixture has the "
    "default priors of scikit-learn, `n_init=10` and `max_iter=1000`; mclust has its default prior, with the model of "
    "the row's covariances, from its hierarchical start."
)


def run(store: Store, part: str, problems: list[Problem], fits: dict[str, Fit], seeds: range) -> Iterator[None]:
    """Fit what is not stored yet, the methods in turns; yield after each problem."""
    warm_up(fits)
    for problem in problems:
        done = {(r["method"], r["seed"]) for r in store.find(part=part, problem=str(problem))}
        for seed in seeds:
            missing = [name for name in fits if (name, seed) not in done]
            if missing:
                sample = problem.draw(seed)
                for name in missing:
                    about = {"part": part, "problem": str(problem), "group": problem.group, "method": name}
                    store.add(**about, seed=seed, **measured(fits[name], sample, problem, seed))
        yield


def warm_up(fits: dict[str, Fit]) -> None:
    """Fit something small, so that imports and caches do not count."""
    x = np.random.default_rng(0).standard_normal((100, 2))
    for fit in fits.values():
        fit(x, Problem("", 2, "full", lambda _: Draw(x, x, None)), 0)


def measured(fit: Fit, sample: Draw, problem: Problem, seed: int) -> dict[str, Any]:
    """Return the scores and the time of a fit, or the error that it ended with."""
    shape = {"n": len(sample.x), "d": sample.x.shape[1], "k": problem.n_components}
    try:
        fitted, seconds = timed(fit, sample.x, problem, seed)
        every = np.concatenate([sample.x, sample.held_out])
        return shape | {
            "train": fitted.score(sample.x),
            "held_out": fitted.score(sample.held_out),
            "rand": None if sample.classes is None else fitted.rand_index(every, sample.classes),
            "collapsed": fitted.collapsed(),
            "seconds": seconds,
        }
    except FAILURES as error:
        return shape | {"error": f"{type(error).__name__}: {error}"}


class Row(NamedTuple):
    """A method on a problem: its records, and those of the baseline on the same seeds."""

    problem: str
    method: str
    group: str
    n: int
    d: int
    k: int
    fits: list[dict[str, Any]]
    tried: int
    pairs: list[tuple[dict[str, Any], dict[str, Any]]]

    def mean(self, field: str) -> float | None:
        values = [fit[field] for fit in self.fits if fit[field] is not None]
        return float(np.mean(values)) if values else None

    def difference(self, field: str) -> np.ndarray:
        return np.array([fit[field] - base[field] for fit, base in self.pairs])

    def held_out_difference(self) -> tuple[float, float]:
        """Return the mean difference to the baseline, and its standard error."""
        less = self.difference("held_out")
        return float(less.mean()), float(less.std(ddof=1) / len(less) ** 0.5) if len(less) > 1 else np.inf

    def verdict(self) -> str:
        mean, error = self.held_out_difference()
        if abs(mean) <= max(2 * error, LEAST_DIFFERENCE):
            return "within"
        return "better" if mean > 0 else "worse"

    def time_ratio(self) -> float:
        return float(np.median([fit["seconds"] / base["seconds"] for fit, base in self.pairs]))


def rows_of(store: Store, part: str) -> list[Row]:
    """Return the rows in the order in which problems and methods were stored."""
    records = store.find(part=part)
    rows = []
    for problem in dict.fromkeys(r["problem"] for r in records):
        of_problem = [r for r in records if r["problem"] == problem]
        base = {r["seed"]: r for r in of_problem if r["method"] == EM and "error" not in r}
        for method in dict.fromkeys(r["method"] for r in sorted(of_problem, key=lambda r: r["method"] == OURS)):
            mine = [r for r in of_problem if r["method"] == method]
            fits = [r for r in mine if "error" not in r]
            pairs = [(r, base[r["seed"]]) for r in fits if r["seed"] in base]
            about = (mine[0][field] for field in ("group", "n", "d", "k"))
            rows.append(Row(problem, method, *about, fits, len(mine), pairs))
    return rows


def lines(store: Store, part: str) -> list[str]:
    """Return the summary and a table for each group."""
    rows = rows_of(store, part)
    if not rows:
        return []
    tables = [
        "",
        "| problem | method | held-out | difference | Rand index | training | difference: median (worst) | time "
        "| relative time | failed | collapsed |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    text = ["## Fits to new rows", "", INTRO, "", *_summary(rows)]
    for group in GROUPS:
        mine = [row for row in rows if row.group == group]
        if mine:
            text += ["", f"### {group}", *tables, *(_line(row) for row in mine)]
    return text


def _summary(rows: list[Row]) -> list[str]:
    """Count the rows on which each method is better or worse than the baseline, and its times."""
    text = [
        "### Summary",
        "",
        f"Held-out scores against {EM}, row by row: better or worse by more than two standard errors and more than "
        f"{LEAST_DIFFERENCE:g}, or neither. Fits that failed are left out of the scores and counted.",
        "",
        "| method | rows | better | within | worse | d >= 10: better | within | worse | time <= 1 | time > 2 "
        "| largest relative time | failed fits |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for method in dict.fromkeys(row.method for row in rows if row.method != EM):
        mine = [row for row in rows if row.method == method]
        paired = [row for row in mine if row.pairs]
        counts = [
            sum(row.verdict() == verdict for row in paired if row.d >= least)
            for least in (0, 10)
            for verdict in ("better", "within", "worse")
        ]
        ratios = [row.time_ratio() for row in paired]
        times = f"{sum(r <= 1 for r in ratios)} | {sum(r > 2 for r in ratios)} | {max(ratios, default=np.nan):.2f}"
        failed = sum(row.tried - len(row.fits) for row in mine)
        text.append(f"| {method} | {len(paired)} | {' | '.join(map(str, counts))} | {times} | {failed} |")
    worse = [row.problem for row in rows if row.method == OURS and row.pairs and row.verdict() == "worse"]
    slow = [row.problem for row in rows if row.method == OURS and row.pairs and row.time_ratio() > 2]
    text += ["", f"{OURS} is worse on: {'; '.join(worse) or 'none'}.", ""]
    text += [f"It takes more than twice the time on: {'; '.join(slow) or 'none'}.", ""]
    return [*text, *_with_one_thread(rows)]


def _with_one_thread(rows: list[Row]) -> list[str]:
    """Compare our times with those of scikit-learn on one thread."""
    seconds = {
        (row.problem, row.method): float(np.median([fit["seconds"] for fit in row.fits])) for row in rows if row.fits
    }
    pairs = [(seconds[p, OURS], seconds[p, m]) for p, m in seconds if m == EM_ONE_THREAD and (p, OURS) in seconds]
    if not pairs:
        return []
    ratios = [mine / other for mine, other in pairs]
    return [
        f"By default scikit-learn computes with all threads. With one it is up to "
        f"{max(seconds[p, EM] / seconds[p, m] for p, m in seconds if m == EM_ONE_THREAD):.0f} times as fast on these "
        f"tables. Relative to that, the time of {OURS} has a median of {np.median(ratios):.2f}, is at most 1 on "
        f"{sum(r <= 1 for r in ratios)} rows, above 2 on {sum(r > 2 for r in ratios)}, and {max(ratios):.1f} at most."
    ]


def _line(row: Row) -> str:
    label = row.problem if row.method == EM else ""
    if not row.fits:
        return f"| {label} | {row.method} | | | | | | | | {row.tried} of {row.tried} | |"
    held_out = training = part = ""
    if row.method != EM and row.pairs:
        mean, error = row.held_out_difference()
        train = row.difference("train")
        held_out, training = f"{mean:+.4f} ± {error:.4f}", f"{np.median(train):+.4f} ({train.min():+.4f})"
        part = f"{row.time_ratio():.2f}"
    rand, collapsed = row.mean("rand"), sum(fit["collapsed"] for fit in row.fits)
    failed = row.tried - len(row.fits)
    index = "n/a" if rand is None else f"{rand:.2f}"
    return (
        f"| {label} | {row.method} | {row.mean('held_out'):.4f} | {held_out} | {index} "
        f"| {row.mean('train'):.4f} | {training} | {np.median([fit['seconds'] for fit in row.fits]):.3f} s | {part} "
        f"| {f'{failed} of {row.tried}' if failed else ''} | {f'{collapsed} of {len(row.fits)}' if collapsed else ''} |"
    )
