"""Pictures of arrays and tables are those of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from cramix import MultivariateNormalMixture, NormalMixture
from cramix.plot import (
    cdf_and_sample,
    fan_chart,
    mixture_and_points,
    mixture_over_input,
    panels,
    pit_histogram,
    reliability,
)

RNG = np.random.default_rng(0)
LINE = NormalMixture([0.5, 0.5], [-1.0, 1.0], [0.5, 0.5])
PLANE = MultivariateNormalMixture([0.5, 0.5], [[-1.0, 0.0], [1.0, 0.0]], torch.eye(2).expand(2, 2, 2))
FAN = NormalMixture(torch.ones(9, 1), torch.arange(9.0).unsqueeze(-1), torch.ones(9, 1))
INPUTS, TARGETS = np.arange(9.0), RNG.normal(size=9)


def pixels(figure: Any) -> np.ndarray:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba()).copy()


@pytest.mark.parametrize(
    ("draw", "numbers"),
    [
        (lambda x: mixture_and_points(LINE, x), RNG.normal(size=50)),
        (lambda x: mixture_and_points(LINE, INPUTS, weights=x), RNG.uniform(size=9)),
        (lambda x: mixture_and_points(PLANE, x), RNG.normal(size=(50, 2))),
        (lambda x: panels(x, [("one", PLANE)]), RNG.normal(size=(50, 2))),
        (lambda x: fan_chart(x, FAN, (x, x)), INPUTS),
        (lambda x: mixture_over_input(x, FAN, (x, x)), INPUTS),
        (pit_histogram, RNG.uniform(size=50)),
        (reliability, RNG.uniform(size=50)),
        (lambda x: cdf_and_sample(LINE, x), RNG.normal(size=50)),
    ],
)
def test_an_array_gives_the_picture_of_a_tensor(draw: Callable[[Any], Any], numbers: np.ndarray) -> None:
    of_tensor = pixels(draw(torch.from_numpy(numbers)))
    np.testing.assert_array_equal(pixels(draw(numbers)), of_tensor)
    assert (pixels(draw(numbers[::-1].copy() * 0.5)) != of_tensor).any()  # other numbers, another picture


def test_columns_of_a_table_name_the_axes() -> None:
    table = pd.DataFrame(RNG.normal(size=(50, 2)), columns=["length", "width"])
    axes = mixture_and_points(PLANE, table).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("length", "width")
    axes = mixture_and_points(PLANE, table, names=["a", "b"]).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("a", "b")


def test_text_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="x"):
        mixture_and_points(LINE, np.array(["a", "b"]))
