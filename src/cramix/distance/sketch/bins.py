"""What the moments of a bin say about its data: points that have them, too, and the polynomials that fit best.

Moments `(4, *)` are those of `u`, the place in a bin counted from its centre in units of its width, in [-1/2, 1/2]: the
sums of `w`, `w u`, `w u^2` and `w u^3` over the rows of a bin with weights w.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Below this variance, in squared widths, rounding makes the third moment of a bin meaningless.
NARROW = 1e-8


def gauss_points(moments: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shares and places of the two Gauss points of bins with moments `(4, *)`, each `(2, *)`.

    Places are counted from the centre of the bin in units of its width, the lower one first. The points of an empty bin
    are at its centre.

    Example:
        >>> gauss_points(torch.tensor([1.0, 0.0, 1 / 12, 0.0]))  # of a constant density: those of Gauss and Legendre
        (tensor([0.5000, 0.5000]), tensor([-0.2887,  0.2887]))
    """
    mean, variance, third = central_moments(moments)
    # The points, at distances x below and y above the mean, have x y = variance and y - x = skew.
    skew = torch.where(variance > NARROW, third / variance.clamp_min(NARROW), 0)
    root = (skew.square() + 4 * variance).sqrt()
    above = torch.where(skew > 0, skew + root, 4 * variance / (root - skew).clamp_min(1e-300)) / 2
    # Rounding must not move them out of the bin.
    above = torch.minimum(torch.maximum(above, variance / (0.5 + mean).clamp_min(1e-300)), 0.5 - mean)
    below = torch.where(above > 0, variance / above.clamp_min(1e-300), 0)
    share = torch.where(above > 0, above / (above + below).clamp_min(1e-300), 0.5)
    return torch.stack((share, 1 - share)), torch.stack((mean - below, mean + above))


def central_moments(moments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean, variance and third central moment of bins with moments `(4, *)`; 0 for empty ones."""
    mass = moments[0]
    mean, second, third = moments[1:] / torch.where(mass > 0, mass, 1)
    mean = mean.clamp(-0.5, 0.5)
    variance = torch.minimum((second - mean.square()).clamp_min(0), 0.25 - mean.square())
    return mean, variance, third - 3 * mean * second + 2 * mean**3


def polynomial_fit(moments: Tensor, width: Tensor) -> Tensor:
    """Return the best fit to the distribution function by polynomials of degree 2 in bins, which moments determine.

    Args:
        moments: `(4, s, bins)`.
        width: `(s,)`.

    Returns:
        Coefficients `(s, 3 * bins)` of orthonormal functions. They are linear in the moments, and their squared
        distances are the Cramér losses between fits.
    """
    constant, linear, quadratic = _coefficients(moments)
    before = moments[0].cumsum(-1) - moments[0]
    return width.sqrt().unsqueeze(-1) * torch.cat((before + constant, linear, quadratic), -1)


def rest(shares: Tensor, places: Tensor) -> Tensor:
    """Return the integral of the square of what polynomials of degree 2 do not fit, in bins of width one.

    Args:
        shares: of m points in each bin, of any sign, `(m, *)`; the function steps up by them.
        places: of the points, `(m, *)`.
    """
    square = torch.zeros_like(shares[0])
    for i, (share, place) in enumerate(zip(shares, places, strict=True)):
        square += share.square() * (0.5 - place)
        if i:
            square += 2 * share * (shares[:i] * (0.5 - torch.maximum(places[:i], place))).sum(0)
    moments = torch.stack([(shares * places**k).sum(0) for k in range(4)])
    unfitted = square - torch.stack(_coefficients(moments)).square().sum(0)
    return torch.where(unfitted > 1e-15 * shares.abs().sum(0).square(), unfitted, 0)  # the rest of that is rounding


def smoothness(moments: Tensor) -> Tensor:
    """Return how much bins look like parts of a smooth density, from 0 for a single point to 1.

    A smooth density has nearly the variance of a constant one, 1/12, in each bin. From half of that on, which leaves
    room for chance, a bin counts as smooth.
    """
    return (24 * central_moments(moments)[1]).clamp_max(1)


def _coefficients(moments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the integrals of the mass up to u times 1, `sqrt(12) u` and `sqrt(180) (u^2 - 1/12)`, by parts."""
    mass, first, second, third = moments
    return 0.5 * mass - first, 12**0.5 * (mass / 8 - second / 2), 180**0.5 * (first / 12 - third / 3)
