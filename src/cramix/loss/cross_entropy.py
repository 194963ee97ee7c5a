"""Quadrature nodes for the cross entropy to a mixture, `-E log f(Y)`."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from cramix.distance.operands import Mixture
from cramix.mixture import NormalMixture
from cramix.mixture.sampling import normal_nodes

# Gauss-Hermite nodes and weights for means under a standard normal distribution.
_NODES, _WEIGHTS = (x.tolist() for x in np.polynomial.hermite_e.hermegauss(32))
# Nodes for each component in d dimensions, at least.
_POINTS = 128


def nodes_of(q: Mixture) -> tuple[Tensor, Tensor]:
    """Return nodes for means under a mixture, `(*batch, n)` or `(*batch, n, d)`, with weights of any sum."""
    if isinstance(q, NormalMixture):
        # The compiler folds constants itself; without it they are cached on the device, as CUDA graphs require.
        rule = _rule.__wrapped__ if torch.compiler.is_compiling() else _rule
        standard, weights = rule(q.means.dtype, q.means.device)
        nodes = q.means.unsqueeze(-1) + q.scales.unsqueeze(-1) * standard  # (*batch, k, 32)
        return nodes.flatten(-2), (q.weights.unsqueeze(-1) * weights).flatten(-2)
    standard = normal_nodes(_POINTS, q.dim, q.means)
    roots = q.covariance_kind.roots(q.dim)
    around = standard * roots.unsqueeze(-2) if q.covariance_kind.axis_aligned else standard @ roots.mT
    nodes = q.means.unsqueeze(-2) + around  # (*batch, k, n, d)
    weights = q.weights.unsqueeze(-1).expand(nodes.shape[:-1])
    return nodes.flatten(-3, -2), weights.flatten(-2)


@lru_cache(maxsize=16)
def _rule(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):  # kept for later calls, which may want gradients
        return torch.tensor(_NODES, dtype=dtype, device=device), torch.tensor(_WEIGHTS, dtype=dtype, device=device)
