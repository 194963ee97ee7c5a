"""Tables of `experiments.landings`; `python -m experiments.landing_report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from experiments.command import Command
from experiments.landings import CALM, WINDY, read_rows
from experiments.statistics import Interval, interval, mean_interval

Row = dict[str, str]
RESULTS = Path(__file__).parent / "results" / "landings"
# Ways to learn, to be calibrated or not, and to act, in windy landings.
ARMS = {
    "learns and acts by the mean": ("gmdqn", "False", "mean"),
    "learns by the mean, acts by `cvar:0.5`": ("gmdqn", "False", "cvar:0.5"),
    "learns by the mean, calibrated, acts by `cvar:0.5`": ("gmdqn", "True", "cvar:0.5"),
    "learns by `cvar:0.5`, acts by the mean": ("learns by CVaR", "False", "mean"),
    "learns and acts by `cvar:0.5`": ("learns by CVaR", "False", "cvar:0.5"),
    "learns by `cvar:0.5`, calibrated, acts by it": ("learns by CVaR", "True", "cvar:0.5"),
}
BASE = "learns and acts by the mean"
# Of calibration: the heading, and its value in a row.
_FIGURES = {
    "in the 50 % interval": lambda row: float(row["coverage_50"]),
    "in the 80 % interval": lambda row: float(row["coverage_80"]),
    "in the 95 % interval": lambda row: float(row["coverage_95"]),
    "CRPS": lambda row: float(row["return_crps"]),
    "predicted / realised deviation": lambda row: float(row["return_deviation"]) / float(row["return_error"]),
}
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=Command)
def main(
    folder: Annotated[Path, typer.Argument(help="Folder of landings.csv.")] = RESULTS,
) -> None:
    """Print the tables of finished runs."""
    rows = [row for row in read_rows(folder / "landings.csv") if row["steps"] == row["planned"]]
    if not rows:
        raise ValueError(f"{folder} must have a landings.csv with finished runs; got none. Run experiments.landings.")
    calm, windy = ([row for row in rows if row["env"] == env] for env in (CALM, WINDY))
    tables = [(landings, calm), (calibration, calm), (landings_by_risk, calm), (gains, windy), (calibration, windy)]
    for table, own in tables:
        if own:
            print("\n".join(table(own)) + "\n")


def chosen(rows: list[Row], name: str, calibrated: str, acts: str) -> list[Row]:
    """Return the rows of one way to learn, be calibrated and act; by seed."""
    key = name, calibrated, acts
    return sorted(
        (row for row in rows if (row["name"], row["calibrated"], row["acts"]) == key), key=lambda row: int(row["seed"])
    )


def landings(rows: list[Row]) -> list[str]:
    """Return a table of the mean returns of final agents, by the way they learned."""
    lines = ["| algorithm | seeds | IQM | 95 % interval | mean return of each seed | failures, % |", "|---" * 6 + "|"]
    for name in dict.fromkeys(row["name"] for row in rows):
        own = chosen(rows, name, "False", "mean")
        means = np.array([float(row["mean"]) for row in own])
        middle, low, high = interval(means)
        each, failures = ", ".join(f"{x:.0f}" for x in np.sort(means)), _percent(own)
        lines.append(f"| `{name}` | {len(own)} | {middle:.1f} | {low:.1f} to {high:.1f} | {each} | {failures} |")
    return lines


def calibration(rows: list[Row]) -> list[str]:
    """Return a table of calibration, means over seeds, before and after recalibration."""
    columns = {}
    for name in dict.fromkeys(row["name"] for row in rows):
        for title, flag in (("network alone", "False"), ("recalibrated", "True")):
            own = [row for row in rows if row["name"] == name and row["calibrated"] == flag and row["coverage_80"]]
            if own:
                columns[f"`{name}`, {title} ({len(own)})"] = own
    lines = [f"| | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for title, figure in _FIGURES.items():
        cells = [_text(mean_interval(np.array([figure(row) for row in own])), 2) for own in columns.values()]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def landings_by_risk(rows: list[Row]) -> list[str]:
    """Return a table of failures of recalibrated agents of the mean by the measure they act by."""
    lines = ["| acts by | mean return | failures, % | most failures of a seed, % |", "|---" * 4 + "|"]
    for acts in dict.fromkeys(row["acts"] for row in rows):
        own = chosen(rows, "gmdqn", "True", acts)
        if not own:
            continue
        means, worst = np.array([float(row["mean"]) for row in own]), max(float(row["failures"]) for row in own)
        lines.append(f"| {acts} | {_text(mean_interval(means), 1)} | {_percent(own)} | {100 * worst:.0f} |")
    return lines


def gains(rows: list[Row]) -> list[str]:
    """Return a table of windy landings, and the gain in CVaR over agents of the mean, by pairs of equal seeds."""
    lines = [
        "| agent | seeds | mean return | CVaR 0.5 | CVaR 0.25 | gain in CVaR 0.5 | gain in CVaR 0.25 | failures, % |",
        "|---" * 8 + "|",
    ]
    base = {row["seed"]: row for row in chosen(rows, *ARMS[BASE])}
    for arm, key in ARMS.items():
        own = [row for row in chosen(rows, *key) if row["seed"] in base]
        if not own:
            continue
        cells = [_text(mean_interval(_values(own, name)), 0) for name in ("mean", "cvar_50", "cvar_25")]
        for name in ("cvar_50", "cvar_25"):
            better = _values(own, name) - _values([base[row["seed"]] for row in own], name)
            cells.append("" if arm == BASE else _text(mean_interval(better), 0))
        lines.append(f"| {arm} | {len(own)} | {' | '.join(cells)} | {_percent(own)} |")
    return lines


def _values(rows: list[Row], name: str) -> np.ndarray:
    return np.array([float(row[name]) for row in rows])


def _percent(rows: list[Row]) -> str:
    return f"{100 * _values(rows, 'failures').mean():.1f}"


def _text(found: Interval, digits: int) -> str:
    value, low, high = (f"{x:.{digits}f}" for x in found)
    return f"{value} ({low} to {high})"


if __name__ == "__main__":
    app()
