"""docs/rl.md says what the code does."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from cramix.rl import ALGORITHMS, GMDQN, Settings
from cramix.rl.objective import METRICS

PAGE = (Path(__file__).parents[2] / "docs" / "rl.md").read_text()


@pytest.mark.parametrize("name", [field.name for field in fields(Settings)])
def test_the_table_of_settings_has_their_values(name):
    row = re.search(rf"^\| `{name}` \| (.*?) \| (.*?) \|", PAGE, re.MULTILINE)
    assert row is not None
    assert row[1] == repr(getattr(GMDQN.presets["default"], name))
    assert row[2] == repr(getattr(GMDQN.presets["paper"], name))


@pytest.mark.parametrize("name", [*METRICS, "learning_rate", "n_updates"])
def test_every_metric_is_explained(name):
    assert f"| `train/{name}` |" in PAGE


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_is_in_the_overview(algo):
    assert f"| `{algo}` | `{ALGORITHMS[algo].__name__}` |" in PAGE
