"""`MixtureTensors`: a network that returns plain tensors in place of mixtures, for export."""

from __future__ import annotations

from torch import Tensor, nn

from cramix.mixture import NormalMixture


class MixtureTensors(nn.Module):
    """A network of mixtures as one of tensors: weights, means and scales, for `torch.export`, ONNX and other languages.

    Of a univariate mixture it returns `(*batch, k)` each. Of a multivariate one it returns means `(*batch, k, d)`, and
    in the last place variances `(*batch, k, d)` where covariances are "diag" or "spherical", else matrices
    `(*batch, k, d, d)`.

    Args:
        network: whose output is a `NormalMixture` or a `MultivariateNormalMixture`.

    Example:
        >>> import torch
        >>> from cramix.heads import MixtureHead
        >>> network = MixtureTensors(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), MixtureHead(8, k=2)))
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
            return p.weights, p.means, p.covariance_kind.spread().expand(p.means.shape)
        return p.weights, p.means, p.covariances
