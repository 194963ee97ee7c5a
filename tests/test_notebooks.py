"""In the kernel of a notebook: the quick start runs and shows pictures, and progress bars are drawn in place."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "examples" / "quickstart.ipynb"


def run(notebook: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Execute a notebook in a folder, and return the outputs of each cell of code."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def cells(*sources: str) -> Any:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])


def test_the_quick_start_is_kept_without_outputs() -> None:
    notebook = nbformat.read(QUICKSTART, 4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert 10 <= len(code) <= 14
    for cell in code:
        assert cell.outputs == []
        assert cell.execution_count is None


@pytest.mark.slow
def test_the_quick_start_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = run(nbformat.read(QUICKSTART, 4), tmp_path, monkeypatch)
    shown = [output for some in outputs for output in some]
    assert not [output for output in shown if output.output_type == "error" or output.get("name") == "stderr"]
    data = [output.data for output in shown if "data" in output]
    assert sum("<svg" in some.get("text/html", "") for some in data) >= 5
    assert sum("image/png" in some for some in data) == 2
    assert all(outputs)  # every cell shows something
    text = "".join(output.get("text", "") for output in shown)
    # The groups were found, two components are nearer than one, and the file holds the same mixture.
    assert sorted(map(int, re.search(r"tensor\(\[(.*)\]\)", text)[1].split(", "))) == pytest.approx([100] * 4, abs=2)
    two, one = (float(re.search(rf"^{k} (.*)$", text, re.MULTILINE)[1]) for k in (2, 1))
    assert 0 < two < one
    assert data[-1]["text/plain"] == "True"
    assert (tmp_path / "animals.safetensors").exists()


@pytest.mark.slow
def test_progress_bars_are_drawn_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = cells(
        "import numpy as np, cramix\nx = np.linspace(-1, 1, 100)[:, None]",
        "m = cramix.MixtureRegressor(n_estimators=2, max_iter=10, early_stopping=False, verbose=1).fit(x, x[:, 0])",
        "m = cramix.MixtureBoostingRegressor(n_estimators=2, max_iter=5, verbose=2).fit(x, x[:, 0])",
        "from cramix.rl import GMDQN\nm = GMDQN('MlpPolicy', 'CartPole-v1').learn(150, progress_bar=True)",
        "called = []\nm = m.learn(50, callback=lambda *_: called.append(1) or True, progress_bar=True)\nlen(called)",
    )
    _, networks, trees, agent, again = run(notebook, tmp_path, monkeypatch)
    (bar,) = networks  # one output, updated in place, no warning
    assert bar.data["text/html"].startswith('<progress value="1" max="1"></progress> epoch 10, ')
    assert trees[0].data["text/html"].startswith('<progress value="1" max="1">')
    assert trees[1].text.count(" components, loss ") >= 5  # verbose=2 prints lines, too
    (bar,) = agent
    assert bar.data["text/html"].startswith('<progress value="150" max="150"></progress> 150 of 150 steps')
    assert [output.data["text/plain"] for output in again[1:]] == ["50"]  # the other callback is called as well
