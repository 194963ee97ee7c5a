"""What losses, scores and distances compare: the one place that decides what their arguments mean.

- The prediction p of a loss or score is a mixture.
- A tensor target of a batched p has the shape of one draw, `(*batch)` or `(*batch, d)`: one observation each.
- A tensor target of a p without batch is one observation, or a set of samples `(n,)` or `(n, d)`; a score takes it as n
  observations.
- A mixture target of a loss has the batch shape of p, unless one of the two has none.
- Distances take mixtures whose batch shapes broadcast. A tensor is a set of samples, if the other side has no batch.
- The sliced Cramér distance and its loss take a `SliceSketch` of samples, too.

Everything else is an error. Arrays, tables and numbers are accepted wherever tensors are. Dtypes are promoted as torch
does, and devices must agree.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from cramix.arrays import as_tensor, check_one_device, is_number, to_numpy
from cramix.checks import check_broadcast, check_choice, check_finite
from cramix.distance.prepared import PreparedTarget
from cramix.distance.sketch import SliceSketch
from cramix.mixture import MultivariateNormalMixture, NormalMixture, base
from cramix.torch_internals import readable

Mixture = NormalMixture | MultivariateNormalMixture
M = TypeVar("M", bound=base.Mixture)

_CURES = {
    "MultivariateNormalMixture": " See sliced_cramer_loss, or project it.",
    "NormalMixture": " See cramer_loss.",
    "MixtureSameFamily": " Convert it with from_torch.",
    "SliceSketch": " See sliced_cramer_loss and sliced_cramer_distance.",
}


class Target(NamedTuple):
    """A prediction and what it is compared with, of one dtype."""

    p: Any  # the mixture p
    q: Any  # a mixture: one sample for each batch element of p, a set of samples, or the target mixture itself
    weight: Tensor | None = None  # of the losses, (*batch): sample_weight, and 0 where the target is missing
    present: Tensor | None = None  # (*batch), False where the target is missing; None if none is
    prepared: PreparedTarget | None = None


def as_target(
    p: Any, target: Any, sample_weight: Any = None, missing: str = "error", kind: type | None = None
) -> Target:
    """Decide what the target of a loss is; see the rules above.

    Args:
        p: the prediction, a mixture.
        target: observations, samples, a mixture or a `PreparedTarget`.
        sample_weight: `(*batch)`, or `(n,)` for a set of samples.
        missing: "error", or "ignore" for observations and samples with a NaN.
        kind: `NormalMixture` or `MultivariateNormalMixture`, if p must be that.
    """
    require_mixture("p", p, kind)
    check_choice("missing", missing, ("error", "ignore"))
    if isinstance(target, Mixture | PreparedTarget):
        return _mixture_target(p, target, sample_weight)
    p, x = _in_shape("target", p, target, "a set of samples")
    if x.shape == p.batch_shape + p.event_shape:
        return _one_observation_each(p, x, sample_weight, missing)
    return _set_of_samples(p, x, sample_weight, missing)


def as_sketch_target(p: Any, target: SliceSketch, sample_weight: Any = None) -> Target:
    """Return a multivariate mixture p and a sketch of samples as its target, for each batch element of p the same."""
    require_mixture("p", p, MultivariateNormalMixture)
    if sample_weight is not None and not p.batch_shape:
        raise ValueError(
            "sample_weight must be None for a target that is a sketch, which has weights; "
            f"got {type(sample_weight).__name__}."
        )
    return Target(p, target, observation_weights(sample_weight, p.batch_shape, p))


def as_sketched(p: Any, q: Any) -> tuple[Any, Any]:
    """Return both sides of a distance, at least one of them a sketch, the other a sketch or a mixture in its space."""
    if isinstance(p, SliceSketch) and isinstance(q, SliceSketch):
        p.require_comparable(q)
        return p, q
    sides = []
    for name, side, other in (("p", p, q), ("q", q, p)):
        if isinstance(side, SliceSketch):
            side.require_rows(name)
        else:
            side = side.mixture if isinstance(side, PreparedTarget) else side
            side = _as_operand(name, side, MultivariateNormalMixture, None)
            if side.dim != other.dim:
                raise ValueError(f"{name} must have as many columns as the sketch, {other.dim}; got {side.dim}.")
        sides.append(side)
    return sides[0], sides[1]


def as_observations(p: M, y: Any, name: str = "y") -> tuple[M, Tensor]:
    """Return p and observations for a score, `(*batch)` or `(*batch, d)`, of one dtype; a p without batch takes n."""
    p, x = _in_shape(name, p, y, "n observations")
    if _looks_at(p, x):
        check_finite(**{name: x})
    return p, x


def as_operands(kind: type[M], p: Any, q: Any) -> tuple[M, M, PreparedTarget | None, PreparedTarget | None]:
    """Return both sides of a distance as mixtures of one dtype, with batch shapes that broadcast, and prepared ones."""
    prepared = [side if isinstance(side, PreparedTarget) else None for side in (p, q)]
    p, q = (side.mixture if isinstance(side, PreparedTarget) else side for side in (p, q))
    a, b, _ = as_mixtures(_as_operand("p", p, kind, q), _as_operand("q", q, kind, p))
    x, y = (None if side is None else side.in_dtype(a.means.dtype) for side in prepared)
    return a, b, x, y


def as_mixtures(p: M, q: M) -> tuple[M, M, torch.Size]:
    """Require two mixtures in one space; return them in one dtype, and the shape their batch shapes broadcast to."""
    require_mixture("p", p)
    require_mixture("q", q)
    if p.event_shape != q.event_shape:
        raise ValueError(f"p and q must have one event shape; got {tuple(p.event_shape)} and {tuple(q.event_shape)}.")
    batch = check_broadcast("Batch shapes come before components.", p=p.batch_shape, q=q.batch_shape)
    return *promoted_mixtures(p, q), batch


def require_mixture(name: str, x: Any, kind: type | None = None) -> None:
    """Raise a ValueError unless x is a mixture, of the given kind."""
    if not isinstance(x, Mixture if kind is None else kind):
        raise _wrong_type(name, "a mixture" if kind is None else f"a {kind.__name__}", x)


def _wrong_type(name: str, wanted: str, x: Any) -> ValueError:
    cure = " For samples see from_samples." if isinstance(x, Tensor) else _CURES.get(type(x).__name__, "")
    return ValueError(f"{name} must be {wanted}; got {type(x).__name__}.{cure}")


def promoted_mixtures(p: M, q: M) -> tuple[M, M]:
    """Return two mixtures on one device in the dtype that torch promotes theirs to."""
    if p.means.dtype == q.means.dtype and p.means.device == q.means.device:
        return p, q
    check_one_device(p=p.means, q=q.means)
    dtype = torch.promote_types(p.means.dtype, q.means.dtype)
    return p.to(dtype=dtype), q.to(dtype=dtype)


def promoted_with(p: M, x: Tensor) -> tuple[M, Tensor]:
    """Return a mixture and a tensor in the dtype that torch promotes theirs to; a single number does not widen it."""
    if p.means.dtype == x.dtype and p.means.device == x.device:
        return p, x
    check_one_device(p=p.means, target=x)
    dtype = torch.promote_types(p.means.dtype, x.dtype) if x.ndim else p.means.dtype
    return p.to(dtype=dtype), x.to(dtype)


def in_kind_of(result: Tensor, *inputs: Any) -> Any:
    """Return a result as NumPy's if it was computed from arrays or tables alone."""
    torchlike = Tensor | NormalMixture | MultivariateNormalMixture | PreparedTarget | SliceSketch
    if any(isinstance(x, torchlike) or is_number(x) for x in inputs):
        return result
    return to_numpy(result)[()]


