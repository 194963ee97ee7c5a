"""Mixtures in notebooks: a small picture and a table of the components; large ones are shortened."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from cramix.markup import COLORS, card, counted, more, note, number, table
from cramix.mixture import display
from cramix.mixture.pictures import curves, ellipses, heaviest_first, is_smooth, most_different

if TYPE_CHECKING:
    from cramix.mixture.base import Mixture
    from cramix.mixture.multivariate import MultivariateNormalMixture
    from cramix.mixture.univariate import NormalMixture

# Of tables: rows, columns of the data, and elements of a batch.
_MOST_ROWS, _MOST_COLUMNS, _MOST_ELEMENTS = 10, 6, 6
_NUMBERS = "mean ± standard deviation"


def of_mixture(p: Mixture) -> str:
    """Return the HTML of a mixture."""
    if not display.are_numbers(p) or not p.batch_shape.numel():
        return f"<pre>{escape(repr(p))}</pre>"
    batch = f", batch {tuple(p.batch_shape)}" if p.batch_shape else ""
    kind = f", {p.covariance_type} covariances" if p.event_shape and not p.is_empirical else ""
    title = f"{type(p).__name__}{batch}, {counted(p.n_components, 'component')}{kind}{display.kind(p)}"
    return card(title, *(_batch(p) if p.batch_shape else blocks(p)))


def blocks(p: Mixture, names: Sequence[str] | None = None) -> tuple[str, str]:
    """Return a picture and a table of a mixture without batch, whose columns may have names."""
    wide = p.detach().to("cpu", torch.float64)
    if not wide.event_shape:
        line = cast("NormalMixture", wide)
        return curves([line]), _table_of_line(line)
    space = cast("MultivariateNormalMixture", wide)
    columns = _columns(space.dim) if names is None else list(names)
    if space.dim == 1:
        return curves([space.marginal(0)]), _table(space, columns, [0])
    dims = most_different(space) if space.dim > 2 else [0, 1]
    return ellipses(space, dims, (columns[dims[0]], columns[dims[1]])), _table(space, columns, dims)


def _columns(dim: int) -> list[str]:
    return [f"column {j}" for j in range(dim)]


def _table_of_line(p: NormalMixture) -> str:
    order = heaviest_first(p.weights)[:_MOST_ROWS]
    rows = [(str(i), *(number(x[i].item()) for x in (p.weights, p.means, p.scales))) for i in order]
    colors = COLORS if p.n_components > 1 and is_smooth(p) else ()
    left_out = more((p.n_components - len(rows), "lighter component"))
    return table(("component", "weight", "mean", "scale"), rows, colors=colors, left_out=left_out)


def _table(p: MultivariateNormalMixture, columns: Sequence[str], drawn: Sequence[int]) -> str:
    """Return a table of all columns, or of those in the picture and the first others."""
    others = [j for j in range(p.dim) if j not in drawn]
    shown = sorted([*drawn, *others[: _MOST_COLUMNS - len(drawn)]])
    marginals = [p.marginal(j) for j in shown]
    rows = [
        (str(i), number(p.weights[i].item()), *(_pair(q.means[i], q.scales[i]) for q in marginals))
        for i in heaviest_first(p.weights)[:_MOST_ROWS]
    ]
    left_out = more((p.n_components - len(rows), "lighter component"), (p.dim - len(shown), "column"))
    colors = COLORS if p.n_components > 1 and p.dim > 1 and not p.is_empirical else ()
    head = ("component", "weight", *(columns[j] for j in shown))
    return note(_NUMBERS) + table(head, rows, colors=colors, left_out=left_out)


def _batch(p: Mixture) -> list[str]:
    """Return the first elements of a batch: curves if they are on the line, and a table of their moments."""
    axes = len(p.batch_shape)
    flat = p._of_whole(*(x.flatten(0, axes - 1) for x in p._whole()))
    first = flat[:_MOST_ELEMENTS].detach().to("cpu", torch.float64)
    means, scales = (x.reshape(len(first), -1) for x in (first.mean, first.variance.clamp_min(0).sqrt()))
    dim = means.shape[1]
    shown = range(min(dim, _MOST_COLUMNS))
    places = torch.unravel_index(torch.arange(len(first)), p.batch_shape)
    names = [", ".join(str(place[i].item()) for place in places) for i in range(len(first))]
    rows = [(name, *(_pair(means[i, j], scales[i, j]) for j in shown)) for i, name in enumerate(names)]
    left_out = more((len(flat) - len(first), "element"), (dim - len(shown), "column"))
    if p.event_shape:
        return [note(_NUMBERS) + table(("element", *_columns(dim)[: len(shown)]), rows, left_out=left_out)]
    return [
        curves([cast("NormalMixture", first[i]) for i in range(len(first))]),
        table(("element", _NUMBERS), rows, colors=COLORS if len(first) > 1 else (), left_out=left_out),
    ]


def _pair(mean: Tensor, scale: Tensor) -> str:
    return f"{number(mean.item())} ± {number(scale.item())}"
