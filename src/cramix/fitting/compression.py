"""Small mixtures for large ones, without sampling."""

from __future__ import annotations

from typing import overload

import torch

from cramix.checks import check_integer
from cramix.fitting.descent import GradientDescent
from cramix.fitting.door import solve
from cramix.fitting.merge import MergeDown
from cramix.fitting.problem import Method
from cramix.fitting.reduction import merge_down
from cramix.mixture import MultivariateNormalMixture, NormalMixture
from cramix.mixture.coordinates import in_coordinates

# Up to n^2 d^3 of this the greedy merge, which has to look at all pairs, takes less than a second.
_GREEDY = 2e8


@overload
def compress(mixture: NormalMixture, k: int, *, tolerance: float = ...) -> NormalMixture: ...
@overload
def compress(mixture: MultivariateNormalMixture, k: int, *, tolerance: float = ...) -> MultivariateNormalMixture: ...
def compress(
    mixture: NormalMixture | MultivariateNormalMixture, k: int, *, tolerance: float = 1e-8
) -> NormalMixture | MultivariateNormalMixture:
    """Return a mixture of k components, with full covariances, that is near a larger one in the sliced Cramér distance.

    Components are merged by Runnalls' cost, or where they are too many for that by a fit of the likelihood, and then
    moved downhill on the exact distance by L-BFGS. The distance is taken with every coordinate in its standard
    deviation, so that units do not matter. There is nothing random in it.

    Args:
        mixture: n components without batch; points too.
        k: how many components are wanted, at most as many as have a weight.
        tolerance: gain of the squared distance at which to stop, as a part of the size of the mixture.

    Example:
        >>> p = NormalMixture(torch.full((4,), 0.25), torch.tensor([0.0, 0.1, 5.0, 5.2]), torch.ones(4))
        >>> compress(p, 2).means.sort().values
        tensor([0.0500, 5.1000])
    """
    if not isinstance(mixture, NormalMixture | MultivariateNormalMixture):
        raise ValueError(f"mixture must be a mixture of cramix; got {type(mixture).__name__}. See from_torch.")
    check_integer("k", k, 1)
    if mixture.batch_shape:
        raise ValueError(f"mixture must be one; got a batch {tuple(mixture.batch_shape)}. Compress one at a time.")
    count = int((mixture.weights > 0).sum())
    if k > count:
        raise ValueError(f"k must be at most the {count} components with a weight; got {k}. Ask for fewer.")
    whole = in_coordinates(mixture)
    start = _start(whole, k)
    small = _solved(whole, k, GradientDescent(bandwidth=0.0, tolerance=tolerance), start)
    return small if isinstance(mixture, MultivariateNormalMixture) else small.marginal(0)


def _start(mixture: MultivariateNormalMixture, k: int) -> MultivariateNormalMixture:
    if mixture.n_components**2 * mixture.dim**3 <= _GREEDY:
        return merge_down(mixture, k)
    return _solved(mixture, k, MergeDown(), None)


def _solved(
    mixture: MultivariateNormalMixture, k: int, method: Method, start: MultivariateNormalMixture | None
) -> MultivariateNormalMixture:
    generator = torch.Generator(mixture.means.device).manual_seed(0)
    return solve(mixture, k, method=method, start=start, floor=1e-9, generator=generator).mixture
