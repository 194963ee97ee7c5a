"""The rows that a mixture fits worst, and what stands out about each."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cramix.mixture import MultivariateNormalMixture, NormalMixture
from cramix.mixture.coordinates import in_coordinates

# From so many standard deviations on, a number is called far from a mean.
_FAR = 3.0


class WorstRow(NamedTuple):
    """A row of low density.

    Attributes:
        number: of the row.
        place: what the number refers to, such as a file; empty if there is one place only.
        values: `(d,)`.
        log_density: of the mixture there.
    """

    number: int
    place: str
    values: Tensor
    log_density: float


class WorstRows:
    """The rows of the lowest density among all that were added, some at a time.

    Args:
        mixture: without batch; a ValueError if it has no density.
        count: how many rows to keep.
        counted_from: the number of the first row of all, for the reader: 0 in Python, 1 in files.

    Example:
        >>> worst = WorstRows(NormalMixture([1.0], [0.0], [1.0]), count=1)
        >>> worst.add(torch.tensor([[0.1], [5.0], [-0.3]]), torch.arange(3))
        >>> [(row.number, row.values.tolist()) for row in worst.rows]
        [(1, [5.0])]
    """

    def __init__(
        self, mixture: NormalMixture | MultivariateNormalMixture, count: int = 10, counted_from: int = 0
    ) -> None:
        self._mixture, self._count, self.counted_from = in_coordinates(mixture, torch.float64), count, counted_from
        if not has_density(self._mixture):
            raise ValueError("mixture must have a density to rank rows by; some covariance is singular.")
        self.rows: list[WorstRow] = []

    def add(self, rows: Tensor, numbers: Tensor, place: str = "") -> None:
        """Add rows `(n, d)` with their numbers `(n,)`."""
        rows = rows.detach().cpu().double()
        heights = self._mixture.log_prob(rows)
        lowest, chosen = heights.topk(min(self._count, len(heights)), largest=False)
        found = [
            WorstRow(int(numbers[i]), place, rows[i], height)
            for i, height in zip(chosen.tolist(), lowest.tolist(), strict=True)
        ]
        self.rows = sorted([*self.rows, *found], key=lambda row: row.log_density)[: self._count]


def has_density(mixture: MultivariateNormalMixture) -> bool:
    """Return whether no covariance of a mixture without batch is singular."""
    try:
        return not bool(mixture.log_prob(mixture.means).isnan().any())
    except ValueError:
        return False


def what_stands_out(mixture: MultivariateNormalMixture, row: Tensor, names: tuple[str, ...]) -> str:
    """Describe why a row `(d,)` has a low density, in standard deviations σ of its most probable component.

    It names the column farthest from the mean, or if none is far, the column farthest from its mean given the others.

    Args:
        mixture: in float64, with a density.
        row: the values.
        names: of the d columns.
    """
    nearest = int(mixture.responsibilities(row).argmax())
    covariance, difference = mixture.covariances[nearest], row - mixture.means[nearest]
    alone = difference / covariance.diagonal().sqrt()
    precision = torch.linalg.inv(covariance)
    given = precision @ difference / precision.diagonal().sqrt()  # of each column, given all others
    farthest, odd = int(alone.abs().argmax()), int(given.abs().argmax())
    if alone[farthest].abs() >= _FAR or given[odd].abs() <= alone[farthest].abs() + 1e-9:
        return f"{names[farthest]} is {_deviations(alone[farthest])} component {nearest}"
    return f"given the other columns, {names[odd]} is {_deviations(given[odd])} component {nearest}"


def _deviations(z: Tensor) -> str:
    return f"{abs(z.item()):.1f} σ {'above' if z > 0 else 'below'}"
