"""Some networks at once: of one shape, with weights of their own, whose mixtures together are the prediction."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from cramix.heads import MixtureHead, MixtureTensors
from cramix.mixture import Diagonal, MultivariateNormalMixture, NormalMixture

Parameters = dict[str, Tensor]


class Networks:
    """Networks that are evaluated together, `torch.func.vmap` over their weights.

    Args:
        count: how many, E.
        in_features: number of features.
        hidden: widths of the layers before the head, which sees the features too.
        k: components of each.
        targets: `(n, d)`, to start from.
        weights: of the targets, `(n,)`.
        floor: the least scale, as a part of the targets' spread.
        seed: of the weights at the start.
    """

    def __init__(
        self,
        count: int,
        in_features: int,
        hidden: Sequence[int],
        k: int,
        targets: Tensor,
        weights: Tensor,
        floor: float,
        seed: int,
    ) -> None:
        self.count, self.n_components = count, count * k
        with torch.random.fork_rng(devices=[]):  # layers draw their weights from the global state
            torch.manual_seed(seed)
            members = [MixtureTensors(_Network(in_features, hidden, k, targets.shape[1], floor)) for _ in range(count)]
        for member in members:
            member.network.head.start_from(targets, weights)  # type: ignore[union-attr,operator]
        parameters, self.buffers = torch.func.stack_module_state(members)
        self.parameters: Parameters = {name: p.detach().requires_grad_() for name, p in parameters.items()}
        self._shape = members[0]

    def __call__(self, x: Tensor) -> NormalMixture | MultivariateNormalMixture:
        """Return the mixture of each network for its own features `(E, n, in_features)`: batch shape `(E, n)`."""
        weights, means, spread = torch.func.vmap(self._one)(self.parameters, self.buffers, x)
        if means.ndim == 3:
            return NormalMixture(weights, means, spread, validate_args=False)
        return MultivariateNormalMixture(weights, means, Diagonal(spread), validate_args=False)

    def together(self, x: Tensor) -> NormalMixture | MultivariateNormalMixture:
        """Return the mixture of all networks for features `(n, in_features)`: batch shape `(n,)`, `E k` components."""
        with torch.no_grad():
            p = self(x.expand(self.count, *x.shape))
        weights, means = _joined(p.weights) / self.count, _joined(p.means)
        if isinstance(p, NormalMixture):
            return NormalMixture(weights, means, _joined(p.scales))
        return MultivariateNormalMixture(weights, means, Diagonal(_joined(p.covariance_kind.values)))

    def keep(self, parameters: Parameters) -> None:
        """Take these weights for good, in float64, in which the same features give the same prediction in any batch."""
        self.parameters = {name: p.detach().double() for name, p in parameters.items()}
        self.buffers = {name: b.double() for name, b in self.buffers.items()}

    def _one(self, parameters: Parameters, buffers: Parameters, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.func.functional_call(self._shape, (parameters, buffers), (x,))


class _Network(nn.Module):
    """Layers, and a head on top of them that also sees the features themselves."""

    def __init__(self, in_features: int, hidden: Sequence[int], k: int, dim: int, floor: float) -> None:
        super().__init__()
        widths = [in_features, *hidden]
        layers = [[nn.Linear(a, b), nn.SiLU()] for a, b in pairwise(widths)]
        self.body = nn.Sequential(*(layer for pair in layers for layer in pair))
        self.head = MixtureHead(in_features + (widths[-1] if hidden else 0), k, dim, floor=floor, validate_args=False)
        self.deep = bool(hidden)

    def forward(self, x: Tensor) -> NormalMixture | MultivariateNormalMixture:
        return self.head(torch.cat((self.body(x), x), -1) if self.deep else x)


def _joined(x: Tensor) -> Tensor:
    """From `(E, n, k, *)` to `(n, E k, *)`."""
    return x.movedim(0, 1).flatten(1, 2)