def _in_shape(name: str, p: M, x: Any, several: str) -> tuple[M, Tensor]:
    """Return p and a tensor of one dtype that is one observation each, or for a p without batch several of them."""
    if isinstance(x, torch.distributions.Distribution | SliceSketch | None):
        raise _wrong_type(name, "a tensor, an array or a mixture", x)
    p, x = promoted_with(p, as_tensor(name, x, p.means))
    draw, got = tuple(p.batch_shape + p.event_shape), tuple(x.shape)
    if got == draw or (not p.batch_shape and len(got) == 1 + len(draw) and got[0] > 0 and got[1:] == draw):
        return p, x
    if p.batch_shape:
        rule = f"{name} must have the shape of one draw of p, {draw}: one observation each"
        cure = f" For one set of samples for all use {type(p).__name__}.from_samples." if name == "target" else ""
        raise ValueError(f"{rule}; got {got}.{cure}")
    shape = f"(n, {p.event_shape[0]})" if p.event_shape else "(n,)"
    raise ValueError(f"{name} must be one observation {draw} or {several} {shape}, n >= 1; got {got}.")


def _one_observation_each(p: Any, x: Tensor, sample_weight: Any, missing: str) -> Target:
    weight = observation_weights(sample_weight, p.batch_shape, p)
    present = None
    if missing == "ignore":
        gone = _has_nan(p, x)
        if not _looks_at(p, x) or bool(gone.any()):
            # The loss of a missing observation is computed at a mean of p, as a constant, and then set to 0.
            instead = (p.means[..., 0, :] if p.event_shape else p.means[..., 0]).detach()
            x = torch.where(gone.unsqueeze(-1) if p.event_shape else gone, instead, x)
            p, present = _constant_where(gone, p), ~gone
            counted = present.to(p.means.dtype)
            weight = counted if weight is None else weight * counted
    q = type(p)._of_samples("target", x.unsqueeze(-1 - len(p.event_shape)), None, p._validate_args)
    return Target(p, q, weight, present)


def _constant_where(mask: Tensor, p: Any) -> Any:
    """Return p with batch elements that have no gradient, where the mask `(*batch)` is True."""

    def constant(x: Tensor) -> Tensor:
        return torch.where(mask.view(*mask.shape, *(1,) * (x.ndim - mask.ndim)), x.detach(), x)

    return p._of_whole(*map(constant, p._whole()))


