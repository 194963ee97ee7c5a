"""What is wrong with a fit: components that collapsed and why, methods that did not converge."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import torch
from torch import Tensor

from cramix.fitting.problem import NO_ITERATIONS, OUT_OF_ITERATIONS, Problem, Solution, constant, moments, outlying

# A larger relative floor of variances keeps components from collapsing.
NARROW = 1e-4
# Relative variance of the data below which a direction has none.
_FLAT = 1e-10
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
    standard = problem.units if problem.standard is None else problem.standard
    ratio = problem.units.scale / standard.scale
    floor = torch.as_tensor(family.floor, dtype=ratio.dtype, device=ratio.device) * ratio.square()
    if bool((floor >= NARROW).all()):
        return torch.zeros(len(means), dtype=torch.bool, device=means.device)
    relative = type(family)(family.dim, floor)
    return relative.collapsed(ratio * means, family.stretched(covariances, ratio)).expand(len(means))


def warnings_of(problem: Problem, solution: Solution, narrow: Tensor) -> Iterator[str]:
    """Yield the text of each warning about a solution of which some components `(k,)` have collapsed."""
    count = int(narrow.sum())
    if count:
        of = f"{count} of {problem.n_components} components"
        yield f"{of} have collapsed: apart from reg_covar they have no variance in some direction. " + _cause(
            problem, solution, narrow
        )
    if not solution.converged and solution.reason != NO_ITERATIONS:
        stopped = f"{_NOT_CONVERGED}. "
        if solution.reason == OUT_OF_ITERATIONS:
            stopped += "Try different init parameters, or increase max_iter, tol, or check for degenerate data."
            yield f"{stopped} (It stopped after {solution.n_iter} iterations.)"
        else:
            yield f"{stopped}It stopped after {solution.n_iter} iterations: {solution.reason}. Try a smaller step size."


def _cause(problem: Problem, solution: Solution, narrow: Tensor) -> str:
    """Explain a collapse, with a remedy."""
    target = problem.target
    if not target.is_empirical:
        return "The target has components as narrow as that. Use fewer components, or increase reg_covar."
    n, d = _distinct(target.means), target.dim
    same = _listed(constant(target, *moments(target)))
    if same:
        return f"Columns {same} are constant. Drop them." if "," in same else f"Column {same} is constant. Drop it."
    far = _listed(outlying(target))
    if far:
        columns = f"Columns {far} have" if "," in far else f"Column {far} has"
        return f"{columns} outliers, many standard deviations from the other samples. Remove or clip them."
    dense = not problem.family.kind.axis_aligned
    if dense and n <= d:
        return (
            f"{n} distinct samples in {d} dimensions have no invertible covariance. "
            'Use covariance_type="diag" or "spherical", or increase reg_covar.'
        )
    if dense and _dependent(problem):
        return 'Some columns are linear combinations of others. Drop those, or use covariance_type="diag".'
    return _few_samples(problem, solution, narrow)


def _few_samples(problem: Problem, solution: Solution, narrow: Tensor) -> str:
    """Explain the collapse of components onto too few distinct samples."""
    labels = _labels(problem, solution)
    x = problem.target.means
    counts = [(int((labels == i).sum()), _distinct(x[labels == i])) for i in narrow.nonzero().flatten().tolist()]
    repeated = any(distinct < count for count, distinct in counts)
    most = max(distinct for _, distinct in counts)
    points = "one point" if most <= 1 else f"at most {most} distinct points" if most <= problem.target.dim + 1 else ""
    if not points:
        return "Their samples lie close to a line or a plane. Use fewer components, or increase reg_covar."
    if repeated:
        return f"They cover {points}, which the data repeat. Use fewer components, or increase reg_covar."
    return f"They cover {points} each. Use fewer components, or increase reg_covar."


def _dependent(problem: Problem) -> bool:
    """Return whether the correlation matrix of the data is singular."""
    covariance = problem.data.covariance
    scale = covariance.diagonal().sqrt()
    return bool(torch.linalg.eigvalsh(covariance / scale / scale.unsqueeze(-1))[0] < _FLAT)


def _labels(problem: Problem, solution: Solution) -> Tensor:
    """Return the most probable component of each sample, `(n,)`."""
    family = problem.family
    coefficients = family.coefficients(*solution.components)
    parts = [problem.units.of(part) for part in problem.target.means.split(_ROWS)]
    return torch.cat([(coefficients @ family.features(part)).argmax(0) for part in parts])


def _distinct(x: Tensor) -> int:
    return len(x.unique(dim=0)) if len(x) else 0


def _listed(mask: Tensor) -> str:
    return ", ".join(str(i) for i in mask.nonzero().flatten().tolist())
