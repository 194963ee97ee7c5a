"""Gaussian mixtures for torch and scikit-learn: fits that hold on new data, exact distances, losses.

- Values: `NormalMixture`, `MultivariateNormalMixture`, and kinds of covariances, such as `Diagonal`.
- Fits: `fit` and `CramerMixture` look for the best optimum of the likelihood, by EM on merged over-complete fits, and
  with few samples for the fit that does best on held-out ones; `CramerMixture(objective="cramer")` follows the paper.
  `select` chooses a number of components, `compress` reduces it.
- Losses: `CramerLoss` and others, with functions of the same names, such as `cramer_loss`.
- Distances: `cramer_distance`, `sliced_cramer_distance` and others.
- Data sets that are too large to hold: `SliceSketch`, `drift`.
- Scores, one value per observation: `crps`, `energy_score`.
- Networks and regressors: `MixtureHead`, `MixtureRegressor`, `MixtureBoostingRegressor`, `MixtureStackingRegressor`;
  `ConformalRegressor` for intervals with a guarantee.
- Data of any size: `source` reads files, Arrow data, mapped arrays and batches in parts.
- Files: `save`, `load`.

Further modules are `cramix.boosting`, `cramix.metrics`, `cramix.plot`, `cramix.rl` and `cramix.data`.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from cramix import directions, parameters
from cramix.data import source
from cramix.distance.cramer.distance import cramer_distance
from cramix.distance.drift import drift
from cramix.distance.kullback_leibler import kl_divergence
from cramix.distance.lp import lp_distance
from cramix.distance.prepared import PreparedTarget
from cramix.distance.sketch import SliceSketch
from cramix.distance.sliced import sliced_cramer_distance
from cramix.distance.wasserstein import sliced_wasserstein_distance, wasserstein_distance
from cramix.fitting import FitResult, Selection, compress, fit, select
from cramix.io import load, save
from cramix.loss import (
    BlendedLoss,
    CramerLoss,
    EnergyScoreLoss,
    MixtureNLLLoss,
    SlicedCramerLoss,
    blended_loss,
    cramer_loss,
    cramer_wold_loss,
    crps,
    density_l2_loss,
    energy_score,
    energy_score_loss,
    nll_loss,
    sliced_cramer_loss,
    sliced_wasserstein_loss,
)
from cramix.mixture import Diagonal, Factor, Full, MultivariateNormalMixture, NormalMixture, Spherical, Tied
from cramix.nn import MixtureHead, MixtureTensors

if TYPE_CHECKING:
    from cramix.estimators import (
        ConformalRegressor,
        CramerMixture,
        MixtureBoostingRegressor,
        MixtureRegressor,
        MixtureStackingRegressor,
    )
    from cramix.fitting import ConvergenceWarning

__version__ = "0.1.0"

__all__ = [
    "BlendedLoss",
    "ConvergenceWarning",
    "CramerLoss",
    "Diagonal",
    "EnergyScoreLoss",
    "Factor",
    "FitResult",
    "Full",
    "MixtureHead",
    "MixtureNLLLoss",
    "MixtureTensors",
    "MultivariateNormalMixture",
    "NormalMixture",
    "PreparedTarget",
    "Selection",
    "SliceSketch",
    "SlicedCramerLoss",
    "Spherical",
    "Tied",
    "blended_loss",
    "compress",
    "cramer_distance",
    "cramer_loss",
    "cramer_wold_loss",
    "crps",
    "density_l2_loss",
    "directions",
    "drift",
    "energy_score",
    "energy_score_loss",
    "fit",
    "kl_divergence",
    "load",
    "lp_distance",
    "nll_loss",
    "parameters",
    "save",
    "select",
    "sliced_cramer_distance",
    "sliced_cramer_loss",
    "sliced_wasserstein_distance",
    "sliced_wasserstein_loss",
    "source",
    "wasserstein_distance",
]

if find_spec("sklearn"):
    __all__ += [
        "ConformalRegressor",
        "CramerMixture",
        "MixtureBoostingRegressor",
        "MixtureRegressor",
        "MixtureStackingRegressor",
    ]


def __getattr__(name: str) -> Any:
    """Import what needs scikit-learn on first use."""
    if name == "ConvergenceWarning":
        from cramix.fitting import ConvergenceWarning

        return ConvergenceWarning
    if name in (
        "ConformalRegressor",
        "CramerMixture",
        "MixtureBoostingRegressor",
        "MixtureRegressor",
        "MixtureStackingRegressor",
    ):
        from cramix import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