def _set_of_samples(p: Any, x: Tensor, sample_weight: Any, missing: str) -> Target:
    weights = None if sample_weight is None else _weights("sample_weight", sample_weight, x.shape[:1], p)
    if missing == "ignore":
        x, weights = _without_missing(x, weights, ~_has_nan(p, x), _looks_at(p, x))
    return Target(p, type(p)._of_samples("target", x, weights, p._validate_args))


def _looks_at(p: base.Mixture, x: Tensor) -> bool:
    """Return whether values of a target may be inspected; a mixture that was not validated asks for no such check."""
    return p._validate_args and readable(x)


def _has_nan(p: base.Mixture, x: Tensor) -> Tensor:
    return x.isnan().any(-1) if p.event_shape else x.isnan()


def _without_missing(x: Tensor, weights: Tensor | None, present: Tensor, looks: bool) -> tuple[Tensor, Tensor | None]:
    """Drop samples that are not present; where values are not inspected, give them the weight 0 instead."""
    if looks:
        if not bool(present.any()):
            raise ValueError(f"target must hold at least one sample without NaN; got {len(x)} with NaN.")
        return x[present], None if weights is None else weights[present]
    mask = present.unsqueeze(-1) if x.ndim == 2 else present
    centre = torch.where(mask, x, 0).sum(0) / present.sum()
    counted = present.to(x.dtype)
    return torch.where(mask, x, centre), counted if weights is None else weights * counted


def _mixture_target(p: Any, target: Any, sample_weight: Any) -> Target:
    prepared = target if isinstance(target, PreparedTarget) else None
    q = target.mixture if isinstance(target, PreparedTarget) else target
    if q.event_shape != p.event_shape:
        raise ValueError(f"target must be a {_described(p)}, as p is; got a {_described(q)}.")
    if p.batch_shape and q.batch_shape and p.batch_shape != q.batch_shape:
        raise ValueError(
            f"target must have the batch shape of p, {tuple(p.batch_shape)}, or none; got {tuple(q.batch_shape)}. "
            "Distances broadcast batch shapes."
        )
    batch = p.batch_shape or q.batch_shape
    if sample_weight is not None and not batch:
        raise ValueError(
            "sample_weight must be None for a target that is a mixture, which has weights; "
            f"got {type(sample_weight).__name__}."
        )
    p, q = promoted_mixtures(p, q)
    if prepared is not None:
        prepared = prepared.in_dtype(p.means.dtype)
    return Target(p, q, observation_weights(sample_weight, batch, p), prepared=prepared)


def _described(mixture: Mixture) -> str:
    space = f" in {mixture.event_shape[0]} dimensions" if mixture.event_shape else ""
    return f"{type(mixture).__name__}{space}"


def observation_weights(sample_weight: Any, batch: torch.Size, p: Mixture) -> Tensor | None:
    """Return weights of observations or losses, `(*batch)`, >= 0, in the dtype of p; None if there are none."""
    if sample_weight is None:
        return None
    weight = _weights("sample_weight", sample_weight, batch, p)
    if _looks_at(p, weight):
        check_finite(sample_weight=weight)
        if bool((weight < 0).any()):
            raise ValueError(f"sample_weight must be >= 0; got min {weight.min().item():.3g}.")
    return weight


def _weights(name: str, weights: Any, shape: torch.Size, p: Mixture) -> Tensor:
    tensor = as_tensor(name, weights, p.means)
    if tensor.shape != shape:
        raise ValueError(f"{name} must have shape {tuple(shape)}; got {tuple(tensor.shape)}.")
    check_one_device(p=p.means, **{name: tensor})
    return tensor.to(p.means.dtype)


def _as_operand(name: str, side: Any, kind: type[M], other: Any) -> M:
    if isinstance(side, kind):
        return side
    if isinstance(side, torch.distributions.Distribution | SliceSketch | None):
        raise _wrong_type(name, f"a {kind.__name__} or samples", side)
    like = other.means if isinstance(other, Mixture) else other if isinstance(other, Tensor) else None
    like = like if like is not None and like.is_floating_point() else None
    x = as_tensor(name, side, like)
    if x.ndim != (1 if kind is NormalMixture else 2) or 0 in x.shape:
        shape = "(n,)" if kind is NormalMixture else "(n, d)"
        raise ValueError(
            f"{name} must be a {kind.__name__} or samples {shape}, n >= 1; got shape {tuple(x.shape)}. "
            "For a batch of sample sets use from_samples."
        )
    if isinstance(other, Mixture) and other.batch_shape:
        raise ValueError(
            f"{name} must be a mixture where the other side has a batch, {tuple(other.batch_shape)}; "
            f"got samples {tuple(x.shape)}. Use {kind.__name__}.from_samples."
        )
    return cast("Any", kind)._of_samples(name, x)
