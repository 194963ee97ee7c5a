"""Data with a few outliers of any size: is the fit to the other rows what it would be without them?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from contestants import EM, FAILURES, OURS, Fit, em, ours, timed
from harness import Store
from heldout import warm_up
from problems import Draw, Problem, random_mixture

PART = "outliers"
N, K = 600, 3
SIZES = 1e3, 1e5, 1e7, 1e10, 1e15
SEEDS = 5


def run(store: Store, first_seed: int) -> Iterator[None]:
    """Fit what is not stored yet; yield after each dimension."""
    fits: dict[str, Fit] = {EM: em(), OURS: ours()}
    warm_up(fits)
    for d in (2, 5):
        for seed in range(first_seed, first_seed + SEEDS):
            rng = np.random.default_rng(seed)
            x, _ = random_mixture(d, K, 3.0, 30 + d)(N, rng)
            directions = rng.standard_normal((5, d))
            directions /= np.linalg.norm(directions, axis=1, keepdims=True)
            cases = [(K, count, size) for count in (1, 5) for size in SIZES]
            for k, count, size in [(K, 0, 0.0), (K - 1, 0, 0.0), *cases]:
                far = directions[:count] * size * x.std(0)
                for name, fit in fits.items():
                    about = {"part": PART, "d": d, "k": k, "count": count, "size": size, "method": name, "seed": seed}
                    if not store.find(**about):
                        store.add(**about, others=_score_of_others(fit, x, far, k, seed))
        yield


def _score_of_others(fit: Fit, x: np.ndarray, far: np.ndarray, k: int, seed: int) -> float | None:
    """Return the mean log likelihood of the rows x after a fit to them and the outliers; None if the fit fails."""
    problem = Problem("outliers", k, "full", lambda _: Draw(x, x, None))
    try:
        return timed(fit, np.concatenate([x, far]), problem, seed)[0].score(x)
    except FAILURES:
        return None


def lines(store: Store) -> list[str]:
    """Return the log likelihoods of the other rows."""
    records = store.find(part=PART)
    if not records:
        return []

    def cell(method: str, **fields: float) -> str:
        found = [r["others"] for r in store.find(part=PART, method=method, **fields)]
        scores = [score for score in found if score is not None]
        failed = f", {len(found) - len(scores)} of {len(found)} failed" if len(scores) < len(found) else ""
        return f"{np.mean(scores):.4f} (worst {np.min(scores):.4f}){failed}" if scores else "all failed"

    rows = []
    for d, k, count, size in dict.fromkeys((r["d"], r["k"], r["count"], r["size"]) for r in records):
        fields = {"d": d, "k": k, "count": count, "size": size}
        what = f"{count} of {size:.0e}" if count else "none"
        rows.append(f"| {d} | {k} | {what} | {cell(OURS, **fields)} | {cell(EM, **fields)} |")
    return [
        "## Outliers",
        "",
        f"{N} rows of {K} components, and outliers in random directions, so many standard deviations away. Mean log "
        f"likelihood of the {N} rows, without the outliers: mean over {SEEDS} seeds, and the worst. An outlier with a "
        f"component of its own leaves {K - 1} for the other rows.",
        "",
        f"| d | k | outliers | {OURS} | {EM} |",
        "|---|---|---|---|---|",
        *rows,
    ]
