"""Compute the table and the figure of precision.md: errors of the Cramér loss against 60 digits."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from tests import oracle  # noqa: E402

from cramix import NormalMixture, cramer_loss  # noqa: E402

SHAPES = {
    "three, means 30 apart": lambda seed: oracle.random_mixture(3, seed=seed, spread=30.0),
    "overlapping": lambda seed: oracle.random_mixture(5, seed=seed, spread=0.5),
    "scales 1e-3 to 1e3": lambda seed: _with_scales(oracle.random_mixture(5, seed=seed), seed),
    "atoms and normals": lambda seed: _with_atoms(oracle.random_mixture(5, seed=seed)),
    "narrow and far from 0": lambda seed: oracle.random_mixture(3, seed=seed).affine(1e9, 1.0).affine(0.0, 1e-6),
    "one of weight 1e-4": lambda seed: _with_a_light_one(oracle.random_mixture(3, seed=seed)),
}
SIZES = [10 ** (-k / 2) for k in range(17)]
METHODS = {
    "textbook, float32": (torch.float32, lambda p, q: paper_formula(p, q)),
    "textbook, float64": (torch.float64, lambda p, q: paper_formula(p, q)),
    "cramix, float32": (torch.float32, lambda p, q: cramer_loss(p, q).item()),
    "cramix, float64": (torch.float64, lambda p, q: cramer_loss(p, q).item()),
}
COLOURS = {
    "textbook, float32": "#E69F00",
    "textbook, float64": "#56B4E9",
    "cramix, float32": "#D55E00",
    "cramix, float64": "#0072B2",
}


def paper_formula(p: NormalMixture, q: NormalMixture) -> float:
    """The formula as the paper's appendix has it, epsilon included."""

    def term(a: NormalMixture, b: NormalMixture) -> torch.Tensor:
        scale = torch.sqrt(a.scales.unsqueeze(-1) ** 2 + b.scales**2 + 1e-20)
        z = (a.means.unsqueeze(-1) - b.means) / scale
        unit = 2 * F.gelu(z) - z + (2 / torch.pi) ** 0.5 * torch.exp(-(z**2) / 2)
        return (a.weights.unsqueeze(-1) * b.weights * scale * unit).sum()

    return (term(p, q) - 0.5 * term(p, p) - 0.5 * term(q, q)).item()


def _with_scales(p: NormalMixture, seed: int) -> NormalMixture:
    exponent = 6 * torch.rand(p.n_components, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 3
    return NormalMixture(p.weights, p.means, 10**exponent)


def _with_a_light_one(p: NormalMixture) -> NormalMixture:
    weights = torch.tensor([0.5, 0.5 - 1e-4, 1e-4], dtype=torch.float64)
    return NormalMixture(weights, p.means, p.scales * torch.tensor([1e-3, 1e-3, 1e3], dtype=torch.float64))


def _with_atoms(p: NormalMixture) -> NormalMixture:
    scales = p.scales.clone()
    scales[::2] = 0
    return NormalMixture(p.weights, p.means, scales)


def _cast(p: NormalMixture, dtype: torch.dtype) -> NormalMixture:
    weights = p.weights.to(dtype)
    return NormalMixture(weights / weights.sum(), p.means.to(dtype), p.scales.to(dtype))


def measure() -> dict[str, list[tuple[float, float]]]:
    """Points (C2^2 / scale, relative error) of every method."""
    points: dict[str, list[tuple[float, float]]] = {name: [] for name in METHODS}
    for make in SHAPES.values():
        for k, size in enumerate(SIZES):
            for seed in range(3):
                p = make(seed)
                g = torch.Generator().manual_seed(1000 * seed + k)
                noise = [torch.randn(p.means.shape, generator=g, dtype=torch.float64) for _ in range(3)]
                weights = p.weights * (size * noise[0]).exp()
                step = torch.where(p.scales > 0, p.scales, 1)
                q = NormalMixture(
                    weights / weights.sum(), p.means + size * step * noise[1], p.scales * (size * noise[2]).exp()
                )
                for name, (dtype, method) in METHODS.items():
                    a, b = _cast(p, dtype), _cast(q, dtype)
                    truth, scale = oracle.parts(a, b)
                    if truth > 0:
                        points[name].append((float(truth / scale), float(abs(method(a, b) / truth - 1))))
    return points


def table(points: dict[str, list[tuple[float, float]]]) -> str:
    """The largest error by decades of C2^2 / scale."""
    rows = [f"| C2² / scale | {' | '.join(METHODS)} |", "|---|" + "---|" * len(METHODS)]
    for low in range(-1, -15, -1):
        cells = []
        for name in METHODS:
            errors = [e for x, e in points[name] if 10.0**low <= x < 10.0 ** (low + 1)]
            cells.append(f"{max(errors):.0e}" if errors else "")
        rows.append(f"| 1e{low} to 1e{low + 1} | {' | '.join(cells)} |")
    return "\n".join(rows)


def draw(points: dict[str, list[tuple[float, float]]]) -> Figure:
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for name, xy in points.items():
        x, y = zip(*((a, max(b, 1e-16)) for a, b in xy if a > 1e-15), strict=True)
        axes.loglog(x, y, ".", ms=5, alpha=0.8, color=COLOURS[name], label=name)
    axes.plot([1e-12, 1], [1e-10, 1e-10], color=COLOURS["cramix, float64"], lw=1, ls="--")
    axes.plot([1e-10, 1], [1e-3, 1e-3], color=COLOURS["cramix, float32"], lw=1, ls="--")
    axes.text(
        1.2e-12, 1.5e-10, "guarantee, float64", ha="right", va="bottom", fontsize=8, color=COLOURS["cramix, float64"]
    )
    axes.text(
        1.2e-10, 1.5e-3, "guarantee, float32", ha="right", va="bottom", fontsize=8, color=COLOURS["cramix, float32"]
    )
    axes.axhline(1, color="0.6", lw=0.8)
    axes.set(xlabel="C2² / scale of the mixtures", ylabel="relative error of C2²", xlim=(2, 1e-15), ylim=(5e-17, 1e6))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    return figure


if __name__ == "__main__":
    measured = measure()
    page = HERE / "precision.md"
    text = page.read_text()
    new = re.sub(
        r"(<!-- table -->\n).*?(\n<!-- /table -->)", lambda m: m[1] + table(measured) + m[2], text, flags=re.DOTALL
    )
    page.write_text(new)
    draw(measured).savefig(HERE / "precision.png", dpi=110)
    print(table(measured))
