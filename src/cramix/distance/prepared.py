"""Targets that are used many times: their self energy is computed once and kept with them."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from cramix.arrays import as_tensor
from cramix.distance.cramer import atoms
from cramix.distance.energy.autograd import Energy, self_energy_of
from cramix.mixture import MultivariateNormalMixture, NormalMixture


class PreparedTarget:
    """A constant target whose self energy `1/2 E|Y - Y'|` is computed once, when it is first needed.

    The self energy of n samples is a sum over all n^2 pairs in d dimensions. Losses and distances compute it at every
    call, unless the target is prepared. The target is copied, so later changes of the given tensors have no effect, and
    it has no gradient.

    Args:
        target: samples `(n,)` or `(n, d)`, as a tensor, an array or a table, or a mixture of any batch shape.
        sample_weight: of samples, `(n,)`, >= 0, of any positive sum.

    Example:
        >>> from cramix import sliced_cramer_loss
        >>> target = PreparedTarget(torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]]))
        >>> p = MultivariateNormalMixture(torch.ones(1), torch.zeros(1, 2), torch.eye(2).unsqueeze(0))
        >>> sliced_cramer_loss(p, target), sliced_cramer_loss(p.affine(torch.ones(2), 1.0), target)
        (tensor(0.1832), tensor(0.1069))
    """

    def __init__(self, target: Any, sample_weight: Any = None) -> None:
        if isinstance(target, NormalMixture | MultivariateNormalMixture):
            if sample_weight is not None:
                raise ValueError(
                    f"sample_weight must be None for a mixture, which has weights; got {type(sample_weight).__name__}."
                )
            mixture = target
        else:
            mixture = _of_samples(target, sample_weight)
        with torch.inference_mode(False), torch.no_grad():
            self._mixture = mixture._map(_copy)
        self._energies: dict[float, Energy] = {}
        self._on_line: Tensor | None = None
        self._converted: dict[torch.dtype, Self] = {}

    @property
    def mixture(self) -> NormalMixture | MultivariateNormalMixture:
        """The target as a mixture; do not change its tensors."""
        return self._mixture

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Return the target on another device or in another dtype; itself if it is there already."""
        means = self._mixture.means
        device = means.device if device is None else torch.device(device)
        dtype = means.dtype if dtype is None else dtype
        if (device, dtype) == (means.device, means.dtype):
            return self
        return type(self)(self._mixture.to(device=device, dtype=dtype))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._mixture!r})"

    def in_dtype(self, dtype: torch.dtype) -> Self:
        """Return the target in another dtype, which is kept for later calls."""
        if dtype == self._mixture.means.dtype:
            return self
        if dtype not in self._converted:
            self._converted[dtype] = self.to(dtype=dtype)
        return self._converted[dtype]

    def self_energy(self, tolerance: float) -> Energy:
        """Return the self energy of a multivariate target for distances of a tolerance."""
        mixture = self._mixture
        assert isinstance(mixture, MultivariateNormalMixture), "on the line there is self_energy_on_line"
        key = 0.0 if mixture.is_empirical else tolerance
        if key not in self._energies:
            with torch.inference_mode(False):  # kept for later calls, which may want gradients
                self._energies[key] = self_energy_of(mixture, tolerance)
        return self._energies[key]

    def self_energy_on_line(self) -> Tensor:
        """Return the self energy of samples on the line, `(*batch)` in float64."""
        if self._on_line is None:
            with torch.inference_mode(False), torch.no_grad():
                self._on_line = atoms.self_energy(self._mixture.means, self._mixture.weights)
        return self._on_line


def _of_samples(samples: Any, sample_weight: Any) -> NormalMixture | MultivariateNormalMixture:
    x = as_tensor("target", samples)
    if x.ndim not in (1, 2):
        raise ValueError(
            f"target must be samples (n,) or (n, d), or a mixture; got shape {tuple(x.shape)}. "
            "For a batch of sample sets use from_samples."
        )
    kind = NormalMixture if x.ndim == 1 else MultivariateNormalMixture
    weights = None if sample_weight is None else as_tensor("sample_weight", sample_weight, x)
    if weights is not None and weights.shape != x.shape[:1]:
        raise ValueError(f"sample_weight must have shape {tuple(x.shape[:1])}; got {tuple(weights.shape)}.")
    return kind.from_samples(x, weights)


def _copy(x: Tensor) -> Tensor:
    """Return a copy in which expanded axes stay expanded."""
    kept = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.stride())
    return x.detach()[kept].clone().expand(x.shape)
