"""The examples run, and learn: thresholds lie close to the truth and far from what an untrained network reaches."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name))


def test_the_arm() -> None:
    arm = load("arm.py")
    elbow, hand = arm["elbow_and_hand"](torch.tensor([torch.pi / 2, -torch.pi / 2]))
    torch.testing.assert_close(elbow, torch.tensor([0.0, 1.0]), atol=1e-6, rtol=0)
    torch.testing.assert_close(hand, torch.tensor([0.8, 1.0]), atol=1e-6, rtol=0)
    network = arm["learn"](steps=150)
    sampled, mean = arm["hand_error"](network, n=200)  # an untrained network: 1.3 and 1.4
    assert sampled < 0.12
    assert mean > 0.15  # the mean of two solutions is none
    figure = arm["picture"](network, torch.tensor([[1.2, 0.6], [0.7, -0.5]]))
    assert len(figure.axes[0].lines) == 40 + 3


# The CRPS on these data: 0.339 for the targets as one distribution, 0.309 for one component, 0.2815 for the truth.
NEARLY_THE_TRUTH = 0.29


@pytest.mark.filterwarnings("ignore")
def test_lightning() -> None:
    logged = load("lightning_forecast.py")["main"](epochs=8)
    assert logged["crps"] < NEARLY_THE_TRUTH
    assert logged["calibration_error"] < 0.04
    assert logged["likelihood_share"] == pytest.approx(1)


@pytest.mark.filterwarnings("ignore")
def test_skorch() -> None:
    search = load("skorch_forecast.py")["main"](epochs=12)
    assert search.best_params_ == {"module__n_components": 3}
    assert -search.best_score_ < NEARLY_THE_TRUTH


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_neuralforecast() -> None:
    """The past as one forecast has a CRPS of 34.5, and forecasts that are too sure have few observations inside."""
    example = load("neuralforecast_sunspots.py")
    forecasts = example["forecast"](steps=120)
    found = example["scores"](forecasts)
    assert found["crps"] < 19
    assert found["crps of the past"] == pytest.approx(34.47, abs=0.01)
    assert 0.65 < found["inside 80 %"] < 0.95
    means = forecasts["MLP"].to_numpy()  # of 1000 samples
    assert abs(example["mixtures"](forecasts).mean.numpy() - means).mean() < 2
    assert len(example["picture"](forecasts).axes[0].collections) >= 3
