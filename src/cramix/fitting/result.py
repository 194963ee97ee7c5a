"""What a fit returns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cramix.fitting import html
from cramix.mixture import MultivariateNormalMixture, NormalMixture


@dataclass(frozen=True)
class Step:
    """One entry of the history of a fit.

    Args:
        name: the stage.
        n_components: of the mixtures at this step.
        loss: what the stage minimises. A negative mean log likelihood is in the units of the data; if the target is a
            mixture, it is an upper bound. A Cramér or Wasserstein loss is in the units of the fit, see `Method.units`;
            for large targets it lacks the self energy of the target, which is the same for all mixtures.
        seconds: since the fit began.

    Example:
        >>> import torch, cramix
        >>> g = torch.Generator().manual_seed(0)
        >>> last = cramix.fit(torch.randn(200, generator=g), 1, generator=g).history[-1]
        >>> last.n_components, last.loss < 2
        (1, True)
    """

    name: str
    n_components: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class FitResult:
    """A fitted mixture, and how it was found.

    Args:
        mixture: in the units, the dtype and on the device of the data; a `NormalMixture` for data `(n,)`.
        log_likelihood: mean over the data but the outliers; None if the target was a mixture. After one pass over a
            source with more rows than its sample, it is that of the sample, and `bic` and `aic` follow from it.
        converged: whether the method stopped because it converged.
        reason: why it stopped, in words.
        collapsed: number of components without a variance of their own in some direction, `reg_covar` aside.
        n_iter: steps of the last stage.
        history: the steps of all stages.
        seconds: the time all stages took.
        n_samples: number of samples without the outliers; None if the target was a mixture.
        n_parameters: number of free parameters of the mixture, for information criteria; those of a covariance that
            is shrunk count in part.
        warnings: what is wrong with the fit, in words; empty if nothing is.
        outliers: indices of the samples that were left out of the fit because they lie absurdly far out.
        shrinkage: of the covariances, chosen or given.
        passes: how often the source was read; None for data in memory.
        n_bad: number of rows of a source that were skipped because they could not be used.

    Example:
        >>> import torch, cramix
        >>> g = torch.Generator().manual_seed(0)
        >>> result = cramix.fit(torch.randn(200, generator=g), 1, generator=g)  # samples (n,)
        >>> result.mixture
        NormalMixture(weights=[1], means=[...], scales=[...])
        >>> result.converged, result.n_samples, result.n_parameters, result.warnings
        (True, 200, 2, ())
    """

    mixture: NormalMixture | MultivariateNormalMixture
    log_likelihood: float | None
    converged: bool
    reason: str
    collapsed: int
    n_iter: int
    history: tuple[Step, ...] = field(repr=False)  # as long as the fit
    seconds: float
    n_samples: int | None
    n_parameters: float = field(repr=False)
    warnings: tuple[str, ...] = ()
    outliers: tuple[int, ...] = field(default=(), repr=False)  # in the warnings
    shrinkage: float = 0.0
    passes: int | None = None
    n_bad: int = field(default=0, repr=False)

    @property
    def bic(self) -> float:
        """The Bayesian information criterion; lower is better. Each sample counts once, whatever its weight."""
        return self._criterion(math.log(self.n_samples or 1))

    @property
    def aic(self) -> float:
        """Akaike's information criterion; lower is better."""
        return self._criterion(2.0)

    def _repr_html_(self) -> str:
        return html.of_result(self)

    def _criterion(self, price: float) -> float:
        if self.n_samples is None or self.log_likelihood is None:
            raise ValueError("Information criteria need samples; this fit is to a mixture. Compare distances instead.")
        return price * self.n_parameters - 2 * self.n_samples * self.log_likelihood
