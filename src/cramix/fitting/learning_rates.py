"""Learning rates for weights, means and covariances, and the first-order optimisers that use them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from cramix.fitting.problem import Components


class Rates(NamedTuple):
    """Learning rates of the logits of weights, of means, and of the unconstrained covariances."""

    weights: float
    means: float
    covariances: float


LearningRate = float | Sequence[float] | Mapping[str, float] | None

# In standard units. L-BFGS determines its step sizes: its rates are relative to each other.
DEFAULTS = {
    "lbfgs": Rates(1.0, 0.3, 1.0),
    "adam": Rates(0.02, 0.02, 0.02),
    "lion": Rates(5e-3, 5e-3, 5e-3),
    "rmsprop": Rates(0.01, 0.01, 0.01),
}


def rates_of(learning_rate: LearningRate, optimizer: str) -> Rates:
    """Return three rates, from one for all, three, or some by name; the rest are the defaults of the optimiser."""
    default = DEFAULTS[optimizer]
    if learning_rate is None:
        return default
    if isinstance(learning_rate, Mapping):
        given: dict[Any, float] = {**default._asdict(), **learning_rate}
    elif isinstance(learning_rate, int | float):
        given = dict.fromkeys(Rates._fields, learning_rate)
    else:
        given = dict(enumerate(learning_rate)) if len(learning_rate) != 3 else Rates(*learning_rate)._asdict()
    if set(given) != set(Rates._fields) or not all(_is_rate(rate) for rate in given.values()):
        raise ValueError(
            "learning_rate must be one number > 0, three, or a mapping from some of weights, means and covariances to "
            f"numbers; got {learning_rate!r}."
        )
    return Rates(**given)


def _is_rate(rate: object) -> bool:
    return isinstance(rate, int | float) and 0 < rate < math.inf


def first_order(name: str, parameters: Components, rates: Rates) -> Optimizer:
    """Return an optimiser that takes one step per gradient."""
    groups = [{"params": [x], "lr": rate} for x, rate in zip(parameters, rates, strict=True)]
    if name == "adam":
        return torch.optim.Adam(groups)
    if name == "rmsprop":
        return torch.optim.RMSprop(groups)
    return require_lion()(groups)


def require_lion() -> Callable[..., Optimizer]:
    """Return the optimiser Lion; an ImportError names the package to install."""
    try:
        from lion_pytorch import Lion
    except ImportError:
        raise ImportError("Lion needs lion-pytorch. Use: pip install 'cramix[lion]'") from None
    return Lion
