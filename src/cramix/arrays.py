"""Numbers as people have them: tensors, NumPy arrays, tables of pandas or Polars, Python numbers.

They become tensors at the public functions. What comes back is of the kind that went in.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from numbers import Real
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

P = ParamSpec("P")
S = TypeVar("S")
# What NumPy calls the dtypes of numbers: booleans, integers with and without sign, floating point.
_NUMERIC = "biuf"


def as_tensor(name: str, x: Any, like: Tensor | None = None) -> Tensor:
    """Return numbers as a floating-point tensor, without a copy where that is possible.

    Tensors and arrays of a floating-point dtype keep it, but for tensors without axes beside a `like` that has some.
    Integers, Python numbers and lists of them take the dtype of `like`; without it they become float64, integer tensors
    torch's default dtype. A missing value of a table becomes NaN.

    Args:
        name: of the argument, for errors.
        x: a tensor, an array, a table or one column of it, a sequence or a number.
        like: a tensor whose device and dtype are taken where x has none.

    Example:
        >>> as_tensor("x", np.arange(3)), as_tensor("x", 0.5, like=torch.zeros(1))
        (tensor([0., 1., 2.], dtype=torch.float64), tensor(0.5000))
    """
    if isinstance(x, Tensor):
        if x.is_complex():
            raise ValueError(f"{name} must be real; got {x.dtype}.")
        if like is not None and x.device != like.device:
            raise ValueError(f"{name} must be on {like.device}; got a tensor on {x.device}. Move it with .to(device).")
        if like is None:
            return x if x.is_floating_point() else x.to(torch.get_default_dtype())
        # As torch does, a number without axes does not widen the dtype of what has some.
        return x if x.is_floating_point() and (x.ndim or not like.ndim) else x.to(like.dtype)
    if isinstance(x, Real):
        return torch.tensor(float(x), dtype=torch.float64) if like is None else like.new_tensor(float(x))
    array = _array(name, x)
    if array.dtype.kind != "f" or isinstance(x, list | tuple):
        array = array.astype(np.float64)
        return _shared(array) if like is None else _shared(array).to(like)
    tensor = _shared(array)
    return tensor if like is None else tensor.to(like.device)


def promoted(**values: Any) -> tuple[Tensor, ...]:
    """Return numbers as tensors of one floating-point dtype, the one that torch promotes theirs to, on one device.

    Example:
        >>> promoted(a=torch.zeros(1), b=np.ones(1))
        (tensor([0.], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    """
    given = tuple(values.values())
    first = given[0]
    if isinstance(first, Tensor) and first.is_floating_point():
        dtype, device = first.dtype, first.device
        if all(isinstance(x, Tensor) and x.dtype == dtype and x.device == device for x in given):
            return given
    like = next((x for x in given if isinstance(x, Tensor) and x.is_floating_point()), None)
    if like is None:
        arrays = [x for x in given if getattr(x, "dtype", None) is not None]
        like = as_tensor("x", arrays[0]).new_empty(0) if arrays else torch.empty(0)
    check_one_device(**{name: x for name, x in values.items() if isinstance(x, Tensor)})
    tensors = {name: as_tensor(name, x, like) for name, x in values.items()}
    dtypes = [x.dtype for x in tensors.values() if x.ndim] or [x.dtype for x in tensors.values()]
    common = functools.reduce(torch.promote_types, dtypes)
    return tuple(x.to(common) for x in tensors.values())


def check_one_device(**tensors: Tensor) -> None:
    """Raise a ValueError for tensors on several devices."""
    if len({x.device for x in tensors.values()}) > 1:
        listed = ", ".join(f"{name} on {x.device}" for name, x in tensors.items())
        raise ValueError(f"{' and '.join(tensors)} must be on one device; got {listed}. Move them with .to(device).")


def is_number(x: object) -> bool:
    """Return whether something is a single Python or NumPy number."""
    return isinstance(x, Real)


def column_names(x: Any) -> tuple[str, ...] | None:
    """Return the names of the columns of a table, None for what has none."""
    columns = getattr(x, "columns", None)
    return None if columns is None or callable(columns) else tuple(map(str, columns))


def to_numpy(x: Tensor) -> np.ndarray:
    """Return a tensor as an array on the CPU, without gradient."""
    return x.detach().cpu().numpy()


def numpy_in_numpy_out(method: Callable[Concatenate[S, Tensor, P], Tensor]) -> Callable[Concatenate[S, Any, P], Any]:
    """Let a method of a mixture and a tensor take arrays, tables and numbers, too; arrays and tables give arrays."""
    name = method.__code__.co_varnames[1]

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        value, args = (args[0], args[1:]) if args else (kwargs.pop(name, _MISSING), args)
        if isinstance(value, Tensor):
            return method(self, value, *args, **kwargs)
        if value is _MISSING:
            raise TypeError(f"{method.__name__}() needs {name}")
        result = method(self, as_tensor(name, value, self.means), *args, **kwargs)
        return result if is_number(value) else to_numpy(result)

    return wrapper


_MISSING = object()


def _array(name: str, x: Any) -> np.ndarray:
    """Return what is not a tensor as an array of numbers."""
    if column_names(x) is not None and hasattr(x, "__getitem__"):
        return _of_table(name, x)
    try:
        array = _of_column(x) if hasattr(x, "to_numpy") else np.asarray(x)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must hold numbers; got {type(x).__name__}.") from None
    if array.dtype.kind not in _NUMERIC:
        raise ValueError(f"{name} must hold numbers; got {_described(array)}.")
    return array


def _of_table(name: str, table: Any) -> np.ndarray:
    """Return the columns of a table as one array; those that hold no numbers are an error that names them."""
    labels = list(table.columns)
    columns = [_of_column(table[label]) for label in labels]
    bad = [f"{label!r} ({_described(x)})" for label, x in zip(labels, columns, strict=True) if _not_numeric(x)]
    if bad:
        raise ValueError(f"{name} must hold numbers in every column; got {', '.join(bad)}. Drop or convert them.")
    if not columns:
        raise ValueError(f"{name} must have at least one column; got none.")
    return np.column_stack(columns)


def _of_column(column: Any) -> np.ndarray:
    """Return a column as an array; a nullable one of pandas with NaN for what is missing."""
    kind = getattr(getattr(column, "dtype", None), "kind", None)
    if kind is not None and kind in _NUMERIC and not isinstance(column.dtype, np.dtype):
        dtype = np.float32 if str(column.dtype).lower() == "float32" else np.float64
        return column.to_numpy(dtype=dtype, na_value=np.nan)
    return np.asarray(column.to_numpy())


def _not_numeric(array: np.ndarray) -> bool:
    return array.dtype.kind not in _NUMERIC


def _described(array: np.ndarray) -> str:
    kinds = {"M": "dates", "m": "time spans", "O": "objects", "U": "text", "S": "bytes", "T": "text", "c": "complex"}
    kind = kinds.get(array.dtype.kind, str(array.dtype))
    if kind == "objects" and any(isinstance(x, str) for x in array.ravel()[:100]):
        return "text"
    return kind


def _shared(array: np.ndarray) -> Tensor:
    """Return the array as a tensor that shares its memory unless its layout or dtype asks for a copy."""
    if array.dtype.itemsize > 8:  # extended precision, which torch does not have
        array = array.astype(np.float64)
    array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))
    with warnings.catch_warnings():
        # The tensor is never written to.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)
