"""The private parts of torch that cramix looks at, each behind a feature test.

They report what torch is doing at the moment: compiling, tracing, mapping. A torch without them works as well. Then the
answers are the cautious ones, which lead to the general code paths instead of the fast ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor


def _find(path: str) -> Callable[..., Any] | None:
    """Return a function of `torch._C` by its dotted name, None where this torch has no such function."""
    found: Any = getattr(torch, "_C", None)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found if callable(found) else None


_transforms_active = _find("_are_functorch_transforms_active")
_is_wrapped = _find("_functorch.is_functorch_wrapped_tensor")
_dispatch_modes = _find("_len_torch_dispatch_stack")
_tracing_state = _find("_get_tracing_state")

_PLAIN = Tensor, torch.nn.Parameter
_NATIVE = torch.float32, torch.float64


def plain_eager() -> bool:
    """Return whether neither the compiler nor a transform of `torch.func` is active."""
    return not torch.compiler.is_compiling() and _transforms_active is not None and not _transforms_active()


def in_transform(x: Tensor) -> bool:
    """Return whether a tensor stands for another one in a transform of `torch.func`; never while compiling."""
    if torch.compiler.is_compiling():
        return False
    return _has_no_memory(x) if _is_wrapped is None else _is_wrapped(x)


def _has_no_memory(x: Tensor) -> bool:
    """Return whether a tensor has no memory of its own, as wrappers have none: the public way to find them."""
    try:
        x.data_ptr()
    except RuntimeError:
        return True
    return False


def readable(*tensors: Tensor) -> bool:
    """Return whether values can be inspected: not while compiling, in a transform such as `vmap`, or on "meta"."""
    return not torch.compiler.is_compiling() and not any(in_transform(x) or x.is_meta for x in tensors)


def shares_memory_with_numpy(*tensors: Tensor) -> bool:
    """Return whether tensors are plain CPU memory and nothing, such as a tracer, has to see every operation."""
    if not plain_eager() or _dispatch_modes is None or _dispatch_modes() or _tracing_state is None or _tracing_state():
        return False
    for x in tensors:
        if type(x) not in _PLAIN or not x.is_cpu or x.dtype not in _NATIVE or in_transform(x) or x.is_neg():
            return False
    return True


def as_numpy(x: Tensor) -> np.ndarray:
    """Return the memory of a tensor as an array, without a copy; see `shares_memory_with_numpy`."""
    return x.detach().numpy() if x.requires_grad else x.numpy()


def lerp_all(targets: list[Tensor], sources: list[Tensor], weight: float) -> None:
    """Move tensors in place by a fraction towards others, in one call: torch has a public form for single ones only."""
    with torch.no_grad():
        torch._foreach_lerp_(targets, sources, weight)
