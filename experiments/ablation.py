"""Ablation: runs that each differ from GMDQN's defaults in one choice; `python -m experiments.ablation`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cramix.rl.training import Run
from experiments import report
from experiments.command import Command, Device, Env, Episodes, Out, Steps, Workers

# The comparison of algorithms uses seeds from 0; defaults are chosen on other seeds.
FIRST_SEED = 100

# Changes to the defaults, by the name of the variation.
VARIATIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "1 step": {"n_steps": 1},
    "5 steps": {"n_steps": 5},
    "constant rate": {"final_learning_rate": 1.0},
    "half the rate": {"learning_rate": 2.5e-4},
    "twice the rate": {"learning_rate": 1e-3},
    "Lion, rate 5e-5": {"learning_rate": 5e-5, "policy_kwargs": {"optimizer_class": "Lion"}},
    "Adam's eps 1e-5": {"policy_kwargs": {"optimizer_kwargs": {"eps": 1e-5}}},
    "fixed weights' layer": {"fraction_learning_rate": 5e-9},
    "penalty for scales": {"returns": {"scales": "penalty"}},
    "target copied (200)": {"tau": 1.0, "target_update_interval": 200},
    "unit of returns 1": {"return_scale": 1.0},
    "gradients unlimited": {"max_grad_norm": None},
    "2 x 256": {"policy_kwargs": {"net_arch": [256, 256]}},
    "2 x 256, batch of 128": {"batch_size": 128, "policy_kwargs": {"net_arch": [256, 256]}},
    "batch of 128": {"batch_size": 128},
    "discount 0.99": {"gamma": 0.99},
    "discount 0.998": {"gamma": 0.998},
    "memory of 100,000": {"buffer_size": 100_000},
    "memory of 300,000": {"buffer_size": 300_000},
    "exploration to 0.01": {"exploration_final_eps": 0.01},
    "1 component": {"returns": {"n_components": 1}},
    "8 components": {"returns": {"n_components": 8}},
    "dueling": {"policy_kwargs": {"dueling": True}},
    "layer norm": {"policy_kwargs": {"layer_norm": True}},
    "1 member": {"policy_kwargs": {"members": 1}},
    "4 members": {"policy_kwargs": {"members": 4}},
}
PAPER = "all as in the paper"


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def ablation(env: str, steps: int, seeds: int, **options: Any) -> list[Run]:
    """Return the runs of every variation, and of the paper's preset, with this many seeds each.

    Example:
        >>> runs = ablation("CartPole-v1", 1000, seeds=1)
        >>> runs[1].name, runs[1].settings, runs[1].seed
        ('1 step', {'n_steps': 1}, 100)
    """
    common = {"interval": steps, "curve_episodes": 0, **options}
    several = range(FIRST_SEED, FIRST_SEED + seeds)
    ours = [
        Run(env, "gmdqn", steps, seed, settings=settings, label=name, **common)
        for name, settings in VARIATIONS.items()
        for seed in several
    ]
    return ours + [Run(env, "gmdqn", steps, seed, preset="paper", label=PAPER, **common) for seed in several]


@app.command(cls=Command)
def main(
    out: Out = Path("ablation"),
    seeds: Annotated[int, typer.Option(help="Seeds of each variation.", min=1)] = 5,
    env: Env = "LunarLander-v3",
    steps: Steps = 300_000,
    episodes: Episodes = 100,
    workers: Workers = None,
    device: Device = None,
) -> None:
    """Train GMDQN with one default changed at a time, and compare the final agents (hours)."""
    runs = ablation(env, steps, seeds, episodes=episodes)
    report.standings(report.train(runs, out, workers, device), out, "variation")


if __name__ == "__main__":
    app()
