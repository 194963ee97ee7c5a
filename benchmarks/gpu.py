"""Losses, scores and fits on a GPU against the paper's formula, eager and compiled, and against what the chip can do.

Results go to benchmarks/gpu.md. `--parts` runs some sections only, such as `--parts exact`, which takes seconds; a page
is written with those that were run.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import triton
from harness import Page, machine, paper_term, with_gradients

import cramix
from cramix import MultivariateNormalMixture, NormalMixture, cramer_loss, crps, sliced_cramer_loss
from cramix.fitting.features import Data
from cramix.mixture.covariance import FAMILIES

RESULTS = Path(__file__).parent / "gpu.md"
DEVICE = torch.device("cuda")
REPEATS, CALLS = 15, 20
# Microseconds from which on a call is not captured in a graph.
LONG = 1e5
Contestants = dict[str, Callable[[], object]]

INTRO = """`python benchmarks/gpu.py`. float32, loss and gradients, medians. "On the chip": the time of a call inside a
CUDA graph of several, without that of launching it. "As called": from Python in eager mode, one call after the other,
with autograd. "Memory": the peak beyond the input. The floor is the larger of two times: that of the bytes which have
to be moved, at the speed of a copy, and that of the arithmetic. `validate_args=False` throughout."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--page", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    bandwidth = copy_bandwidth()
    intro = ["# On a GPU", "", INTRO, "", f"{torch.cuda.get_device_name()}, a copy moves {bandwidth / 1e12:.2f} TB/s."]
    page = Page(arguments.page, [*intro, "", machine(torch, triton)])
    bare, smallest = called(bare_launch()), called(smallest_loss())
    page.add([
        f"A bare launch of a kernel in Triton takes {bare:.0f} us from Python; a product, its sum and their derivative "
        f"by autograd take {smallest:.0f} us, which is what a call of any loss takes at least."
    ])  # fmt: skip
    for part in arguments.parts:
        for title, floor, contestants in PARTS[part](bandwidth):
            page.add([f"## {title}", "", f"Floor: {floor}.", "", HEAD, "|---|---|---|---|"])
            for name, call in contestants.items():
                page.extend([measured(name, call)])


HEAD = "| method | on the chip | as called | memory |"


def measured(name: str, call: Callable[[], object]) -> str:
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    memory = (torch.cuda.max_memory_allocated() - before) / 1e9
    return f"| {name} | {shown(on_chip(call))} | {shown(called(call))} | {memory:.2g} GB |"


def shown(microseconds: float | None) -> str:
    if microseconds is None:
        return "not capturable"
    factor, unit = (1, "us") if microseconds < 1e3 else (1e3, "ms") if microseconds < 1e6 else (1e6, "s")
    return f"{microseconds / factor:.3g} {unit}"


def on_chip(call: Callable[[], object]) -> float | None:
    """Return microseconds of a call in a CUDA graph, None if it cannot be captured, or takes too long for that."""
    if (once := called(call, 1)) > LONG:
        return None
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph, count = torch.cuda.CUDAGraph(), CALLS if once < 20_000 else 2
    try:
        with torch.cuda.graph(graph):
            for _ in range(count):
                call()
    except RuntimeError:  # an operation synchronises
        torch.cuda.synchronize()
        return None
    graph.replay()
    return by_events(graph.replay) / count


