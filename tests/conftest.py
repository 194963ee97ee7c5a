"""Settings shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=150)
hypothesis.settings.register_profile("search", deadline=None, max_examples=3000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Two workers with two threads each would fight over two cores.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

# Triton interprets its kernels where there is no GPU.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def _validation_as_torch_has_it() -> Iterator[None]:
    """torch's compiler switches the validation of all distributions off for good; no test shall feel another's."""
    yield
    torch.distributions.Distribution.set_default_validate_args(__debug__)
