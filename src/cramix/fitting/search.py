"""The default method: fits from more components than requested, which are merged, and polishing of the best one.

Rounds of fits run in batches. Alongside the merged ones run fits that start with the requested number, half of them
from k-means clusters; they cost little and sometimes end where merging never leads. When two fits agree on the best
optimum, the search ends and it is polished. With few samples for each number to learn, held-out scores choose the start
and the shrinkage instead.

The likelihood compares fits as long as it can: it is unbounded where a component collapses onto a few samples. If the
best fit has a collapsed component, fits with narrow components are discarded. If all fits have some, the Cramér loss
decides, which is bounded and does not reward them.

All stages but the polishing use a subset of large data, and float32 where its rounding permits. On a GPU the polishing
of large data begins in float32, too: it ends when a step in float64 gains less than `tol`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from cramix.checks import check_integer, check_number
from cramix.distance.sliced import sliced_cramer_squared
from cramix.fitting.corrected import polish_large
from cramix.fitting.diagnosis import NARROW
from cramix.fitting.em import Outcome, maximize, polish
from cramix.fitting.features import Data, is_small
from cramix.fitting.held_out import Choice, choose, needs_choice
from cramix.fitting.merge import PLACING, drawn, merged, priors
from cramix.fitting.problem import Method, Problem, Solution
from cramix.fitting.starts import regrouped, sums_of, sums_with
from cramix.mixture import MultivariateNormalMixture

T = TypeVar("T")
# The name of the last stage, and EM steps before fits are compared.
_POLISHING, _CHOOSING = "polishing", 20
# Distance from the origin in standard deviations up to which float32 has enough digits.
_FAR = 50.0
# Features of all samples from which on float32 is faster for covariances along the axes. Other kinds, with matrices to
# factorise at each step, gain less and need more digits.
_FEW_ALIGNED = 1 << 14
# The least variance in any direction for float32, in multiples of the rounding error of sums of d squares.
_FLAT = 500.0
# Rounds of a search, and fits of either kind in a round.
_ROUNDS, _BATCH = 2, 4
# Steps that are left to float64 if polishing begins in float32.
_LAST = 4
# Fits without narrow components that are polished if the best one collapses.
_TRIED = 3
# Mean log likelihoods that differ by less belong to the same optimum, and are the same up to rounding in float32.
_SAME, _ROUNDING = 1e-3, 1e-6


@dataclass(frozen=True)
class MergeDown(Method):
    """Fit more components than requested, merge them, and polish the best fit.

    Args:
        n_init: number of searches. A search is two rounds of four merged and four plain fits; a single one ends after
            the first round if two fits agree. The best fit of each round is polished, so that more searches never end
            worse.
        surplus: components to start with in addition to k; k + 4 if None.
        rows: the largest number of samples to search with; larger data are subsampled at random.
        tol: gain of the mean log likelihood in a step at which to stop.
        max_iter: the largest number of steps of the last stage; 0 returns the best fit of the search.

    Example:
        >>> import torch, cramix
        >>> g = torch.Generator().manual_seed(0)
        >>> x = torch.cat([torch.randn(50, 2, generator=g), torch.randn(50, 2, generator=g) + 6])  # samples (n, d)
        >>> p = cramix.fit(x, 2, method=MergeDown(n_init=2), generator=g).mixture
        >>> p.means.shape, p.weights.sort().values
        (torch.Size([2, 2]), tensor([...]))
    """

    name: ClassVar[str] = "merge"
    shrinks: ClassVar[bool] = True
    n_init: int = 1
    surplus: int | None = None
    rows: int = 20_000
    tol: float = 1e-7
    max_iter: int = 1000

    def __post_init__(self) -> None:
        check_integer("n_init", self.n_init, 1)
        check_integer("surplus", self.surplus or 0, 0)
        check_integer("rows", self.rows, 1)
        check_integer("max_iter", self.max_iter, 0)
        check_number("tol", self.tol)

    def run(self, problem: Problem) -> Solution:
        """Solve the problem."""
        rows = self.subset(problem)

        def search(data: Data) -> Solution:
            strength, rounds = self._begun(problem, data)
            return self.finish(problem, rows, data, rounds, strength)

        return with_enough_digits(problem, rows, search)

    def finish(
        self, problem: Problem, rows: Tensor | None, searched: Data, rounds: Iterable[Outcome], strength: float
    ) -> Solution:
        """Polish the best fits of each round and return the best of all.

        Args:
            problem: to solve.
            rows: the indices of the samples that were searched with, as `subset` returns them.
            searched: these samples.
            rounds: fits to them.
            strength: of their shrinkage.
        """
        data = problem.data
        some = data if rows is None else data.like(rows)
        found, polished = list[Outcome](), list[Outcome]()
        for fits in rounds:
            fits = _in_double(problem, searched, fits)
            best = fits.log_likelihood.max().item()
            name = f"choosing, shrinkage {strength:g}" if strength else "choosing"
            problem.note_likelihood(name, problem.n_components, best)
            if all(abs(best - other.log_likelihood.max().item()) > _SAME for other in found):
                polished += self._candidates(problem, some, fits, strength)
            found.append(fits)
        outcome = self._chosen(problem, some, Outcome.of(found), polished, strength)
        if outcome is not polished[-1]:  # the history ends with the steps of the result
            for likelihood in outcome.history:
                problem.note_likelihood(_POLISHING, problem.n_components, likelihood)
        if rows is not None:
            outcome = self._polished(problem, data, outcome.sums, strength)
        solution = outcome.solution(problem)._replace(shrinkage=strength)
        if data.x.is_cuda and problem.target.is_empirical:  # where a step is fast
            solution = solution._replace(log_likelihood=data.step(outcome.best(), outcome.one_prior)[1].item())
        return solution

    def subset(self, problem: Problem) -> Tensor | None:
        """Return the indices of the samples to search with; None for all."""
        rows = max(self.rows, 10 * problem.n_components)
        return problem.data.resample(rows, problem.generator) if len(problem.data) > rows else None

    def _begun(self, problem: Problem, data: Data) -> tuple[float, Iterator[Outcome]]:
        """Return the shrinkage, and rounds of fits with it."""
        choice = choose(problem, data, self.surplus) if needs_choice(problem) else None
        if choice is None:
            strength = problem.shrinkage or 0.0
            return strength, self._search(problem, data, strength)
        return choice.shrinkage, self._continued(problem, data, choice)

    def _continued(self, problem: Problem, data: Data, choice: Choice) -> Iterator[Outcome]:
        """Yield the chosen fits, continued with all samples; rounds of others follow if more searches are asked for."""
        sums = choice.sums
        if isinstance(problem.init_params, MultivariateNormalMixture):
            sums = torch.cat((sums, sums_of(problem, problem.init_params)))
        yield comparable(problem, data, sums, choice.shrinkage)
        if self.n_init > 1:
            yield from self._search(problem, data, choice.shrinkage)

    def search(self, problem: Problem, data: Data) -> Outcome:
        """Return the fits of all rounds, without shrinkage."""
        return _in_double(problem, data, Outcome.of(list(self._search(problem, data, 0.0))))

    def _search(self, problem: Problem, data: Data, strength: float) -> Iterator[Outcome]:
        """Yield rounds of fits with a shrinkage."""
        likelihoods = []
        for i in range(_ROUNDS * self.n_init):
            fits = self._round(problem, data, strength, first=i == 0)
            yield fits
            likelihoods.append(fits.log_likelihood[_sound(data, fits)])
            if problem.n_components == 1 or (self.n_init == 1 and _found_twice(torch.cat(likelihoods))):
                return

    def _round(self, problem: Problem, data: Data, strength: float, first: bool) -> Outcome:
        """Run some fits from more components than requested, and some from the requested number."""
        k = problem.n_components
        if k == 1:
            return maximize(data, data.sums(data.x.new_ones(1, 1, len(data))), 1)
        found = merged(problem, data, self.surplus, _BATCH)
        plain = drawn(problem, data, k, _BATCH)
        plain = torch.cat((plain[: _BATCH // 2], regrouped(data, plain[_BATCH // 2 :])))
        plain = maximize(data, plain, PLACING, prior=priors(data, _BATCH, k)).sums
        starts = [found, plain]
        if first and isinstance(problem.init_params, MultivariateNormalMixture):
            starts.append(maximize(data, sums_of(problem, problem.init_params), PLACING).sums)
        return comparable(problem, data, torch.cat(starts), strength)

    def _candidates(self, problem: Problem, data: Data, fits: Outcome, strength: float) -> list[Outcome]:
        """Return the best fit of a round after polishing; if it collapsed, also some without narrow components."""
        found = [self._polished(problem, data, fits.best(_ROUNDING), strength)]
        sound = _sound(data, fits)
        rest = fits._replace(sums=fits.sums[sound], log_likelihood=fits.log_likelihood[sound])
        while _has_collapsed(problem, found[-1]) and len(rest.sums) and len(found) <= _TRIED:
            found.append(self._polished(problem, data, rest.best(), strength))
            other = rest.log_likelihood < rest.log_likelihood.max() - _SAME
            rest = rest._replace(sums=rest.sums[other], log_likelihood=rest.log_likelihood[other])
        return found

    def _chosen(self, problem: Problem, data: Data, fits: Outcome, polished: list[Outcome], strength: float) -> Outcome:
        """Return the most likely of the polished fits without collapsed components, or the nearest by Cramér loss."""
        sound = [outcome for outcome in polished if not _has_collapsed(problem, outcome)]
        if not sound:
            polished.append(self._polished(problem, data, best_sound(data, fits), strength))
            return polished[-1]
        return max(sound, key=lambda outcome: outcome.log_likelihood.item())

    def _polished(self, problem: Problem, data: Data, sums: Tensor, strength: float) -> Outcome:
        def watch(log_likelihood: float) -> None:
            problem.note_likelihood(_POLISHING, problem.n_components, log_likelihood)

        prior = problem.shrinkage_prior(strength, 1)
        if prior is not None and math.isfinite(strength):
            # A fixed covariance to shrink to: otherwise steps would maximise nothing. After a step it is that of these
            # samples in float64, not that of a search with some of them in float32.
            sums, _ = data.step(sums, prior)
            prior = problem.family.completed(prior, sums)
        fast = data.in_single
        if fast is not None and self.max_iter > _LAST:
            near = polish(fast, sums, self.max_iter - _LAST, self.tol, watch, prior)
            # Components that float32 cannot resolve make it fail, or lose likelihood.
            if near.log_likelihood.item() >= near.history[0] and bool(near.sums.isfinite().all()):
                end = polish(data, near.sums, self.max_iter - near.n_iter, self.tol, watch, prior)
                return end._replace(n_iter=near.n_iter + end.n_iter, history=near.history + end.history)
        if not data.x.is_cuda:
            return polish_large(data, sums, self.max_iter, self.tol, watch, prior, problem.generator)
        return polish(data, sums, self.max_iter, self.tol, watch, prior)


def comparable(problem: Problem, data: Data, sums: Tensor, strength: float) -> Outcome:
    """Continue fits `(B, k, F)` with a shrinkage until they can be compared."""
    return maximize(data, sums, _CHOOSING, _SAME / 100, problem.shrinkage_prior(strength, len(sums)))


def best_sound(data: Data, fits: Outcome) -> Tensor:
    """Return the most likely fit without narrow components, `(1, k, F)`, or the nearest by Cramér loss."""
    sound = _sound(data, fits)
    if bool(sound.any()):
        return fits._replace(sums=fits.sums[sound], log_likelihood=fits.log_likelihood[sound]).best()
    return _nearest(data, fits.sums)


def _in_double(problem: Problem, data: Data, fits: Outcome) -> Outcome:
    """Return the fits to data with sums in float32 or float64 as sums in float64."""
    # By way of the parameters: float32 sums need not belong to a covariance that is valid in float64.
    weights, means, values = data.family.parameters(fits.sums)
    covariances = data.family.kind(values).matrices(data.family.dim)
    return fits._replace(sums=sums_with(problem.family, weights, means, covariances.expand(*means.shape, -1)))


def with_enough_digits(problem: Problem, rows: Tensor | None, search: Callable[[Data], T]) -> T:
    """Search with some samples, or all, in the dtype that suits them; again in float64 if rounding gets in the way.

    Components that collapse onto repeated samples have covariances that float32 may not tell from indefinite ones.
    """
    dtype = search_dtype(problem.data)
    try:
        return search(problem.data.like(rows, dtype))
    except torch.linalg.LinAlgError:
        if dtype == torch.float64:
            raise
        return search(problem.data.like(rows))


def search_dtype(data: Data) -> torch.dtype:
    """Return float32 unless the data are small, or need more digits.

    They do if they are so far out that squares leave too few digits for the others, and if they have hardly any
    variance in some direction, so that rounding would hide it.
    """
    aligned = data.family.kind.axis_aligned
    small = len(data) * data.family.count < _FEW_ALIGNED if aligned else is_small(len(data), data.family)
    if small or torch.stack(data.x.aminmax()).abs().max() >= _FAR:
        return torch.float64
    if aligned:
        return torch.float32
    least = torch.linalg.eigvalsh(data.covariance)[..., 0].min()
    return torch.float64 if least < _FLAT * data.family.dim * torch.finfo(torch.float32).eps else torch.float32


def _found_twice(likelihoods: Tensor) -> bool:
    """Return whether two fits agree on the best optimum."""
    return len(likelihoods) > 1 and bool(likelihoods.topk(2).values.diff().abs() < _SAME)


def _has_collapsed(problem: Problem, outcome: Outcome) -> bool:
    """Return whether components have collapsed onto samples; those of a mixture may be as narrow as they are."""
    family = problem.family
    if not problem.target.is_empirical or float(torch.as_tensor(family.floor).min()) >= NARROW:
        return False
    _, means, values = family.parameters(outcome.sums, outcome.prior)
    return bool(family.collapsed(means, values).any())


def _sound(data: Data, fits: Outcome) -> Tensor:
    """Return which fits have no component that may be about to collapse, `(B,)`."""
    _, means, values = data.family.parameters(fits.sums)
    return ~data.family.narrower(values, torch.full_like(means, NARROW)).any(-1)


def _nearest(data: Data, sums: Tensor) -> Tensor:
    """Return the fit with the least Cramér loss to the data, `(1, k, F)`, of those with sums `(B, k, F)`."""
    weights, means, values = data.family.parameters(sums)
    fits = MultivariateNormalMixture(weights, means, data.family.kind(values), validate_args=False)
    points = MultivariateNormalMixture.from_samples(data.x, data.weights)
    losses = sliced_cramer_squared(fits, points, target_self_energy=False)
    return sums[losses.argmin()].unsqueeze(0)
