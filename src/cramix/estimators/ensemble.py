"""An ensemble: networks of one architecture that learn together; their mixtures combined are a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from cramix.distance.operands import Mixture
from cramix.nn import MixtureHead


class Ensemble(nn.Module):
    """E networks with weights of their own: batched linear layers, and a `MixtureHead` that also sees the features.

    Args:
        n_estimators: number of networks, E.
        in_features: number of features.
        hidden_layer_sizes: widths of the hidden layers.
        n_components: components of each network, k.
        targets: `(n, d)`, to initialize from.
        sample_weight: of the targets, `(n,)`.
        min_scale: lower bound of the scales, relative to the scale of the targets.
        seed: of the initial weights.
    """

    def __init__(
        self,
        n_estimators: int,
        in_features: int,
        hidden_layer_sizes: Sequence[int],
        n_components: int,
        targets: Tensor,
        sample_weight: Tensor,
        min_scale: float,
        seed: int,
    ) -> None:
        super().__init__()
        self.n_estimators, self.n_components = n_estimators, n_estimators * n_components
        widths = [in_features, *hidden_layer_sizes]
        head_features = in_features + (widths[-1] if hidden_layer_sizes else 0)
        with torch.random.fork_rng(devices=[]):  # layers draw their weights from the global generator
            torch.manual_seed(seed)
            layers, heads = [], []
            for _ in range(n_estimators):
                layers.append([nn.Linear(a, b) for a, b in pairwise(widths)])
                heads.append(
                    MixtureHead(head_features, n_components, targets.shape[1], min_scale=min_scale, validate_args=False)
                )
        for head in heads:
            head.initialize(targets, sample_weight)
        self.hidden = nn.ModuleList(map(_BatchedLinear, zip(*layers, strict=True)))
        # The heads differ in their linear layers only, so the first one serves all.
        self.head = heads[0]
        self.head.linear = _BatchedLinear([head.linear for head in heads])  # type: ignore[assignment]

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return self.head.unit.device

    def forward(self, x: Tensor) -> Mixture:
        """Return the mixture of each network for its own features `(E, n, in_features)`: batch shape `(E, n)`."""
        return self.head(self.head_features(x))

    def head_features(self, x: Tensor) -> Tensor:
        """Return what the heads see: outputs of the last hidden layer, and features."""
        z = x
        for layer in self.hidden:
            z = silu(layer(z))
        return torch.cat((z, x), -1) if self.hidden else x

    @torch.no_grad()
    def combined(self, x: Tensor, share: Tensor | None = None) -> Mixture:
        """Return the mixture of all networks for features `(n, in_features)`: batch shape `(n,)`, `E k` components.

        The networks count alike, or for each row by their share, `(n, E)`.
        """
        p = self(x.expand(self.n_estimators, *x.shape))
        weights, means, values = p._whole()
        weights = weights / self.n_estimators if share is None else weights * share.T.unsqueeze(-1)
        # From (E, n, k, *) to (n, E k, *).
        return p._of_whole(*(part.movedim(0, 1).flatten(1, 2) for part in (weights, means, values)))

    @torch.no_grad()
    def means(self, x: Tensor) -> Tensor:
        """Return the mean of each network's mixture for features `(n, in_features)`: `(E, n)` or `(E, n, d)`."""
        return self(x.expand(self.n_estimators, *x.shape)).mean

    def freeze(self) -> Self:
        """End training. In float64 a row has the same prediction in a batch of any size."""
        return self.double().requires_grad_(False)


class _BatchedLinear(nn.Module):
    """E linear layers at once, for inputs `(E, n, in_features)`."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))
        self.bias = nn.Parameter(torch.stack([layer.bias.detach() for layer in layers]).unsqueeze(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)
