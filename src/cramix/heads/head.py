"""`MixtureHead`: a layer that turns features into mixtures."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cramix.checks import check_choice, check_integer, check_number
from cramix.heads.parametrization import mixture_parameters
from cramix.heads.spread import SPREADS
from cramix.heads.start import Start, standard_start, start_among
from cramix.mixture import MultivariateNormalMixture, NormalMixture

# The features move the components of an untrained head by a small part of the targets' range.
_TIMID = 0.1


class MixtureHead(nn.Module):
    """A linear layer whose outputs are the weights, means and scales of a mixture.

    Put it on top of any network. Before training it predicts about the same for all features: components of equal
    weight spread over the targets, at their quantiles, of vectors at the centres of clusters. Scales have a floor,
    relative to the targets, so that no density is infinite.

    Args:
        in_features: length of the feature vectors.
        k: number of components.
        event_dim: dimension of the targets; for 1 the mixtures are `NormalMixture`, else `MultivariateNormalMixture`.
        covariance: "diag", "full", "spherical" or "low-rank" (a diagonal and `rank` directions).
        rank: of "low-rank".
        targets: a sample of the targets, `(n,)` or `(n, d)`, to start from; of mean 0 and variance 1 if None. See
            `start_from`.
        standardize: learn in units of the targets' spread, half the width of the middle 68 % of them, around their
            median; this is undone on output.
        floor: the least scale, as a part of the targets' spread.
        validate_args: check the values of each mixture; see `NormalMixture`.
        device: of the parameters.
        dtype: of the parameters and the mixtures.

    Example:
        >>> from cramix import CramerLoss
        >>> _ = torch.manual_seed(0)
        >>> x = torch.rand(256, 1)
        >>> y = torch.where(torch.rand(256) < 0.5, x[:, 0], -x[:, 0])  # two answers
        >>> network = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), MixtureHead(32, k=2, targets=y))
        >>> optimizer = torch.optim.Adam(network.parameters(), 1e-2)
        >>> for _ in range(200):
        ...     optimizer.zero_grad()
        ...     CramerLoss()(network(x), y).backward()
        ...     optimizer.step()
        >>> network(torch.tensor([0.8])).means.detach().sort().values.round(decimals=1)
        tensor([-0.8000,  0.8000])
    """

    centre: Tensor
    unit: Tensor
    least: Tensor

    def __init__(
        self,
        in_features: int,
        k: int,
        event_dim: int = 1,
        covariance: str = "diag",
        *,
        rank: int = 1,
        targets: Tensor | None = None,
        standardize: bool = True,
        floor: float = 1e-3,
        validate_args: bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_integer("in_features", in_features, 1)
        check_integer("k", k, 1)
        check_integer("event_dim", event_dim, 1)
        check_integer("rank", rank, 1)
        check_choice("covariance", covariance, SPREADS)
        check_number("floor", floor, positive=True)
        self.in_features, self.k, self.event_dim, self.covariance = in_features, k, event_dim, covariance
        self.standardize, self.floor, self.validate_args = standardize, floor, validate_args
        self.spread = SPREADS[covariance](event_dim, rank)
        self.linear = nn.Linear(in_features, k * (1 + event_dim + self.spread.n_free), device=device, dtype=dtype)
        for name in ("centre", "unit", "least"):
            self.register_buffer(name, self.linear.weight.new_zeros(event_dim))
        with torch.no_grad():
            self.linear.weight *= _TIMID
        if targets is None:
            self._begin(standard_start(k, event_dim))
        else:
            self.start_from(targets)

    def start_from(self, targets: Tensor, weights: Tensor | None = None) -> None:
        """Begin anew for a sample of the targets, `(n,)` or `(n, d)`, with weights `(n,)`.

        Sets the units and the floor, puts the components in their places, and makes their weights equal. The features
        count as before.
        """
        self._begin(start_among(targets, weights, self.k, self.event_dim))

    def forward(self, features: Tensor) -> NormalMixture | MultivariateNormalMixture:
        """Return mixtures with batch shape `(*batch)` for features `(*batch, in_features)`."""
        if features.shape[-1:] != (self.in_features,):
            raise ValueError(
                f"features must be (*batch, {self.in_features}); got {tuple(features.shape)}. Set in_features."
            )
        # Half precision, as of autocast, ends here: weights would not sum to one, and far targets leave its range.
        free = self.linear(features).to(self.centre.dtype)
        logits, places, spreads = free.split([self.k * n for n in self._sizes], -1)
        spreads = spreads.unflatten(-1, (self.k, self.spread.n_free))
        if self.event_dim == 1:
            weights, means, scales = mixture_parameters(logits, places, spreads[..., 0], min_scale=self.least)
            means, scales = self.centre + self.unit * means, self.unit * scales
            return NormalMixture(weights, means, scales, validate_args=self.validate_args)
        weights = logits.softmax(-1)
        means = self.centre + self.unit * places.unflatten(-1, (self.k, self.event_dim))
        covariances = self.spread.covariances(spreads, self.least, self.unit)
        return MultivariateNormalMixture(weights, means, covariances, validate_args=self.validate_args)

    def extra_repr(self) -> str:
        """Say what the mixtures are."""
        return f"k={self.k}, event_dim={self.event_dim}, covariance={self.covariance!r}, floor={self.floor:g}"

    @property
    def _sizes(self) -> tuple[int, int, int]:
        return 1, self.event_dim, self.spread.n_free

    @torch.no_grad()
    def _begin(self, start: Start) -> None:
        unit = self.spread.units(start.scales)
        centre = start.centre
        if not self.standardize:
            unit, centre = torch.ones_like(unit), torch.zeros_like(centre)
        least = self.floor * self.spread.units(start.scales) / unit
        places = (start.places - centre) / unit
        # As wide as lets k components share the space of the targets.
        scales = start.scales / unit / self.k ** (1 / self.event_dim)
        spreads = self.spread.free(scales).expand(self.k, -1)
        self.centre.copy_(centre)
        self.unit.copy_(unit)
        self.least.copy_(least)
        bias = torch.cat((torch.zeros(self.k, dtype=places.dtype), places.flatten(), spreads.flatten()))
        self.linear.bias.copy_(bias)
