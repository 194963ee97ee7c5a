"""Results of runs on MinAtar in CSV files: one row for each run, and one for each point of its learning curve."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from cramix.atomic import replacing


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Args:
        label: name of the algorithm with its settings.
        algorithm: a key of `RETURNS`.
        learning_rate: of Adam.
        game: name of the game.
        seed: of the run.
        steps: environment steps.
        updates: of the networks.
        score: mean return of the evaluation episodes, without exploration.
        score_std: their standard deviation.
        episodes: number of evaluation episodes.
        unfinished: how many of them were cut off.
        train_return: mean return of the training episodes that ended in the last tenth of the steps.
        parameters: of the networks.
        last_parameters: of their last layers.
        seconds: time of all runs that were trained together.
        together: number of these runs.
    """

    label: str
    algorithm: str
    learning_rate: float
    game: str
    seed: int
    steps: int
    updates: int
    score: float
    score_std: float
    episodes: int
    unfinished: int
    train_return: float
    parameters: int
    last_parameters: int
    seconds: float
    together: int


@dataclass(frozen=True)
class Point:
    """A point of a learning curve: training episodes that ended since the last point.

    Args:
        label: name of the algorithm with its settings.
        learning_rate: of Adam.
        game: name of the game.
        seed: of the run.
        step: at the end of the interval.
        train_return: mean return of these episodes, NaN without any.
        episodes: number of these episodes.
    """

    label: str
    learning_rate: float
    game: str
    seed: int
    step: int
    train_return: float
    episodes: int


Row = Result | Point


def write(path: str | Path, rows: Iterable[Row], kind: type[Row]) -> None:
    """Write rows to a file, atomically; numbers have five significant digits."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as raw:
        names = [f.name for f in fields(kind)]
        lines = [",".join(names)]
        lines += [",".join(_text(x) for x in asdict(row).values()) for row in rows]
        raw.write(("\n".join(lines) + "\n").encode())


def merge(path: str | Path, rows: Sequence[Row], kind: type[Row]) -> None:
    """Write rows to a file, after those that it holds of other runs."""
    mine = {_run(row) for row in rows}
    others = [row for row in read(path, kind) if _run(row) not in mine] if Path(path).exists() else []
    write(path, [*others, *rows], kind)


def read(path: str | Path, kind: type[Row]) -> list:
    """Read the rows of a file."""
    kinds = {f.name: {"str": str, "int": int, "float": float}[str(f.type)] for f in fields(kind)}
    with Path(path).open(newline="") as file:
        return [kind(**{name: kinds[name](x) for name, x in row.items()}) for row in csv.DictReader(file)]


def chosen_rates(rows: Sequence[Result]) -> dict[str, float]:
    """Return the learning rate with the best mean score of each algorithm."""
    scores: dict[tuple[str, float], list[float]] = {}
    for row in rows:
        score = row.score if math.isfinite(row.score) else -math.inf
        scores.setdefault((row.algorithm, row.learning_rate), []).append(score)
    means = {key: sum(x) / len(x) for key, x in scores.items()}
    names = dict.fromkeys(algorithm for algorithm, _ in means)
    return {name: max((key for key in means if key[0] == name), key=lambda key: means[key])[1] for name in names}


def _run(row: Row) -> tuple[str, str, str, int]:
    return row.label, _text(row.learning_rate), row.game, row.seed


def _text(x: object) -> str:
    return f"{x:.5g}" if isinstance(x, float) else str(x)
