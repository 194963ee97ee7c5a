"""Risk measures, in closed form: which return distribution is the best."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from cramix.mixture import NormalMixture

Measure = Callable[[NormalMixture], Tensor]
Risk = str | Measure

# By name: the interval of the level, and the measure.
_MEASURES: dict[str, tuple[str, Callable[[NormalMixture, float], Tensor]]] = {
    "cvar": ("(0, 1]", lambda p, level: p.cvar(level)),
    "expectile": ("(0, 1)", lambda p, level: p.expectile(level)),
    "quantile": ("(0, 1)", lambda p, level: p.icdf(torch.full(p.batch_shape, level).to(p.means))),
}


def parse_risk(risk: Risk) -> Measure:
    """Return a function from mixtures of batch shape `(*batch)` to values `(*batch)`; larger is better.

    Args:
        risk: "mean", "cvar:0.1" (the mean of the worst tenth), "expectile:0.3", "quantile:0.5", or a function.

    Example:
        >>> p = NormalMixture.from_samples(torch.tensor([0.0, 1.0, 2.0, 9.0]))
        >>> parse_risk("mean")(p), parse_risk("cvar:0.5")(p)
        (tensor(3.), tensor(0.5000))
    """
    if callable(risk):
        return partial(_checked, risk)
    name, _, text = risk.partition(":") if isinstance(risk, str) else (risk, "", "")
    if name == "mean" and not text:
        return _mean
    interval, measure = _MEASURES.get(name, ("", None)) if isinstance(name, str) else ("", None)
    try:
        level = float(text)
    except ValueError:
        level = -1.0
    if measure is None or not 0 < level <= (1 if interval.endswith("]") else 1 - 1e-9):
        raise ValueError(
            f'risk must be "mean", "cvar:level", "expectile:level", "quantile:level" with a level in (0, 1), or a '
            f'function of a mixture; got {risk!r}. Try "cvar:0.1".'
        )
    return lambda p: measure(p, level)


def _checked(risk: Measure, p: NormalMixture) -> Tensor:
    """Check the result of a function of the user's."""
    values = risk(p)
    if not isinstance(values, Tensor) or values.shape != p.batch_shape:
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"risk must return a tensor of shape {tuple(p.batch_shape)}; got {found}. Try lambda p: p.mean."
        )
    return values


def _mean(p: NormalMixture) -> Tensor:
    return p.mean
