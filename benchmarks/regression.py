"""Regression that predicts distributions: ours and others on held-out folds, by CRPS, likelihood and time.

    python benchmarks/regression.py [--held 3]

Two fits run at a time, each on one thread. The defaults of `MixtureRegressor` were chosen on other folds (for simulated
tables on other draws) than those reported.
"""

from __future__ import annotations

import math
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import importlib.metadata
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sklearn
import torch
from harness import Page, machine
from sklearn.model_selection import KFold
from tables import TABLES

import cramix
from cramix import MixtureRegressor, NormalMixture, crps

HERE = Path(__file__).parent
FOLDS, SEED = 5, 0
D = torch.float64
Predict = Callable[[np.ndarray, np.ndarray, np.ndarray, int], NormalMixture]


def ours(**settings: object) -> Predict:
    def predict(X: np.ndarray, y: np.ndarray, held: np.ndarray, seed: int) -> NormalMixture:
        return MixtureRegressor(random_state=seed, **settings).fit(X, y).predict_dist(held)  # type: ignore

    return predict


def _normal(means: np.ndarray, scales: np.ndarray) -> NormalMixture:
    m, s = (torch.as_tensor(x, dtype=D).unsqueeze(-1) for x in (means, scales))
    return NormalMixture(torch.ones_like(m), m, s)


def ngboost(X: np.ndarray, y: np.ndarray, held: np.ndarray, seed: int) -> NormalMixture:
    from ngboost import NGBRegressor

    found = NGBRegressor(verbose=False, random_state=seed).fit(X, y).pred_dist(held)
    return _normal(found.loc, found.scale)


def forest(X: np.ndarray, y: np.ndarray, held: np.ndarray, seed: int) -> NormalMixture:
    """Predict 200 quantiles as a sample, which has no density."""
    from quantile_forest import RandomForestQuantileRegressor

    model = RandomForestQuantileRegressor(n_estimators=500, min_samples_leaf=5, random_state=seed).fit(X, y)
    levels = ((np.arange(200) + 0.5) / 200).tolist()
    return NormalMixture.from_samples(torch.as_tensor(model.predict(held, quantiles=levels), dtype=D))


def process(X: np.ndarray, y: np.ndarray, held: np.ndarray, seed: int) -> NormalMixture:
    """Learn a length scale per feature and the noise, on at most 1000 rows: the time is cubic in them."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
    from sklearn.preprocessing import StandardScaler

    rows = np.random.default_rng(seed).permutation(len(X))[:1000]
    X, y = X[rows], y[rows]
    units = StandardScaler().fit(X)
    kernel = ConstantKernel() * RBF(np.ones(X.shape[1])) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed).fit(units.transform(X), y)
    return _normal(*model.predict(units.transform(held), return_std=True))


def zuko_mixture(X: np.ndarray, y: np.ndarray, held: np.ndarray, seed: int) -> NormalMixture:
    """zuko's conditional mixture by likelihood: one network with our widths, steps and early stopping."""
    import zuko

    torch.manual_seed(seed)
    order = torch.randperm(len(X))
    x_mean, x_scale, y_mean, y_scale = X.mean(0), X.std(0), y.mean(), y.std()
    x, t = torch.tensor((X - x_mean) / x_scale).float(), torch.tensor((y - y_mean) / y_scale).float().unsqueeze(-1)
    unseen, seen = order[: int(0.15 * len(X))], order[int(0.15 * len(X)) :]
    model = zuko.mixtures.GMM(1, X.shape[1], components=5, hidden_features=(64, 64), activation=torch.nn.SiLU)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=1e-3)
    best, since, kept = math.inf, 0, model.state_dict()
    for _ in range(400):
        shuffled = seen[torch.randperm(len(seen))]
        for index in shuffled.tensor_split(max(1, round(len(seen) / 64))):
            optimizer.zero_grad()
            (-model(x[index]).log_prob(t[index])).mean().backward()
            optimizer.step()
        with torch.no_grad():
            value = (-model(x[unseen]).log_prob(t[unseen])).mean().item()
        if value < best:
            best, since, kept = value, 0, {name: v.clone() for name, v in model.state_dict().items()}
        since += 1
        if since > 30:
            break
    model.load_state_dict(kept)
    with torch.no_grad():
        found = model(torch.tensor((held - x_mean) / x_scale).float())
    weights = found.logits.double().softmax(-1)
    means, scales = found.base.mean.double().squeeze(-1), found.base.variance.double().sqrt().squeeze(-1)
    return NormalMixture(weights, y_mean + y_scale * means, y_scale * scales)


METHODS: dict[str, Predict] = {
    "cramix, Cramér": ours(),
    "cramix, likelihood": ours(loss="nll"),
    "cramix, blend": ours(loss="blend"),
    "cramix, Cramér, one network": ours(n_estimators=1),
    "NGBoost": ngboost,
    "quantile forest": forest,
    "Gaussian process": process,
    "zuko mixture, likelihood": zuko_mixture,
}
OURS = "cramix, Cramér"


