"""Multivariate mixtures from and to torch's and scikit-learn's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, MultivariateNormal, Normal

from cramix.mixture.axes import Diagonal, Spherical
from cramix.mixture.cholesky import cholesky
from cramix.mixture.covariance import Covariance
from cramix.mixture.dense import Factor, Full, Tied

if TYPE_CHECKING:
    from sklearn.mixture import GaussianMixture

    from cramix.mixture.multivariate_value import MultivariateComponents

# scikit-learn's names of the kinds it has; the values have the same shapes.
_KINDS: dict[str, type[Covariance]] = {"full": Full, "tied": Tied, "diag": Diagonal, "spherical": Spherical}


def parts_of_torch(mixture: MixtureSameFamily) -> tuple[Tensor, Tensor, Covariance]:
    """Return weights, means and covariances of a torch mixture of MultivariateNormal, or of Independent Normals."""
    if not isinstance(mixture, MixtureSameFamily):
        raise ValueError(f"mixture must be a MixtureSameFamily; got {type(mixture).__name__}. Make it one.")
    weights, components = mixture.mixture_distribution.probs, mixture.component_distribution
    if isinstance(components, MultivariateNormal):
        return weights, components.loc, Factor.from_scale_tril(components.scale_tril)
    if isinstance(components, Independent) and components.event_shape == components.base_dist.batch_shape[-1:]:
        normal = components.base_dist
        if isinstance(normal, Normal):
            return weights, normal.loc, Diagonal(normal.scale.square())
    raise ValueError(
        "mixture must have components MultivariateNormal or Independent(Normal, 1); "
        f"got {type(components).__name__}. Convert its components."
    )


def to_torch(mixture: MultivariateComponents) -> MixtureSameFamily:
    """Return `MixtureSameFamily(Categorical, MultivariateNormal)`."""
    kind = mixture.covariance_kind
    lower = kind.lower() if isinstance(kind, Factor) else cholesky(mixture.covariances)
    components = MultivariateNormal(mixture.means, scale_tril=lower)
    return MixtureSameFamily(Categorical(probs=mixture.weights), components)


def parts_of_sklearn(model: GaussianMixture) -> tuple[Tensor, Tensor, Covariance]:
    """Return weights, means and covariances of a fitted scikit-learn model."""
    if not hasattr(model, "weights_"):
        raise ValueError(f"model must be a fitted GaussianMixture; got {model!r} without weights_. Call fit first.")
    weights, means, values = (torch.as_tensor(x).clone() for x in (model.weights_, model.means_, model.covariances_))
    return weights, means, _KINDS[model.covariance_type](values)


def to_sklearn(mixture: MultivariateComponents) -> GaussianMixture:
    """Return a scikit-learn model that predicts, scores and samples as if it had been fitted."""
    try:
        from sklearn.mixture import GaussianMixture
    except ImportError:
        raise ImportError("to_sklearn needs scikit-learn. Use: pip install 'cramix[sklearn]'") from None
    if mixture.batch_shape:
        raise ValueError(f"mixture must have no batch axes; got {tuple(mixture.batch_shape)}. Convert one at a time.")
    mixture.refuse_points("scikit-learn")
    name, values = _in_sklearn(mixture)
    roots = cholesky(values) if name in ("full", "tied") else values.sqrt()
    whitening = torch.linalg.inv(roots).mT if name in ("full", "tied") else 1 / roots
    precisions = whitening @ whitening.mT if name in ("full", "tied") else whitening.square()
    model = GaussianMixture(mixture.n_components, covariance_type=name)
    fitted = {
        "weights_": mixture.weights,
        "means_": mixture.means,
        "covariances_": values,
        "precisions_cholesky_": whitening,
        "precisions_": precisions,
    }
    for attribute, x in fitted.items():
        setattr(model, attribute, x.detach().cpu().numpy().copy())
    model.n_features_in_, model.converged_, model.n_iter_, model.lower_bound_ = mixture.dim, True, 0, float("nan")
    return model


def _in_sklearn(mixture: MultivariateComponents) -> tuple[str, Tensor]:
    """Return scikit-learn's name of the kind and the values it wants; kinds that it lacks become full."""
    kind, k, dim = mixture.covariance_kind, mixture.n_components, mixture.dim
    if isinstance(kind, Tied):
        return "tied", kind.values
    if isinstance(kind, Diagonal):
        return "diag", kind.values.expand(k, dim)
    if isinstance(kind, Spherical):
        return "spherical", kind.values.expand(k)
    return "full", mixture.covariances
