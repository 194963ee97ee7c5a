"""Multivariate mixtures from and to torch's and scikit-learn's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, MultivariateNormal, Normal

from cramix.mixture.covariance import KINDS, Covariance, Diagonal, Factor
from cramix.mixture.covariance.cholesky import cholesky

if TYPE_CHECKING:
    from sklearn.mixture import GaussianMixture

    from cramix.mixture.multivariate import MultivariateNormalMixture

# The kinds that scikit-learn has, with values of the same shapes; the others become full there.
_IN_SKLEARN = ("full", "tied", "diag", "spherical")


def parts_of_torch(mixture: MixtureSameFamily) -> tuple[Tensor, Tensor, Covariance]:
    """Return weights, means and covariances of a torch mixture of MultivariateNormal, or of Independent Normals."""
    if not isinstance(mixture, MixtureSameFamily):
        raise ValueError(f"mixture must be a MixtureSameFamily; got {type(mixture).__name__}.")
    weights, components = mixture.mixture_distribution.probs, mixture.component_distribution
    if isinstance(components, MultivariateNormal):
        return weights, components.loc, Factor.from_scale_tril(components.scale_tril)
    if isinstance(components, Independent) and components.event_shape == components.base_dist.batch_shape[-1:]:
        normal = components.base_dist
        if isinstance(normal, Normal):
            return weights, normal.loc, Diagonal(normal.scale.square())
    raise ValueError(
        f"mixture must have components MultivariateNormal or Independent(Normal, 1); got {type(components).__name__}."
    )


def to_torch(mixture: MultivariateNormalMixture) -> MixtureSameFamily:
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
    return weights, means, KINDS[model.covariance_type](values)


def to_sklearn(mixture: MultivariateNormalMixture) -> GaussianMixture:
    """Return a scikit-learn model that predicts, scores and samples as if it had been fitted."""
    try:
        from sklearn.mixture import GaussianMixture
    except ImportError:
        raise ImportError("to_sklearn needs scikit-learn. Use: pip install 'cramix[sklearn]'") from None
    if mixture.batch_shape:
        raise ValueError(f"mixture must have no batch axes; got {tuple(mixture.batch_shape)}. Convert one at a time.")
    mixture._require_density("scikit-learn")
    kind, k, dim = mixture.covariance_kind, mixture.n_components, mixture.dim
    name = kind.name if kind.name in _IN_SKLEARN else "full"
    if kind.axis_aligned:
        values = kind.values.expand((k, dim)[: kind.values.ndim])
        whitening = values.rsqrt()
        precisions = whitening.square()
    else:
        values = mixture.covariances if name == "full" else kind.values
        # Not by torch.linalg.inv, which fails on triangular matrices in parallel (seen with torch 2.13 and oneMKL).
        identity = torch.eye(dim, dtype=values.dtype, device=values.device)
        whitening = torch.linalg.solve_triangular(cholesky(values), identity, upper=False).mT
        precisions = whitening @ whitening.mT
    model = GaussianMixture(k, covariance_type=name)
    fitted = {
        "weights_": mixture.weights,
        "means_": mixture.means,
        "covariances_": values,
        "precisions_cholesky_": whitening,
        "precisions_": precisions,
    }
    for attribute, x in fitted.items():
        setattr(model, attribute, x.detach().cpu().numpy().copy())
    model.n_features_in_, model.converged_, model.n_iter_, model.lower_bound_ = dim, True, 0, float("nan")
    return model
