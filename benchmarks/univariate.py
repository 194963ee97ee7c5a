"""The univariate core against the paper's formula in eager torch and against scoringrules, in one process.

Results go to benchmarks/results.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import scoringrules
import torch
from harness import Page, machine, paper_term, peak_megabytes, print_growth, report, take_turns, with_gradients

import cramix
from cramix import NormalMixture, cramer_loss, crps

RESULTS = Path(__file__).parent / "results.md"


def paper_loss(p: list[torch.Tensor], q: list[torch.Tensor]) -> torch.Tensor:
    return (paper_term(p, q) - 0.5 * paper_term(p, p) - 0.5 * paper_term(q, q)).mean()


def paper_loss_to_samples(p: list[torch.Tensor], y: torch.Tensor) -> torch.Tensor:
    """Without the self energy of the samples, 10^10 pairs that exceed the memory; ours computes it by sorting."""
    samples = [torch.full_like(y, 1 / len(y)), y, torch.zeros_like(y)]
    return paper_term(p, samples) - 0.5 * paper_term(p, p)


def parameters(*shape: int, seed: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [
        torch.randn(*shape, generator=g).softmax(-1),
        torch.randn(*shape, generator=g),
        torch.rand(*shape, generator=g) + 0.1,
    ]


def mixture_rows(batch: int, k: int, compiled: bool, close: bool = False) -> dict[str, list[float]]:
    p = [t.requires_grad_() for t in parameters(batch, k, seed=1)]
    q = [p[0].detach(), p[1].detach() + 1e-3, p[2].detach()] if close else parameters(batch, k, seed=2)

    def ours() -> torch.Tensor:
        return cramer_loss(NormalMixture(*p, validate_args=True), NormalMixture(*q, validate_args=True))

    def ours_unchecked() -> torch.Tensor:
        return cramer_loss(NormalMixture(*p, validate_args=False), NormalMixture(*q, validate_args=False))

    contestants = {
        "paper's formula, eager": with_gradients(lambda: paper_loss(p, q), p),
        "cramix, eager": with_gradients(ours, p),
        "cramix, eager, validate_args=False": with_gradients(ours_unchecked, p),
    }
    if compiled:
        paper_graph = torch.compile(paper_loss, fullgraph=True)
        contestants["paper's formula, torch.compile"] = with_gradients(lambda: paper_graph(p, q), p)
        one_graph = torch.compile(lambda p, q: cramer_loss(NormalMixture(*p), NormalMixture(*q)), fullgraph=True)
        contestants["cramix, torch.compile"] = with_gradients(lambda: one_graph(p, q), p)
    return take_turns(contestants)


def sample_rows(close: bool = False) -> dict[str, list[float]]:
    p, y = sample_problem(close)
    contestants = {
        "paper's formula, eager, without the self energy of the samples": with_gradients(
            lambda: paper_loss_to_samples(p, y), p
        ),
        "cramix, eager": with_gradients(lambda: cramer_loss(NormalMixture(*p, validate_args=True), y), p),
    }
    return take_turns(contestants)


def sample_problem(close: bool = False) -> tuple[list[torch.Tensor], torch.Tensor]:
    p = [t.requires_grad_() for t in parameters(32, seed=3)]
    source = NormalMixture(*(t.detach() for t in (p if close else parameters(32, seed=4))))
    return p, source.sample((100_000,), generator=torch.Generator().manual_seed(5))


def crps_rows(shared: bool, dtype: torch.dtype) -> dict[str, list[float]]:
    g = torch.Generator().manual_seed(6)
    y = torch.randn(1_000_000, generator=g).to(dtype)
    w, m, s = (t.to(dtype) for t in parameters(*(() if shared else (1_000_000,)), 5, seed=7))
    w = w / w.sum(-1, keepdim=True)
    arrays = [np.array(np.broadcast_to(t.numpy(), (1_000_000, 5))) for t in (m, s, w)]
    tensors = [torch.from_numpy(a) for a in arrays]
    ours = crps(NormalMixture(w, m, s), y)
    theirs = torch.as_tensor(scoringrules.crps_mixnorm(y.numpy(), *arrays, backend="numba"))
    torch.testing.assert_close(ours, theirs.to(dtype), rtol=1e-4, atol=1e-5)
    contestants = {
        "scoringrules, numba": lambda: scoringrules.crps_mixnorm(y.numpy(), *arrays, backend="numba"),
        "scoringrules, numpy": lambda: scoringrules.crps_mixnorm(y.numpy(), *arrays, backend="numpy"),
        "scoringrules, torch": lambda: scoringrules.crps_mixnorm(y, *tensors, backend="torch"),
        "cramix": lambda: crps(NormalMixture(w, m, s, validate_args=True), y),
    }
    return take_turns(contestants, turns=3)


def print_peak(which: str) -> None:
    p, y = sample_problem()
    # Warm up threads, code and the autograd engine before the measurement.
    torch.autograd.grad(paper_loss_to_samples(p, y[:10]) + cramer_loss(NormalMixture(*p), y[:10]), p)
    loss = paper_loss_to_samples if which == "paper" else (lambda p, y: cramer_loss(NormalMixture(*p), y))
    print_growth(lambda: torch.autograd.grad(loss(p, y), p))


def compiler_works() -> bool:
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(3))
    except Exception as error:
        print(f"no compiled rows: {type(error).__name__}")
        return False
    return True


def main() -> None:
    compiled = compiler_works()
    page = Page(
        RESULTS,
        [
            "# Benchmarks of the univariate core",
            "",
            f"Machine: {machine(torch, np, scoringrules, cramix)}.",
            "Other pages: [the multivariate distance](multivariate.md), [fits](fitting.md).",
            "",
            "`make bench` writes this page. The methods of a table take turns in one process. Times are medians "
            "over the",
            "turns. Speeds are ratios to the first row of the table, turn by turn: median (smallest to largest). "
            "Loss and",
            "gradients in float32 unless stated; ours includes construction and validation of both mixtures.",
        ],
    )
    paper = "paper's formula, eager"
    for batch, k in ((64, 3), (4096, 8)):
        page.section(f"Batch {batch} of {k} x {k}", report(mixture_rows(batch, k, compiled), paper))
        page.section(
            f"Batch {batch} of {k} x {k}, nearly equal",
            report(mixture_rows(batch, k, compiled, close=True), paper),
            "Means 0.001 apart: the paper's formula has no correct digit in float32 here; ours computes values twice.",
        )
    first = "paper's formula, eager, without the self energy of the samples"
    page.section("One mixture of 32 against 100,000 samples", report(sample_rows(), first))
    page.section("The same, with samples of the mixture itself", report(sample_rows(close=True), first))
    peaks = {which: peak_megabytes(__file__, which) for which in ("paper", "cramix")}
    share = peaks["cramix"] / peaks["paper"]
    memory = (
        f"Peak memory: paper's formula {peaks['paper']:.0f} MB, cramix {peaks['cramix']:.0f} MB, a fraction of "
        f"{share:.2f}."
    )
    page.add([memory])
    for shared in (True, False):
        for dtype in (torch.float32, torch.float64):
            title = f"CRPS of 1,000,000 observations, 5 components, {'one mixture' if shared else 'one mixture each'}"
            page.section(
                f"{title}, {str(dtype).split('.')[1]}",
                report(crps_rows(shared, dtype), "scoringrules, numba"),
                "Values only.",
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peak", choices=["paper", "cramix"], help="only print the peak memory of one method")
    arguments = parser.parse_args()
    if arguments.peak:
        print_peak(arguments.peak)
    else:
        main()
