"""The value of a mixture: weights, means and scales, how to build them and how to rearrange them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Normal, constraints

from cramix.checks import check_broadcast, check_finite, check_floating, check_mixture, check_weights
from cramix.mixture.weights import of_logits, of_samples, pruned
from cramix.torch_internals import readable


class NormalComponents(Distribution):
    """Checked parameters of a univariate mixture of normal components and atoms; abstract, see `NormalMixture`."""

    arg_constraints = {  # noqa: RUF012
        "weights": constraints.simplex,
        "means": constraints.real_vector,
        "scales": constraints.independent(constraints.nonnegative, 1),
    }
    support = constraints.real
    has_rsample = True
    _validate_args = __debug__  # of its own: torch's compiler switches the default of all distributions off for good

    def __init__(self, weights: Tensor, means: Tensor, scales: Tensor, validate_args: bool | None = None) -> None:
        check_floating(weights=weights, means=means, scales=scales)
        if weights.shape == means.shape == scales.shape:
            shape = weights.shape
        else:
            cure = "Each is (*batch, components)."
            shape = check_broadcast(cure, weights=weights.shape, means=means.shape, scales=scales.shape)
            weights, means, scales = weights.expand(shape), means.expand(shape), scales.expand(shape)
        if not shape or shape[-1] == 0:
            raise ValueError(
                f"weights must have a component axis of length >= 1; got shape {tuple(shape)}. Use (*batch, k)."
            )
        self.weights, self.means, self.scales = weights, means, scales
        # Checked here rather than by torch's constraints, which take longer than the Cramér distance itself.
        self._batch_shape, self._event_shape = shape[:-1], torch.Size()
        self._validate_args = type(self)._validate_args if validate_args is None else validate_args
        self._only_atoms = False
        if self._validate_args:
            check_mixture(weights, means, scales)

    @classmethod
    def from_logits(cls, logits: Tensor, means: Tensor, scales: Tensor, validate_args: bool | None = None) -> Self:
        """Build from unnormalised log weights `(*batch, k)`."""
        check_floating(logits=logits, means=means, scales=scales)
        cure = "Each is (*batch, components)."
        shape = check_broadcast(cure, logits=logits.shape, means=means.shape, scales=scales.shape)
        weights = of_logits(logits.expand(shape))
        return cls(weights, means, scales, validate_args)

    @classmethod
    def from_samples(cls, x: Tensor, weights: Tensor | None = None, *, name: str = "x") -> Self:
        """Build the empirical distribution of points `(*batch, n)`: atoms, with weights >= 0 of any positive sum.

        An error speaks of x by `name`.

        Example:
            >>> from cramix import NormalMixture
            >>> NormalMixture.from_samples(torch.tensor([1.0, 2.0, 4.0]), weights=torch.tensor([1.0, 1.0, 2.0])).mean
            tensor(2.7500)
        """
        check_floating(**{name: x} if weights is None else {name: x, "weights": weights})
        if x.ndim == 0 or x.shape[-1] == 0:
            raise ValueError(f"{name} must hold at least one sample; got shape {tuple(x.shape)}. Use (*batch, n).")
        weights = of_samples(name, x.shape, weights, x)
        if readable(x):
            check_finite(**{name: x})
        return cls.from_atoms(weights, x)

    @classmethod
    def from_atoms(cls, weights: Tensor, places: Tensor) -> Self:
        """Build from weights and places `(*batch, n)` that are known to be valid."""
        atoms = cls(weights, places, places.new_zeros(()), validate_args=False)
        atoms._validate_args, atoms._only_atoms = cls._validate_args, True
        return atoms

    @classmethod
    def from_torch(cls, mixture: MixtureSameFamily) -> Self:
        """Build from torch's `MixtureSameFamily(Categorical, Normal)`."""
        normal = mixture.component_distribution if isinstance(mixture, MixtureSameFamily) else mixture
        if not isinstance(mixture, MixtureSameFamily) or not isinstance(normal, Normal):
            raise ValueError(
                f"mixture must be a MixtureSameFamily of Normal; got {type(normal).__name__}. Convert its components."
            )
        return cls(mixture.mixture_distribution.probs, normal.loc, normal.scale)

    @classmethod
    def from_normals(cls, normals: Sequence[Normal], weights: Tensor | None = None) -> Self:
        """Build from k torch `Normal`s of one batch shape, with weights `(*batch, k)`, equal ones if none are given."""
        if len(normals) == 0:
            raise ValueError("normals must hold at least one Normal; got an empty list. Give one a component.")
        for n in normals:
            if not isinstance(n, Normal):
                raise ValueError(f"normals must all be Normal; got {type(n).__name__}. Convert it.")
        check_floating(**{f"normals[{i}]": n.loc for i, n in enumerate(normals)})
        shapes = {f"normals[{i}]": n.batch_shape for i, n in enumerate(normals)}
        shape = check_broadcast("Use Normals of one batch shape.", **shapes)
        means, scales = (
            torch.stack([getattr(n, name).expand(shape) for n in normals], -1) for name in ("loc", "scale")
        )
        return cls(torch.full_like(means, 1 / len(normals)) if weights is None else weights, means, scales)

    @classmethod
    def mix(cls, mixtures: Sequence[Self], weights: Tensor) -> Self:
        """Build the mixture of j mixtures, with weights `(*batch, j)`; its components are all of theirs.

        Example:
            >>> from cramix import NormalMixture
            >>> p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
            >>> NormalMixture.mix([p, p.affine(1.0, 2.0)], torch.tensor([0.25, 0.75])).weights
            tensor([0.2500, 0.7500])
        """
        if len(mixtures) == 0:
            raise ValueError("mixtures must hold at least one mixture; got an empty list. Give one a weight.")
        for m in mixtures:
            if not isinstance(m, NormalComponents):
                raise ValueError(f"mixtures must all be NormalMixture; got {type(m).__name__}. See from_torch.")
        check_floating(**{f"mixtures[{i}]": m.means for i, m in enumerate(mixtures)}, weights=weights)
        if weights.shape[-1:] != (len(mixtures),):
            raise ValueError(
                f"weights must have {len(mixtures)} entries on the last axis; got {tuple(weights.shape)}. "
                "Give each mixture one."
            )
        if readable(weights):
            check_weights(weights)
        shapes = {f"mixtures[{i}]": m.batch_shape for i, m in enumerate(mixtures)}
        batch = check_broadcast("Use mixtures of one batch shape.", **shapes, weights=weights.shape[:-1])
        scaled = [m.expand(batch).weights * weights[..., i, None] for i, m in enumerate(mixtures)]
        means, scales = ([getattr(m.expand(batch), name) for m in mixtures] for name in ("means", "scales"))
        mixed = cls(torch.cat(scaled, -1), torch.cat(means, -1), torch.cat(scales, -1), validate_args=False)
        mixed._validate_args = any(m._validate_args for m in mixtures)
        mixed._only_atoms = all(m.only_atoms for m in mixtures)
        return mixed

    def to_torch(self) -> MixtureSameFamily:
        """Return torch's `MixtureSameFamily(Categorical, Normal)`; not possible with atoms."""
        self.refuse_atoms("to_torch")
        return MixtureSameFamily(Categorical(probs=self.weights), Normal(self.means, self.scales))

    def expand(self, batch_shape: Sequence[int], _instance: None = None) -> Self:
        """Return the mixture with a larger batch shape, sharing memory."""
        try:
            batch = self.weights[..., 0].expand(batch_shape).shape
        except RuntimeError:
            raise ValueError(
                f"batch_shape must extend {tuple(self.batch_shape)}; got {tuple(batch_shape)}. Only length 1 grows."
            ) from None
        shape = (*batch, self.n_components)
        return self._like(self.weights.expand(shape), self.means.expand(shape), self.scales.expand(shape))

    def affine(self, loc: Tensor | float, scale: Tensor | float) -> Self:
        """Return the distribution of `loc + scale * X`; loc and scale are numbers or `(*batch)`.

        Example:
            >>> from cramix import NormalMixture
            >>> NormalMixture(torch.ones(1), torch.ones(1), torch.ones(1)).affine(3.0, -2.0).mean
            tensor(1.)
        """
        loc, scale = self._numbers(loc=loc, scale=scale)
        batch = check_broadcast("Use numbers or (*batch).", loc=loc.shape, scale=scale.shape, mixture=self.batch_shape)
        if self._validate_args and readable(loc, scale):
            check_finite(loc=loc, scale=scale)
        loc, scale = loc.unsqueeze(-1), scale.unsqueeze(-1)
        shape = (*batch, self.n_components)
        return self._like(
            self.weights.expand(shape),
            (loc + scale * self.means).expand(shape),
            (scale.abs() * self.scales).expand(shape),
        )

    def sort(self) -> Self:
        """Return the mixture with its components in the order of their means."""
        order = self.means.argsort(-1)
        return self._like(*(t.gather(-1, order) for t in (self.weights, self.means, self.scales)))

    def prune(self, threshold: float = 0.0) -> Self:
        """Return the mixture without components of weight <= threshold, the rest scaled up to sum to one.

        In a batch, a component that stays in some elements has weight 0 in those where it goes.
        """
        keep, weights = pruned(self.weights, threshold)
        return self._like(weights, self.means[..., keep], self.scales[..., keep])

    @property
    def n_components(self) -> int:
        """Number of components, k."""
        return self.weights.shape[-1]

    @property
    def only_atoms(self) -> bool:
        """Whether the mixture was built from samples, so that every scale is known to be 0 without looking."""
        return self._only_atoms

    def refuse_atoms(self, what: str) -> None:
        """Raise a ValueError if there are atoms, for which `what` is not defined."""
        if self._only_atoms or (self._validate_args and readable(self.scales) and (self.scales == 0).any()):
            raise ValueError(
                f"scales must be > 0 for {what}; got 0, an atom, which has no density. Use cdf, or a small scale."
            )

    def _like(self, weights: Tensor, means: Tensor, scales: Tensor) -> Self:
        """A mixture made of this one's, so of valid parts."""
        new = type(self)(weights, means, scales, validate_args=False)
        new._validate_args, new._only_atoms = self._validate_args, self._only_atoms
        return new

    def _numbers(self, **values: Tensor | float) -> list[Tensor]:
        """Make numbers tensors like the means; what is a tensor must be one already."""
        tensors = {name: x if isinstance(x, Tensor) else self.means.new_tensor(x) for name, x in values.items()}
        check_floating(**tensors, means=self.means)
        return list(tensors.values())
