"""Samples that lie absurdly far out, which are left out of a fit, and quartiles, which they do not affect."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cramix.fitting.samples import rows_at_a_time

# Of a group of outliers, the farthest lies more than the first number of standard deviations of the other samples from
# their median, and the nearest more than the second.
_DEVIATIONS, _LEAST_DEVIATIONS = 100.0, 10.0
# The nearest lies this many times farther than any other sample. In heavy tails distances grow in smaller steps.
_GAP = 3.0
# In one column they are at most this many samples with this fraction of the weight, and in all columns together at most
# this fraction: more are a group of their own.
_MOST, _FRACTION, _FRACTION_OF_ALL = 10, 0.05, 0.5
# Samples of which quartiles are computed.
_SAMPLED = 1 << 14
# Rows or columns that a warning lists.
_LISTED = 5


class Outliers(NamedTuple):
    """Samples to leave out.

    Args:
        rows: their indices, in ascending order.
        columns: those in which they lie far out.
        deviations: the largest distance from the other samples, in their standard deviations.
        n_samples: number of all samples.
        dim: number of all columns.
        indexed: whether the caller knows samples by these indices.
    """

    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    deviations: float = 0.0
    n_samples: int = 0
    dim: int = 0
    indexed: bool = True

    @property
    def warning(self) -> str:
        """Describe them, with a remedy."""
        one = len(self.rows) == 1
        far = f"{self.deviations:.2g} standard deviations from the others"
        if self.dim > 1:
            far += f" in {listed('column', self.columns)}"
        where = f": {listed('row', self.rows)}" if self.indexed else ""
        return (
            f"{len(self.rows)} of {self.n_samples} samples {'lies' if one else 'lie up to'} {far}, and "
            f"{'was' if one else 'were'} left out of the fit{where}. Check or remove {'it' if one else 'them'}."
        )


class Bounds(NamedTuple):
    """How far samples may lie from a centre, `(c,)`, in some columns, `(c,)`, without being outliers, `(c,)`."""

    columns: Tensor
    centre: Tensor
    reach: Tensor

    @classmethod
    def between(cls, x: Tensor, outliers: Outliers) -> Bounds | None:
        """Return bounds that hold all samples `(n, d)` but the outliers; None if there are none."""
        if not outliers.rows:
            return None
        columns = torch.tensor(outliers.columns)
        kept = torch.ones(len(x), dtype=torch.bool).index_fill(0, torch.tensor(outliers.rows), False)
        rest = x[kept][:, columns].double()
        centre = rest.median(0).values
        # Outliers are at least three times as far from the median as any other sample.
        return cls(columns, centre, 2 * (rest - centre).abs().amax(0))

    def hold(self, x: Tensor) -> Tensor:
        """Return which samples `(n, d)` lie within, `(n,)`."""
        return ((x[:, self.columns].double() - self.centre).abs() <= self.reach).all(-1)


def listed(what: str, indices: tuple[int, ...]) -> str:
    """Return the first few indices of rows or columns as text."""
    some = ", ".join(map(str, indices[:_LISTED]))
    some += f" and {len(indices) - _LISTED} more" if len(indices) > _LISTED else ""
    return f"{what} {some}" if len(indices) == 1 else f"{what}s {some}"


def find_outliers(x: Tensor, weights: Tensor, keep: int) -> Outliers:
    """Return the few samples that are isolated and absurdly far from all others in some column.

    Args:
        x: samples `(n, d)`.
        weights: `(n,)`; samples without weight are ignored.
        keep: the number of samples with a weight that must remain; otherwise there are no outliers.
    """
    present, total = int(weights.count_nonzero()), weights.sum(dtype=torch.float64)
    _, median, _ = quartiles(x, weights)
    distances, rows = _farthest(x, weights, median)  # (m, d), the farthest first
    number = torch.arange(1, len(distances), device=x.device).unsqueeze(-1)
    shares = weights[rows[:-1]].double().cumsum(0) / total
    possible = (shares <= _FRACTION * (1 + 1e-9)).sum(0).clamp_max(max(present - keep, 0))  # (d,)
    isolated = (distances[:-1] > _GAP * distances[1:]) & (number <= possible)
    columns = isolated.any(0).nonzero().flatten()
    if not len(columns):
        return Outliers()
    distances, rows, isolated, possible = (part[..., columns] for part in (distances, rows, isolated, possible))
    deviations = _deviations(x[:, columns], weights, median[columns], distances, rows, possible)  # (m - 1, d)
    nearest, farthest = distances[:-1], _farthest_of_group(distances[:-1], isolated)
    far = isolated & (nearest > _LEAST_DEVIATIONS * deviations) & (farthest > _DEVIATIONS * deviations)
    count = torch.where(far, number, 0).amax(0)  # (d,)
    found = rows[:-1][number <= count].unique()
    if not len(found) or present - len(found) < keep or weights[found].sum() > _FRACTION_OF_ALL * total:
        return Outliers()
    there = count > 0
    relative = (distances[0] / deviations.gather(0, (count - 1).clamp_min(0).unsqueeze(0)))[0, there]
    return Outliers(tuple(found.tolist()), tuple(columns[there].tolist()), relative.max().item(), *x.shape)


def _farthest_of_group(distances: Tensor, last: Tensor) -> Tensor:
    """Return the largest distance in the group of each, `(m, d)`, given which are the last of their group."""
    previous = torch.cat((torch.ones_like(last[:1]), last[:-1]))
    first = torch.where(previous, torch.arange(len(last), device=last.device).unsqueeze(-1), 0).cummax(0).values
    return distances.gather(0, first)


def quartiles(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return lower quartiles, medians and upper quartiles in float64, `(d,)` each; those of some samples if many."""
    step = -(-len(x) // _SAMPLED)
    ordered, order = x[::step].double().sort(0)
    mass = weights[::step].double()[order].cumsum(0).T.contiguous()  # (d, n)
    wanted = mass[:, -1:] * mass.new_tensor([0.25, 0.5, 0.75])
    index = torch.searchsorted(mass, wanted).clamp_max(len(ordered) - 1)
    low, median, high = ordered.T.gather(1, index).unbind(1)
    return low, median, high


def _farthest(x: Tensor, weights: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest distances from the centre in each column, `(m, d)`, descending, and their rows."""
    distances = centre.new_empty(0, len(centre))
    rows = torch.empty(0, len(centre), dtype=torch.int64, device=x.device)
    size = rows_at_a_time(x)
    for start in range(0, len(x), size):
        part = slice(start, start + size)
        away = (x[part].double() - centre).abs_()
        away[weights[part] == 0] = -1
        top, index = away.topk(min(_MOST + 1, len(away)), 0)
        distances, rows = torch.cat((distances, top)), torch.cat((rows, index + start))
        distances, order = distances.topk(min(_MOST + 1, len(distances)), 0)
        rows = rows.gather(0, order)
    return distances, rows


def _deviations(
    x: Tensor, weights: Tensor, centre: Tensor, distances: Tensor, rows: Tensor, possible: Tensor
) -> Tensor:
    """Return the standard deviation of each column to compare its 1, 2, ... farthest samples with, `(m - 1, d)`.

    It is that without as many samples as may be outliers, or one outlier could hide another; failing that, without the
    1, 2, ... farthest. Neither counts if it is rounding, or if the samples that differ from the centre have less weight
    than those left out: rare values of a column that is otherwise constant are no outliers. Then it is infinite.
    """
    reach = distances.gather(0, possible.unsqueeze(0)).squeeze(0)
    within = centre.new_zeros(4, len(centre))
    size = rows_at_a_time(x)
    for start in range(0, len(x), size):
        part = slice(start, start + size)
        offsets = x[part].double() - centre
        mass = torch.where(offsets.abs() <= reach, weights[part].double().unsqueeze(-1), 0)
        within += _sums(mass, offsets).sum(1)
    offsets = x.gather(0, rows).double() - centre
    mass = weights[rows].double()
    beyond = _sums(torch.where(distances > reach, mass, 0), offsets)
    # Summed from the inside out: the largest come last.
    total, varying, first, second = within.unsqueeze(1) + beyond.flip(1).cumsum(1).flip(1)[:, 1:]
    deviations = (second / total - (first / total).square()).clamp_min(0).sqrt()
    sound = (varying >= mass.cumsum(0)[:-1]) & (deviations > 64 * torch.finfo(x.dtype).eps * centre.abs())
    deviations = torch.where(sound, deviations, torch.inf)
    inner = deviations.gather(0, (possible - 1).clamp_min(0).unsqueeze(0))
    return torch.where(inner.isfinite(), inner, deviations)


def _sums(mass: Tensor, offsets: Tensor) -> Tensor:
    """Return masses, those of offsets other than 0, and masses times offsets and their squares, `(4, n, d)`."""
    offsets = torch.where(mass > 0, offsets, 0)  # squares of others may overflow
    return torch.stack((mass, mass * (offsets != 0), mass * offsets, mass * offsets.square()))
