"""The exact multivariate distance against slices, geomloss and POT, in one process.

Results go to benchmarks/multivariate.md.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import geomloss
import numpy as np
import ot
import torch
from harness import Page, machine, paper_term, peak_megabytes, print_growth, report, take_turns, with_gradients

import cramix
from cramix import Factor, MultivariateNormalMixture, PreparedTarget, directions, sliced_cramer_loss
from cramix.distance.sliced import sliced_cramer_squared

RESULTS = Path(__file__).parent / "multivariate.md"
COMPONENTS = 16
SLICES = (32, 64, 128, 512)


def problem(n: int, dim: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Weights, means and factors of a mixture to be trained, and the points to train it on."""
    g = torch.Generator().manual_seed(dim)
    weights = torch.randn(COMPONENTS, generator=g).softmax(-1)
    means = torch.randn(COMPONENTS, dim, generator=g)
    factors = torch.randn(COMPONENTS, dim, dim, generator=g) / dim**0.5
    points = 1.5 * torch.randn(n, dim, generator=g)
    return [x.requires_grad_() for x in (weights, means, factors)], points


def ours(p: list[torch.Tensor], points: torch.Tensor | PreparedTarget, **options) -> torch.Tensor:
    mixture = MultivariateNormalMixture(p[0], p[1], Factor(p[2]), validate_args=True)
    return sliced_cramer_loss(mixture, points, **options)


def paper_loss(
    p: list[torch.Tensor], points: torch.Tensor, slices: torch.Tensor, self_energy: bool = False
) -> torch.Tensor:
    """The paper's algorithm; the self energy of 10^5 points would be 10^10 pairs per slice."""
    weights, means, factors = p
    scales = (factors @ slices.T).square().sum(-2).T.sqrt()  # (t, k)
    mixture = [weights.expand_as(scales), slices @ means.T, scales]
    projected = slices @ points.T
    atoms = [torch.full_like(projected, 1 / len(points)), projected, torch.zeros_like(projected)]
    loss = paper_term(mixture, atoms) - 0.5 * paper_term(mixture, mixture)
    return (loss - 0.5 * paper_term(atoms, atoms) if self_energy else loss).mean()


def mixture_rows(n: int, dim: int, turns: int) -> dict[str, list[float]]:
    p, points = problem(n, dim)
    known = PreparedTarget(points)
    paper_slices = directions.random(64, dim)
    contestants = {
        "paper's formula, eager, 64 slices, without the self energy of the points": with_gradients(
            lambda: paper_loss(p, points, paper_slices), p
        ),
        "cramix, exact": with_gradients(lambda: ours(p, known, target_self_energy=n <= 10_000), p),
    }
    for count in SLICES:
        contestants[f"cramix, {count} slices"] = with_gradients(lambda count=count: ours(p, known, directions=count), p)
    return take_turns(contestants, turns)


def whole_formula_rows(n: int, dim: int) -> dict[str, list[float]]:
    """All three sums of the paper's formula, as printed; ours caches the self energy."""
    p, points = problem(n, dim)
    known, slices = PreparedTarget(points), directions.random(64, dim)
    contestants = {
        "paper's formula, eager, 64 slices": lambda: paper_loss(p, points, slices, self_energy=True),
        "cramix, exact": lambda: ours(p, known),
        "cramix, 64 slices": lambda: ours(p, known, directions=64),
    }
    return take_turns({name: with_gradients(loss, p) for name, loss in contestants.items()}, turns=5)


def point_rows(n: int, dim: int, turns: int) -> dict[str, list[float]]:
    """Leave out all pairs of 10^5 points, and many slices of them, which take minutes per evaluation."""
    g = torch.Generator().manual_seed(n + dim)
    x = torch.randn(n, dim, generator=g).requires_grad_()
    y = 1.5 * torch.randn(n, dim, generator=g)
    energy = geomloss.SamplesLoss("energy", backend="tensorized")
    contestants = {}
    if n < 100_000:
        contestants["geomloss, energy"] = with_gradients(lambda: energy(x, y), [x])
        contestants["cramix, exact"] = with_gradients(lambda: sliced_cramer_squared(x, y), [x])
    for count in (32, 128, 512) if n < 100_000 else (32, 128):
        contestants[f"POT, sliced Wasserstein, {count} slices"] = with_gradients(
            lambda count=count: ot.sliced_wasserstein_distance(x, y, n_projections=count, seed=0), [x]
        )
        contestants[f"cramix, {count} slices"] = with_gradients(
            lambda count=count: sliced_cramer_squared(x, y, directions=count), [x]
        )
    return take_turns(contestants, turns)


def add_point_rows(page: Page, n: int, dim: int) -> None:
    rows = point_rows(n, dim, turns=3)
    title = f"{n:,} points to {n:,} points, d = {dim}"
    page.section(title, report(rows, next(iter(rows))), "Gradients in the points. POT computes another distance.")


def self_energy_seconds(n: int, dim: int) -> float:
    """Return the time of one evaluation with the self energy of the points."""
    p, points = problem(n, dim)
    started = time.perf_counter()
    with torch.no_grad():
        ours(p, points)
    return time.perf_counter() - started


def main() -> None:
    page = Page(
        RESULTS,
        [
            "# Benchmarks of the multivariate distance",
            "",
            f"Machine: {machine(torch, np, geomloss, ot, cramix)}.",
            "",
            "`make bench` writes this page; [results.md](results.md) describes the method. Loss and gradients in "
            "float32, for",
            f"a mixture of {COMPONENTS} components (factor covariances) and N points; ours includes construction "
            "and validation.",
            "The self energy of the points is the same in every step of a fit. Slices recompute it by sorting. "
            "The exact",
            "distance caches it in a `PreparedTarget` for up to 10,000 points, and leaves it out for more; the "
            "last table",
            "shows what it costs.",
        ],
    )
    for dim in (2, 8, 64):
        for n in (1_000, 10_000, 100_000):
            rows = mixture_rows(n, dim, turns={1_000: 15, 10_000: 5}.get(n, 3))
            first = next(iter(rows))
            page.section(f"Mixture to {n:,} points, d = {dim}", report(rows, first))
    rows = whole_formula_rows(1_000, 8)
    title = "Mixture to 1,000 points, d = 8, with the self energy of the points in all rows"
    note = "The paper's formula and slices recompute it in every step; the exact distance caches it."
    page.section(title, report(rows, next(iter(rows))), note)
    for dim in (2, 8, 64):
        for n in (1_000, 10_000, 100_000):
            add_point_rows(page, n, dim)
    table = [
        "## Time to compute the self energy of the points once",
        "",
        "| N | d = 2 | d = 8 | d = 64 |",
        "|---|---|---|---|",
    ]
    for n in (1_000, 10_000, 100_000):
        cells = [f"{self_energy_seconds(n, dim):.2g} s" for dim in (2, 8, 64)]
        table.append(f"| {n:,} | {' | '.join(cells)} |")
    page.add(table)
    peak = peak_megabytes(__file__, "cramix")
    page.add([f"Peak memory of the exact distance at N = 1,000,000, d = 8: {peak:.0f} MB in addition to the data."])


def print_peak() -> None:
    p, points = problem(1_000_000, 8)
    run = with_gradients(lambda: ours(p, points, target_self_energy=False), p)
    with_gradients(lambda: ours(p, points[:10], target_self_energy=False), p)()
    print_growth(run)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peak", help="only print the peak memory")
    if parser.parse_args().peak:
        print_peak()
    else:
        main()
