"""What each choice of GMDQN's defaults is worth: runs that differ from them in one thing."""

from __future__ import annotations

from typing import Any

from cramix.rl.runs.training import Run

# Seeds of the comparison of algorithms start at 0; choices are made on others.
FIRST_SEED = 100

# What is other than in the defaults, by the name of the variation.
VARIATIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "1 step": {"n_steps": 1},
    "5 steps": {"n_steps": 5},
    "constant rate": {"final_learning_rate": 1.0},
    "half the rate": {"learning_rate": 2.5e-4},
    "twice the rate": {"learning_rate": 1e-3},
    "Lion, rate 5e-5": {"optimizer": "lion", "learning_rate": 5e-5},
    "Adam's eps 1e-5": {"optimizer_kwargs": {"eps": 1e-5}},
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
    "exploration to 0.05": {"exploration_final_eps": 0.05},
    "1 component": {"returns": {"components": 1}},
    "8 components": {"returns": {"components": 8}},
    "dueling": {"policy_kwargs": {"dueling": True}},
    "layer norm": {"policy_kwargs": {"layer_norm": True}},
    "1 member": {"policy_kwargs": {"members": 1}},
    "2 members": {"policy_kwargs": {"members": 2}},
}
PAPER = "all as in the paper"


def ablation(env: str, steps: int, seeds: int, **options: Any) -> list[Run]:
    """Return runs of every variation, and of the paper's preset, with as many seeds each.

    Example:
        >>> runs = ablation("CartPole-v1", 1000, seeds=1)
        >>> runs[1].name, runs[1].settings, runs[1].seed
        ('1 step', {'n_steps': 1}, 100)
    """
    asked = {"interval": steps, "curve_episodes": 0, **options}
    several = range(FIRST_SEED, FIRST_SEED + seeds)
    ours = [
        Run(env, "gmdqn", steps, seed, settings=settings, label=name, **asked)
        for name, settings in VARIATIONS.items()
        for seed in several
    ]
    return ours + [Run(env, "gmdqn", steps, seed, preset="paper", label=PAPER, **asked) for seed in several]
