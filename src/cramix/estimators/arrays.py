"""Data as people have them, NumPy's, torch's or a table's, and tensors: in as they come, out as they came."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cramix.checks import check_finite

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator


class Form(NamedTuple):
    """What the arrays of a caller are like: of NumPy or torch, their dtype and their device."""

    numpy: bool
    dtype: torch.dtype
    device: torch.device

    def give(self, x: Tensor) -> Any:
        """Return a tensor in this form; whole numbers stay whole."""
        x = x.to(self.device, self.dtype if x.is_floating_point() else x.dtype)
        return x.numpy() if self.numpy else x


def read_samples(estimator: BaseEstimator, X: Any, reset: bool) -> tuple[Tensor, Form]:
    """Return samples as a floating-point tensor `(n, d)`, and the form they came in.

    Number and names of the columns are remembered by the estimator if `reset`, and else compared.
    """
    from sklearn.utils.validation import validate_data

    if isinstance(X, Tensor):
        x = _checked(X.detach(), type(estimator).__name__)
        validate_data(estimator, x, skip_check_array=True, reset=reset)
        return x, Form(False, x.dtype, x.device)
    X = validate_data(estimator, X, dtype=[np.float64, np.float32], reset=reset)
    x = _tensor(X)
    return x, Form(True, x.dtype, x.device)


def _tensor(x: np.ndarray) -> Tensor:
    """Return the array as a tensor that is not to be written to, without a copy unless its order asks for one."""
    x = np.ascontiguousarray(x)
    if x.flags.writeable:
        return torch.from_numpy(x)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(x)


def _checked(x: Tensor, name: str) -> Tensor:
    """What scikit-learn checks of arrays, for tensors."""
    if x.layout != torch.strided:
        raise TypeError(f"X must be dense; got a tensor of layout {x.layout}, which is sparse. Use X.to_dense().")
    if x.ndim != 2:
        raise ValueError(
            f"X must be (n_samples, n_features); Expected 2D array, got shape {tuple(x.shape)} instead. "
            "Reshape your data with X.reshape(-1, 1) if it is one feature, X.reshape(1, -1) if it is one sample."
        )
    if 0 in x.shape:
        raise ValueError(f"Found array with {x.shape[0]} sample(s) and {x.shape[1]} feature(s); {name} needs one each.")
    if x.is_complex():
        raise ValueError(f"Complex data not supported: X must be real; got {x.dtype}. Use X.real.")
    x = x if x.is_floating_point() else x.double()
    check_finite(X=x)
    return x


def read_weights(sample_weight: Any, x: Tensor) -> Tensor:
    """Return the weights of samples `(n, d)`, `(n,)` in float64, and ones for None."""
    from sklearn.utils import check_array

    if sample_weight is None:
        return torch.ones(len(x), dtype=torch.float64, device=x.device)
    if not isinstance(sample_weight, Tensor):
        checked = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
        sample_weight = _tensor(checked)
    weights = sample_weight.detach().to(x.device, torch.float64)
    if weights.shape != x.shape[:1]:
        raise ValueError(
            f"sample_weight must have one entry a sample, ({len(x)},); got shape {tuple(weights.shape)}. Flatten it."
        )
    check_finite(sample_weight=weights)
    if weights.min() < 0:
        raise ValueError(f"sample_weight must be >= 0; got min {weights.min().item():.3g}. Drop those samples.")
    if not bool(weights.any()):
        raise ValueError("sample_weight must have an entry > 0; got weights that are all zero. Leave it out.")
    return weights


def distinct(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the samples of weight > 0 in ascending order, equal ones as one with the sum of their weights.

    So the order of samples does not matter, nor whether one is there twice or has twice the weight.
    """
    present = weights > 0
    if not bool(present.all()):
        x, weights = x[present], weights[present]
    first, order = x[:, 0].sort()
    if bool((first[1:] > first[:-1]).all()):  # no two are equal, the usual case, in which all is done
        return x[order], weights[order]
    x, place = x.unique(dim=0, return_inverse=True)
    return x, weights.new_zeros(len(x)).index_add_(0, place, weights)
