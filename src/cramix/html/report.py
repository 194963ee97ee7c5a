"""A fit as a page to look at: data and components, the steps of the fit, the choice of k, the rows that fit worst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cramix.arrays import as_tensor, column_names
from cramix.checks import check_finite, check_integer, check_nonnegative
from cramix.data import is_source_like
from cramix.fitting import FitResult, Step
from cramix.html.page import write_page
from cramix.html.worst import WorstRow, WorstRows, has_density, what_stands_out
from cramix.mixture import MultivariateNormalMixture
from cramix.mixture.coordinates import in_coordinates

# What a page shows at most, so that its file stays below 3 MB: rows, numbers in them, columns and components.
_MOST_ROWS, _MOST_NUMBERS, _MOST_COLUMNS, _MOST_COMPONENTS = 4000, 100_000, 30, 50
_MOST_STEPS = 2000
_LEAST_BARS, _MOST_BARS = 8, 40
# Fraction of the rows beyond either end of a column's axis, at most.
_OUTSIDE = 0.002
_NO_DENSITY = "Some component has no density, so that rows cannot be ranked by how well they fit."


def write_report(
    path: str | Path,
    result: FitResult,
    X: Any,
    *,
    names: Sequence[str] | None = None,
    sample_weight: Any = None,
    considered: Mapping[int, FitResult] | None = None,
    n_rows: int | None = None,
    worst: WorstRows | None = None,
    title: str = "A Gaussian mixture and its data",
    notes: Sequence[str] = (),
) -> None:
    """Write a self-contained HTML page about a fit, below about 3 MB.

    It shows the data with the components for any two columns, the components as a table, the steps of the fit, BIC over
    the number of components, the rows that fit worst, and warnings with remedies. Of many rows, columns or components
    it shows some, and says how many.

    Args:
        path: the file to write.
        result: of `fit`, or one of the results of `select`.
        X: the samples `(n, d)` or `(n,)`: a tensor, an array or a table; or a uniform sample of larger data.
        names: of the d columns; those of a table, or x1, x2, ..., if None.
        sample_weight: of the rows, `(n,)`, for histograms.
        considered: the fits that `result` was chosen from, such as `select(...).results`.
        n_rows: the number of rows of the data that `X` is a sample of.
        worst: the rows that fit worst, if they were collected from more rows than `X` holds.
        title: of the page.
        notes: more that the reader should know, shown with the warnings.

    Example:
        >>> import cramix
        >>> X = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
        >>> selection = cramix.select(X, range(1, 4), folds=0)
        >>> best = selection.results[selection.by_bic]
        >>> write_report("report.html", best, X, considered=selection.results)  # doctest: +SKIP
    """
    if not isinstance(result, FitResult):
        raise TypeError(f"result must be what fit returns, a FitResult; got {type(result).__name__}.")
    mixture = in_coordinates(result.mixture.sort("weights", descending=True), torch.float64).to("cpu")
    x, weights, labels = _checked(mixture.dim, X, sample_weight, names)
    if n_rows is not None:
        check_integer("n_rows", n_rows, len(x))
    dense = has_density(mixture)
    if worst is None and dense:
        worst = _worst(mixture, x, weights)
    columns = _columns(mixture)
    data = {
        "title": title,
        "facts": _facts(result, mixture, n_rows or len(x)),
        "warnings": list(result.warnings),
        "notes": [*notes, *([] if dense else [_NO_DENSITY])],
        "names": [labels[j] for j in columns],
        "omitted": {
            "columns": mixture.dim - len(columns),
            "components": max(0, mixture.n_components - _MOST_COMPONENTS),
        },
        "n_rows": n_rows or len(x),
        "rows": _rows(mixture, x, weights, columns),
        "views": [_view(mixture, x, weights, j) for j in columns],
        "components": _components(mixture, columns),
        "n_components": mixture.n_components,
        "history": _history(result),
        "considered": _considered(considered or {}, mixture.n_components),
        "worst": [_described(mixture, row, labels, columns) for row in worst.rows] if worst is not None else [],
        "counted_from": worst.counted_from if worst is not None else 0,
    }
    write_page(path, "report", title=title, data=data, shared=["chart.js"])


def _checked(
    dim: int, X: Any, sample_weight: Any, names: Sequence[str] | None
) -> tuple[Tensor, Tensor | None, tuple[str, ...]]:
    """Return samples `(n, d)` and weights in float64, and names."""
    if is_source_like(X):
        raise ValueError(
            "X must be samples in memory; got a source. Pass a sample of its rows and n_rows, or run cramix fit --html."
        )
    x = as_tensor("X", X).detach().cpu().double()
    if x.dim() not in (1, 2) or (x.shape[1:] or (1,)) != (dim,) or not len(x):
        raise ValueError(f"X must be samples (n, {dim}), as the mixture has {dim} coordinates; got {tuple(x.shape)}.")
    x = x.reshape(-1, dim)
    check_finite(X=x)
    weights = None
    if sample_weight is not None:
        weights = as_tensor("sample_weight", sample_weight).detach().cpu().double()
        if weights.shape != x.shape[:1]:
            raise ValueError(f"sample_weight must have shape ({len(x)},), one a row; got {tuple(weights.shape)}.")
        check_finite(sample_weight=weights)
        check_nonnegative(sample_weight=weights)
        if not bool(weights.sum() > 0):
            raise ValueError("sample_weight must not be all 0.")
    found = names or column_names(X) or [f"x{i}" for i in range(1, dim + 1)]
    if len(found) != dim:
        raise ValueError(f"names must be {dim}, one for each column; got {len(found)}.")
    return x, weights, tuple(map(str, found))


def _worst(mixture: MultivariateNormalMixture, x: Tensor, weights: Tensor | None) -> WorstRows:
    """Return the rows that fit worst; those without weight do not count."""
    worst = WorstRows(mixture)
    for part in _present(x, weights).split(1 << 14):
        worst.add(x[part], part)
    return worst


def _present(x: Tensor, weights: Tensor | None) -> Tensor:
    """Return the indices of the rows that have a weight."""
    return torch.arange(len(x)) if weights is None else weights.nonzero().flatten()


def _facts(result: FitResult, mixture: MultivariateNormalMixture, n_rows: int) -> list[list[str]]:
    facts = [["rows", f"{n_rows:,}"], ["columns", str(mixture.dim)], ["components", str(mixture.n_components)]]
    facts += [["covariance type", result.mixture.covariance_type]] if mixture.dim > 1 else []
    if result.log_likelihood is not None:
        facts += [["mean log likelihood", f"{result.log_likelihood:.6g}"], ["BIC", f"{result.bic:.6g}"]]
    facts += [["seconds", f"{result.seconds:.3g}"], ["stopped", result.reason]]
    facts += [["passes over the data", str(result.passes)]] if result.passes is not None else []
    facts += [["rows skipped", str(result.n_bad)]] if result.n_bad else []
    return facts


def _columns(mixture: MultivariateNormalMixture) -> list[int]:
    """Return the columns to show: of very many, those in which the means of the components differ most."""
    if mixture.dim <= _MOST_COLUMNS:
        return list(range(mixture.dim))
    weights, means = mixture.weights[:, None], mixture.means
    within = (weights * mixture.covariances.diagonal(dim1=-2, dim2=-1)).sum(0)
    between = (weights * (means - (weights * means).sum(0)).square()).sum(0)
    ratio = between / (within + between).clamp_min(torch.finfo(torch.float64).tiny)
    return ratio.topk(_MOST_COLUMNS).indices.sort().values.tolist()


def _rows(mixture: MultivariateNormalMixture, x: Tensor, weights: Tensor | None, columns: list[int]) -> dict[str, Any]:
    """Return the rows to draw, column by column, with their most probable components."""
    present = _present(x, weights)
    most = min(_MOST_ROWS, _MOST_NUMBERS // len(columns))
    if len(present) > most:
        chosen = torch.randperm(len(present), generator=torch.Generator().manual_seed(0))[:most]
        present = present[chosen.sort().values]
    labels = mixture.responsibilities(x[present]).argmax(-1).tolist() if has_density(mixture) else None
    return {"count": len(present), "columns": [_short(x[present, j]) for j in columns], "labels": labels}


def _view(mixture: MultivariateNormalMixture, x: Tensor, weights: Tensor | None, j: int) -> dict[str, Any]:
    """Return the limits of a column's axis, and the density of the rows in bars between them."""
    values = x[:, j] if weights is None else x[weights > 0, j]
    shares = torch.ones_like(values) if weights is None else weights[weights > 0]
    shares = shares / shares.sum()
    ordered = values.sort().values
    ends = [ordered[int((len(ordered) - 1) * u)].item() for u in (_OUTSIDE, 0.5, 1 - _OUTSIDE)]
    scales = mixture.covariances[:, j, j].sqrt()
    heavy = mixture.weights > _OUTSIDE
    low = min(ends[0], (mixture.means[:, j] - 2 * scales)[heavy].min().item())
    high = max(ends[2], (mixture.means[:, j] + 2 * scales)[heavy].max().item())
    pad = 0.05 * (high - low) or 0.5 * (abs(low) or 1.0)
    low, high = low - pad, high + pad
    count = min(max(int(2 * len(values) ** 0.5), _LEAST_BARS), _MOST_BARS)
    bars = torch.histogram(values, bins=count, range=(low, high), weight=shares).hist * count / (high - low)
    outside = ((values < low) | (values > high)).double().mean().item()
    return {"low": low, "high": high, "bars": _short(bars), "outside": outside}


