"""Samples and weights as scikit-learn's estimators get them, as tensors; results in the form of the input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cramix.arrays import as_tensor, column_names
from cramix.checks import check_finite
from cramix.fitting.samples import read_weights

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator


class Form(NamedTuple):
    """The form of a caller's arrays: NumPy or torch, their dtype and their device."""

    numpy: bool
    dtype: torch.dtype
    device: torch.device

    def give(self, x: Tensor) -> Any:
        """Return a tensor in this form; integers stay integers."""
        x = x.to(self.device, self.dtype if x.is_floating_point() else x.dtype)
        return x.numpy() if self.numpy else x


def read_samples(estimator: BaseEstimator, X: Any, reset: bool) -> tuple[Tensor, Form]:
    """Return samples as a floating-point tensor `(n, d)`, and the form they came in.

    The estimator stores the number and the names of the columns if `reset`, and compares them otherwise. Columns of
    dates or text are refused by name, even if the text reads as a number.
    """
    from sklearn.utils.validation import validate_data

    if isinstance(X, Tensor):
        x = _checked(X.detach(), type(estimator).__name__)
        validate_data(estimator, x, skip_check_array=True, reset=reset)
        return x, Form(False, x.dtype, x.device)
    if column_names(X) is not None:
        as_tensor("X", X)  # which refuses columns by name
    else:
        refuse_text(X)
    x = as_tensor("X", validate_data(estimator, X, dtype=[np.float64, np.float32], reset=reset))
    return x, Form(True, x.dtype, x.device)


def read_sample_weight(sample_weight: Any, x: Tensor) -> Tensor:
    """Return the weights of samples `(n, d)`, `(n,)` in float64; ones for None."""
    if sample_weight is None:
        return torch.ones(len(x), dtype=torch.float64, device=x.device)
    return read_weights(sample_weight, x).double()


def distinct(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the samples of weight > 0 in ascending order, with equal ones merged and their weights added.

    So the order of samples does not matter, nor whether a sample occurs twice or has twice the weight.
    """
    present = weights > 0
    if not bool(present.all()):
        x, weights = x[present], weights[present]
    first, order = x[:, 0].sort()
    if bool((first[1:] > first[:-1]).all()):  # the usual case: no two are equal
        return x[order], weights[order]
    x, inverse = x.unique(dim=0, return_inverse=True)
    return x, weights.new_zeros(len(x)).index_add_(0, inverse, weights)


def refuse_text(X: Any) -> None:
    """Raise a ValueError for arrays of dates or text, which scikit-learn would convert to numbers."""
    if not isinstance(X, np.ndarray | list | tuple):
        return
    try:
        array = np.asarray(X)
    except ValueError:  # ragged, which scikit-learn reports
        return
    if array.dtype.kind in "USMmT":
        what = "dates or times" if array.dtype.kind in "Mm" else "text"
        raise ValueError(f"X must hold numbers; got {what}. Convert it to numeric values.")
    if array.dtype == object and array.ndim == 2:
        texts = [j for j in range(array.shape[1]) if any(isinstance(x, str | bytes) for x in array[:, j])]
        if texts:
            columns = f"columns {', '.join(map(str, texts))}" if len(texts) > 1 else f"column {texts[0]}"
            raise ValueError(f"X must hold numbers; got text in {columns}. Convert it to numeric values.")


def _checked(x: Tensor, name: str) -> Tensor:
    """Check a tensor as scikit-learn checks arrays."""
    if x.layout != torch.strided:
        raise TypeError(f"X must be dense; got a sparse tensor of layout {x.layout}. Use X.to_dense().")
    if x.ndim != 2:
        raise ValueError(
            f"X must be (n_samples, n_features); Expected 2D array, got shape {tuple(x.shape)} instead. "
            "Reshape your data with X.reshape(-1, 1) if it is one feature, X.reshape(1, -1) if it is one sample."
        )
    if 0 in x.shape:
        raise ValueError(f"Found array with {x.shape[0]} sample(s) and {x.shape[1]} feature(s); {name} needs one each.")
    if x.is_complex():
        raise ValueError(f"Complex data not supported: X must be real; got {x.dtype}.")
    x = x if x.is_floating_point() else x.double()
    check_finite(X=x)
    return x
