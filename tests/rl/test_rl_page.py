"""docs/rl.md says what the code does."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from cramix.rl import ALGORITHMS, GMDQN
from cramix.rl.objective import METRICS

PAGE = (Path(__file__).parents[2] / "docs" / "rl.md").read_text()


SETTINGS = {name: p.default for name, p in inspect.signature(GMDQN).parameters.items() if not name.startswith("_")}


@pytest.mark.parametrize("name", [name for name in SETTINGS if name not in ("policy", "env")])
def test_the_table_of_settings_has_their_values(name):
    row = re.search(rf"^\| `{name}` \| (.*?) \| (.*?) \|", PAGE, re.MULTILINE)
    assert row is not None
    assert row[1] == repr(SETTINGS[name])
    assert row[2] == repr(GMDQN.preset("paper").get(name, SETTINGS[name]))


@pytest.mark.parametrize("name", [*METRICS, "learning_rate", "n_updates"])
def test_every_metric_is_explained(name):
    assert f"| `train/{name}` |" in PAGE


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_is_in_the_overview(algo):
    assert f"| `{algo}` | `{ALGORITHMS[algo].__name__}` |" in PAGE