def _components(mixture: MultivariateNormalMixture, columns: list[int]) -> dict[str, Any]:
    """Return weights, means `(k, c)` and the lower triangles of the covariances, row by row, `(k, c (c + 1) / 2)`."""
    kept = slice(0, _MOST_COMPONENTS)
    rows, cols = torch.tril_indices(len(columns), len(columns))
    chosen = mixture.covariances[kept][:, columns][:, :, columns]
    return {
        "weights": mixture.weights[kept].tolist(),
        "means": mixture.means[kept][:, columns].tolist(),
        "covariances": chosen[:, rows, cols].tolist(),
    }


def _history(result: FitResult) -> list[dict[str, Any]]:
    """Return the stages of a fit in the order of their first steps, each with its losses as lines.

    Variants of a stage, such as "held out, merged, shrinkage 1", are one stage.
    """
    stages = dict[str, list[list[Step]]]()
    for name, run in groupby(result.history, key=lambda step: step.name):
        stages.setdefault(name.partition(",")[0], []).append(list(run))
    return [_stage(name, runs) for name, runs in stages.items()]


def _stage(name: str, runs: list[list[Step]]) -> dict[str, Any]:
    """Return a stage over the number of components, if it takes one step for each, or else over its steps."""
    variants = {run[0].name for run in runs}
    numbers = [[step.n_components for step in run] for run in runs]
    steps = [step for run in runs for step in run]
    falling = all(len(set(run)) == len(run) for run in numbers) and len({k for run in numbers for k in run}) > 1
    lines = list[dict[str, Any]]()
    if falling:
        falls = list[list[Step]]()
        for step in steps:
            last = falls[-1][-1] if falls else None
            if last is None or last.name != step.name or last.n_components <= step.n_components:
                falls.append([])
            falls[-1].append(step)
        lines = [{"at": [s.n_components for s in fall], "losses": [s.loss for s in fall], "k": None} for fall in falls]
    else:
        for k, same in groupby(steps, key=lambda step: step.n_components):
            losses = [step.loss for step in same]
            kept = range(0, len(losses), -(-len(losses) // _MOST_STEPS))
            lines.append({"at": [i + 1 for i in kept], "losses": [losses[i] for i in kept], "k": k})
    axis = "components" if falling else "step"
    return {"name": name, "axis": axis, "variants": len(variants), "lines": lines}


def _considered(considered: Mapping[int, FitResult], chosen: int) -> list[dict[str, Any]]:
    return [
        {
            "k": k,
            "log_likelihood": fit.log_likelihood,
            "bic": fit.bic,
            "collapsed": fit.collapsed,
            "chosen": k == chosen,
            "warnings": list(fit.warnings),
        }
        for k, fit in considered.items()
    ]


def _described(
    mixture: MultivariateNormalMixture, row: WorstRow, names: tuple[str, ...], columns: list[int]
) -> dict[str, Any]:
    return {
        "number": row.number,
        "place": row.place,
        "values": row.values[columns].tolist(),
        "log_density": row.log_density,
        "why": what_stands_out(mixture, row.values, names),
    }


def _short(values: Tensor) -> list[float]:
    """Return numbers with six significant digits, enough to draw them."""
    return [float(f"{x:.6g}") for x in values.tolist()]
