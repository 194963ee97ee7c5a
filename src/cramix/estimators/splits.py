"""Which rows regressors hold out: random ones, or those of a splitter of scikit-learn, such as whole groups."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from cramix.checks import check_integer

# Rows to learn from, and rows to hold out.
Split = tuple[np.ndarray, np.ndarray]

_SEEN, _HELD_OUT = 1, 2


def check_cv(cv: Any) -> None:
    """Require None, a number of folds, a splitter, or a list of splits."""
    if cv is None or (hasattr(cv, "split") and not isinstance(cv, str)):
        return
    if isinstance(cv, list | tuple):
        if not cv or any(len(pair) != 2 for pair in cv):
            raise ValueError(f"cv must hold pairs of rows to learn from and rows to hold out; got {cv!r:.60}.")
        return
    if not isinstance(cv, int | np.integer) or isinstance(cv, bool):
        raise ValueError(
            "cv must be a number of folds, a splitter of scikit-learn, such as GroupKFold(), or a list of pairs of "
            f"indices; got {cv!r}."
        )
    check_integer("cv", int(cv), 2)


def read_groups(groups: Any, n: int) -> np.ndarray | None:
    """Return the groups of n rows, `(n,)`, of any kind."""
    if groups is None:
        return None
    found = groups.detach().cpu().numpy() if isinstance(groups, Tensor) else np.asarray(groups)
    if found.shape != (n,):
        raise ValueError(f"groups must have shape {(n,)}, a group for each row; got {found.shape}.")
    if len(np.unique(found)) < 2:
        raise ValueError("groups must be at least 2, to hold some out; got 1. Leave groups out.")
    return found


def splits(
    cv: Any, by_group: Any, groups: np.ndarray | None, weights: np.ndarray, rng: np.random.RandomState
) -> list[Split] | None:
    """Return how rows in their given order are split; None if random rows are to be held out.

    Rows of weight 0 are in no split, and splitters do not see them.

    Args:
        cv: a splitter, a list of pairs of indices, a number of folds of random rows, or None.
        by_group: the splitter to use if cv is None and there are groups.
        groups: `(n,)` or None.
        weights: `(n,)`.
        rng: of random folds.

    Example:
        >>> from sklearn.model_selection import TimeSeriesSplit
        >>> splits(TimeSeriesSplit(2), None, None, np.ones(6), np.random.RandomState(0))
        [(array([0, 1]), array([2, 3])), (array([0, 1, 2, 3]), array([4, 5]))]
    """
    from sklearn.model_selection import KFold

    if cv is None and groups is None:
        return None
    present = np.flatnonzero(weights > 0)
    if isinstance(cv, list | tuple):
        found = [(_present(seen, weights), _present(held_out, weights)) for seen, held_out in cv]
    else:
        splitter = by_group if cv is None else cv if hasattr(cv, "split") else KFold(cv, shuffle=True, random_state=rng)
        members = None if groups is None else groups[present]
        pairs = splitter.split(present[:, None], present, members)
        found = [(present[seen], present[held_out]) for seen, held_out in pairs]
    for seen, held_out in found:
        if not len(seen) or not len(held_out):
            raise ValueError(
                f"cv must leave rows to learn from and hold rows out; got {len(seen)} and {len(held_out)}."
            )
    return found


def _present(rows: Any, weights: np.ndarray) -> np.ndarray:
    """Return the indices of those rows, given by indices or a mask, that have a weight."""
    try:
        found = np.arange(len(weights))[np.asarray(rows)]
    except IndexError as error:
        raise ValueError(f"cv must split the {len(weights)} rows of this fit; got rows beyond: {error}.") from None
    return found[weights[found] > 0]


def membership(found: list[Split], n: int) -> np.ndarray:
    """Return splits as a table `(n, splits)`; rows that are equal in it and otherwise can be merged."""
    table = np.zeros((n, len(found)))
    for column, (seen, held_out) in zip(table.T, found, strict=True):
        column[seen], column[held_out] = _SEEN, _HELD_OUT
    return table


def of_membership(table: np.ndarray) -> list[Split]:
    """Return the splits of a table, see `membership`."""
    return [(np.flatnonzero(column == _SEEN), np.flatnonzero(column == _HELD_OUT)) for column in table.T]


def n_groups(groups: np.ndarray | None, weights: np.ndarray) -> int:
    """Return how many groups have rows of weight > 0; 0 for None."""
    return 0 if groups is None else len(np.unique(groups[weights > 0]))


def with_cv(regressor: Any, cv: Any) -> Any:
    """Return a regressor that splits its rows by this splitter, unless it has its own way."""
    if hasattr(cv, "split") and regressor.get_params().get("cv", cv) is None:
        return regressor.set_params(cv=cv)
    return regressor


def group_arguments(regressor: Any, groups: np.ndarray | None) -> dict[str, Any]:
    """Return arguments of the `fit` of a regressor: the groups, if there are any and it takes them."""
    from sklearn.utils.validation import has_fit_parameter

    return {"groups": groups} if groups is not None and has_fit_parameter(regressor, "groups") else {}
