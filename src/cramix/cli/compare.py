"""`cramix compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer

from cramix.cli import measures, models, tables
from cramix.cli.options import Columns, DropMissing, Json
from cramix.cli.refusal import Refusal, refusing
from cramix.cli.report import Fact, counted, show, working
from cramix.mixture import MultivariateNormalMixture
from cramix.mixture.coordinates import in_coordinates

_EITHER = f"A model ({models.SUFFIX}) or data (csv, tsv, txt, npy, parquet)."


class _Side(NamedTuple):
    """What is compared; data are a mixture of points."""

    path: Path
    is_model: bool
    mixture: MultivariateNormalMixture
    names: tuple[str, ...] | None
    dropped: int

    def fact(self, key: str) -> Fact:
        size = self.mixture.n_components
        if self.is_model:
            about = {"path": self.path, "kind": "model", "k": size}
            return Fact(key, key.upper(), about, f"{self.path}, a model of {counted(size, 'component')}")
        about = {"path": self.path, "kind": "data", "n": size, "dropped": self.dropped}
        dropped = f" ({self.dropped} dropped)" if self.dropped else ""
        return Fact(key, key.upper(), about, f"{self.path}, {size} rows of data{dropped}")


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help=_EITHER)],
    b: Annotated[Path, typer.Argument(metavar="B", help=_EITHER)],
    columns: Columns = None,
    drop_missing: DropMissing = False,
    json: Json = False,
) -> None:
    """Say how far two models, two data sets, or a model and data are from each other.

    Columns with the same names in both are matched by them.
    """
    p, q = _sides(a, b, tables.split_names(columns), drop_missing)
    if p.mixture.dim != q.mixture.dim:
        cure = "" if p.is_model and q.is_model else " Choose columns with --columns."
        raise Refusal(f"{a} has d = {p.mixture.dim} and {b} has d = {q.mixture.dim}; they must agree.{cure}")
    with working("Comparing"), refusing():
        value, directions = measures.cramer(p.mixture, q.mixture)
        over = "" if directions is None else f" over {directions} directions"
        facts = [
            p.fact("a"),
            q.fact("b"),
            Fact("d", "columns", p.mixture.dim),
            Fact("c2", f"Cramér distance C2{over}", value),
            Fact("directions", None, directions),
            *_by_density(p, q),
        ]
    show(facts, as_json=json)


def _by_density(p: _Side, q: _Side) -> list[Fact]:
    """What needs the densities of the models, if they have any."""
    for side in (p, q):
        if side.is_model and not measures.has_density(side.mixture):
            return [Fact("note", "note", f"{side.path} has no density: a covariance is singular")]
    if p.is_model and q.is_model:
        return [
            Fact("ise", "squared L2 distance of densities (ISE)", measures.squared_error(p.mixture, q.mixture)),
            Fact("kl_a_b", "KL(A‖B) by Monte Carlo", measures.kullback_leibler(p.mixture, q.mixture)),
            Fact("kl_b_a", "KL(B‖A) by Monte Carlo", measures.kullback_leibler(q.mixture, p.mixture)),
        ]
    if p.is_model or q.is_model:
        model, data = (p, q) if p.is_model else (q, p)
        value = measures.mean_log_likelihood(model.mixture, data.mixture.means)
        return [Fact("mean_log_likelihood", "mean log likelihood", value)]
    return []


def _sides(a: Path, b: Path, columns: list[str] | None, drop_missing: bool) -> list[_Side]:
    """Read both, a model first, so that its columns are taken from the data."""
    sides = dict[Path, _Side]()
    names: tuple[str, ...] | None = None
    for path in sorted((a, b), key=lambda path: path.suffix.lower() != models.SUFFIX):
        if path.suffix.lower() == models.SUFFIX:
            model = models.read(path)
            mixture = in_coordinates(model.mixture, torch.float64)
            if names and model.names and sorted(names) == sorted(model.names):
                mixture = mixture.marginal([model.names.index(name) for name in names])
            sides[path] = _Side(path, True, mixture, model.names, 0)
        else:
            table = tables.read(path, columns, prefer=names, drop_missing=drop_missing)
            points = MultivariateNormalMixture.from_samples(table.rows)
            sides[path] = _Side(path, False, points, table.names, table.dropped)
        names = names or sides[path].names
    return [sides[a], sides[b]]
