"""`SliceSketch`: a data set of any size, summarised along fixed directions in one pass."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor

from cramix.checks import check_integer
from cramix.distance.cramer import atoms
from cramix.distance.cramer.autograd import cramer_of_mixtures
from cramix.distance.kernels import block_size
from cramix.distance.sketch import arguments, comparison, error, file
from cramix.distance.sketch.grid import FEWEST_BINS
from cramix.distance.sketch.histograms import Histograms
from cramix.distance.sketch.totals import Totals
from cramix.mixture import MultivariateNormalMixture, NormalMixture


class SliceSketch:
    """A data set of any size as histograms of its projections, which are made in one pass and can be added.

    A sketch has the same size for 10^3 and 10^9 rows: `(d + t) * bins * 32` bytes. Sketches of parts of the data, made
    with the same arguments, add up to that of the whole, in whatever order and wherever they were made. Distances
    between sketches, and to mixtures, come close to those between the data, along the directions of the sketch:
    `sliced_cramer_distance`, `sliced_cramer_loss`. `error_bound` and `distance_bounds` say how close.

    Bins cover the range of the data, which may grow. Their widths are powers of two and their edges multiples of them,
    so wider bins are sums of narrower ones, and the result does not depend on how the range grew. Each bin keeps its
    mass and three moments, which say a lot more than counts. A few numbers far out make all bins wide.

    Args:
        dim: number of columns d.
        directions: how many to draw, in orthogonal blocks, the same on every machine; or vectors `(t, d)` of any length
            > 0. Beside them the d coordinate axes are kept. With one column there is only one direction.
        bins: of each slice, at least 8.
        seed: of the directions.

    Example:
        >>> x = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0))
        >>> sketch = SliceSketch(2, directions=16, bins=256)
        >>> for batch in x.split(100):
        ...     _ = sketch.update(batch)
        >>> sketch
        SliceSketch(n_samples=1000, dim=2, directions=16, bins=256, range=[-3.15, 4.1], nbytes=148,064)
        >>> parts = SliceSketch(2, 16, 256).update(x[:300]) + SliceSketch(2, 16, 256).update(x[300:])
        >>> from cramix import sliced_cramer_distance
        >>> sliced_cramer_distance(sketch, parts) < 1e-7, sliced_cramer_distance(sketch, x) < 1e-2
        (tensor(True), tensor(True))
    """

    __hash__ = None  # type: ignore[assignment]  # a sketch changes

    def __init__(self, dim: int, directions: Any = 64, bins: int = 1024, *, seed: int = 0) -> None:
        check_integer("dim", dim, 1)
        check_integer("bins", bins, FEWEST_BINS)
        check_integer("seed", seed, 0)
        with _plain():
            self._directions = arguments.read_directions(directions, int(dim), int(seed))
            slices = dim + len(self._directions) if dim > 1 else 1
            self._histograms = Histograms.empty(slices, int(bins))
            self._totals = Totals.none(dim)
        self._cache: dict[str, Any] = {}

    @property
    def dim(self) -> int:
        """The number of columns d."""
        return self._directions.shape[1]

    @property
    def directions(self) -> Tensor:
        """The directions that distances are averaged over, unit vectors `(t, d)` in float64; do not change them."""
        return self._directions

    @property
    def bins(self) -> int:
        """The number of bins of each slice."""
        return self._histograms.bins

    @property
    def n_samples(self) -> int:
        """The number of rows, without those of weight 0."""
        return self._totals.n_rows

    @property
    def total_weight(self) -> float:
        """The sum of the weights of the rows; their number, if none were given."""
        return self._totals.weight

    @property
    def mean(self) -> Tensor:
        """The mean of the rows, `(d,)` in float64, exact up to rounding."""
        self.require_rows("sketch")
        return self._totals.mean.clone()

    @property
    def covariance(self) -> Tensor:
        """The covariance matrix of the rows, `(d, d)` in float64, exact up to rounding."""
        self.require_rows("sketch")
        return self._totals.covariance

    @property
    def minimum(self) -> Tensor:
        """The least number of each column, `(d,)`."""
        self.require_rows("sketch")
        return self._histograms.low[: self.dim].clone()

    @property
    def maximum(self) -> Tensor:
        """The largest number of each column, `(d,)`."""
        self.require_rows("sketch")
        return self._histograms.high[: self.dim].clone()

    @property
    def nbytes(self) -> int:
        """The size of the sketch in bytes, in memory and, but for a short header, in a file."""
        return sum(x.nbytes for x in self._tensors().values())

    @property
    def histograms(self) -> Histograms:
        """The histograms of all columns, and then of all directions; do not change them."""
        return self._histograms

    @property
    def slices(self) -> NormalMixture:
        """The distributions along all directions as weighted points, two a bin, with batch shape `(t,)`."""
        return self._kept("slices", lambda: _of_atoms(self._along_directions))

    @property
    def columns(self) -> NormalMixture:
        """The distributions of all columns as weighted points, with batch shape `(d,)`.

        Example:
            >>> x = torch.linspace(0, 1, 1001).unsqueeze(-1)
            >>> SliceSketch(1).update(x).columns.icdf(0.25)
            tensor([0.2500], dtype=torch.float64)
        """
        self.require_rows("sketch")
        return self._kept("columns", lambda: _of_atoms(self._histograms.rows(slice(0, self.dim))))

    @property
    def error_bound(self) -> float:
        """How far a distance to the sketch may be from that to the data, whatever these are.

        The bounds of two sketches add up. They fall like `1 / bins`. Errors are far smaller where densities are smooth,
        and `distance_bounds` are closer, too. The derivation is in `cramix.distance.sketch.error`.
        """
        return self._kept("error", lambda: error.bound_of_distance(self._along_directions).mean().item() ** 0.5)

    def update(self, batch: Any, sample_weight: Any = None) -> Self:
        """Add rows, and return the sketch itself.

        Args:
            batch: `(n, d)`, or `(n,)` for one column: a tensor, an array or a table. It is projected where it is, in
                float64.
            sample_weight: `(n,)`, >= 0; None is 1 each.
        """
        x, weights = arguments.read_batch(batch, sample_weight, self.dim)
        with _plain():
            arguments.check_values(x, weights)
            if x.device.type == "mps":  # has no float64
                x, weights = x.cpu(), None if weights is None else weights.cpu()
            if weights is not None:
                x, weights = x[weights > 0], weights[weights > 0].double()
            self._add(x, weights)
        return self

    def merge(self, other: SliceSketch) -> Self:
        """Add the rows of another sketch with the same directions and bins, and return the sketch itself."""
        self.require_comparable(other, "sketch", "other", empty=True)
        with _plain():
            self._histograms.merge(other._histograms)
            self._totals = self._totals.plus(other._totals)
            self._cache.clear()
        return self

    def __add__(self, other: SliceSketch) -> Self:
        if not isinstance(other, SliceSketch):
            return NotImplemented
        return self.__copy__().merge(other)

    def __radd__(self, other: Any) -> Self:
        """Let Python's `sum` start from 0."""
        return self.__copy__() if isinstance(other, int) and other == 0 else NotImplemented

    def distance_bounds(self, other: SliceSketch | MultivariateNormalMixture) -> tuple[float, float]:
        """Return numbers between which the distance of the data to other data, or to a mixture, lies for certain.

        The distance is that along the directions of the sketch, as of `sliced_cramer_distance(x, y, directions)`.

        Args:
            other: a sketch of the other data with the same directions and bins, or a mixture without batch.

        Example:
            >>> x = torch.linspace(0, 1, 10_000, dtype=torch.float64)
            >>> low, high = SliceSketch(1).update(x).distance_bounds(SliceSketch(1).update(x + 0.01))
            >>> bool(low < 0.01 * (1 - 0.01 / 3) ** 0.5 < high), high - low < 0.001
            (True, True)
        """
        if isinstance(other, MultivariateNormalMixture) and other.batch_shape:
            raise ValueError(f"other must be a mixture without batch; got batch shape {tuple(other.batch_shape)}.")
        with _plain():
            self._require_space_of(other)
            if isinstance(other, SliceSketch):
                low, high = error.bounds_of_losses(self._along_directions, other._along_directions)
            else:
                other = other.to(dtype=torch.float64)
                along = other.project(self._directions.to(other.means.device))
                squared = self.losses(other).cpu() + comparison.excess(self._along_directions)
                bound = error.bound_to_mixture(self._along_directions, along)
                low, high = squared - bound, squared + bound
        return max(low.mean().item(), 0.0) ** 0.5, max(high.mean().item(), 0.0) ** 0.5

    def losses(
        self,
        other: SliceSketch | MultivariateNormalMixture,
        *,
        target_self_energy: bool = True,
        block: int | None = None,
    ) -> Tensor:
        """Return the Cramér losses along all directions, `(*batch, t)`, between the sketch and another or a mixture.

        Losses near 0 may come out negative, by what is not known of the data.

        Args:
            other: a sketch with the same directions and bins, or a mixture with batch shape `(*batch)`, in whose dtype
                and on whose device the losses are, and which gets gradients.
            target_self_energy: whether to subtract the self energy of the sketch; see `sliced_cramer_squared`.
            block: numbers in the temporary arrays of one block; None for the best size.
        """
        self._require_space_of(other)
        if isinstance(other, SliceSketch):
            with _plain():
                return comparison.losses(self._along_directions, other._along_directions)
        other = other.to(dtype=torch.promote_types(other.means.dtype, torch.float32))
        slices, energies, excess = self._slices_like(other.means)
        directions = self._directions.to(other.means)
        numbers = max(1, other.batch_shape.numel()) * max(slices.n_components, other.n_components)
        step = max(1, 4 * block_size(directions.device, block) // numbers)
        losses = []
        with torch.autocast(directions.device.type, enabled=False):
            for start in range(0, len(directions), step):
                some = slice(start, start + step)
                found = cramer_of_mixtures(other.project(directions[some]), slices[some], energies[some], block=block)
                losses.append(found + (-excess if target_self_energy else energies)[some].to(found.dtype))
        return losses[0] if len(losses) == 1 else torch.cat(losses, -1)

    def save(self, path: str | os.PathLike) -> None:
        """Write the sketch to a file; what was there before stays whole until the new file is.

        Example:
            >>> import tempfile
            >>> sketch = SliceSketch(2, 4, 64).update([[0.0, 1.0], [2.0, 3.0]])
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     sketch.save(f"{folder}/sketch.safetensors")
            ...     SliceSketch.load(f"{folder}/sketch.safetensors") == sketch
            True
        """
        file.write(path, self._tensors())

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Read a sketch from a file that `save` has written, and check it."""
        return cls._of_tensors(file.read(path))

    def require_comparable(self, other: Any, name: str = "p", other_name: str = "q", empty: bool = False) -> None:
        """Raise a ValueError unless another is a sketch with the same directions and bins, and rows unless `empty`."""
        if not isinstance(other, SliceSketch):
            raise ValueError(f"{other_name} must be a SliceSketch; got {type(other).__name__}.")
        arguments.check_alike(self, other, f"{name} and {other_name}")
        if not empty:
            self.require_rows(name)
            other.require_rows(other_name)

    def _require_space_of(self, other: Any) -> None:
        self.require_rows("sketch")
        if isinstance(other, SliceSketch):
            self.require_comparable(other, "sketch", "other")
        elif not isinstance(other, MultivariateNormalMixture):
            raise ValueError(f"other must be a SliceSketch or a MultivariateNormalMixture; got {type(other).__name__}.")
        elif other.dim != self.dim:
            raise ValueError(f"other must have as many columns as the sketch, {self.dim}; got {other.dim}.")

    def require_rows(self, name: str) -> None:
        """Raise a ValueError if the sketch is empty."""
        if not self.n_samples:
            raise ValueError(f"{name} must hold rows; got an empty SliceSketch. Add some with update.")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SliceSketch):
            return NotImplemented
        a, b = self._tensors(), other._tensors()
        return all(torch.equal(a[name], b[name]) for name in a)

    def __copy__(self) -> Self:
        return self._of_tensors(self._tensors())

    def __deepcopy__(self, memo: dict) -> Self:
        return self.__copy__()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._of_tensors, (self._tensors(),)

    def __repr__(self) -> str:
        low, high = self._histograms.low[: self.dim], self._histograms.high[: self.dim]
        range_ = f"[{low.min().item():.3g}, {high.max().item():.3g}]" if self.n_samples else "none"
        return (
            f"{type(self).__name__}(n_samples={self.n_samples}, dim={self.dim}, directions={len(self._directions)}, "
            f"bins={self.bins}, range={range_}, nbytes={self.nbytes:,})"
        )

    @property
    def _along_directions(self) -> Histograms:
        self.require_rows("sketch")
        return self._histograms.rows(slice(-len(self._directions), None))

    def _slices_like(self, x: Tensor) -> tuple[NormalMixture, Tensor, Tensor]:
        """Return the slices in the dtype and on the device of a tensor, their self energies and excess losses."""

        def compute() -> tuple[NormalMixture, Tensor, Tensor]:
            slices = self.slices.to(device=x.device, dtype=x.dtype)
            energies = atoms.self_energy(self.slices.means, self.slices.weights)
            return slices, energies.to(x.device), comparison.excess(self._along_directions).to(x.device)

        return self._kept(f"slices in {x.dtype} on {x.device}", compute)

    def _add(self, x: Tensor, weights: Tensor | None) -> None:
        """Add rows some at a time, so that their projections stay in cache."""
        slices = len(self._histograms.low)
        # More rows at a time where there are so many bins that they do not fit in the cache.
        step = max(64, block_size(x.device) // (2 * slices), 4 * self.bins)
        directions = self._directions.to(x.device)
        for start in range(0, len(x), step):
            rows = x[start : start + step].double()
            some = None if weights is None else weights[start : start + step]
            y = rows.new_empty(slices, len(rows))
            y[: self.dim] = rows.T
            if self.dim > 1:
                torch.mm(directions, rows.T, out=y[self.dim :])
            self._histograms.add(y, some)
            self._totals = self._totals.plus(Totals.of(rows, some))
            self._cache.clear()

    def _kept(self, name: str, compute: Any) -> Any:
        """Return what was computed since the last update, or compute it."""
        if name not in self._cache:
            with _plain():
                self._cache[name] = compute()
        return self._cache[name]

    def _tensors(self) -> dict[str, Tensor]:
        histograms, totals = self._histograms, self._totals
        return {
            "directions": self._directions, "moments": histograms.moments, "low": histograms.low,
            "high": histograms.high, "count": torch.tensor(totals.n_rows), "mean": totals.mean,
            "weight": torch.tensor(totals.weight, dtype=torch.float64), "scatter": totals.scatter,
        }  # fmt: skip

    @classmethod
    def _of_tensors(cls, tensors: dict[str, Tensor]) -> Self:
        with _plain():
            tensors = {name: x.clone() for name, x in tensors.items()}  # to be changed in place
        sketch = cls.__new__(cls)
        sketch._directions = tensors["directions"]
        sketch._histograms = Histograms(tensors["moments"], tensors["low"], tensors["high"])
        count, weight = int(tensors["count"]), tensors["weight"].item()
        sketch._totals = Totals(count, weight, tensors["mean"], tensors["scatter"])
        sketch._cache = {}
        return sketch


def _of_atoms(histograms: Histograms) -> NormalMixture:
    return NormalMixture._of_atoms(*histograms.atoms())


@contextmanager
def _plain() -> Iterator[None]:
    """Compute without gradients, and so that results can be used with them."""
    with torch.inference_mode(False), torch.no_grad():
        yield
