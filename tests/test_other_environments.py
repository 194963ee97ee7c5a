"""Tests that need packages which ask for older versions of others than ours: they run in an environment of their own.

It sees the packages of this one, and its own first: skpro with the pandas it supports, and NGBoost and RL-Zoo without
their dependencies, whose limits on versions are stricter than what they need.
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
    "interface-meta", "wrapt", "narwhals", "rl_zoo3>=2.7", "huggingface_sb3",
)  # fmt: skip
WITH_DEPENDENCIES = ("huggingface_hub", "pytablewriter", "wasabi")  # of RL-Zoo
DATA = "import pandas, numpy; X = pandas.DataFrame(numpy.random.default_rng(0).normal(size=(60, 2)))\n"
DATA += "y = X[[0]] + 1; X_new, y_new = X[:9], y[:9]\n"
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
    for packages in (["--no-deps", *PACKAGES], WITH_DEPENDENCIES):
        pip = [sys.executable, "-m", "pip", "install", "-q", "--target", own, *packages]
        installed = subprocess.run(pip, capture_output=True, text=True)
        if installed.returncode:
            pytest.skip(f"packages could not be installed: {installed.stderr[-300:]}")
    return found


def run(python: Path, *arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    source = Path(cramix.__file__).parent.parent  # of the cramix that is tested here
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
    if source in map(Path, site.getsitepackages()):  # installed as a copy: the environment sees it anyway
        environment["PYTHONPATH"] = str(ROOT)
    return subprocess.run([python, *arguments], cwd=cwd, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize(
    ("tests", "least"), [(["test_skpro.py"], 8), (["test_boosting_objective.py", "-k", "steps_of_ngboost"], 1)]
)
def test_they_pass_there(python: Path, tests: list[str], least: int) -> None:
    done = run(python, "-m", "pytest", "-n", "0", "-W", "default", f"tests/{tests[0]}", *tests[1:])
    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= least
    assert "skipped" not in done.stdout


def block(page: str, word: str) -> str:
    """Return the block of Python of a page in which a word occurs."""
    found = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.M | re.S)
    (code,) = (code for code in found if word in code)
    return code


def test_the_page_is_right_about_skpro(python: Path, tmp_path: Path) -> None:
    lines = block("networks.md", "skpro").rstrip().splitlines()
    lines[-1] = f"print(float({lines[-1]}))"
    (tmp_path / "page.py").write_text(DATA + "\n".join(lines))
    done = run(python, "page.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert 0 < float(done.stdout.split()[-1]) < 0.5  # the targets have no noise


def test_the_page_is_right_about_rl_zoo(python: Path, tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(block("rl_sb3.md", "rl_zoo3"))
    (settings,) = re.findall(r"^```text\n(CartPole-v1:.*?)^```$", (ROOT / "docs/rl_sb3.md").read_text(), re.M | re.S)
    (tmp_path / "gmdqn.yml").write_text(settings)
    arguments = ["--algo", "gmdqn", "--env", "CartPole-v1", "-conf", "gmdqn.yml", "-f", "logs"]
    done = run(python, "page.py", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "logs/gmdqn/CartPole-v1_1/CartPole-v1.zip").exists()
