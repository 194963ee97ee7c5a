"""Which rows regressors hold out: random ones, or those of a splitter of scikit-learn, such as whole groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cramix.checks import check_integer

# Rows to learn from, and rows to hold out.
Split = tuple[np.ndarray, np.ndarray]

_SEEN, _HELD_OUT = 1, 2


def check_cv(cv: Any) -> None:
    """Require None, a number of folds, a splitter, or a list of splits."""
    if cv is None or _is_splitter(cv):
        return
    if isinstance(cv, list | tuple):
        if not cv or any(not isinstance(pair, list | tuple) or len(pair) != 2 for pair in cv):
            raise ValueError(f"cv must hold pairs of rows to learn from and rows to hold out; got {cv!r:.60}.")
        return
    if not isinstance(cv, int | np.integer) or isinstance(cv, bool):
        raise ValueError(
            "cv must be a number of folds, a splitter of scikit-learn, such as GroupKFold(), or a list of pairs of "
            f"indices; got {cv!r}."
        )
    check_integer("cv", int(cv), 2)


def _is_splitter(cv: Any) -> bool:
    return hasattr(cv, "split") and not isinstance(cv, str | type)


def read_groups(groups: Any, n: int) -> np.ndarray | None:
    """Return the groups of n rows, of any kind, as numbers from 0, `(n,)`."""
    if groups is None:
        return None
    found = groups.detach().cpu().numpy() if isinstance(groups, Tensor) else np.asarray(groups)
    if found.shape != (n,):
        raise ValueError(f"groups must have shape {(n,)}, a group for each row; got {found.shape}.")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise ValueError("groups must be known for all rows; got missing or infinite ones. Give such rows their own.")
    try:
        kinds, found = np.unique(found, return_inverse=True)
    except TypeError as error:
        raise ValueError(f"groups must be all numbers or all text; got both: {error}.") from None
    if len(kinds) < 2:
        raise ValueError("groups must be at least 2, to hold some out; got 1. Leave groups out.")
    return found


def splits(
    cv: Any,
    by_group: Any,
    groups: np.ndarray | None,
    weights: np.ndarray,
    rng: np.random.RandomState,
    x: Any = None,
    y: Any = None,
) -> list[Split] | None:
    """Return how rows in their given order are split; None if random rows are to be held out.

    Rows of weight 0 are in no split, and splitters do not see them.

    Args:
        cv: a splitter, a list of pairs of indices, a number of folds of random rows or groups, or None.
        by_group: the splitter to use if cv is None and there are groups.
        groups: `(n,)` or None.
        weights: `(n,)`.
        rng: of random folds.
        x: features `(n, f)`, for splitters that look at them.
        y: targets, for splitters that look at them.

    Example:
        >>> from sklearn.model_selection import TimeSeriesSplit
        >>> splits(TimeSeriesSplit(2), None, None, np.ones(6), np.random.RandomState(0))
        [(array([0, 1]), array([2, 3])), (array([0, 1, 2, 3]), array([4, 5]))]
    """
    if cv is None and groups is None:
        return None
    present = np.flatnonzero(weights > 0)
    if isinstance(cv, list | tuple):
        found = [(_present(seen, weights), _present(held_out, weights)) for seen, held_out in cv]
    else:
        splitter = by_group if cv is None else cv if _is_splitter(cv) else _folds(cv, groups is not None, rng)
        features, targets = present[:, None] if x is None else take(x, present), present if y is None else y[present]
        try:
            pairs = list(splitter.split(features, targets, None if groups is None else groups[present]))
            found = [(present[seen], present[held_out]) for seen, held_out in pairs]
        except IndexError as error:
            raise ValueError(f"cv must split the {len(present)} rows with a weight; got {cv!r}: {error}.") from None
    for seen, held_out in found:
        if not len(seen) or not len(held_out):
            raise ValueError(
                f"cv must leave rows to learn from and hold rows out; got {len(seen)} and {len(held_out)}."
            )
        if len(both := np.intersect1d(seen, held_out)):
            raise ValueError(f"cv must not hold out rows to learn from; got {len(both)} that are both.")
    return found


def _folds(n: int, by_group: bool, rng: np.random.RandomState) -> Any:
    from sklearn.model_selection import GroupKFold, KFold

    return (GroupKFold if by_group else KFold)(n, shuffle=True, random_state=rng)


def take(x: Any, rows: np.ndarray) -> Any:
    """Return rows of an array, a data frame or a tensor."""
    from sklearn.utils import _safe_indexing

    return x[torch.from_numpy(rows).to(x.device)] if isinstance(x, Tensor) else _safe_indexing(x, rows)


def _present(rows: Any, weights: np.ndarray) -> np.ndarray:
    """Return the indices of those rows, given by indices or a mask, that have a weight."""
    chosen = np.asarray(rows)
    if not chosen.size:
        return np.zeros(0, int)
    try:
        found = np.arange(len(weights))[chosen]
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


class Nested(NamedTuple):
    """How regressors inside another one split the rows that they learn from.

    Args:
        cv: of the outer regressor.
        found: its splits of all rows.
        groups: of all rows, or None.
        weights: of all rows.
    """

    cv: Any
    found: Sequence[Split]
    groups: np.ndarray | None
    weights: np.ndarray

    def prepare(self, regressor: Any, rows: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]:
        """Return a regressor that splits some of the rows as the outer one does, and further arguments of its `fit`.

        A `cv` of its own stays. A splitter goes on to the regressor if it can split these rows. Otherwise the splits of
        all rows do, without the other rows. Groups are an argument of its `fit`.
        """
        from sklearn.utils.validation import has_fit_parameter

        rows = np.arange(len(self.weights)) if rows is None else rows
        groups = None if self.groups is None else self.groups[rows]
        arguments: dict[str, Any] = {}
        if groups is not None and has_fit_parameter(regressor, "groups"):
            if n_groups(groups, self.weights[rows]) < 2:
                raise ValueError(
                    "groups must be at least 3, because the regressor inside holds some out, too; got "
                    f"{n_groups(self.groups, self.weights)}, of which one was left to learn from."
                )
            arguments = {"groups": groups}
        if _is_splitter(self.cv) and regressor.get_params().get("cv", self.cv) is None:
            regressor = regressor.set_params(cv=self._cv(rows, groups))
        return regressor, arguments

    def _cv(self, rows: np.ndarray, groups: np.ndarray | None) -> Any:
        try:
            splits(self.cv, None, groups, self.weights[rows], np.random.RandomState(0))
        except ValueError as error:
            place = np.full(len(self.weights), -1)
            place[rows] = np.arange(len(rows))
            pairs = [tuple(place[side][place[side] >= 0] for side in pair) for pair in self.found]
            usable = [pair for pair in pairs if len(pair[0]) and len(pair[1])]
            if not usable:
                raise ValueError(
                    "cv must split the rows again that a regressor inside learns from; "
                    f"got {len(rows)} rows: {error} Use fewer splits, or set cv of that regressor."
                ) from None
            return usable
        return self.cv
