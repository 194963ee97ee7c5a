"""`MixtureHead`: a layer that maps features to mixtures."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cramix.checks import check_choice, check_finite, check_integer, check_number
from cramix.mixture import MultivariateNormalMixture, NormalMixture
from cramix.mixture.covariance import HEADS
from cramix.nn.initialization import Initialization, initialization_from_targets, standard_initialization
from cramix.nn.parametrization import mixture_parameters

# Factor on the initial weights of the linear layer: an untrained head hardly depends on its features.
_INITIAL_GAIN = 0.1


class MixtureHead(nn.Module):
    """A linear layer whose outputs are the weights, means and scales of a Gaussian mixture.

    Put it on top of any network. Before training it predicts nearly the same mixture for all features: components of
    equal weight that cover the targets, with means at their quantiles, or for vectors at the centers of clusters.
    Scales have a lower bound relative to the scale of the targets, so densities stay finite.

    Args:
        in_features: length of the feature vectors.
        n_components: number of components, k.
        event_dim: dimension of the targets, d. 1 gives a `NormalMixture`, more a `MultivariateNormalMixture`.
        covariance_type: "diag", "full", "spherical" or "low_rank" (diagonal plus `rank` directions).
        rank: number of directions of "low_rank".
        targets: a sample of the targets, `(n,)` or `(n, d)`, to initialize from, see `initialize`; if None, targets are
            assumed to have mean 0 and variance 1.
        standardize: learn in standard units, targets minus their median, divided by their scale (half the width of
            their central 68 %); mixtures are in the units of the targets either way.
        min_scale: lower bound of the scales, relative to the scale of the targets.
        validate_args: check the values of each mixture, see `NormalMixture`; an error also reports NaN features.
        device: device of the parameters.
        dtype: dtype of the parameters and of the mixtures.

    Example:
        >>> from cramix import CramerLoss
        >>> _ = torch.manual_seed(0)
        >>> x = torch.rand(256, 1)
        >>> y = torch.where(torch.rand(256) < 0.5, x[:, 0], -x[:, 0])  # two branches
        >>> network = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), MixtureHead(32, n_components=2, targets=y))
        >>> optimizer = torch.optim.Adam(network.parameters(), 1e-2)
        >>> for _ in range(200):
        ...     optimizer.zero_grad()
        ...     CramerLoss()(network(x), y).backward()
        ...     optimizer.step()
        >>> network(torch.tensor([0.8])).means.detach().sort().values.round(decimals=1)
        tensor([-0.8000,  0.8000])
    """

    center: Tensor
    unit: Tensor
    least: Tensor

    def __init__(
        self,
        in_features: int,
        n_components: int,
        event_dim: int = 1,
        covariance_type: str = "diag",
        *,
        rank: int = 1,
        targets: Tensor | None = None,
        standardize: bool = True,
        min_scale: float = 1e-3,
        validate_args: bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_integer("in_features", in_features, 1)
        check_integer("n_components", n_components, 1)
        check_integer("event_dim", event_dim, 1)
        check_integer("rank", rank, 1)
        check_choice("covariance_type", covariance_type, HEADS)
        check_number("min_scale", min_scale, positive=True)
        self.in_features, self.n_components, self.event_dim = in_features, n_components, event_dim
        self.covariance_type, self.standardize = covariance_type, standardize
        self.min_scale, self.validate_args = min_scale, validate_args
        self.head_covariance = HEADS[covariance_type](event_dim, rank)
        out_features = n_components * (1 + event_dim + self.head_covariance.n_outputs)
        self.linear = nn.Linear(in_features, out_features, device=device, dtype=dtype)
        for name in ("center", "unit", "least"):
            self.register_buffer(name, self.linear.weight.new_zeros(event_dim))
        with torch.no_grad():
            self.linear.weight *= _INITIAL_GAIN
        if targets is None:
            with torch.device("cpu"):
                self._initialize(standard_initialization(n_components, event_dim))
        else:
            self.initialize(targets)

    def initialize(self, targets: Tensor, sample_weight: Tensor | None = None) -> None:
        """Initialize from a sample of the targets, `(n,)` or `(n, d)`, with weights `(n,)`.

        Sets the units, the lower bound of the scales and the biases of the linear layer; its weights stay as they are.
        """
        with torch.device("cpu"):  # whatever the default device is
            self._initialize(initialization_from_targets(targets, sample_weight, self.n_components, self.event_dim))

    def forward(self, features: Tensor) -> NormalMixture | MultivariateNormalMixture:
        """Return mixtures with batch shape `(*batch)` for features `(*batch, in_features)`."""
        if features.shape[-1:] != (self.in_features,):
            raise ValueError(f"features must have shape (*batch, {self.in_features}); got {tuple(features.shape)}.")
        # Half precision, as under autocast, ends here: its weights do not sum to 1, and its range is too small.
        outputs = self.linear(features).to(self.center.dtype)
        try:
            return self._mixture(outputs)
        except ValueError:  # looking for the cause only now costs nothing while all is well
            check_finite(features=features)
            check_finite(**dict(self.linear.named_parameters()))
            raise

    def extra_repr(self) -> str:
        """Describe the mixtures in the `repr` of the module."""
        return (
            f"n_components={self.n_components}, event_dim={self.event_dim}, "
            f"covariance_type={self.covariance_type!r}, min_scale={self.min_scale:g}"
        )

    def _mixture(self, outputs: Tensor) -> NormalMixture | MultivariateNormalMixture:
        """Return the mixtures of unconstrained numbers `(*batch, k (1 + d + n_outputs))`."""
        k, d, n_outputs = self.n_components, self.event_dim, self.head_covariance.n_outputs
        logits, means, raw_covariances = outputs.split([k, k * d, k * n_outputs], -1)
        raw_covariances = raw_covariances.unflatten(-1, (k, n_outputs))
        if d == 1:
            weights, means, scales = mixture_parameters(logits, means, raw_covariances[..., 0], min_scale=self.least)
            means, scales = self.center + self.unit * means, self.unit * scales
            return NormalMixture(weights, means, scales, validate_args=self.validate_args)
        means = self.center + self.unit * means.unflatten(-1, (k, d))
        covariances = self.head_covariance.covariances(raw_covariances, self.least, self.unit)
        return MultivariateNormalMixture(logits.softmax(-1), means, covariances, validate_args=self.validate_args)

    @torch.no_grad()
    def _initialize(self, start: Initialization) -> None:
        k = self.n_components
        unit, center = self.head_covariance.units(start.scale), start.center
        if not self.standardize:
            unit, center = torch.ones_like(unit), torch.zeros_like(center)
        means = (start.means - center) / unit
        # k components share the volume of the targets.
        scales = start.scale / unit / k ** (1 / self.event_dim)
        raw_covariances = self.head_covariance.outputs(scales).expand(k, -1)
        self.center.copy_(center)
        self.unit.copy_(unit)
        self.least.copy_(self.min_scale * self.head_covariance.units(start.scale) / unit)
        self.linear.bias.copy_(torch.cat((means.new_zeros(k), means.flatten(), raw_covariances.flatten())))
