"""A page that shows the idea of the Cramér distance: two mixtures with handles, and the gradients of two losses.

`python -m cramix.html.idea PATH` writes it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cramix.html.page import write_page

_PRESETS = (
    (
        "overlapping",
        "The two losses mostly agree about where the model has to go.",
        {"weights": [0.5, 0.5], "means": [-3.0, 1.0], "scales": [1.0, 1.0]},
        {"weights": [0.6, 0.4], "means": [-1.0, 3.5], "scales": [1.2, 0.7]},
    ),
    (
        "far apart",
        "The model is narrow and far from the target. The likelihood's gradients grow with the distance and with the "
        "inverse cube of the scale. A gradient of the Cramér distance by a mean is below 1, however far it is.",
        {"weights": [0.5, 0.5], "means": [-7.0, -5.0], "scales": [0.3, 0.3]},
        {"weights": [0.5, 0.5], "means": [4.0, 6.5], "scales": [0.8, 0.5]},
    ),
    (
        "an outlier",
        "3 % of the target lie far out. The likelihood's largest gradient is due to them: its first step makes a "
        "component far too wide. To the Cramér distance they are just 3 %.",
        {"weights": [0.5, 0.5], "means": [-1.0, 1.0], "scales": [0.5, 0.5]},
        {"weights": [0.97, 0.03], "means": [0.0, 7.5], "scales": [1.0, 0.2]},
    ),
    (
        "nearly equal",
        "Both losses are almost at their minimum, and both gradients are small. The Cramér distance is computed as a "
        "sum of squares here, so that no digits cancel.",
        {"weights": [0.5, 0.5], "means": [-2.0, 2.0], "scales": [1.0, 0.8]},
        {"weights": [0.501, 0.499], "means": [-1.998, 2.001], "scales": [1.002, 0.8]},
    ),
    (
        "zero width",
        "A component of scale 0 is an atom: a jump of the distribution function. The model has one, so it has no "
        "density and no likelihood. The Cramér distance and its gradients are as before.",
        {"weights": [0.4, 0.6], "means": [-3.0, 1.0], "scales": [0.0, 1.0]},
        {"weights": [0.5, 0.5], "means": [-1.0, 3.0], "scales": [0.8, 0.0]},
    ),
)


def write_idea(path: str | Path) -> None:
    """Write a self-contained HTML page with two mixtures to drag, their Cramér distance and their cross entropy.

    Args:
        path: the file to write.

    Example:
        >>> write_idea("idea.html")  # doctest: +SKIP
    """
    presets = [dict(zip(("name", "lesson", "model", "target"), preset, strict=True)) for preset in _PRESETS]
    write_page(path, "idea", title="Two mixtures, two losses", data={"presets": presets}, shared=["chart.js"])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m cramix.html.idea PATH")
    write_idea(sys.argv[1])