class Score(NamedTuple):
    crps: float
    nll: float
    seconds: float


def run(job: tuple[str, str, int]) -> Score:
    """Fit a method on all folds of a table but one, and score it on that one."""
    table, method, fold = job
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    X, y = TABLES[table]()
    seen, held = list(KFold(FOLDS, shuffle=True, random_state=SEED).split(X))[fold]
    started = time.process_time()
    try:
        p = METHODS[method](X[seen], y[seen], X[held], SEED + fold)
    except (ValueError, FloatingPointError):  # NaN is no mixture
        return Score(math.nan, math.nan, time.process_time() - started)
    seconds = time.process_time() - started
    observed = torch.as_tensor(y[held], dtype=p.means.dtype)
    nll = math.nan if p.is_empirical else -p.log_prob(observed).mean().item()
    return Score(crps(p, observed).mean().item(), nll, seconds)


def mean_and_error(values: list[float], digits: int) -> str:
    """Mean and standard error over folds."""
    if any(map(math.isnan, values)):
        return "none"
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values) / math.sqrt(len(values)):.{digits}f}"


def paired(a: list[float], b: list[float]) -> tuple[float, float]:
    """Return the mean of the differences and its standard error."""
    differences = [x - y for x, y in zip(a, b, strict=True)]
    return statistics.mean(differences), statistics.stdev(differences) / math.sqrt(len(differences))


def rows_of(table: str, scores: dict[tuple[str, str], list[Score]]) -> list[str]:
    rows = []
    base = [s.crps for s in scores[table, OURS]]
    for method in METHODS:
        own = scores[table, method]
        values = [s.crps for s in own]
        mean, error = paired(values, base)
        digits = 2 if statistics.mean(base) > 10 else 3 if statistics.mean(base) > 1 else 4
        behind = "" if method == OURS else f"{mean:+.{digits}f} ± {error:.{digits}f}"
        seconds = statistics.mean(s.seconds for s in own)
        rows.append(
            f"| {table if method == OURS else ''} | {method} | {mean_and_error(values, digits)} | {behind} | "
            f"{mean_and_error([s.nll for s in own], 3)} | {seconds:.1f} s |"
        )
    return rows


def verdict(scores: dict[tuple[str, str], list[Score]]) -> list[str]:
    """Count the tables where ours has the lowest CRPS, or none is significantly lower."""
    others = [m for m in METHODS if not m.startswith("cramix")]
    best = tied = 0
    for table in TABLES:
        base = [s.crps for s in scores[table, OURS]]
        gaps = [paired([s.crps for s in scores[table, other]], base) for other in others]
        best += all(mean > 0 for mean, _ in gaps)
        tied += all(mean > -2 * error for mean, error in gaps)
    ended = sum(math.isnan(s.crps) for (_, method), own in scores.items() for s in own if method.startswith("cramix"))
    total = sum(len(own) for (_, method), own in scores.items() if method.startswith("cramix"))
    return [
        f"Against the others, `{OURS}` has the lowest mean CRPS on {best} of {len(TABLES)} tables, and on {tied} no "
        "other is better beyond two standard errors of the paired differences. Fits of ours that ended in NaN: "
        f"{ended} of {total}."
    ]


def main(held: int) -> None:
    names = ["ngboost", "quantile-forest", "zuko"]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    intro = [
        "# Regression that predicts distributions",
        "",
        f"`python benchmarks/regression.py --held {held}`, {machine(np, torch, sklearn, cramix)}, {versions}.",
        "",
        f"{held} of {FOLDS} folds are held out, one at a time. Values are means and standard errors over these folds; "
        "for CRPS and negative log likelihood (NLL) lower is better. The fourth column is the difference to the first "
        "row, paired by fold. Time is CPU time of a fit and its predictions, on one thread. Settings are defaults "
        "unless `benchmarks/regression.py` sets them; our defaults were chosen on other folds and draws. Ours are "
        "ensembles of ten networks unless stated. A quantile forest has no density.",
    ]
    page = Page(HERE / "regression.md", intro)
    page.add(["| table | method | CRPS | minus ours | NLL | time |", "|---|---|---|---|---|---|"])
    scores: dict[tuple[str, str], list[Score]] = defaultdict(list)
    with ProcessPoolExecutor(2) as pool:
        for table in TABLES:
            jobs = [(table, method, fold) for fold, method in product(range(held), METHODS)]
            for (_, method, _), score in zip(jobs, pool.map(run, jobs), strict=True):
                scores[table, method].append(score)
            page.extend(rows_of(table, scores))
    page.add(verdict(scores))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--held", type=int, default=FOLDS, help="how many folds to hold out")
    main(parser.parse_args().held)
