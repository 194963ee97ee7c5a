"""Fits against scikit-learn, tgmm and pomegranate: training likelihood, held-out likelihood, time.

The methods take turns on the same samples with the same seed. Results go to benchmarks/fitting.md.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import sklearn
import torch
from greedy import merge_by
from harness import Page, machine
from problems import Problem, problems
from sklearn.mixture import GaussianMixture

import cramix

RESULTS = Path(__file__).parent / "fitting.md"
# Settings were chosen on seeds from 2000 on.
FIRST_SEED = 100
BEST_KNOWN = -1.6528
ROUNDS = 15

Fit = Callable[[np.ndarray, Problem, int], Callable[[np.ndarray], float]]


def em(**settings: float) -> Fit:
    def run(x: np.ndarray, problem: Problem, seed: int) -> Callable[[np.ndarray], float]:
        options = {"n_init": 10, "reg_covar": problem.reg_covar, "random_state": seed, **settings}
        return GaussianMixture(problem.n_components, covariance_type=problem.covariance_type, **options).fit(x).score

    return run


def ours(init_params: str | None = None) -> Fit:
    def run(x: np.ndarray, problem: Problem, seed: int) -> Callable[[np.ndarray], float]:
        result = cramix.fit(
            torch.from_numpy(x),
            problem.n_components,
            covariance_type=problem.covariance_type,
            reg_covar=problem.reg_covar,
            init_params=init_params,
            generator=torch.Generator().manual_seed(seed),
        )
        return lambda y: result.mixture.log_prob(torch.from_numpy(y)).mean().item()

    return run


def of_tgmm(x: np.ndarray, problem: Problem, seed: int) -> Callable[[np.ndarray], float]:
    import tgmm

    model = tgmm.GaussianMixture(
        problem.n_components,
        x.shape[1],
        covariance_type=problem.covariance_type,
        reg_covar=problem.reg_covar,
        random_state=seed,
    ).fit(torch.from_numpy(x))
    return lambda y: model.score_samples(torch.from_numpy(y)).mean().item()


def of_pomegranate(x: np.ndarray, problem: Problem, seed: int) -> Callable[[np.ndarray], float]:
    from pomegranate.distributions import Normal
    from pomegranate.gmm import GeneralMixtureModel

    model = GeneralMixtureModel(
        [Normal(covariance_type=problem.covariance_type) for _ in range(problem.n_components)],
        tol=1e-3,
        random_state=seed,
    ).fit(torch.from_numpy(x).float())
    return lambda y: model.log_probability(torch.from_numpy(y).float()).mean().item()


EM, EXACT_EM, OURS = "scikit-learn, n_init=10", "scikit-learn, n_init=10, tol=1e-6", "cramix"
CONTESTANTS: dict[str, Fit] = {EM: em(), EXACT_EM: em(tol=1e-6, max_iter=1000), OURS: ours()}


def timed(fit: Fit, x: np.ndarray, problem: Problem, seed: int) -> tuple[Callable[[np.ndarray], float], float]:
    started = time.perf_counter()
    score = fit(x, problem, seed)
    return score, time.perf_counter() - started


def ring_line_square(page: Page, path: Path, seeds: int) -> None:
    """Count how often the best known optimum of the paper's data is found."""
    x = np.loadtxt(path)[:, :2]
    problem = Problem("ring-line-square", 10, "full", 1e-6, lambda seed: (x, x))
    contestants = {
        EM: em(),
        EXACT_EM: em(tol=1e-6, max_iter=1000),
        "scikit-learn, n_init=10, random_from_data": em(init_params="random_from_data"),
        "cramix, random_from_data": ours("random_from_data"),
        OURS: ours(),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        for name, fit in contestants.items():
            score, seconds = timed(fit, x, problem, seed)
            found[name].append((score(x), seconds))
    rows = []
    for name, values in found.items():
        scores, seconds = np.array(values).T
        near = int((scores > BEST_KNOWN - 0.001).sum())
        ratio = seconds / np.array(found[EM])[:, 1]
        part = f"{np.median(ratio):.2f} ({np.quantile(ratio, 0.1):.2f} to {np.quantile(ratio, 0.9):.2f})"
        rows.append(
            f"| {name} | {near} of {seeds} | {np.median(scores):.5f} | {scores.min():.5f} "
            f"| {np.median(seconds):.3f} s | {part} |"
        )
    page.add(
        [
            f"## The paper's ring, line and square, k = 10, {seeds} seeds",
            "",
            f"Near the optimum: within 0.001 of the best known mean log likelihood, {BEST_KNOWN}. Relative time: "
            f"divided by that of {EM} on the same seed, median (10 % to 90 % quantiles).",
            "",
            "| method | near the optimum | median log likelihood | worst log likelihood | time | relative time |",
            "|---|---|---|---|---|---|",
            *rows,
        ]
    )


def many_problems(page: Page, seeds: int) -> None:
    """Training and held-out likelihood on problems of many kinds."""
    page.add(
        [
            f"## Other problems, {seeds} seeds each",
            "",
            "Every seed draws new samples, or a new split of real data, 70 % to fit and 30 % held out. Log "
            f"likelihoods are means over samples. EM is {EM}. On the training samples: median and worst over the "
            "seeds, and median and worst of the difference to EM on the same samples. On held-out samples: the "
            "mean difference with its standard error. Time: median, and the median ratio to the time of EM.",
            "",
            "| problem | method | median log likelihood | worst | minus EM: median | minus EM: worst | held-out "
            "minus EM "
            "| time | relative time |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
    )
    for problem in problems():
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in CONTESTANTS}
        for seed in range(FIRST_SEED, FIRST_SEED + seeds):
            x, held_out = problem.draw(seed)
            for name, fit in CONTESTANTS.items():
                score, seconds = timed(fit, x, problem, seed)
                found[name].append((score(x), score(held_out), seconds))
        base = np.array(found[EM])
        rows = []
        for name, values in found.items():
            table = np.array(values)
            train, _, seconds = table.T
            less = table - base
            held = f"{less[:, 1].mean():+.4f} ± {less[:, 1].std(ddof=1) / np.sqrt(seeds):.4f}" if name != EM else ""
            gain = f"{np.median(less[:, 0]):+.4f} | {less[:, 0].min():+.4f}" if name != EM else " | "
            part = f"{np.median(seconds / base[:, 2]):.2f}" if name != EM else "1"
            label = f"{problem.name}, k {problem.n_components}, {problem.covariance_type}" if name == EM else ""
            rows.append(
                f"| {label} | {name} | {np.median(train):.4f} | {train.min():.4f} | {gain} | {held} | "
                f"{np.median(seconds):.3f} s | {part} |"
            )
        page.extend(rows)


def time_to_quality(page: Page, path: Path, repeats: int) -> None:
    """Measure how long each library takes to reach the likelihood of scikit-learn with ten starts, start by start."""
    by_name = {problem.name: problem for problem in problems()}
    chosen = [by_name[name] for name in ("seven of many sizes, d 2", "outliers, d 3", "six, d 6", "digits, d 10")]
    if path.exists():
        x = np.loadtxt(path)[:, :2]
        chosen.insert(0, Problem("ring-line-square", 10, "full", 1e-6, lambda seed: (x, x)))
    contestants = {
        "scikit-learn": em(n_init=1),
        "tgmm": of_tgmm,
        "pomegranate": of_pomegranate,
        OURS: ours(),
    }
    rows = []
    for problem in chosen:
        x, _ = problem.draw(FIRST_SEED)
        goal = float(np.median([em()(x, problem, seed)(x) for seed in range(FIRST_SEED, FIRST_SEED + 5)])) - 1e-4
        for name, fit in contestants.items():
            spent = sorted(until(goal, fit, x, problem, 1000 * (repeat + 1)) for repeat in range(repeats))
            reached = [seconds for seconds in spent if np.isfinite(seconds)]
            middle = f"{np.median(spent):.3f} s" if np.isfinite(np.median(spent)) else "not reached"
            extent = f"{reached[0]:.3f} to {reached[-1]:.3f} s" if reached else ""
            rows.append(f"| {problem.name} | {name} | {middle} | {extent} | {len(reached)} of {repeats} |")
    page.add(
        [
            "## Time to reach the likelihood of scikit-learn with ten starts",
            "",
            f"Single fits, seed after seed, until the mean log likelihood is at most 1e-4 below the median of {EM}; "
            f"at most {ROUNDS} fits, repeated {repeats} times. Each library with its default settings for one start.",
            "",
            "| problem | method | median time | shortest to longest | reached |",
            "|---|---|---|---|---|",
            *rows,
        ]
    )


def until(goal: float, fit: Fit, x: np.ndarray, problem: Problem, seed: int) -> float:
    """Return the seconds until the goal is reached; infinity if never."""
    spent = 0.0
    for i in range(ROUNDS):
        try:
            score, seconds = timed(fit, x, problem, seed + i)
        except (RuntimeError, ValueError, torch.linalg.LinAlgError):
            continue  # pomegranate fails on singular covariances
        spent += seconds
        if score(x) >= goal:
            return spent
    return np.inf


def compressing(page: Page) -> None:
    """Compress large mixtures, against greedy merges."""
    rows = []
    for name, mixture in (("2,000 of a KDE, d 2", kde(2000)), ("100, d 2", hundred(2)), ("100, d 8", hundred(8))):
        methods: dict[str, Callable[[], cramix.MultivariateNormalMixture]] = {
            cost: lambda cost=cost, mixture=mixture: merge_by(cost, mixture, 10)
            for cost in ("runnalls", "west", "salmond")
        }
        methods["cramix.compress"] = lambda mixture=mixture: cramix.compress(mixture, 10)
        for method, run in methods.items():
            seconds = []
            for _ in range(3):
                started = time.perf_counter()
                small = run()
                seconds.append(time.perf_counter() - started)
            distance = cramix.sliced_cramer_distance(small, mixture).item()
            error = cramix.density_l2_loss(small, mixture).item()
            rows.append(f"| {name} | {method} | {distance:.4g} | {error:.4g} | {np.median(seconds):.2f} s |")
    page.add(
        [
            "## Compression to 10 components",
            "",
            "C2 is the sliced Cramér distance to the large mixture; the squared error is that of the density.",
            "",
            "| mixture | method | C2 | integrated squared error | time |",
            "|---|---|---|---|---|",
            *rows,
        ]
    )


def kde(n: int) -> cramix.MultivariateNormalMixture:
    """Return a kernel density estimate of samples of seven components, with Scott's bandwidth."""
    sample = next(p for p in problems() if p.name.startswith("seven")).draw(FIRST_SEED)[1][:n]
    x = torch.from_numpy(sample)
    bandwidth = torch.cov(x.T) * n ** (-2 / 6)
    return cramix.MultivariateNormalMixture(torch.full((n,), 1 / n, dtype=x.dtype), x, cramix.Tied(bandwidth))


def hundred(dim: int) -> cramix.MultivariateNormalMixture:
    """Return a hundred components in ten loose groups."""
    g = torch.Generator().manual_seed(FIRST_SEED)
    groups = 4 * torch.randn(10, dim, generator=g, dtype=torch.float64)
    means = groups.repeat_interleave(10, 0) + torch.randn(100, dim, generator=g, dtype=torch.float64)
    roots = torch.randn(100, dim, dim, generator=g, dtype=torch.float64) / dim**0.5
    weights = torch.rand(100, generator=g, dtype=torch.float64)
    covariances = roots @ roots.mT + 0.05 * torch.eye(dim, dtype=torch.float64)
    return cramix.MultivariateNormalMixture(weights / weights.sum(), means, covariances)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data/ring-line-square.txt"), help="the paper's data"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--ring-seeds", type=int, default=100)
    parser.add_argument("--parts", nargs="*", default=["ring", "problems", "quality", "compression"])
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # the rows show fits that do not converge
    page = Page(options.out, ["# Fits", "", "`python benchmarks/fitting.py`.", "", f"{machine(torch, sklearn)}."])
    if "ring" in options.parts and options.data.exists():
        ring_line_square(page, options.data, options.ring_seeds)
    if "problems" in options.parts:
        many_problems(page, options.seeds)
    if "quality" in options.parts:
        time_to_quality(page, options.data, 3)
    if "compression" in options.parts:
        compressing(page)


if __name__ == "__main__":
    main()
