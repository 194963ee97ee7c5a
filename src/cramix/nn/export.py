"""`MixtureTensors`: a network that returns tensors instead of mixtures, for export."""

from __future__ import annotations

from torch import Tensor, nn

from cramix.mixture import NormalMixture


class MixtureTensors(nn.Module):
    """Wrap a network that returns mixtures into one that returns tensors, for `torch.export`, ONNX and other languages.

    A univariate mixture becomes weights, means and scales, each `(*batch, k)`. A multivariate one becomes weights
    `(*batch, k)`, means `(*batch, k, d)`, and either variances `(*batch, k, d)` if the covariance type is "diag" or
    "spherical", or covariance matrices `(*batch, k, d, d)`.

    Args:
        network: a module that returns a `NormalMixture` or a `MultivariateNormalMixture`.

    Example:
        >>> import torch
        >>> from cramix.nn import MixtureHead
        >>> network = MixtureTensors(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), MixtureHead(8, n_components=2)))
        >>> program = torch.export.export(network, (torch.zeros(5, 3),))
        >>> [tuple(x.shape) for x in program.module()(torch.zeros(5, 3))]
        [(5, 2), (5, 2), (5, 2)]
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights, means, and scales, variances or covariances."""
        p = self.network(x)
        if isinstance(p, NormalMixture):
            return p.weights, p.means, p.scales
        if p.covariance_kind.axis_aligned:
            return p.weights, p.means, p.covariance_kind.compact().expand(p.means.shape)
        return p.weights, p.means, p.covariances
