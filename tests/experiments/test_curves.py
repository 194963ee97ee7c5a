"""Learning curves: lines, bands, legends, and bad input."""

from __future__ import annotations

import numpy as np

from experiments.curves import Curve, learning_curves
from tests.refusals import refuses


def test_learning_curves_have_lines_bands_and_last_values() -> None:
    steps = np.array([0.0, 10_000, 20_000])
    given = {
        "ours": Curve(steps, [0, 50, 90.4], [-10, 40, 80], [10, 60, 100]),
        "theirs": Curve(steps, [0, 20, 30]),
    }
    figure = learning_curves(given, goal=95, title="Game")
    (axes,) = figure.axes
    ours, theirs, goal = sorted(axes.lines, key=lambda line: -line.get_zorder())
    np.testing.assert_array_equal(ours.get_xydata(), np.column_stack([steps, [0, 50, 90.4]]))
    assert theirs.get_ydata().tolist() == [0, 20, 30]
    assert goal.get_ydata()[0] == 95
    (band,) = axes.collections
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
    assert corners >= {(10_000, 40), (10_000, 60), (20_000, 80), (20_000, 100)}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ours  90", "theirs  30"]
    assert axes.get_title() == "Game"


def test_bad_curves_are_refused() -> None:
    refuses(lambda: learning_curves({}), "curves", "none")
    refuses(lambda: learning_curves({"a": Curve([1, 2], [1, 2, 3])}), "curves['a']", "(3,)")
    refuses(lambda: learning_curves({"a": Curve([1, 2], [[1, 2], [3, 4]])}), "curves['a']", "(2, 2)")
