"""What a fit returns."""

from __future__ import annotations

from dataclasses import dataclass

from cramix.mixture import MultivariateNormalMixture


@dataclass(frozen=True)
class Step:
    """One entry of a fit's history.

    Args:
        name: the stage.
        components: how many there are.
        loss: what the stage makes small: the negative mean log likelihood, or the Cramér loss, in the data's units.
        seconds: since the fit began.
    """

    name: str
    components: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class FitResult:
    """A fitted mixture, and how it was found.

    Args:
        mixture: the result, in the units and the dtype of the data.
        log_likelihood: its mean over the data; None if the target was a mixture.
        converged: whether the method stopped because it had arrived.
        reason: why it stopped, in words.
        collapsed: how many components are as narrow as the floor somewhere.
        iterations: steps of the last stage.
        history: the stages.
        seconds: of all of them.
        warnings: what is wrong with it, in words; empty if all is well.
    """

    mixture: MultivariateNormalMixture
    log_likelihood: float | None
    converged: bool
    reason: str
    collapsed: int
    iterations: int
    history: tuple[Step, ...]
    seconds: float
    warnings: tuple[str, ...] = ()
