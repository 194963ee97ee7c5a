"""What is released: the contents of the sdist and the wheel, and the workflows that build them."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import cramix

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def tracked(folder: str) -> set[str]:
    files = subprocess.run(["git", "ls-files", folder], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return {name for name in files.splitlines() if (ROOT / name).exists()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both, the wheel from the sdist."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    return out


def test_the_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    (path,) = built.glob("*.whl")
    assert path.name == f"cramix-{cramix.__version__}-py3-none-any.whl"
    names = set(zipfile.ZipFile(path).namelist())
    package = {name.removeprefix("src/") for name in tracked("src")}
    assert {name for name in names if ".dist-info/" not in name} == package  # with the agent, py.typed, html, css, js
    assert "cramix/rl/pretrained/LunarLander-v3.zip" in names
    assert "cramix/py.typed" in names


def test_the_sdist_holds_no_tests_and_no_figures(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    around = {"README.md", "LICENSE", "CITATION.cff", "CHANGELOG.md", "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert names == tracked("src") | around


def test_the_metadata_name_what_is_supported(built: Path) -> None:
    (path,) = built.glob("*.whl")
    text = zipfile.ZipFile(path).read(f"cramix-{cramix.__version__}.dist-info/METADATA").decode()
    assert "Requires-Python: >=3.11\n" in text
    assert "Requires-Dist: torch>=2.11\n" in text
    assert zipfile.ZipFile(path).read(f"cramix-{cramix.__version__}.dist-info/entry_points.txt").decode() == (
        "[console_scripts]\ncramix = cramix.cli:main\n"
    )


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_do_no_more_than_they_need(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert set(job.get("permissions", {})) <= {"id-token", "attestations", "pages"}
        assert not job.get("permissions") or name == "publish"
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False
            assert "${{" not in step.get("run", "")  # values reach a shell by its environment only
            target = step.get("run", "").split("#")[0].split()
            if target[:1] == ["make"]:
                assert f"\n{target[1]}:" in (ROOT / "Makefile").read_text()


def test_tests_cover_the_versions_that_the_package_claims() -> None:
    (path,) = (path for path in WORKFLOWS if path.stem == "tests")
    runs = yaml.safe_load(path.read_text())["jobs"]["test"]["strategy"]["matrix"]["include"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=")
    (torch,) = (name.removeprefix("torch>=") for name in project["dependencies"] if name.startswith("torch"))
    assert (oldest, f"torch=={torch}.*") in {(run["python"], run["torch"]) for run in runs}
    assert f"torch>={torch}" in {run["torch"] for run in runs}
