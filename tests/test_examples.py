"""The examples run, and do what they say; those of packages that are not here are left out."""

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
    untrained, _ = arm["miss"](arm["learn"](steps=1), n=200)
    network = arm["learn"](steps=80)
    drawn, _ = arm["miss"](network, n=200)
    assert drawn < 0.8 * untrained
    figure = arm["picture"](network, torch.tensor([[1.2, 0.6], [0.7, -0.5]]))
    assert len(figure.axes[0].lines) == 40 + 3


@pytest.mark.filterwarnings("ignore")
def test_lightning() -> None:
    logged = load("lightning_forecast.py")["main"](epochs=3)
    assert logged["crps"] < 0.32  # of the targets as one distribution: 0.33
    assert logged["likelihood_share"] == pytest.approx(1)


@pytest.mark.filterwarnings("ignore")
def test_skorch() -> None:
    search = load("skorch_forecast.py")["main"](epochs=5)
    assert -search.best_score_ < 0.32
