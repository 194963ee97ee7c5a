"""GMDQN against Stable-Baselines3's DQN and sb3-contrib's QR-DQN: updates and environment steps per second.

All have the same network and batch size, and take turns in one process on one thread. Results go to
benchmarks/reinforcement.md.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import sb3_contrib
import stable_baselines3
import torch
from harness import TURNS, Page, machine, report, take_turns

import cramix
from cramix.rl import GMDQN, QRDQN, DistributionalDQN

RESULTS = Path(__file__).parent / "reinforcement.md"
ENV, NETWORK, BATCH, WARM_UP = "LunarLander-v3", [128, 128], 64, 1000
UPDATES, STEPS, ACTIONS = 50, 200, 100
BASELINES = ("Stable-Baselines3 DQN", "sb3-contrib QRDQN, 51 quantiles (as in docs/rl.md)")
RISKS = ("mean", "cvar:0.25", "quantile:0.5", "expectile:0.3")


def theirs(algorithm: type, **policy: Any) -> Any:
    return algorithm(
        "MlpPolicy",
        ENV,
        batch_size=BATCH,
        buffer_size=100_000,
        learning_starts=WARM_UP,
        train_freq=1,
        gradient_steps=1,
        exploration_fraction=1e-3,
        exploration_final_eps=0.01,
        device="cpu",
        seed=0,
        policy_kwargs={"net_arch": NETWORK, **policy},
    )


def ours(algorithm: type[DistributionalDQN], compiled: bool = True, **settings: Any) -> DistributionalDQN:
    return algorithm(
        "MlpPolicy",
        ENV,
        batch_size=BATCH,
        buffer_size=100_000,
        learning_starts=WARM_UP,
        exploration_fraction=1e-3,
        exploration_final_eps=0.01,
        device="cpu",
        seed=0,
        compile=compiled,
        **settings,
    )


def contestants() -> dict[str, Any]:
    single: dict[str, Any] = {"policy_kwargs": {"members": 1}, "n_steps": 1}
    dqn, qrdqn = BASELINES
    return {
        dqn: theirs(stable_baselines3.DQN),
        "sb3-contrib QRDQN, 9 quantiles (as many outputs as GMDQN)": theirs(sb3_contrib.QRDQN, n_quantiles=9),
        qrdqn: theirs(sb3_contrib.QRDQN, n_quantiles=51),
        "sb3-contrib QRDQN, 200 quantiles (its default)": theirs(sb3_contrib.QRDQN),
        "cramix QRDQN, 200 quantiles": ours(QRDQN, returns={"quantiles": 200}, **single),
        "cramix GMDQN, 1 member": ours(GMDQN, **single),
        "cramix GMDQN (2 members, 3-step returns)": ours(GMDQN),
        "cramix GMDQN, trained by CVaR": ours(GMDQN, risk="cvar:0.25"),
        "cramix GMDQN, not compiled": ours(GMDQN, compiled=False),
    }


def updates(model: Any) -> Callable[[], None]:
    return lambda: model.train(gradient_steps=UPDATES, batch_size=BATCH)


def steps(model: Any) -> Callable[[], None]:
    return lambda: model.learn(STEPS, log_interval=None, reset_num_timesteps=False)


def actions(model: DistributionalDQN, risk: str) -> Callable[[], None]:
    """Return a function that chooses actions for one observation at a time."""
    observation = np.zeros(model.observation_space.shape, np.float32)

    def act() -> None:
        for _ in range(ACTIONS):
            model.predict(observation, deterministic=True, risk=risk)

    return act


def acting() -> list[str]:
    """Return the rows of the pretrained agent, which has four members and is calibrated."""
    model = GMDQN.from_pretrained(ENV, device="cpu")
    times = take_turns({risk: actions(model, risk) for risk in RISKS}, turns=15)
    rows = ["| measure | ms per action | relative to the mean |", "|---|---|---|"]
    for (risk, seconds), row in zip(times.items(), report(times, "mean"), strict=True):
        median = sorted(seconds)[len(seconds) // 2]
        rows.append(f"| {risk} | {1e3 * median / ACTIONS:.2f} | {row.split('|')[3].strip()} |")
    return rows


def per_second(times: dict[str, list[float]], count: int) -> list[str]:
    """Return the rows of `report` with rates instead of times, and the ratios to each baseline side by side."""
    ratios = [[row.split("|")[3].strip() for row in report(times, baseline)] for baseline in BASELINES]
    rows = ["| algorithm | per second | relative to DQN | relative to 51 quantiles |", "|---|---|---|---|"]
    for (name, seconds), *speeds in zip(times.items(), *ratios, strict=True):
        rows.append(f"| {name} | {count / sorted(seconds)[len(seconds) // 2]:.0f} | {' | '.join(speeds)} |")
    return rows


def main() -> None:
    torch.set_num_threads(1)
    page = Page(
        RESULTS,
        [
            "# Q-learning: speed",
            "",
            f"{ENV}, network {NETWORK}, batch {BATCH}, one thread, one update per environment step; algorithms of "
            "cramix are compiled unless it says otherwise. They all take turns in one process. Ratios are speeds "
            "relative to DQN of Stable-Baselines3 and QRDQN of sb3-contrib: medians over turns (smallest to largest). "
            "Per update, double Q-learning evaluates the network once more than they do, for each of its members. A "
            "step of the environment takes longer on the ground, so whole runs differ by what agents do. "
            "`python benchmarks/reinforcement.py`.",
            "",
            machine(cramix, torch, stable_baselines3, sb3_contrib, gymnasium),
        ],
    )
    page.add(["## Actions", "", "One observation at a time, by a calibrated agent of four members.", "", *acting()])
    models = contestants()
    for model in models.values():
        model.learn(WARM_UP + 100, log_interval=None)
    learner = take_turns({name: updates(model) for name, model in models.items()}, turns=TURNS)
    page.add(["## Updates", "", *per_second(learner, UPDATES)])
    whole = take_turns({name: steps(model) for name, model in models.items()}, turns=TURNS)
    page.add(["## Environment steps of a whole run", "", *per_second(whole, STEPS)])


if __name__ == "__main__":
    main()
