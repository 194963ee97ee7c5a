"""What a fit returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from cramix.mixture import MultivariateNormalMixture


@dataclass(frozen=True)
class Step:
    """One entry of a fit's history.

    Args:
        name: the stage.
        components: how many there are.
        loss: what the stage makes small. The negative mean log likelihood is in the data's units; of a mixture as the
            target it is a bound. A Cramér or a Wasserstein loss is in the units of the fit, see `Method.units`, and
            where the target is large without the term of the target alone, which is the same for all mixtures.
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
        n_samples: how many there were; None if the target was a mixture.
        warnings: what is wrong with it, in words; empty if all is well.
    """

    mixture: MultivariateNormalMixture
    log_likelihood: float | None
    converged: bool
    reason: str
    collapsed: int
    iterations: int
    history: tuple[Step, ...] = field(repr=False)  # as long as the fit
    seconds: float
    n_samples: int | None
    warnings: tuple[str, ...] = ()

    @property
    def bic(self) -> float:
        """Schwarz's criterion; lower is better. Samples count as one each, whatever their weight."""
        return self._criterion(lambda n: math.log(n))

    @property
    def aic(self) -> float:
        """Akaike's criterion; lower is better."""
        return self._criterion(lambda n: 2.0)

    def _criterion(self, price: Callable[[int], float]) -> float:
        if self.n_samples is None or self.log_likelihood is None:
            raise ValueError("target must be samples for an information criterion; got a mixture. Compare distances.")
        n = self.n_samples
        return price(n) * self.mixture.n_parameters - 2 * n * self.log_likelihood
