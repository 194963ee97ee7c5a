"""Tests that need packages which ask for older versions of others than ours: they run in an environment of their own.

It sees the packages of this one, and its own first: skpro with the pandas it supports, and NGBoost without its
dependencies, whose limits on versions are stricter than what it needs.
"""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import cramix

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "pandas<3.1", "skpro>=2.16", "scikit-base", "ngboost>=0.5", "autograd", "autograd-gamma", "lifelines", "formulaic",
    "interface-meta", "wrapt", "narwhals",
)  # fmt: skip
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment; without an index of packages there is none."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    found = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    code = "import site; print(site.getsitepackages()[0])"
    own = subprocess.run([found, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    Path(own, "ours.pth").write_text("\n".join(site.getsitepackages()))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", own, *PACKAGES]
    installed = subprocess.run(pip, capture_output=True, text=True)
    if installed.returncode:
        pytest.skip(f"packages could not be installed: {installed.stderr[-300:]}")
    return found


@pytest.mark.parametrize(
    ("tests", "least"), [(["test_skpro.py"], 8), (["test_boosting_objective.py", "-k", "steps_of_ngboost"], 1)]
)
def test_they_pass_there(python: Path, tests: list[str], least: int) -> None:
    command = [python, "-m", "pytest", "-n", "0", "-W", "default", f"tests/{tests[0]}", *tests[1:]]
    source = Path(cramix.__file__).parent.parent  # of the cramix that is tested here
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
    if source in map(Path, site.getsitepackages()):  # installed as a copy: the environment sees it anyway
        environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= least
    assert "skipped" not in done.stdout
