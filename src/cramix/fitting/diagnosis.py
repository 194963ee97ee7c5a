"""What is wrong with a fit: components that collapsed and why, methods that did not converge."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import torch
from torch import Tensor

from cramix.fitting.outliers import listed
from cramix.fitting.problem import (
    FAR,
    NO_ITERATIONS,
    OUT_OF_ITERATIONS,
    OUT_OF_PASSES,
    Problem,
    Solution,
    constant,
    moments,
    outlying,
)
from cramix.mixture import MultivariateNormalMixture
from cramix.mixture.covariance import Full, Spherical

# A larger relative floor of variances keeps components from collapsing.
NARROW = 1e-4
# Relative variance of the data in some direction below which components collapse, and below which it is rounding.
_FLAT, _ROUNDING = 1e-6, 1e-10
# Samples are few if there are fewer than this fraction of the numbers in full covariances.
_FEW = 0.5
# Samples whose component is determined at a time.
_ROWS = 1 << 14

# scikit-learn's texts, so that filters for its warnings work for ours.
_NOT_CONVERGED = "Best performing initialization did not converge"
ILL_DEFINED = (
    "Fitting the mixture model failed because some components have ill-defined empirical covariance (for instance "
    "caused by singleton or collapsed samples). Try to decrease the number of components, increase reg_covar, or scale "
    "the input data."
)


def convergence_warning() -> type[Warning]:
    """Return the class of warnings about fits: scikit-learn's `ConvergenceWarning` where that is installed."""
    if find_spec("sklearn"):
        from sklearn.exceptions import ConvergenceWarning

        return ConvergenceWarning
    return PlainConvergenceWarning


class PlainConvergenceWarning(UserWarning):
    """A fit did not converge, or a component collapsed."""


PlainConvergenceWarning.__name__ = PlainConvergenceWarning.__qualname__ = "ConvergenceWarning"


def collapsed(problem: Problem, solution: Solution) -> Tensor:
    """Return which components have no variance of their own in some direction, `(k,)`."""
    family, (_, means, covariances) = problem.family, solution.components
    if _regularized(problem):
        return torch.zeros(len(means), dtype=torch.bool, device=means.device)
    ratio = _ratio(problem)
    relative = type(family)(family.dim, _floor(problem))
    return relative.collapsed(ratio * means, family.stretched(covariances, ratio)).expand(len(means))


def warnings_of(problem: Problem, solution: Solution, narrow: Tensor, *, can_shrink: bool = False) -> Iterator[str]:
    """Yield the text of each warning about a solution of which some components `(k,)` have collapsed.

    Args:
        problem: that was solved.
        solution: in its units.
        narrow: which components have collapsed.
        can_shrink: whether shrinkage is a remedy: none was used, and no held-out score decided against it.
    """
    if problem.outliers.rows:
        yield problem.outliers.warning
    if bool(narrow.any()):
        of = f"{int(narrow.sum())} of {problem.n_components} components"
        cause = _cause(problem, solution, narrow, can_shrink)
        yield f"{of} have collapsed: apart from reg_covar they have no variance in some direction. {cause}"
    elif _has_own_covariances(problem) and not solution.shrinkage and not _regularized(problem):
        yield from _unsupported(problem, solution, can_shrink)
    if not solution.converged and solution.reason not in (NO_ITERATIONS, OUT_OF_PASSES):
        stopped = f"{_NOT_CONVERGED}. "
        if solution.reason == OUT_OF_ITERATIONS:
            stopped += "Try different init parameters, or increase max_iter, tol, or check for degenerate data."
            yield f"{stopped} (It stopped after {solution.n_iter} iterations.)"
        else:
            yield f"{stopped}It stopped after {solution.n_iter} iterations: {solution.reason}. Try a smaller step size."


def _unsupported(problem: Problem, solution: Solution, can_shrink: bool) -> Iterator[str]:
    """Yield a warning if there are too few samples for full covariances that have not collapsed."""
    target, k = problem.target, problem.n_components
    n, d = len(target.weights), target.dim
    weights = target.weights.double()
    equivalent = (weights.sum().square() / weights.square().sum()).item()  # samples of equal weight
    few = int((equivalent * solution.components.weights < d).sum())
    numbers = k * d * (d + 1) // 2
    if few:
        yield (
            f"{few} of {k} components have fewer samples than the {d} dimensions, too few for a covariance of their "
            f"own. {_remedy(problem, solution, can_shrink)}"
        )
    elif can_shrink and k > 1 and n < _FEW * numbers:
        yield (
            f"{n} samples are few for the {numbers} numbers in {k} full covariances: the fit may not hold for new "
            f"samples. {_remedy(problem, solution, can_shrink)}"
        )


