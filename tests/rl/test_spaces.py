"""Spaces in words: what comes back is what went in."""

import json

import numpy as np
import pytest
from gymnasium import spaces

from cramix.rl.spaces import from_json, to_json
from tests.refusals import refuses

SPACES = [
    spaces.Box(-np.inf, np.inf, (3,), np.float32),
    spaces.Box(np.array([-1.5, -np.inf, 0.1]), np.array([1.0, 2.0, np.inf]), dtype=np.float64),
    spaces.Box(0, 255, (3, 8, 8), np.uint8),
    spaces.Box(-3, 3, (), np.float32),
    spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64),
    spaces.Discrete(4, start=-1),
    spaces.MultiBinary(5),
    spaces.MultiBinary([2, 3]),
    spaces.MultiDiscrete([3, 2], start=[1, 0]),
    spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Dict({"x": spaces.Box(0, 1, (2,), np.float32)})}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_what_comes_back_is_what_went_in(space):
    again = from_json(json.loads(json.dumps(to_json(space))))
    assert again == space
    assert again.shape == space.shape
    assert again.dtype == space.dtype


def test_other_spaces_are_refused():
    refuses(lambda: to_json(spaces.Text(4)), "spaces", "Text", "Box")
    refuses(lambda: from_json({"kind": "Graph"}), "kind", "Graph")
