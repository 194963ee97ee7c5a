"""Calibration of an agent's return distributions: in total, by the predicted return and by the time to go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from cramix.plot.calibration import draw_pit, draw_reliability
from cramix.plot.figure import COLOURS, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from cramix.rl.calibration import ReturnCalibration

_GROUPS = 8


def return_calibration(calibration: ReturnCalibration) -> Figure:
    """Draw how well predicted return distributions agree with realised returns.

    The panels are the PIT histogram, the coverage of central intervals, and two panels with predicted and realised
    deviations and the CRPS: by the predicted return, which stands for the state, and by the steps to go. In the last
    panel agreement is not to be expected everywhere, because the agent does not know when the episode will end.

    Steps of one episode depend on each other, so that deviations from the grey regions are larger than for independent
    forecasts.

    Args:
        calibration: of `cramix.rl.evaluate_calibration`.

    Example:
        >>> from cramix.rl import GMDQN, evaluate_calibration
        >>> model = GMDQN("MlpPolicy", "CartPole-v1", seed=0, learning_starts=50, policy_kwargs={"net_arch": [16]})
        >>> found = evaluate_calibration(model.learn(200), "CartPole-v1", episodes=5)
        >>> len(return_calibration(found).axes) >= 4
        True
    """
    figure = require_matplotlib()(figsize=(9.6, 7.6), layout="constrained")
    (pit, coverage), (by_state, by_time) = figure.subplots(2, 2)
    u = calibration.pit.numpy()
    draw_pit(pit, np.histogram(u, 20, (0, 1))[0])
    levels = np.linspace(0, 1, 101)
    draw_reliability(coverage, levels, (2 * np.abs(u - 0.5)[:, None] <= levels).mean(0), len(u))
    _draw_groups(by_state, calibration, calibration.means, "predicted return")
    _draw_groups(by_time, calibration, calibration.remaining.double(), "steps to go")
    pit.set_title("probability integral transform", fontsize=10)
    coverage.set_title(f"80 % interval: {100 * calibration.coverage(0.8):.0f} % of returns", fontsize=10)
    scores = float(calibration.crps.mean()), calibration.empirical_crps
    by_state.set_title(f"CRPS {scores[0]:.3g}, without the state {scores[1]:.3g}", fontsize=10)
    ratio = calibration.deviation / calibration.error if calibration.error else float("nan")
    by_time.set_title(f"predicted / realised deviation: {ratio:.2f}", fontsize=10)
    return figure


def _draw_groups(axes: Axes, calibration: ReturnCalibration, values: Tensor, name: str) -> None:
    """Draw deviations and CRPS of groups of steps of equal size."""
    edges = values.quantile(torch.linspace(0, 1, _GROUPS + 1, dtype=values.dtype)).unique()
    edges[-1] += 1e-6 + 1e-6 * edges[-1].abs()  # the largest value belongs to the last group
    if len(edges) < 2:
        edges = torch.stack([edges[0] - 0.5, edges[0] + 0.5])
    groups = [
        (float(values[(values >= low) & (values < high)].mean()), part)
        for low, high, part in calibration.by(values, edges.tolist())
    ]
    x = [centre for centre, _ in groups]
    axes.plot(x, [part.deviation for _, part in groups], color=COLOURS[0], marker=".", label="predicted deviation")
    axes.plot(x, [part.error for _, part in groups], color=COLOURS[1], marker=".", label="realised deviation")
    axes.plot(x, [float(part.crps.mean()) for _, part in groups], color="0.4", marker=".", ls="--", label="CRPS")
    axes.set(xlabel=name, ylabel="units of the return", ylim=(0, None))
    axes.legend(frameon=False, fontsize=9)
