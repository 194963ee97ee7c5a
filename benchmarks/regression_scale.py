"""Regressors that predict distributions on tables of many rows: time of a fit, peak memory and CRPS.

    python benchmarks/regression_scale.py [--rows 10000 100000 1000000] [--threads 1]

The table is simulated: ten features, a mean and a scale that depend on them, and two branches. Each fit runs in a
process of its own. Times are CPU times, so that other work on the machine counts little. NGBoost runs 500 rounds, its
default, without early stopping, and LightGBM fits a model for each of 19 quantiles, at most 500 rounds with early
stopping. Both take long for many rows: there the time of 5 rounds, and of 2 quantiles, is multiplied, without a CRPS.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
METHODS = ("cramix trees", "LightGBM, quantiles", "NGBoost")
HELD = 10_000
# The times of NGBoost and of LightGBM are extrapolated from this many rows on.
EXTRAPOLATED = 50_000


def table(n: int, seed: int):
    import numpy as np

    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 10))
    branch = rng.choice([-1, 1], n) * np.maximum(X[:, 2], 0)
    y = np.sin(2 * X[:, 0]) + X[:, 1] * (X[:, 3] > 0) + branch + np.exp(0.5 * X[:, 4] - 1) * rng.normal(size=n)
    return X, y


def fit(method: str, n: int, threads: int) -> None:
    """Fit in this process, and print seconds, megabytes and CRPS."""
    import numpy as np
    import torch

    from cramix import MixtureBoostingRegressor, NormalMixture, crps

    torch.set_num_threads(threads)
    X, y = table(n, 0)
    held, observed = table(HELD, 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, factor = time.process_time(), 1.0
    if method == "cramix trees":
        p = MixtureBoostingRegressor(random_state=0, n_jobs=threads).fit(X, y).predict_dist(held)
    elif method == "NGBoost":
        from ngboost import NGBRegressor

        rounds = 500 if n < EXTRAPOLATED else 5
        factor = 500 / rounds
        found = NGBRegressor(n_estimators=rounds, verbose=False, random_state=0).fit(X, y).pred_dist(held)
        means, scales = (torch.as_tensor(np.array(a)).unsqueeze(-1) for a in (found.loc, found.scale))
        p = NormalMixture(torch.ones_like(means), means, scales)
    else:
        import lightgbm

        columns = []
        levels = np.arange(1, 20) / 20 if n < EXTRAPOLATED else np.array([0.25, 0.5])
        factor = 19 / len(levels)
        for level in levels:
            model = lightgbm.LGBMRegressor(
                objective="quantile", alpha=level, n_estimators=500, n_jobs=threads, verbose=-1
            )
            cut, stop = int(0.9 * n), lightgbm.early_stopping(50, verbose=False)
            model.fit(X[:cut], y[:cut], eval_set=[(X[cut:], y[cut:])], callbacks=[stop])
            columns.append(model.predict(held))
        p = NormalMixture.from_samples(torch.as_tensor(np.sort(np.stack(columns, 1), 1)))
    seconds = factor * (time.process_time() - started)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    score = crps(p, torch.from_numpy(observed)).mean().item() if factor == 1 else float("nan")
    print(seconds, grown, score)


def main(rows: list[int], threads: int) -> None:
    from harness import Page, machine

    import cramix

    intro = [
        "# Regression on many rows",
        "",
        f"`python benchmarks/regression_scale.py --threads {threads}`, {machine(cramix)}.",
        "",
        "A simulated table of ten features. Memory is the growth of the peak by the fit, beyond the table itself. "
        f"Times are CPU times. From {EXTRAPOLATED:,} rows on NGBoost's is that of 5 rounds, times 100, and LightGBM's "
        "that of two quantiles, times 9.5.",
    ]
    page = Page(HERE / "regression_scale.md", intro)
    page.add(["| rows | method | time | memory | CRPS |", "|---|---|---|---|---|"])
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    for n in rows:
        for method in METHODS:
            command = [sys.executable, "-W", "ignore", __file__, "--fit", method, str(n), str(threads)]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
            seconds, grown, score = map(float, done.stdout.split()[-3:])
            shown = "" if score != score else f"{score:.4f}"
            page.extend([f"| {n:,} | {method} | {seconds:.1f} s | {grown:.0f} MB | {shown} |"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--fit", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fit:
        fit(options.fit[0], int(options.fit[1]), int(options.fit[2]))
    else:
        main(options.rows, options.threads)
