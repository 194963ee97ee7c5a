"""Settings shared by all tests."""

from __future__ import annotations

import os

import hypothesis
import torch

hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=150)
hypothesis.settings.register_profile("search", deadline=None, max_examples=3000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Two workers with two threads each would fight over two cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
