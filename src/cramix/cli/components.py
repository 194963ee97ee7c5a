"""The number of components of a fit: given, or chosen from a range by BIC."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from rich.table import Table

import cramix
from cramix.cli.refusal import Refusal
from cramix.fitting import FitResult

_MOST_COMPONENTS = 10


class Fitted(NamedTuple):
    """A fit, the fits it was chosen from by their number of components, none without a choice, and the time for all."""

    result: FitResult
    considered: Mapping[int, FitResult]
    seconds: float

    def why(self) -> str | None:
        """Return the number of components with how it was chosen; None if it was given."""
        if not self.considered:
            return None
        low, high = min(self.considered), max(self.considered)
        return f"{self.result.mixture.n_components}, chosen from {low} to {high} by BIC"

    def selection(self) -> list[dict[str, object]] | None:
        """Return all fits that were considered, for JSON."""
        return [_considered(k, result) for k, result in self.considered.items()] or None

    def bic_tables(self) -> list[Table]:
        """Return a table of all fits that were considered; none if there was no choice."""
        if len(self.considered) < 2:
            return []
        chosen = self.result.mixture.n_components
        table = Table("components", "mean log likelihood", "BIC", "difference", "")
        for column in table.columns[:4]:
            column.justify = "right"
        for k, result in self.considered.items():
            collapsed = f"{result.collapsed} collapsed" if result.collapsed else ""
            difference = result.bic - self.result.bic
            note = ", ".join(filter(None, ("chosen" if k == chosen else "", collapsed)))
            table.add_row(str(k), f"{result.log_likelihood:.4f}", f"{result.bic:.1f}", f"{difference:+.1f}", note)
        return [table]


def parse(text: str | None) -> int | range | None:
    """Return the number or the range of numbers that -k asks for."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high:
        raise Refusal(f"-k must be a number >= 1, such as 3, or a range, such as 1-10; got {text!r}.")
    return range(low, high + 1) if match and match[2] else low


def numbers(wanted: int | range | None, n: int | None, d: int, file: str) -> int | range:
    """Return the numbers of components to fit to n rows, None for many, of d columns."""
    if n is None:
        return wanted or range(1, _MOST_COMPONENTS + 1)
    if n < 2:
        raise Refusal(f"{file} must have at least 2 rows; it has {n}.")
    most = wanted if isinstance(wanted, int) else wanted[-1] if wanted else 1
    if most > n:
        raise Refusal(f"-k must be at most the {n} rows of {file}; got {most}.")
    # By default with enough rows for a full covariance in each component.
    return wanted or range(1, max(1, min(_MOST_COMPONENTS, n // (d + 1))) + 1)


def in_words(numbers: int | range) -> str:
    """Return numbers of components for people."""
    return f"{numbers}" if isinstance(numbers, int) else f"{numbers[0]} to {numbers[-1]}"


def fit(wanted: int | range, method: str, seed: int, **problem: Any) -> Fitted:
    """Fit a number of components, or several and choose; the problem is what `fit` and `select` both take."""
    began, generator = time.perf_counter(), torch.Generator().manual_seed(seed)
    if isinstance(wanted, int):
        result = cramix.fit(n_components=wanted, method=method, generator=generator, **problem)
        return Fitted(result, {}, time.perf_counter() - began)
    choice = cramix.select(n_components=wanted, folds=0, generator=generator, **problem)
    return Fitted(choice.results[choice.by_bic], choice.results, time.perf_counter() - began)


def finite_or_word(number: float) -> float | str:
    """Return a number that JSON can represent, or infinity as the word that the option takes."""
    return number if math.isfinite(number) else str(number)


def _considered(n_components: int, result: FitResult) -> dict[str, object]:
    return {
        "n_components": n_components,
        "mean_log_likelihood": result.log_likelihood,
        "bic": result.bic,
        "shrinkage": finite_or_word(result.shrinkage),
        "collapsed": result.collapsed,
    }
