"""What all pictures share: where figures come from, and their colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by everybody.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
# What each thing looks like in all pictures of one mixture.
COMPONENTS, DENSITY, POINTS = COLOURS[0], COLOURS[1], "0.3"


def require_matplotlib() -> type[Figure]:
    """Return matplotlib's `Figure`, which draws without a screen, or say how to get it."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("cramix.plot needs matplotlib. Install it with: pip install 'cramix[plot]'") from error
    return Figure
