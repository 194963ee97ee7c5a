"""Does acting by CVaR improve the CVaR of realised returns? `python -m experiments.risk`."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np
import torch
import typer
from stable_baselines3.common.env_util import make_vec_env

from cramix.rl import GMDQN
from cramix.rl.evaluation import evaluate
from cramix.rl.folder import read_json, write_json
from experiments import bridge, risky
from experiments.command import Command, Out, Workers
from experiments.processes import run_jobs
from experiments.statistics import mean_interval

LEVEL = 0.1
RISK = f"cvar:{LEVEL}"
ENVS = {"Bridge": bridge.NAME, **risky.NAMES}
# How an agent learns and acts.
ARMS = {"mean": ("mean", "mean"), "acts by CVaR": ("mean", RISK), "learns and acts by CVaR": (RISK, RISK)}
_EPISODES = 2000
_SETTINGS: dict[str, Any] = {
    "gamma": 1.0,
    "n_steps": 1,  # actions are random, so that sums of more rewards would be those of another policy
    "exploration_final_eps": 1.0,
    "learning_starts": 32_000,
    "buffer_size": 200_000,
    "batch_size": 128,
    "learning_rate": 2e-3,
    "final_learning_rate": 0.0,
    "tau": 0.05,
    "compile": False,
    "policy_kwargs": {"net_arch": [64, 64], "members": 1},
}
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=Command)
def main(
    out: Out = Path("risk"),
    env: Annotated[list[str] | None, typer.Option(help="Only this environment; may be repeated.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds of each agent.", min=2)] = 10,
    first_seed: Annotated[int, typer.Option(help="The first of them.", min=0)] = 0,
    steps: Annotated[int, typer.Option(help="Environment steps of a run.", min=1)] = 200_000,
    preconditioned: Annotated[
        bool, typer.Option("--preconditioned/--plain", help="Whether gradients are divided by weights.")
    ] = True,
    workers: Workers = 1,
) -> None:
    """Train agents by the mean and by CVaR in small stochastic environments, and compare their returns (25 minutes)."""
    out.mkdir(parents=True, exist_ok=True)
    names = [name for name in ENVS if env is None or name in env]
    jobs = {
        f"{name}-{risk.partition(':')[0]}-{seed}": (name, risk, seed, steps, preconditioned, str(out))
        for seed in range(first_seed, first_seed + seeds)
        for name in names
        for risk in ("mean", RISK)
    }
    waiting = {job: arguments for job, arguments in jobs.items() if not (out / f"{job}.json").exists()}
    for job, _ in run_jobs(_run, waiting, workers or 1):
        print(job, flush=True)
    rows = [row for job in jobs for row in read_json(out / f"{job}.json")]
    with (out / "risk.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["env", "agent", "seed", "mean", "cvar"])
        writer.writeheader()
        writer.writerows(rows)
    (out / "risk.md").write_text(text := _table(names, rows))
    print(text)


def _run(name: str, risk: str, seed: int, steps: int, preconditioned: bool, out: str) -> None:
    """Train an agent, play it, and write the statistics of its returns."""
    torch.set_num_threads(1)
    envs = make_vec_env(lambda: gymnasium.make(ENVS[name], start=None), n_envs=64)
    settings = {"risk": risk, "returns": {"preconditioned": preconditioned}, **_SETTINGS}
    model = GMDQN("MlpPolicy", envs, seed=seed, device="cpu", **settings).learn(steps)
    rows = []
    for arm, (learns, acts) in ARMS.items():
        if learns == risk:
            returns = np.sort(evaluate(model, ENVS[name], _EPISODES, seed=_EPISODES * seed, risk=acts))
            cvar = float(returns[: int(LEVEL * _EPISODES)].mean())
            rows.append({"env": name, "agent": arm, "seed": seed, "mean": float(returns.mean()), "cvar": cvar})
    write_json(Path(out) / f"{name}-{risk.partition(':')[0]}-{seed}.json", rows)


def _table(names: list[str], rows: list[dict[str, Any]]) -> str:
    """Return a table of means over seeds with their 95 % intervals, and the exact values of the best policies."""
    lines = [
        f"| environment | agent | mean of returns | CVaR {LEVEL} of returns | CVaR minus that of the mean's agents |",
        "|---|---|---|---|---|",
    ]
    for name in names:
        base = np.array([row["cvar"] for row in rows if (row["env"], row["agent"]) == (name, "mean")])
        for arm, (learns, _) in ARMS.items():
            own = [row for row in rows if (row["env"], row["agent"]) == (name, arm)]
            mean, cvar = (np.array([row[key] for row in own]) for key in ("mean", "cvar"))
            gain = "" if arm == "mean" else _text(mean_interval(cvar - base))
            lines.append(f"| {name} | {arm} | {_text(mean_interval(mean))} | {_text(mean_interval(cvar))} | {gain} |")
            if name in risky.NAMES and arm != "acts by CVaR":
                _, exact = getattr(risky, name).solve(None if learns == "mean" else LEVEL)
                values = f"{risky.value(exact, None):.2f} | {risky.value(exact, LEVEL):.2f}"
                lines.append(f"| {name} | *{arm}, exact* | {values} | |")
    return "\n".join(lines) + "\n"


def _text(interval: tuple[float, float, float]) -> str:
    value, low, high = interval
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    app()
