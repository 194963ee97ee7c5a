"""`python -m experiments.minatar COMMAND`; all but `report` need torch and numpy only."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from experiments.minatar import results
from experiments.minatar.games import GAMES
from experiments.minatar.results import Result, chosen_rates
from experiments.minatar.settings import (
    ALGORITHMS,
    DEFAULT,
    FIRST_TUNING_SEED,
    RATES,
    TUNED_ON,
    Plan,
    Settings,
    Variant,
)

_TARGET_STEPS = 1000  # environment steps between copies to the target network
# Options of the populations that `--beside` names.
BESIDE = {
    "default": {"algorithm": ["gmdqn"], "default": True, "rate": 5e-4},
    "half": {"algorithm": ["gmdqn"], "hidden": Settings.hidden // 2},
}
RESULTS = Path(__file__).parents[1] / "results" / "minatar"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.minatar", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("tune", f"Train every algorithm on {TUNED_ON} at several learning rates, added to those in the files."),
        ("train", "Train every algorithm on all games at its chosen learning rate."),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--out", type=Path, default=RESULTS, help="folder of the CSV files")
        command.add_argument("--name", help="of the files; that of the command by default")
        command.add_argument("--algorithm", nargs="+", choices=ALGORITHMS, default=ALGORITHMS)
        command.add_argument("--game", nargs="+", choices=tuple(GAMES))
        command.add_argument("--seeds", type=int, default=3 if name == "tune" else 10, help="number of seeds")
        command.add_argument("--steps", type=int, default=Settings.steps, help="environment steps of a run")
        command.add_argument("--envs", type=int, default=Settings.envs, help="environments of a run, steps per update")
        command.add_argument("--batch", type=int, default=Settings.batch_size, help="transitions of an update")
        command.add_argument("--hidden", type=int, default=Settings.hidden, help="units of the hidden layer")
        command.add_argument("--buffer", type=int, default=Settings.buffer_size, help="transitions in a replay buffer")
        command.add_argument("--max-steps", type=int, default=5000, help="longest episode of the evaluation")
        command.add_argument(
            "--default", action="store_true", help="the settings of cramix.rl: members, 3-step targets"
        )
        command.add_argument("--minutes", type=float, default=math.inf, help="stop after this time, with a checkpoint")
        command.add_argument("--no-compile", action="store_true", help="do not compile on a GPU")
        command.add_argument(
            "--no-compiled-games", action="store_true", help="do not compile the games, for short runs"
        )
        command.add_argument("--finish", action="store_true", help="evaluate the runs when the time is up")
        command.add_argument("--state", type=Path, help="folder of the checkpoint to resume from")
        command.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        if name == "tune":
            command.add_argument("--rate", type=float, nargs="+", default=RATES, help="learning rates to try")
        else:
            command.add_argument("--rate", type=float, help="learning rate of all algorithms")
            command.add_argument(
                "--beside", nargs="+", choices=tuple(BESIDE), default=(), help="populations of GMDQN to train beside it"
            )
            command.add_argument("--rates", type=Path, default=RESULTS / "tune.csv", help="the result of tune")
    check = commands.add_parser("check", help="Compare games and gradients on a device with those on the CPU.")
    check.add_argument("--device", default="cuda")
    check.add_argument("--compile", action="store_true", help="compile games and update, as in training on a GPU")
    random = commands.add_parser("random", help="Measure the scores of random actions.")
    random.add_argument("--out", type=Path, default=RESULTS, help="folder of the CSV files")
    report = commands.add_parser("report", help="Write docs/rl_minatar.md and its figures from the CSV files.")
    report.add_argument("--results", type=Path, default=RESULTS, help="folder of the CSV files")
    report.add_argument("--page", type=Path, default=Path("docs/rl_minatar.md"))
    return parser


def _plan(options: argparse.Namespace) -> tuple[Plan, dict[str, str], int]:
    """Return the plan, the labels of its algorithms and the seed of the population."""
    changes = dict(DEFAULT) if options.default else {"target_interval": max(1, _TARGET_STEPS // options.envs)}
    learning_starts = min(Settings.learning_starts, max(400, options.steps // 10))
    settings = Settings(
        steps=options.steps,
        envs=options.envs,
        batch_size=options.batch,
        hidden=options.hidden,
        buffer_size=options.buffer,
        learning_starts=learning_starts,
        exploration_steps=min(Settings.exploration_steps, options.steps // 2),
        **changes,
    )
    algorithms = sorted(options.algorithm, key=ALGORITHMS.index)
    first = 0
    if options.command == "tune":
        first = FIRST_TUNING_SEED
        variants = [Variant(name, rate) for name in algorithms for rate in options.rate]
        games = options.game or (TUNED_ON,)
    else:
        rates = {} if options.rate else chosen_rates(results.read(options.rates, Result))
        variants = [Variant(name, options.rate or rates[name]) for name in algorithms]
        games = options.game or tuple(GAMES)
    ending = "-default" if options.default else ""
    ending += f"-{options.hidden}" if options.hidden != Settings.hidden else ""
    labels = {name: f"{name}{ending}" for name in algorithms}
    return Plan(variants, tuple(games), tuple(range(first, first + options.seeds)), settings), labels, first


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. `train` and `tune` exit with 3 if they stopped before the end."""
    options = _parser().parse_args(arguments)
    if options.command == "report":
        from experiments.minatar.report import write_page

        write_page(options.results, options.page)
        return
    if options.command == "check":
        from experiments.minatar.check import compare_with_cpu

        compare_with_cpu(torch.device(options.device), compile=options.compile)
        return
    if options.command == "random":
        from experiments.minatar.training import random_scores

        results.write(options.out / "random.csv", random_scores(), Result)
        return
    from experiments.minatar.training import Job, train

    compiles = torch.device(options.device).type == "cuda" and not options.no_compile
    if torch.device(options.device).type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
    plan, labels, seed = _plan(options)
    jobs = [Job(options.name or options.command, plan, labels, merge=options.command == "tune")]
    beside = options.beside if options.command == "train" else ()
    jobs += [Job(name, *_plan(argparse.Namespace(**{**vars(options), **BESIDE[name]}))[:2]) for name in beside]
    found = train(
        jobs,
        options.out,
        device=torch.device(options.device),
        seed=seed,
        minutes=options.minutes,
        state=options.state,
        max_steps=options.max_steps,
        finish=options.finish,
        compile=compiles,
        compile_games=compiles and not options.no_compiled_games,
    )
    if found is None:
        sys.exit(3)
    means: dict[tuple[str, float, str], list[float]] = {}
    for row in found:
        means.setdefault((row.label, row.learning_rate, row.game), []).append(row.score)
    for (label, rate, game), scores in means.items():
        print(f"{label:16} {rate:8.1e} {game:15} {sum(scores) / len(scores):8.2f}")


if __name__ == "__main__":
    main()
