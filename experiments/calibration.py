"""Return distributions of the pretrained agent against held-out episodes; `python -m experiments.calibration`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from cramix.plot import return_calibration
from cramix.rl import GMDQN, ReturnCalibration, evaluate_calibration
from cramix.rl.evaluation import evaluate
from experiments.command import Command, Episodes, Out
from experiments.statistics import Interval, summarize

_ENV = "LunarLander-v3"
_RISKS = ("mean", "cvar:0.5", "cvar:0.25", "cvar:0.1", "quantile:0.5", "expectile:0.3")
_STEPS_TO_GO = (1, 5, 20, 50, 100, 150, 200, 1001)
_FIGURES: dict[str, Callable[[ReturnCalibration], float]] = {
    "in the 50 % interval": lambda c: c.coverage(0.5),
    "in the 80 % interval": lambda c: c.coverage(0.8),
    "in the 95 % interval": lambda c: c.coverage(0.95),
    "CRPS": lambda c: float(c.crps.mean()),
    "bias": lambda c: c.bias,
    "realised deviation": lambda c: c.error,
    "predicted deviation": lambda c: c.deviation,
    "predicted / realised": lambda c: c.deviation / c.error,
}
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=Command)
def main(
    out: Out = Path("calibration"),
    episodes: Episodes = 200,
    seed: Annotated[int, typer.Option(help="Of the first episode; nothing was chosen by those from 50000000 on.")] = (
        50_000_000
    ),
) -> None:
    """Measure the calibration of the agent in the package, and what risk measures do to its landings (a minute)."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    calibrated, raw = (GMDQN.from_pretrained(_ENV, device="cpu") for _ in range(2))
    raw.policy.recalibration.clear()
    agents = {"network alone": raw, "recalibrated": calibrated}
    measured = {name: evaluate_calibration(model, _ENV, episodes, seed=seed) for name, model in agents.items()}
    lines = _whole(measured)
    last = measured["recalibrated"]
    edges = last.means.quantile(torch.linspace(0, 1, 6, dtype=last.means.dtype)).tolist()
    lines += ["", *_groups("predicted return", last, last.means, [*edges[:-1], edges[-1] + 1])]
    lines += ["", *_groups("steps to go", last, last.remaining, list(_STEPS_TO_GO))]
    lines += ["", f"| risk | {' | '.join(f'return, {name} | failures, %' for name in agents)} |", "|---" * 5 + "|"]
    for risk in _RISKS:
        cells = [risk]
        for model in agents.values():
            returns = evaluate(model, _ENV, episodes, seed=seed + 1_000_000, risk=risk)
            cells += [f"{returns.mean():.1f} ± {returns.std():.1f}", f"{100 * summarize(returns, _ENV).failures:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    (out / "calibration.md").write_text(text := "\n".join(lines) + "\n")
    for name, result in measured.items():
        return_calibration(result).savefig(out / f"{name.replace(' ', '_')}.png", dpi=110)
    print(text)


def _whole(measured: dict[str, ReturnCalibration]) -> list[str]:
    """Return a table of all figures, with 95 % intervals over episodes."""
    first = next(iter(measured.values()))
    lines = [f"| {len(first.scores)} episodes, {len(first.pit)} steps | {' | '.join(measured)} |"]
    lines.append("|---" * (1 + len(measured)) + "|")
    for name, figure in _FIGURES.items():
        cells = [_text(_interval(figure, result)) for result in measured.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, f"| CRPS of the empirical distribution | {' | '.join([f'{first.empirical_crps:.2f}'] * 2)} |"]


def _interval(figure: Callable[[ReturnCalibration], float], result: ReturnCalibration) -> Interval:
    """Return a figure with its percentile bootstrap interval over episodes."""
    random = np.random.default_rng(0)
    rows = [torch.nonzero(result.episodes == i).squeeze(-1) for i in range(len(result.scores))]
    drawn = [
        figure(result.where(torch.cat([rows[i] for i in random.integers(len(rows), size=len(rows))])))
        for _ in range(300)
    ]
    return Interval(figure(result), *np.quantile(drawn, [0.025, 0.975]).tolist())


def _groups(name: str, result: ReturnCalibration, values: Any, edges: list[float]) -> list[str]:
    lines = [f"| {name} | steps | in the 80 % interval | CRPS | bias | realised deviation | predicted deviation |"]
    lines.append("|---" * 7 + "|")
    for low, high, part in result.by(values, edges):
        lines.append(
            f"| {low:.0f} to {high:.0f} | {len(part.pit)} | {part.coverage(0.8):.2f} | {part.crps.mean():.2f} "
            f"| {part.bias:.2f} | {part.error:.2f} | {part.deviation:.2f} |"
        )
    return lines


def _text(interval: Interval) -> str:
    return f"{interval.value:.2f} ({interval.low:.2f} to {interval.high:.2f})"


if __name__ == "__main__":
    app()
