"""Small SVG pictures of mixtures for notebooks: densities on the line, ellipses in two columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cramix.markup import COLORS, Picture, drawable, note

if TYPE_CHECKING:
    from cramix.mixture.multivariate import MultivariateNormalMixture
    from cramix.mixture.univariate import NormalMixture

# Components that have a curve or an ellipse of their own, and those of a mixture whose sum is drawn.
_MOST_SHAPES, _MOST_SUMMED = 100, 10_000
# Points of a curve, and more of them around each of the heaviest components, as far as so many standard deviations.
_POINTS, _HEAVIEST, _NEAR, _REACH = 161, 20, 25, 4.0
# Probabilities of the ellipses.
_INSIDE = (0.5, 0.9)


def is_smooth(p: NormalMixture) -> bool:
    """Return whether all components with a weight have a density."""
    return bool((p.scales[p.weights > 0] > 0).all())


def curves(mixtures: Sequence[NormalMixture]) -> str:
    """Return the densities of mixtures on the line, or their distribution functions if some have atoms.

    One mixture has the colour of text, and colours show its heaviest components; several have a colour each.
    """
    if max(p.n_components for p in mixtures) > _MOST_SUMMED:
        return note(f"There is no picture of more than {_MOST_SUMMED:,} components.")
    smooth = all(map(is_smooth, mixtures))
    points = [_points(p) for p in mixtures]
    low, high = min(x[0].item() for x in points), max(x[-1].item() for x in points)
    if not drawable((low, high)):
        return ""
    points = [torch.cat((x, x.new_tensor((low, high)))).unique() for x in points]
    values = [_densities(p, x).sum(-1) if smooth else p.cdf(x) for p, x in zip(mixtures, points, strict=True)]
    if not drawable(*(y.tolist() for y in values)):
        return ""
    what = "density" if smooth else "distribution function"
    picture = Picture((low, high), (0.0, max(y.max().item() for y in values)), what, ("x", what))
    if len(mixtures) > 1:
        for x, y, color in zip(points, values, COLORS, strict=False):
            picture.line(x.tolist(), y.tolist(), color)
        return picture.svg()
    ((p,), (x,), (y,)) = mixtures, points, values
    if smooth and p.n_components > 1:
        parts = _densities(p, x)
        for color, i in zip(COLORS, heaviest_first(p.weights), strict=False):
            picture.line(x.tolist(), parts[:, i].tolist(), color, closed=True)
    picture.line(x.tolist(), y.tolist())
    return picture.svg()


def heaviest_first(weights: Tensor) -> list[int]:
    """Return the components by weight `(k,)`."""
    return weights.argsort(descending=True, stable=True).tolist()


def _densities(p: NormalMixture, x: Tensor) -> Tensor:
    """Return the densities of the components times their weights, `(n, k)`; without weight also an atom has none."""
    scales = torch.where(p.scales > 0, p.scales, 1.0)
    z = (x.unsqueeze(-1) - p.means) / scales
    return p.weights * torch.exp(-0.5 * z.square()) / (scales * math.sqrt(2 * math.pi))


def _points(p: NormalMixture) -> Tensor:
    """Return ascending points: evenly spaced ones, more around the heaviest components, and both sides of atoms."""
    there = p.weights > 0
    means, scales = p.means[there], p.scales[there]
    low, high = (means - _REACH * scales).min(), (means + _REACH * scales).max()
    if not is_smooth(p):  # room to see that the distribution function is 0 and 1
        room = torch.where(high > low, 0.05 * (high - low), 0.5 + 0.1 * low.abs())
        low, high = low - room, high + room
    steps = torch.linspace(0, 1, _POINTS, dtype=torch.float64)
    heavy = heaviest_first(p.weights)[:_HEAVIEST]
    reach = torch.linspace(-_REACH, _REACH, _NEAR, dtype=torch.float64)
    near = (p.means[heavy, None] + p.scales[heavy, None] * reach).flatten()
    atoms = means[scales == 0]
    atoms = atoms[:0] if len(atoms) > _POINTS else atoms  # so many steps look smooth
    before = torch.nextafter(atoms, torch.full_like(atoms, -math.inf))
    return torch.cat((torch.lerp(low, high, steps), near.clamp(low, high), atoms, before)).unique()


def most_different(p: MultivariateNormalMixture) -> list[int]:
    """Return the two columns in which the components differ most, relative to the spread; the first ones of ties."""
    offset = p.means - p.mean
    between, total = (p.weights.unsqueeze(-1) * offset.square()).sum(0), p.variance
    share = torch.where(total > 0, between / total, 0).nan_to_num()
    return sorted(share.argsort(descending=True, stable=True)[:2].tolist())


def ellipses(p: MultivariateNormalMixture, dims: Sequence[int], names: tuple[str, str]) -> str:
    """Return ellipses of the heaviest components in two columns; points are dots."""
    drawn = heaviest_first(p.weights)[:_MOST_SHAPES]
    q = p.marginal(dims)
    angles = torch.linspace(0, 2 * math.pi, 49, dtype=torch.float64)
    circle = torch.stack((angles.cos(), angles.sin()))
    roots = _roots(q.covariances[drawn])  # (k, 2, 2)
    radii = [math.sqrt(-2 * math.log1p(-inside)) for inside in _INSIDE]
    rings = [q.means[drawn].unsqueeze(-1) + radius * roots @ circle for radius in radii]  # (k, 2, points)
    x, y = rings[-1].transpose(0, 1).flatten(1).tolist()
    if not drawable(x, y):
        return ""
    picture = Picture(x, y, f"components in {names[0]} and {names[1]}", names)
    for i, (a, b) in enumerate(q.means[drawn].tolist()):
        first = i < len(COLORS) and not p.is_empirical
        color = COLORS[i] if first and p.n_components > 1 else "currentColor"
        for ring in () if p.is_empirical else rings:
            across, up = ring[i].tolist()
            picture.line(across, up, color, closed=True, faint=not first)
        picture.dot(a, b, color, 2.5 if first else 1.5)
    sentences = []
    if not p.is_empirical:
        sentences.append(f"Ellipses hold {' and '.join(f'{100 * x:.0f}' for x in _INSIDE)} % of each component.")
    if p.dim > 2 and p.n_components > 1:
        sentences.append("Components differ most in these two columns.")
    if p.n_components > len(drawn):
        sentences.append(f"The {len(drawn)} heaviest components are drawn.")
    return picture.svg() + "".join(map(note, sentences))


def _roots(covariances: Tensor) -> Tensor:
    """Return matrices that map the unit circle to the ellipse of one standard deviation, also if it is flat."""
    variances, axes = torch.linalg.eigh(covariances)
    return axes * variances.clamp_min(0).sqrt().unsqueeze(-2)
