"""Fitting a mixture to data or to another mixture, by any method: the public door."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from cramix.checks import check_floating, check_integer, check_number
from cramix.fitting.families import FAMILIES
from cramix.fitting.methods import METHODS
from cramix.fitting.problem import ROWS, Found, History, Method, Problem
from cramix.fitting.result import FitResult, Step
from cramix.fitting.starts import STARTS
from cramix.mixture import MultivariateNormalMixture, NormalMixture
from cramix.mixture.coordinates import in_coordinates

_LARGEST = 1e150


class ConvergenceWarning(UserWarning):
    """A fit did not arrive, or arrived at a component that has collapsed."""


def fit(
    target: Tensor | MultivariateNormalMixture | NormalMixture,
    n_components: int,
    *,
    method: str | Method = "merge",
    covariances: str = "full",
    weights: Tensor | None = None,
    start: str | MultivariateNormalMixture | None = None,
    floor: float = 1e-6,
    generator: torch.Generator | None = None,
    progress: Callable[[Step], None] | None = None,
) -> FitResult:
    """Fit a mixture to samples, or to another mixture.

    Returns a `FitResult`: the `mixture`, its `log_likelihood`, `bic` and `aic`, whether it `converged` and the `reason`
    to stop, the `history`. What is wrong with it is told by a `ConvergenceWarning`.

    Args:
        target: samples `(n, d)` or `(n,)`, or a mixture without batch.
        n_components: k, at most the number of samples.
        method: "merge", the best optimum of the likelihood from any start; "em"; "descent", the Cramér loss by gradient
            descent; to compare with: "sc2", "nll", "sc2+nll", "kmeans", "sliced-wasserstein", "wfr". Or one of the
            classes in `cramix.fitting.METHODS` with settings, as `GradientDescent(optimizer="adam", batch_size=256)`.
        covariances: "full", "tied", "diag" or "spherical".
        weights: of the samples, `(n,)`, of any positive sum.
        start: "kmeans", "k-means++", "random", "random_from_data", or a mixture of k components; the method's own
            choice if None.
        floor: added to every variance, as a part of the variance of the target; as it is where a method keeps the
            data's units, as those of the paper and `GradientDescent(scaling="none")`.
        generator: for all that is random.
        progress: called with every step of the history as it comes.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(100, 2, generator=g), 5 + torch.randn(100, 2, generator=g)])
        >>> fit(x, 2, generator=g).mixture.weights.sort().values
        tensor([0.4969, 0.5031])
    """
    result = solve(
        target,
        n_components,
        method=method,
        covariances=covariances,
        weights=weights,
        start=start,
        floor=floor,
        generator=generator,
        progress=progress,
    )
    for warning in result.warnings:
        warnings.warn(warning, ConvergenceWarning, stacklevel=2)
    return result


def solve(
    target: Tensor | MultivariateNormalMixture | NormalMixture,
    n_components: int,
    *,
    method: str | Method = "merge",
    covariances: str = "full",
    weights: Tensor | None = None,
    start: str | MultivariateNormalMixture | None = None,
    floor: float = 1e-6,
    generator: torch.Generator | None = None,
    progress: Callable[[Step], None] | None = None,
) -> FitResult:
    """Do what `fit` does, but leave it to the caller to warn."""
    chosen = _method(method)
    problem = prepare(target, n_components, chosen, covariances, weights, start, floor, generator, progress)
    with torch.no_grad():
        return conclude(problem, chosen.run(problem))


def prepare(
    target: Tensor | MultivariateNormalMixture | NormalMixture,
    n_components: int,
    method: Method,
    covariances: str = "full",
    weights: Tensor | None = None,
    start: str | MultivariateNormalMixture | None = None,
    floor: float = 1e-6,
    generator: torch.Generator | None = None,
    progress: Callable[[Step], None] | None = None,
) -> Problem:
    """Check what `fit` is given, and return it as a problem in the units of the method."""
    history = History(progress)
    mixture = _as_mixture(target, weights)
    _check(mixture, n_components, covariances, start, floor)
    family = FAMILIES[covariances]
    units = method.units(mixture, family)
    return Problem(mixture, int(n_components), family(mixture.dim, float(floor)), units, start, generator, history)


def conclude(problem: Problem, found: Found) -> FitResult:
    """Return what was found in the units of the caller."""
    family, units = problem.family, problem.units
    collapsed = int(family.collapsed(found.means, found.spread).sum())
    stretched = family.kind(family.stretched(found.spread, units.scale))
    mixture = MultivariateNormalMixture(
        found.weights, units.centre + units.scale * found.means, stretched, validate_args=False
    )
    likelihood = problem.log_likelihood(mixture) if problem.target.only_points else None
    history = problem.history
    return FitResult(
        _in_dtype(mixture, problem.target.means.dtype),
        likelihood,
        found.converged,
        found.reason,
        collapsed,
        found.iterations,
        tuple(history.steps),
        history.seconds,
        problem.target.n_components if problem.target.only_points else None,
        tuple(_warnings(problem, found, collapsed)),
    )


def _in_dtype(mixture: MultivariateNormalMixture, dtype: torch.dtype) -> MultivariateNormalMixture:
    """Return a mixture of positive variances in a dtype, if that can hold them."""
    found = mixture.to(dtype)
    variances = found.covariance_kind.matrices(found.dim).diagonal(dim1=-2, dim2=-1)
    if not bool(((variances > 0) & variances.isfinite()).all()):
        raise ValueError(
            f"target must have variances in the range of {dtype}; got a standard deviation of "
            f"{mixture.variance.sqrt().min().item():.3g}. Use float64, or rescale it."
        )
    return found


def _warnings(problem: Problem, found: Found, collapsed: int) -> Iterator[str]:
    if collapsed:
        # All of them do where the data are flat; fewer components would be flat too.
        flat = "Leave out coordinates that are constant or told by the others"
        cure = flat if collapsed == problem.n_components else "Ask for fewer components"
        yield (
            f"{collapsed} of {problem.n_components} components have collapsed to the floor of {problem.family.floor:g} "
            f"of the variance. {cure}, or raise the floor."
        )
    if not found.converged:
        more, other = "Allow more, or a larger tolerance", "Drop outliers, or take shorter steps"
        cure = more if found.reason.startswith("out of") else other
        yield f"The fit stopped after {found.iterations} iterations: {found.reason}. {cure}."


def _as_mixture(
    target: Tensor | MultivariateNormalMixture | NormalMixture, weights: Tensor | None
) -> MultivariateNormalMixture:
    """Return the target as one mixture in d >= 1 dimensions without gradients; samples become points."""
    if isinstance(target, Tensor):
        check_floating(target=target)
        if weights is not None:
            check_floating(target=target, weights=weights)
        if target.ndim not in (1, 2) or 0 in target.shape:
            raise ValueError(f"target must be samples (n, d) or (n,); got shape {tuple(target.shape)}. Reshape it.")
        x = target.detach() if target.ndim == 2 else target.detach().unsqueeze(-1)
        return MultivariateNormalMixture.from_samples(x, None if weights is None else weights.detach(), name="target")
    if weights is not None:
        raise ValueError("weights must be None for a mixture, which has its own; got some. Leave them out.")
    if isinstance(target, NormalMixture):
        target = in_coordinates(target)
    if not isinstance(target, MultivariateNormalMixture):
        raise ValueError(
            f"target must be samples or a mixture; got {type(target).__name__}. Use torch.as_tensor, or from_torch of "
            "a mixture."
        )
    if target.batch_shape:
        raise ValueError(f"target must be one mixture; got a batch {tuple(target.batch_shape)}. Fit one at a time.")
    kind = target.covariance_kind.like(target.covariance_kind.values.detach())
    return MultivariateNormalMixture(target.weights.detach(), target.means.detach(), kind)


def _method(method: str | Method) -> Method:
    if isinstance(method, Method):
        return method
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, or a Method; got {method!r}. Try merge.")
    return METHODS[method]()


def _check(
    target: MultivariateNormalMixture,
    n_components: int,
    covariances: str,
    start: str | MultivariateNormalMixture | None,
    floor: float,
) -> None:
    if covariances not in FAMILIES:
        raise ValueError(f"covariances must be one of {', '.join(FAMILIES)}; got {covariances!r}. Try full.")
    check_integer("n_components", n_components, 1)
    largest = max(x.abs().item() for x in target.means.aminmax())
    if largest > _LARGEST:
        raise ValueError(f"target must lie within {_LARGEST:g}, or squares overflow; got {largest:.3g}. Rescale it.")
    count = sum(int(part.count_nonzero()) for part in target.weights.split(ROWS))
    if n_components > count:
        what = "samples" if target.only_points else "components of the target"
        raise ValueError(f"n_components must be at most the {count} {what}; got {n_components}. Ask for fewer.")
    check_number("floor", floor, positive=True)
    if isinstance(start, MultivariateNormalMixture):
        if start.batch_shape or start.n_components != n_components or start.dim != target.dim:
            raise ValueError(
                f"start must be a mixture of {n_components} components in {target.dim} dimensions; got {start!r}. "
                "Compress it, or ask for as many components."
            )
    elif start is not None and start not in STARTS:
        raise ValueError(f"start must be one of {', '.join(STARTS)}, or a mixture; got {start!r}. Leave it out.")
