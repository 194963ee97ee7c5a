"""Compute the table and the figure of slicing.md: time and error of slices and of the exact distance."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from cramix import Factor, MultivariateNormalMixture, PreparedTarget, directions, sliced_cramer_loss

HERE = Path(__file__).parent
DIMENSIONS = [2, 3, 8, 32, 128]
COUNTS = [4, 16, 64, 256, 1024]
TOLERANCES = [1e-2, 1e-3, 1e-5, 1e-7, 1e-9]
SEEDS = 16
POINTS, COMPONENTS = 2000, 8
DTYPE = torch.float64


def random(count: int, dim: int, seed: int) -> Tensor:
    return directions.random(count, dim, generator=torch.Generator().manual_seed(seed), dtype=DTYPE)


def orthogonal(count: int, dim: int, seed: int) -> Tensor:
    return directions.orthogonal(count, dim, generator=torch.Generator().manual_seed(seed), dtype=DTYPE)


def sobol(count: int, dim: int, seed: int) -> Tensor:
    return directions.sobol(count, dim, seed=seed, dtype=DTYPE)


def equispaced(count: int, dim: int, seed: int) -> Tensor:
    return directions.equispaced(count, offset=math.pi * seed / (SEEDS * count), dtype=DTYPE)


SCHEMES: dict[str, Callable[[int, int, int], Tensor]] = {
    "random": random,
    "orthogonal": orthogonal,
    "Sobol": sobol,
    "equispaced": equispaced,
}
COLOURS = {
    "random": "#E69F00",
    "orthogonal": "#56B4E9",
    "Sobol": "#009E73",
    "equispaced": "#CC79A7",
    "exact": "#0072B2",
}


class Problem:
    """A mixture near the one that the points come from, as in the middle of a fit."""

    def __init__(self, dim: int) -> None:
        g = torch.Generator().manual_seed(dim)
        weights = torch.full((COMPONENTS,), 1 / COMPONENTS, dtype=DTYPE)
        means = 2 * torch.randn(COMPONENTS, dim, generator=g, dtype=DTYPE)
        factors = torch.randn(COMPONENTS, dim, dim, generator=g, dtype=DTYPE) / dim**0.5
        source = MultivariateNormalMixture(weights, means, Factor(factors))
        self.points = PreparedTarget(source.sample((POINTS,), generator=g))  # the self energy is computed once
        moved = means + 0.3 * torch.randn(COMPONENTS, dim, generator=g, dtype=DTYPE)
        self.leaves = [weights.clone(), moved, 1.2 * factors]
        for leaf in self.leaves:
            leaf.requires_grad_()
        self.dim = dim
        self.truth = self.evaluate(tolerance=1e-12)

    def evaluate(self, **options) -> tuple[Tensor, Tensor]:
        weights, means, factors = self.leaves
        loss = sliced_cramer_loss(MultivariateNormalMixture(weights, means, Factor(factors)), self.points, **options)
        gradients = torch.autograd.grad(loss, self.leaves)
        return loss.detach(), torch.cat([x.flatten() for x in gradients])

    def errors(self, found: list[tuple[Tensor, Tensor]]) -> tuple[float, float]:
        """Root mean square over the seeds of the relative errors of loss and gradient."""
        loss, gradient = self.truth
        of_loss = torch.stack([((x - loss) / loss).square() for x, _ in found]).mean().sqrt().item()
        of_gradient = torch.stack([(x - gradient).square().sum() for _, x in found]).mean().sqrt() / gradient.norm()
        return of_loss, of_gradient.item()


def study(dim: int) -> Iterator[tuple[str, float, float, float, float]]:
    """Rows of scheme, number of slices or tolerance, milliseconds, error of the loss, error of the gradient."""
    problem = Problem(dim)
    for tolerance in TOLERANCES:
        milliseconds = timed(lambda tolerance=tolerance: problem.evaluate(tolerance=tolerance))
        yield "exact", tolerance, milliseconds, *problem.errors([problem.evaluate(tolerance=tolerance)])
    for name, scheme in SCHEMES.items():
        if name == "equispaced" and dim != 2:
            continue
        for count in COUNTS:
            chosen = [scheme(count, dim, seed) for seed in range(SEEDS)]
            milliseconds = timed(lambda chosen=chosen: problem.evaluate(directions=chosen[0]))
            yield name, count, milliseconds, *problem.errors([problem.evaluate(directions=x) for x in chosen])


def timed(run: Callable[[], object], repeats: int = 3) -> float:
    run()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return 1e3 * min(times)


def table(results: dict[int, list]) -> str:
    lines = [
        "| d | exact, default tolerance | slices in the same time | random | orthogonal | Sobol | equispaced |",
        "|---|---|---|---|---|---|---|",
    ]
    for dim, rows in results.items():
        _, _, cost, of_loss, of_gradient = next(r for r in rows if r[0] == "exact" and r[1] == 1e-7)
        random_rows = [r for r in rows if r[0] == "random"]
        affordable = max([r[1] for r in random_rows if r[2] <= cost], default=COUNTS[0])
        cells = [f"{cost:.0f} ms, {of_loss:.0e} / {of_gradient:.0e}", f"{affordable:.0f}"]
        for name in SCHEMES:
            row = next((r for r in rows if r[0] == name and r[1] == affordable), None)
            cells.append("" if row is None else f"{row[3]:.0e} / {row[4]:.0e}")
        lines.append(f"| {dim} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def figure(results: dict[int, list]) -> Figure:
    fig = Figure(figsize=(15, 6), layout="constrained")
    axes = fig.subplots(2, len(results), sharex="col", sharey="row")
    for column, (dim, rows) in enumerate(results.items()):
        for axis, error in ((axes[0, column], 3), (axes[1, column], 4)):
            for name, colour in COLOURS.items():
                chosen = [r for r in rows if r[0] == name]
                if not chosen:
                    continue
                style = {"linewidth": 2.5, "marker": "o"} if name == "exact" else {"linewidth": 1.3, "marker": "."}
                axis.loglog([r[2] for r in chosen], [r[error] for r in chosen], label=name, color=colour, **style)
            axis.grid(alpha=0.3)
        axes[0, column].set_title(f"d = {dim}")
        axes[1, column].set_xlabel("milliseconds")
    axes[0, 0].set_ylabel("relative error of the loss")
    axes[1, 0].set_ylabel("relative error of the gradient")
    axes[0, 0].legend(fontsize=8)
    return fig


def main() -> None:
    results = {}
    for dim in DIMENSIONS:
        results[dim] = list(study(dim))
        for row in results[dim]:
            print(dim, *(x if isinstance(x, str) else f"{x:.3g}" for x in row), flush=True)
    figure(results).savefig(HERE / "slicing.png", dpi=110)
    page = HERE / "slicing.md"
    begin, end = "<!-- table -->", "<!-- end of table -->"
    text = re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{table(results)}\n{end}", page.read_text(), flags=re.DOTALL)
    page.write_text(text)


if __name__ == "__main__":
    main()
