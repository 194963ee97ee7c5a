"""The page of the comparison on MinAtar, written from the CSV files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cramix.atomic import replacing
from cramix.plot.figure import COLOURS, require_matplotlib
from experiments.minatar import results
from experiments.minatar.games import GAMES
from experiments.minatar.results import Point, Result, chosen_rates
from experiments.minatar.settings import ALGORITHMS, DEFAULT, TUNED_ON, Settings
from experiments.statistics import (
    Interval,
    aggregate_iqm,
    interquartile_mean,
    interval,
    performance_profile,
    probability_of_improvement,
    stratified_interval,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS = "gmdqn"
HALF = f"gmdqn-{Settings.hidden // 2}"
FILES = ("train", "breakout", "default", "half")
_THRESHOLDS = np.linspace(0, 1.5, 31)
_INTRODUCTION = Path(__file__).with_name("page.md")


class Scores:
    """Scores of all labels in games, and the same as fractions of the best.

    A normalised score is 0 for random actions and 1 for the best mean of any label in the game.

    Args:
        rows: of all labels.
        random: scores of random actions.
        games: the games to compare on.
    """

    def __init__(self, rows: Sequence[Result], random: Sequence[Result], games: Sequence[str]):
        self.games = list(games)
        self.labels = list(dict.fromkeys(row.label for row in rows))
        found = {(label, game): [] for label in self.labels for game in games}  # type: dict[tuple[str, str], list[float]]
        for row in rows:
            if row.game in games:
                found[row.label, row.game].append(row.score)
        self.raw = {label: np.array([found[label, game] for game in games]).T for label in self.labels}
        zero = np.array([next(row.score for row in random if row.game == game) for game in games])
        best = np.max([np.nanmean(x, 0) for x in self.raw.values()], 0)
        self.normalised = {label: (np.nan_to_num(x) - zero) / (best - zero) for label, x in self.raw.items()}

    def ranking(self) -> list[tuple[str, Interval]]:
        """Return the aggregate IQM of each label, the best first."""
        found = [(label, stratified_interval(aggregate_iqm, x)) for label, x in self.normalised.items()]
        return sorted(found, key=lambda item: -item[1].value)


def write_page(folder: Path, page: Path) -> None:
    """Write the page and its figures.

    Args:
        folder: of the CSV files.
        page: its figures are written beside it.
    """
    tuning = _read(folder / "tune.csv")
    rows = [row for name in FILES for row in _read(folder / f"{name}.csv")]
    template = _INTRODUCTION.read_text().format(**_values(tuning))
    introduction, heading, atari = template.rstrip().partition("## Atari")
    text = [introduction.rstrip()]
    if rows:
        text.append(_time(rows))
    if tuning:
        text.append(_tuning(tuning, rows))
    if rows:
        random = _read(folder / "random.csv")
        games = [game for game in GAMES if game != TUNED_ON and any(row.game == game for row in rows)]
        scores = Scores(rows, random, games)
        text += [_aggregate(scores), _games(rows, random), _parameters(rows)]
        _draw_profiles(scores, page.with_suffix(".png"))
        text.append(f"![Performance profiles]({page.with_suffix('.png').name})")
        points = [
            point
            for name in FILES
            if (folder / f"{name}_curves.csv").exists()
            for point in results.read(folder / f"{name}_curves.csv", Point)
        ]
        _draw_curves(points, page.with_name(f"{page.stem}_curves.png"))
        text.append(f"![Learning curves]({page.stem}_curves.png)")
    else:
        text.append("## Results\n\nThe comparison has not been run yet: there are no results in this version.")
    text.append(heading + atari)
    with replacing(page) as file:
        file.write(("\n\n".join(text) + "\n").encode())


def _read(path: Path) -> list[Result]:
    return results.read(path, Result) if path.exists() else []


def _values(tuning: Sequence[Result]) -> dict[str, object]:
    """Return the settings that the introduction names."""
    steps = max((row.steps for row in tuning), default=Settings.steps)
    return {
        **vars(Settings()),
        "tuned_on": TUNED_ON,
        "tune": "tune" if steps == Settings.steps else f"tune --steps {steps}",
    }


def _time(rows: Sequence[Result]) -> str:
    """Return how long training took, and what is to be known of runs that stopped early."""
    first, s = rows[0], Settings()
    each = 1000 * first.seconds * s.envs / first.steps
    text = (
        f"The {first.together} runs of `train` took {first.seconds / 60:.0f} minutes on an NVIDIA H200, "
        f"or {each:.1f} ms for a step of all of them with its update, compilation included."
    )
    stopped = min(row.steps for row in rows)
    if stopped < s.steps:
        text += f" They stopped at {stopped:,} of the {s.steps:,} steps, at a time limit, and were evaluated there."
    if stopped < s.steps and any(row.label == "gmdqn-default" for row in rows):
        rate = 1 - (1 - DEFAULT["final_learning_rate"]) * stopped / s.steps
        text += f" The learning rate of `gmdqn-default` had fallen to {100 * rate:.0f} % of its initial value."
    return text


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _tuning(rows: Sequence[Result], compared: Sequence[Result]) -> str:
    rates = sorted({row.learning_rate for row in rows})
    chosen = chosen_rates(rows)
    lines = []
    for name in [name for name in ALGORITHMS if name in chosen]:
        cells = []
        for rate in rates:
            scores = [row.score for row in rows if (row.algorithm, row.learning_rate) == (name, rate)]
            mean = f"{np.mean(scores):.1f}" if scores else ""
            cells.append(f"**{mean}**" if rate == chosen[name] else mean)
        lines.append([f"`{name}`", *cells])
    seeds = len({row.seed for row in rows})
    steps = " or ".join(f"{n:,}" for n in sorted({row.steps for row in rows}))
    text = (
        f"## Learning rates\n\nMean score on {TUNED_ON} of {seeds} seeds, which are not those of the comparison, after "
        f"{steps} steps. The best is in bold.\n\n" + _table(["algorithm", *(f"{rate:g}" for rate in rates)], lines)
    )
    highest = [f"`{name}`" for name in chosen if chosen[name] == rates[-1]]
    if highest:
        text += f"\n\nThe highest rate is the best for {', '.join(highest)}; still higher ones could be better."
    used = {row.label: row.learning_rate for row in compared}
    others = [name for name in chosen if used.get(name, chosen[name]) != chosen[name]]
    if others:
        text += "\n\nThe comparison below was run before all of these rates were tried. " + " ".join(
            f"In it `{name}` has a rate of {used[name]:g}, where {chosen[name]:g} would have been chosen: its results "
            "could be better."
            for name in others
        )
    return text


def _text(x: Interval, digits: int = 2) -> str:
    return f"{x.value:.{digits}f} ({x.low:.{digits}f} to {x.high:.{digits}f})"


def _aggregate(scores: Scores) -> str:
    ranking = scores.ranking()
    best, mine = ranking[0][0], [label for label in (OURS, HALF) if label in scores.labels]

    def better(ours: str, label: str) -> str:
        both = scores.normalised[ours], scores.normalised[label]
        return "" if ours == label else _text(stratified_interval(probability_of_improvement, *both))

    lines = []
    for label, iqm in ranking:
        median = float(np.median(scores.normalised[label].mean(0)))
        lines.append([f"`{label}`", _text(iqm), f"{median:.2f}", *(better(ours, label) for ours in mine)])
    text = (
        f"## Results\n\nOver {', '.join(scores.games)}; {TUNED_ON}, on which learning rates were chosen, is left out. "
        "Scores are 0 for random actions and 1 for the best mean in each game. Intervals are 95 %, by a stratified "
        "bootstrap over seeds (Agarwal et al., 2021).\n\n"
        + _table(["algorithm", "interquartile mean", "median of games", *(f"P(`{x}` is better)" for x in mine)], lines)
    )
    return text + "\n\n" + _verdict(scores, best)


def _verdict(scores: Scores, best: str) -> str:
    """Return what the intervals support, and no more."""
    if OURS not in scores.normalised:
        return ""
    others = [label for label in scores.labels if label != OURS]
    found = {
        x: stratified_interval(probability_of_improvement, scores.normalised[OURS], scores.normalised[x])
        for x in others
    }
    ahead = [f"`{x}`" for x, p in found.items() if p.low > 0.5]
    behind = [f"`{x}`" for x, p in found.items() if p.high < 0.5]
    level = [f"`{x}`" for x, p in found.items() if p.low <= 0.5 <= p.high]
    parts = [
        f"{words} {', '.join(names)}"
        for words, names in (("better than", ahead), ("level with", level), ("worse than", behind))
        if names
    ]
    return f"The highest interquartile mean is that of `{best}`. By these intervals `{OURS}` is {'; '.join(parts)}."


def _games(rows: Sequence[Result], random: Sequence[Result]) -> str:
    games = [game for game in GAMES if any(row.game == game for row in rows)]
    lines = []
    for label in dict.fromkeys(row.label for row in rows):
        cells = []
        for game in games:
            mine = [row for row in rows if (row.label, row.game) == (label, game)]
            cells.append(_text(interval(np.array([row.score for row in mine])), 1) if mine else "")
        lines.append([f"`{label}`", *cells])
    zero = {row.game: f"{row.score:.1f}" for row in random}
    lines.append(["random", *(zero[game] for game in games)])
    episodes, cut = sum(row.episodes for row in rows), sum(row.unfinished for row in rows)
    return (
        "Interquartile mean over seeds of the mean score of the final agents, without exploration"
        f" ({cut} of {episodes} episodes were cut off):\n\n" + _table(["algorithm", *games], lines)
    )


def _parameters(rows: Sequence[Result]) -> str:
    lines = []
    for label in dict.fromkeys(row.label for row in rows):
        mine = [row for row in rows if row.label == label]
        one = next((row for row in mine if row.game == "seaquest"), mine[0])
        cells = [f"{one.parameters:,}", f"{one.last_parameters:,}", f"{one.learning_rate:g}"]
        cells += [str(len({row.seed for row in mine})), f"{one.steps:,}", f"{one.updates:,}"]
        lines.append([f"`{label}`", *cells, f"{one.seconds:.0f} s for {one.together} runs"])
    header = ["algorithm", "parameters", "of the last layers", "learning rate", "seeds", "steps", "updates", "time"]
    return "Parameters are those for Seaquest, which has the most channels.\n\n" + _table(header, lines)


def _draw_profiles(scores: Scores, path: Path) -> None:
    figure = require_matplotlib()(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for i, (label, x) in enumerate(scores.normalised.items()):
        values, low, high = np.array(performance_profile(x, _THRESHOLDS)).T
        colour = COLOURS[i % len(COLOURS)]
        axes.plot(_THRESHOLDS, values, color=colour, lw=2.4 if label == OURS else 1.4, label=label)
        axes.fill_between(_THRESHOLDS, low, high, color=colour, alpha=0.12, lw=0)
    axes.set(xlabel="normalised score", ylabel="fraction of runs above it", title="Performance profiles")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False, fontsize=9)
    _save(figure, path)


def _draw_curves(points: Sequence[Point], path: Path) -> None:
    games = [game for game in GAMES if any(point.game == game for point in points)]
    figure = require_matplotlib()(figsize=(12, 3.2), layout="constrained")
    labels = list(dict.fromkeys(point.label for point in points))
    for axes, game in zip(figure.subplots(1, len(games), squeeze=False)[0], games, strict=True):
        for i, label in enumerate(labels):
            mine = [point for point in points if (point.label, point.game) == (label, game)]
            steps = sorted({point.step for point in mine})
            seeds = [[point.train_return for point in mine if point.step == step] for step in steps]
            middle = [float(interquartile_mean(np.nan_to_num(np.array(x)))) for x in seeds]
            name = label if game == games[0] else None
            axes.plot(steps, middle, color=COLOURS[i % len(COLOURS)], lw=2 if label == OURS else 1.2, label=name)
        axes.set(title=game, xlabel="steps")
        axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1e6:g}M" if x else "0")
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False, fontsize=9)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=130)
