"""Rare failures in recalibrated distributions; `python -m experiments.rare_failures`.

The pretrained lander plays under physics that it was not trained for, where it fails more often. In each of them it is
calibrated and measured on held-out episodes, with and without the component for rare outcomes.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import torch
import typer

from cramix.rl import GMDQN, ReturnCalibration, calibrate, evaluate_calibration
from cramix.rl.evaluation import evaluate
from experiments.command import Command, Episodes, Out
from experiments.statistics import summarize

_ENV = "LunarLander-v3"
# Not those by which the layer was developed.
PHYSICS: dict[str, dict[str, Any]] = {
    "as trained": {},
    "gravity -10.7": {"gravity": -10.7},
    "gravity -11.2": {"gravity": -11.2},
    "gravity -11.7": {"gravity": -11.7},
    "wind 3": {"enable_wind": True, "wind_power": 3.0, "turbulence_power": 0.2},
    "wind 6": {"enable_wind": True, "wind_power": 6.0, "turbulence_power": 0.5},
    "wind 8": {"enable_wind": True, "wind_power": 8.0, "turbulence_power": 0.8},
}
_FIELDS = ("physics", "tail", "failures", "failures_by_cvar", "coverage_80", "crps", "bias", "realised", "predicted")
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=Command)
def main(
    out: Out = Path("rare_failures"),
    episodes: Episodes = 1000,
    calibration: Annotated[int, typer.Option(help="Episodes to calibrate by.", min=16)] = 800,
    seed: Annotated[int, typer.Option(help="Of the first episode.", min=0)] = 70_000_000,
) -> None:
    """Measure predicted and realised deviations where an agent fails now and then (some minutes)."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    with (out / "rare_failures.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, _FIELDS)
        writer.writeheader()
        for name, options in PHYSICS.items():
            for row in measure(name, options, episodes, calibration, seed):
                writer.writerow(row)
                file.flush()
                print(" | ".join(f"{x:.3g}" if isinstance(x, float) else str(x) for x in row.values()), flush=True)


def measure(name: str, options: dict[str, Any], episodes: int, calibration: int, seed: int) -> list[dict[str, Any]]:
    """Return a row without and, if one was found, a row with the component for rare outcomes."""
    model = GMDQN.from_pretrained(_ENV, device="cpu")
    env = functools.partial(gymnasium.make, _ENV, **options)
    calibrate(model, env, calibration, seed=seed)
    layer = model.policy.recalibration
    scale = layer.tail_scale.clone()
    rows = []
    for tail in (False, True) if scale else (False,):
        layer.tail_scale = scale * tail
        found = evaluate_calibration(model, env, episodes, seed=seed)
        careful = evaluate(model, env, episodes, seed=seed + episodes, risk="cvar:0.25")
        rows.append(_row(name, tail, found, summarize(careful, _ENV).failures))
    return rows


def _row(name: str, tail: bool, found: ReturnCalibration, failures_by_cvar: float) -> dict[str, Any]:
    figures = (found.coverage(0.8), float(found.crps.mean()), found.bias, found.error, found.deviation)
    failures = summarize(found.scores, _ENV).failures
    return dict(zip(_FIELDS, (name, tail, failures, failures_by_cvar, *figures), strict=True))


if __name__ == "__main__":
    app()
