"""Screening: designs in which effects are not mixed up, and what is read out of runs."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from cramix.rl import GMDQN
from cramix.rl.folder import write_json
from cramix.rl.training import Run
from experiments.comparison import run_folder
from experiments.screening import CHOICES, effects, screening
from tests.refusals import refuses

MANY = ["1 step", "dueling", "half the rate", "discount 0.99", "1 component", "layer norm", *CHOICES, "1 member"]


def signs(runs: list[Run]) -> np.ndarray:
    return np.array([[1 if sign == "+" else -1 for sign in run.label] for run in runs])


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 11])
def test_no_effect_is_mixed_up_with_another_or_with_two_others_together(count):
    design = signs(screening("CartPole-v1", 10, 1, MANY[:count]))
    columns = design.T
    assert (columns.sum(-1) == 0).all()
    for one, other in combinations(columns, 2):
        assert one @ other == 0
    for one, two, three in combinations(columns, 3):
        assert (one * two) @ three == 0
    assert len({tuple(row) for row in design}) == len(design)


def test_runs_have_the_settings_of_their_signs():
    runs = screening("CartPole-v1", 10, 2)
    assert len(runs) == 16
    assert {run.seed for run in runs} == {100, 101}
    for run in runs:
        GMDQN.preset(**run.settings)
        assert ("buffer_size" in run.settings) == (run.label[2] == "+")
        network = run.settings.get("policy_kwargs", {})
        assert ("members" in network, "net_arch" in network) == (run.label[0] == "+", run.label[1] == "+")


def test_effects_are_found(tmp_path: Path):
    """Returns of 475 and more are good ones on CartPole."""
    choices, worth, random = MANY[:4], np.array([6.0, 0.0, -3.0, 0.0]), np.random.default_rng(0)
    runs = screening("CartPole-v1", 10, 6, choices)
    for run, row in zip(runs, signs(runs), strict=True):
        good = 500 + worth @ row / 2 + 2 * (row[0] * row[1]) + random.normal(size=90)
        failed = np.full(10 + 5 * row[3], 100.0)
        folder = run_folder(run, tmp_path)
        folder.mkdir(parents=True)
        rest = {"mean": 0.0, "std": 0.0, "parameters": 7, "seconds": 1.0, "curve": []}
        write_json(folder / "result.json", {"returns": [*good, *failed], **rest})
    found = effects(runs, choices, tmp_path)
    assert [effect.name for effect in found] == choices
    for effect, truth in zip(found, worth, strict=True):
        assert effect.successes.low < truth < effect.successes.high
        assert abs(effect.successes.value - truth) < 1
    failures = [effect.failures.value for effect in found]
    np.testing.assert_allclose(failures, [0, 0, 0, 15 / 105 - 5 / 95], atol=1e-12)
    assert found[0].successes.low > 0
    assert found[3].score.high < 0


def test_unknown_choices_are_refused():
    refuses(lambda: screening("CartPole-v1", 10, 1, ["discount 0.5"]), "choice", "'discount 0.5'", "default")
