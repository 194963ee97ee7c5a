"""Features for trees: numbers, missing values and categories of arrays, tensors and data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cramix.arrays import column_names
from cramix.estimators.inputs import Form, refuse_text

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

Categories = dict[int, list[Any]]


def read_features(
    estimator: BaseEstimator, X: Any, categories: Categories | None
) -> tuple[np.ndarray, Form, Categories]:
    """Return features `(n, f)` in float64, in which NaN is a missing value, and the form that X came in.

    Text and categories of data frames become numbers. `categories` are those of `fit`, by column; None finds them, and
    stores the number and names of columns in the estimator. A category that `fit` has not seen is missing.
    """
    from sklearn.utils.validation import validate_data

    reset = categories is None
    if isinstance(X, Tensor):
        form = Form(False, X.dtype if X.is_floating_point() else torch.float64, X.device)
        X = X.detach().cpu().double().numpy()
        return validate_data(estimator, X, ensure_all_finite="allow-nan", reset=reset), form, categories or {}
    if column_names(X) is None:
        refuse_text(X)
        x = validate_data(estimator, X, dtype=[np.float64, np.float32], ensure_all_finite="allow-nan", reset=reset)
        return (
            x.astype(np.float64),
            Form(True, torch.from_numpy(x[:0].copy()).dtype, torch.device("cpu")),
            categories or {},
        )
    validate_data(estimator, X, skip_check_array=True, reset=reset)
    names = list(X.columns)
    if len(X) == 0 or not names:
        raise ValueError(f"Found array with {len(X)} sample(s) and {len(names)} feature(s); one each is required.")
    columns, found = [], Categories()
    for j, name in enumerate(names):
        values = _numbers(X[name], name)
        if values is None or (categories is not None and j in categories):
            found[j] = _levels(X[name]) if categories is None else categories[j]
            values = _codes(X[name], found[j])
        if not np.isfinite(values[~np.isnan(values)]).all():
            raise ValueError(f"X contains infinity in column {name!r}.")
        columns.append(values)
    return np.stack(columns, 1), Form(True, torch.float64, torch.device("cpu")), found


def read_targets(y: Any, n: int) -> np.ndarray:
    """Return n targets in float64."""
    from sklearn.utils.validation import assert_all_finite, column_or_1d

    if y is None:
        raise ValueError("This regressor requires y to be passed, but the target y is None.")
    y = np.array(column_or_1d(y.detach().cpu().numpy() if isinstance(y, Tensor) else y, warn=True), dtype=np.float64)
    assert_all_finite(y, input_name="y")
    if len(y) != n:
        raise ValueError(f"X and y have inconsistent numbers of samples: [{n}, {len(y)}].")
    return y


def ordered(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of rows of weight > 0 in ascending order of y and x, and where in it each distinct row begins.

    So nothing depends on the order of the rows, nor on whether a row occurs twice or has twice the weight. NaN equals
    NaN.
    """
    present = np.flatnonzero(weights > 0)
    rows = np.concatenate((y[present, None], x[present]), 1)
    order = np.lexsort(rows.T[::-1])
    before, after = rows[order[:-1]], rows[order[1:]]
    same = ((before == after) | (np.isnan(before) & np.isnan(after))).all(1)
    return present[order], np.flatnonzero(np.r_[True, ~same])


def _numbers(column: Any, name: Any) -> np.ndarray | None:
    """Return a column as numbers, with NaN for missing values; None for text and categories."""
    kind = str(column.dtype).lower()
    if kind.startswith(("category", "categorical", "enum", "str", "object")):
        return None
    values = column.to_numpy()
    if values.dtype.kind in "Mm":
        raise ValueError(f"X must hold numbers or categories; got dates or times in column {name!r}.")
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):  # nullable columns of pandas
        return column.to_numpy(dtype=np.float64, na_value=np.nan)


def _levels(column: Any) -> list[Any]:
    """Return the values of a column in ascending order, those of one type after those of another."""
    values = {value for value in column.to_list() if not _is_missing(value)}
    return sorted(values, key=lambda value: (type(value).__name__, value))


def _codes(column: Any, levels: list[Any]) -> np.ndarray:
    numbers = {level: i for i, level in enumerate(levels)}
    return np.array([numbers.get(value, np.nan) for value in column.to_list()], dtype=np.float64)


def _is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN or pandas' NA, which has no truth value."""
    return value is None or type(value).__name__ == "NAType" or value != value
