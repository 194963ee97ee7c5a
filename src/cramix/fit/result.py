"""What a fit returns."""

from __future__ import annotations

from dataclasses import dataclass

from cramix.mixture import MultivariateNormalMixture


@dataclass(frozen=True)
class Step:
    """One stage of a fit: what was done, with how many components, the mean log likelihood after it, and its time."""

    name: str
    components: int
    log_likelihood: float
    seconds: float


@dataclass(frozen=True)
class FitResult:
    """A fitted mixture, and how it was found.

    Args:
        mixture: the result, in the units and the dtype of the data.
        log_likelihood: its mean over the data.
        converged: whether the last stage gained less than its tolerance in the end.
        reason: why it stopped, in words.
        collapsed: how many components are as narrow as the floor somewhere.
        history: the stages.
        seconds: of all of them.
    """

    mixture: MultivariateNormalMixture
    log_likelihood: float
    converged: bool
    reason: str
    collapsed: int
    history: tuple[Step, ...]
    seconds: float