def by_events(call: Callable[[], object]) -> float:
    """Return the median microseconds between events around a call."""
    found = []
    for _ in range(REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        found.append(1e3 * start.elapsed_time(end))
    return statistics.median(found)


def called(call: Callable[[], object], turns: int = 5) -> float:
    """Return the median microseconds of calls in a row."""
    call()
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    torch.cuda.synchronize()
    count = max(1, min(100, int(0.1 / (time.perf_counter() - started))))
    found = []
    for _ in range(turns if count > 1 else 2):
        started = time.perf_counter()
        for _ in range(count):
            call()
        torch.cuda.synchronize()
        found.append(1e6 * (time.perf_counter() - started) / count)
    return statistics.median(found)


def copy_bandwidth() -> float:
    """Return bytes per second, read and written, of a large copy."""
    x = torch.randn(1 << 28, device=DEVICE)
    y = torch.empty_like(x)
    return 2 * x.numel() * 4 / (by_events(lambda: y.copy_(x)) * 1e-6)


def bare_launch() -> Callable[[], object]:
    from cramix.distance.cramer.triton_scores import prepare

    weights, means, scales = (x.squeeze(0) for x in parameters(1, 1, seed=0))
    energy, exact, table = (torch.empty(4, device=DEVICE, dtype=torch.float64) for _ in range(3))
    return lambda: prepare[(1,)](weights, means, scales, energy, exact, table, 1, 1, 1, 1, 1)


def smallest_loss() -> Callable[[], object]:
    x, y = (torch.rand(64, 3, device=DEVICE) for _ in range(2))
    x.requires_grad_()
    return with_gradients(lambda: (x * y).sum(), [x])


def parameters(*shape: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    weights = torch.randn(shape, generator=generator, device=DEVICE).softmax(-1)
    means = torch.randn(shape, generator=generator, device=DEVICE)
    return [weights, means, torch.rand(shape, generator=generator, device=DEVICE) + 0.1]


def paper_loss(p: list[torch.Tensor], q: list[torch.Tensor]) -> torch.Tensor:
    return (paper_term(p, q) - 0.5 * paper_term(p, p) - 0.5 * paper_term(q, q)).mean()


def batches(bandwidth: float) -> Iterator[tuple[str, str, Contestants]]:
    for batch, k, close in ((64, 3, False), (4096, 8, False), (262_144, 3, False), (262_144, 3, True)):
        p = [x.requires_grad_() for x in parameters(batch, k, seed=1)]
        q = [x.detach() for x in p] if close else parameters(batch, k, seed=2)
        if close:
            q[1] = q[1] + 1e-3

        def ours(p: list[torch.Tensor] = p, q: list[torch.Tensor] = q) -> torch.Tensor:
            return cramer_loss(NormalMixture(*p, validate_args=False), NormalMixture(*q, validate_args=False))

        compiled = torch.compile(paper_loss, fullgraph=True, dynamic=False)
        compiled_ours = torch.compile(ours, fullgraph=True, dynamic=False)
        traffic = batch * (9 * k + 1) * 4 / bandwidth * 1e6
        pairs = k * k + k * (k + 1)
        title = f"{batch:,} of {k} x {k}" + (", means that differ by 0.001" if close else "")
        yield (
            title,
            f"{traffic:.2g} us of memory traffic, {batch * pairs * 40 / FLOPS * 1e6:.2g} us of arithmetic",
            {
                "paper's formula, eager": with_gradients(lambda p=p, q=q: paper_loss(p, q), p),
                "paper's formula, torch.compile": with_gradients(lambda p=p, q=q, f=compiled: f(p, q), p),
                "cramix, eager": with_gradients(ours, p),
                "cramix, torch.compile": with_gradients(compiled_ours, p),
            }
            if not close
            else {"cramix, eager": with_gradients(ours, p)},
        )


# Instructions per second: 132 multiprocessors, 128 lanes, 1.98 GHz.
FLOPS = 132 * 128 * 1.98e9


def scores(bandwidth: float) -> Iterator[tuple[str, str, Contestants]]:
    n, k = 10**8, 5
    p = NormalMixture(*(x.squeeze(0) for x in parameters(1, k, seed=3)), validate_args=False)
    y = torch.randn(n, device=DEVICE)
    out = torch.empty_like(y)

    def ours() -> torch.Tensor:
        with torch.no_grad():
            return crps(p, y)

    floor = f"{8 * n / bandwidth * 1e6:.0f} us of memory traffic, {n * k * 28 / FLOPS * 1e6:.0f} us of arithmetic"
    yield (
        "The CRPS of 10^8 observations, 5 components",
        floor,
        {
            "a copy": lambda: out.copy_(y),
            "cramix": ours,
        },
    )


def mixture(k: int, d: int) -> list[torch.Tensor]:
    generator = torch.Generator(DEVICE).manual_seed(4)
    factors = torch.randn(k, d, d, generator=generator, device=DEVICE)
    covariances = factors @ factors.mT / d + 0.1 * torch.eye(d, device=DEVICE)
    means = 2 * torch.randn(k, d, generator=generator, device=DEVICE)
    return [torch.full((k,), 1 / k, device=DEVICE), means, covariances]


def paper_slices(p: list[torch.Tensor], x: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    """The paper's loss over slices, without the points' self energy."""
    weights, means, covariances = p
    scales = torch.einsum("td,kde,te->tk", directions, covariances, directions).sqrt()
    lines = [weights.expand(len(directions), -1), directions @ means.T, scales]
    y = directions @ x.T
    samples = [torch.full_like(y, 1 / len(x)), y, torch.zeros_like(y)]
    return (paper_term(lines, samples) - 0.5 * paper_term(lines, lines)).mean()


def clouds(bandwidth: float) -> Iterator[tuple[str, str, Contestants]]:
    d, k, t = 8, 16, 64
    directions = torch.nn.functional.normalize(torch.randn(t, d, device=DEVICE), dim=-1)
    for n in (10**5, 10**6):
        x = torch.randn(n, d, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(5)) @ torch.randn(
            d, d, device=DEVICE
        )
        p = [v.requires_grad_() for v in mixture(k, d)]

        def ours(directions: object, p: list[torch.Tensor] = p, x: torch.Tensor = x) -> torch.Tensor:
            of_p = MultivariateNormalMixture(*p, validate_args=False)
            return sliced_cramer_loss(of_p, x, directions=directions, target_self_energy=False)

        compiled = torch.compile(paper_slices, fullgraph=True, dynamic=False)
        exact, sliced = (24 * (3 * d + 8) + 3 * d * d) * n * k, n * k * t * 29
        floor = f"{exact / FLOPS * 1e3:.2g} ms of arithmetic without slices, {sliced / FLOPS * 1e3:.2g} ms with {t}"
        yield (
            f"{n:,} points, d = {d}, k = {k}, without their self energy",
            floor,
            {
                f"paper's formula, {t} slices, eager": with_gradients(
                    lambda p=p, x=x: paper_slices(p, x, directions), p
                ),
                f"paper's formula, {t} slices, torch.compile": with_gradients(
                    lambda p=p, x=x, f=compiled: f(p, x, directions), p
                ),
                f"cramix, {t} slices": with_gradients(lambda f=ours: f(directions), p),
                "cramix, exact": with_gradients(lambda f=ours: f("exact"), p),
            },
        )


def exact(bandwidth: float) -> Iterator[tuple[str, str, Contestants]]:
    """The distance without slices alone: no formula of others is compiled, so that this takes seconds."""
    generator = torch.Generator(DEVICE).manual_seed(5)
    for n, d, k in ((10**5, 8, 16), (10**6, 8, 16), (10**7, 8, 16), (10**6, 2, 16), (10**6, 32, 16)):
        x = torch.randn(n, d, device=DEVICE, generator=generator) @ torch.randn(
            d, d, device=DEVICE, generator=generator
        )
        p = [v.requires_grad_() for v in mixture(k, d)]

        def loss(p: list[torch.Tensor] = p, x: torch.Tensor = x) -> torch.Tensor:
            of_p = MultivariateNormalMixture(*p, validate_args=False)
            return sliced_cramer_loss(of_p, x, directions="exact", target_self_energy=False)

        def value(loss: Callable[[], torch.Tensor] = loss) -> torch.Tensor:
            with torch.no_grad():
                return loss()

        # With 16 nodes: a rotation, exponents, slopes and curves at each node, and the sums over the points.
        arithmetic = (d * d + 16 * (3 * d + 5) + 2 * d * d + 7 * d) * n * k / FLOPS * 1e3
        traffic = 4 * n * d / bandwidth * 1e3
        contestants = {"all gradients of the mixture": with_gradients(loss, p), "value": value}
        if n == 10**6:
            leaves = [*p, x.clone().requires_grad_()]
            contestants["with gradients of the points"] = with_gradients(
                lambda f=loss, y=leaves: f(y[:3], y[3]), leaves
            )
        floor = f"{arithmetic:.2g} ms of arithmetic with gradients, {traffic:.2g} ms of memory traffic"
        yield f"Exact, {n:,} points, d = {d}, k = {k}, without their self energy", floor, contestants
    for d, k in ((8, 16), (2, 8)):
        p, q = [v.requires_grad_() for v in mixture(k, d)], [v + 0.1 for v in mixture(k, d)]

        def between(p: list[torch.Tensor] = p, q: list[torch.Tensor] = q) -> torch.Tensor:
            sides = (MultivariateNormalMixture(*v, validate_args=False) for v in (p, q))
            return sliced_cramer_loss(*sides, directions="exact")

        yield f"Exact, {k} to {k} components, d = {d}", "launches", {"all gradients": with_gradients(between, p)}


def eager_em(x: torch.Tensor, k: int, steps: int) -> torch.Tensor:
    """Expectation maximisation as one writes it in torch, from k rows; returns the mean log likelihood."""
    n, d = x.shape
    means = x[torch.randperm(n, device=DEVICE)[:k]]
    covariances = torch.cov(x.T).expand(k, d, d)
    weights = torch.full((k,), 1 / k, device=DEVICE)
    for _ in range(steps):
        factors = torch.linalg.cholesky(covariances + 1e-6 * torch.eye(d, device=DEVICE))
        inverses = torch.linalg.solve_triangular(factors, torch.eye(d, device=DEVICE), upper=False)
        log = torch.stack([
            ((x - mean) @ inverse.T).square().sum(1) for inverse, mean in zip(inverses, means, strict=True)
        ], 1)  # fmt: skip
        log = weights.log() - 0.5 * (log + d * math.log(2 * math.pi)) - factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        total = log.logsumexp(1, keepdim=True)
        shares = (log - total).exp()
        mass = shares.sum(0)
        weights, means = mass / n, shares.T @ x / mass[:, None]
        covariances = torch.stack([
            (share[:, None] * (x - mean)).T @ (x - mean) for share, mean in zip(shares.T, means, strict=True)
        ]) / mass[:, None, None]  # fmt: skip
    return total.mean()


def fits(bandwidth: float) -> Iterator[tuple[str, str, Contestants]]:
    for n, d, k in ((10**6, 8, 16), (10**7, 8, 10)):
        generator = torch.Generator(DEVICE).manual_seed(6)
        means = 4 * torch.randn(k, d, generator=generator, device=DEVICE)
        x = means[torch.randint(k, (n,), generator=generator, device=DEVICE)]
        x = x + torch.randn(n, d, generator=generator, device=DEVICE)
        floor = f"{20 * 4 * n * d / bandwidth * 1e3:.2g} ms of memory traffic for 20 steps"
        yield (
            f"A fit to {n:,} x {d}, k = {k}",
            floor,
            {
                "EM in eager torch, one start, 100 steps": lambda x=x, k=k: eager_em(x, k, 100),
                "cramix.fit": lambda x=x, k=k: cramix.fit(x, k, generator=torch.Generator(DEVICE).manual_seed(0)),
            },
        )


def steps(bandwidth: float) -> Iterator[tuple[str, str, Contestants]]:
    """One step of expectation maximisation over all samples, as the fit takes it."""
    for n, d, k in ((10**7, 8, 10), (10**6, 8, 16), (10**6, 64, 128)):
        generator = torch.Generator(DEVICE).manual_seed(7)
        x = torch.randn(n, d, generator=generator, device=DEVICE)
        weights = torch.ones(n, device=DEVICE, dtype=torch.float64)
        contestants: Contestants = {}
        for kind, dtype in (("full", torch.float32), ("full", torch.float64), ("diag", torch.float32)):
            family = FAMILIES[kind](d, 1e-6, dtype)
            data = Data(family, x.double(), weights, dtype=dtype)
            means = torch.randn(1, k, d, generator=generator, device=DEVICE, dtype=torch.float64)
            shares = means.new_full((1, k), 1 / k)
            sums = family.sums(shares, means, torch.eye(d, device=DEVICE, dtype=torch.float64).expand(1, k, d, d))
            contestants[f"cramix, {kind}, {dtype}"] = lambda data=data, sums=sums: data.step(sums)
        operations = 2 * 2 * n * k * (1 + d + d * (d + 1) / 2)
        floor = (
            f"{4 * n * d / bandwidth * 1e3:.2g} ms of memory traffic, {operations / (2 * FLOPS) * 1e3:.2g} ms of "
            "arithmetic with full covariances in float32 without tensor cores"
        )
        yield f"A step of EM over {n:,} x {d}, k = {k}", floor, contestants


PARTS: dict[str, Callable[[float], Iterator[tuple[str, str, Contestants]]]] = {
    "batches": batches,
    "scores": scores,
    "clouds": clouds,
    "exact": exact,
    "fits": fits,
    "steps": steps,
}

if __name__ == "__main__":
    main()
