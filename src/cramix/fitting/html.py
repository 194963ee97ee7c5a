"""Results of fits in notebooks: what was found as a picture and tables, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cramix.markup import COLORS, Picture, card, counted, drawable, note, number, table
from cramix.mixture import html

if TYPE_CHECKING:
    from cramix.fitting.result import FitResult
    from cramix.fitting.selection import Selection


def of_result(result: FitResult, names: Sequence[str] | None = None, title: str = "FitResult") -> str:
    """Return the HTML of a fit to data whose columns may have names."""
    found = f"{title}, {counted(result.mixture.n_components, 'component')}"
    return card(found, *html.blocks(result.mixture, names), table((), _facts(result))) + _warnings(result.warnings)


def of_selection(selection: Selection) -> str:
    """Return the HTML of fits with several numbers of components."""
    chosen = _chosen(selection)
    rows = [
        (
            str(k),
            "" if result.log_likelihood is None else f"{result.log_likelihood:.6g}",
            f"{result.bic:.1f}",
            *(_held_out(selection, k) if selection.held_out else ()),
            str(result.collapsed),
            ", ".join(chosen.get(k, ())),
        )
        for k, result in selection.results.items()
    ]
    held_out = ("held-out score",) if selection.held_out else ()
    head = ("components", "mean log likelihood", "BIC", *held_out, "collapsed", "chosen by")
    title = f"Selection, {counted(len(selection.results), 'fit')}"
    warnings = [f"{counted(k, 'component')}: {text}" for k in chosen for text in selection.warnings.get(k, ())]
    return card(title, _bic(selection), table(head, rows)) + _warnings(warnings)


def _facts(result: FitResult) -> list[tuple[str, str]]:
    """Return names and values of what is known about a fit."""
    facts: list[tuple[str, str]] = []
    if result.n_samples is not None and result.log_likelihood is not None:
        facts += [
            ("samples", f"{result.n_samples:,}"),
            ("mean log likelihood", f"{result.log_likelihood:.6g}"),
            ("BIC", f"{result.bic:.1f}"),
            ("AIC", f"{result.aic:.1f}"),
        ]
    facts += [
        ("converged", "yes" if result.converged else "no"),
        ("stopped", result.reason),
        ("iterations", str(result.n_iter)),
        ("seconds", f"{result.seconds:.3g}"),
    ]
    facts += [("shrinkage", number(result.shrinkage))] if result.shrinkage else []
    facts += [("collapsed components", str(result.collapsed))] if result.collapsed else []
    facts += [("outliers left out", str(len(result.outliers)))] if result.outliers else []
    facts += [("passes over the data", str(result.passes))] if result.passes is not None else []
    facts += [("rows skipped", f"{result.n_bad:,}")] if result.n_bad else []
    return facts


def _warnings(texts: Iterable[str]) -> str:
    return "".join(note(f"⚠ {text}") for text in texts)


def _chosen(selection: Selection) -> dict[int, list[str]]:
    """Return the chosen numbers of components, each with the criteria that chose it."""
    chosen = {selection.by_bic: ["BIC"]}
    if selection.held_out:
        chosen.setdefault(selection.by_held_out, []).append("held-out score")
    return chosen


def _held_out(selection: Selection, k: int) -> tuple[str]:
    score = selection.held_out.get(k)
    return ("" if score is None else number(score.mean),)


def _bic(selection: Selection) -> str:
    """Return a picture of BIC over the number of components; the least one has a dot of its own colour."""
    bic = selection.bic
    if not drawable(bic.values()):
        return ""
    picture = Picture(bic, bic.values(), "BIC over the number of components", ("components", "BIC"), whole=True)
    picture.line(bic.keys(), bic.values())
    for k, value in bic.items():
        picture.dot(k, value, COLORS[0] if k == selection.by_bic else "currentColor", 4 if k == selection.by_bic else 2)
    return picture.svg()
