"""Settings shared by all tests."""

from __future__ import annotations

import os

import hypothesis

hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=150)
hypothesis.settings.register_profile("search", deadline=None, max_examples=3000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