def _cause(problem: Problem, solution: Solution, narrow: Tensor, can_shrink: bool) -> str:
    """Explain a collapse, with a remedy: first what is wrong with the data as a whole, then with the components."""
    target = problem.target
    if not target.is_empirical:
        return "The target has components as narrow as that. Use fewer components, or increase reg_covar."
    present = target.weights > 0
    n, d, dense = _distinct(target.means[present]), target.dim, not problem.family.kind.axis_aligned
    same = constant(target, *moments(target))
    if bool(same.all()):
        return "All samples are equal, so that there is no variance to fit. Increase reg_covar."
    if bool(same.any()):
        number = int(same.sum())
        return f"{_columns(same)} {'is' if number == 1 else 'are'} constant. Drop {'it' if number == 1 else 'them'}."
    labels = _labels(problem, solution)
    members = [target.means[present & (labels == i)] for i in narrow.nonzero().flatten().tolist()]
    needed = d if dense else 1  # more distinct samples than that have a variance in all directions
    median, middle, far = outlying(target)
    if bool(far.any()) and all(_distinct(x) > needed or _is_far(x, median, middle, far) for x in members):
        has = "has" if int(far.sum()) == 1 else "have"
        return f"{_columns(far)} {has} outliers, many standard deviations from the other samples. Remove or clip them."
    if dense and n <= d:
        fewer = "fewer components and " if 2 * problem.n_components > n else ""
        return (
            f"{n} distinct samples in {d} dimensions have no invertible covariance. "
            f'Use {fewer}covariance_type="diag" or "spherical", or increase reg_covar.'
        )
    if dense and d > 1 and not bool(far.any()):  # one sample that is far out in two columns makes them look dependent
        least = _least_correlation(problem)
        if least < _FLAT:
            nearly = "nearly " if least > _ROUNDING else ""
            return f'Some columns are {nearly}linear combinations of others. Drop those, or use covariance_type="diag".'
    what, single = _few_samples(problem, members, needed)
    return f"{what}. {_remedy(problem, solution, can_shrink, single=single, regularize=True)}"


def _few_samples(problem: Problem, members: list[Tensor], needed: int) -> tuple[str, bool]:
    """Describe samples `(n_i, d)` of components that have no variance in some direction.

    Returns the text, and whether most components have a single point.
    """
    d, kind = problem.target.dim, problem.family.kind
    distinct = [_distinct(x) for x in members]
    typical = sorted(distinct)[len(distinct) // 2]
    if typical > needed:
        if d == 1 or kind is Spherical:
            what = "Their samples nearly coincide"
        elif kind.axis_aligned:
            what = "Their samples are equal in some column, or nearly"
        else:
            what = "Their samples lie close to a line or a plane"
    else:
        repeated = any(count < len(x) for count, x in zip(distinct, members, strict=True))
        points = "one point" if typical <= 1 else f"at most {typical} distinct points"
        what = f"{'They' if max(distinct) == typical else 'Most'} cover {points}"
        what += ", which the data repeat" if repeated else " each"
    return what, typical <= 1


def _remedy(
    problem: Problem, solution: Solution, can_shrink: bool, *, single: bool = False, regularize: bool = False
) -> str:
    """Return what helps components with too few samples.

    Args:
        problem: that was solved.
        solution: in its units.
        can_shrink: whether shrinkage is a remedy.
        single: whether each of these components has a single point.
        regularize: whether a larger reg_covar is a remedy.
    """
    several, kind = problem.n_components > 1, problem.family.kind
    remedies = ["fewer components"] if several else []
    if kind is Full and several and not _is_pooled_covariance_singular(problem, solution):
        remedies += ['covariance_type="tied"'] + (["shrinkage"] if can_shrink else [])
    elif not kind.axis_aligned and problem.target.dim > 1 and not single:
        remedies += ['covariance_type="diag"']
    text = ", ".join(remedies[:-1]) + (" or " if len(remedies) > 1 else "") + "".join(remedies[-1:])
    if not regularize:
        return f"Use {text}."
    return f"Use {text}, or increase reg_covar." if text else "Increase reg_covar."


def _is_pooled_covariance_singular(problem: Problem, solution: Solution) -> bool:
    """Return whether the mean covariance of the components, `reg_covar` aside, has no variance in some direction."""
    family, (weights, _, covariances) = problem.family, solution.components
    values = family.stretched(covariances, _ratio(problem))
    own = family.kind(values).matrices(family.dim) - torch.diag_embed(_floor(problem).expand(family.dim))
    return bool(torch.linalg.eigvalsh((weights[:, None, None] * own).sum(0))[0] < _FLAT)


def _has_own_covariances(problem: Problem) -> bool:
    """Return whether each component has a matrix of its own, with more than one number, from samples."""
    return problem.target.is_empirical and problem.family.kind is Full and problem.target.dim > 1


def _regularized(problem: Problem) -> bool:
    """Return whether `reg_covar` keeps components from collapsing."""
    return bool((_floor(problem) >= NARROW).all())


def _floor(problem: Problem) -> Tensor:
    """Return what is added to variances, relative to those of the data, `(d,)`."""
    ratio = _ratio(problem)
    return torch.as_tensor(problem.family.floor, dtype=ratio.dtype, device=ratio.device) * ratio.square()


def _ratio(problem: Problem) -> Tensor:
    """Return the units of the problem in standard deviations of the data, `(d,)`."""
    standard = problem.units if problem.standard is None else problem.standard
    return problem.units.scale / standard.scale


def _least_correlation(problem: Problem) -> float:
    """Return the least eigenvalue of the correlation matrix of the data."""
    covariance = problem.data.covariance
    scale = covariance.diagonal().sqrt()
    return torch.linalg.eigvalsh(covariance / scale / scale.unsqueeze(-1))[0].item()


def _is_far(x: Tensor, median: Tensor, middle: Tensor, columns: Tensor) -> bool:
    """Return whether some of the samples `(n, d)` are outliers in some of these columns."""
    return bool((((x.double() - median).abs() > FAR * middle) & columns).any())


def _labels(problem: Problem, solution: Solution) -> Tensor:
    """Return the most probable component of each sample, `(n,)`."""
    weights, means, covariances = solution.components
    mixture = MultivariateNormalMixture(weights, means, problem.family.kind(covariances), validate_args=False)
    parts = problem.target.means.split(_ROWS)
    return torch.cat([mixture.responsibilities(problem.units.of(part)).argmax(-1) for part in parts])


def _distinct(x: Tensor) -> int:
    return len(x.unique(dim=0)) if len(x) else 0


def _columns(mask: Tensor) -> str:
    return listed("Column", tuple(mask.nonzero().flatten().tolist()))
