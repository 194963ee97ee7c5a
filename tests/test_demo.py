"""The demo fits its sample, prints its table and draws its picture."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cramix import NormalMixture, cramer_distance, demo
from cramix.data import sample, truth
from cramix.plot import densities_and_cdfs


def cramix(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "cramix"), *arguments]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # the other tests have the other cores
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=one_thread)


def test_demo_prints_a_table_and_writes_a_png(tmp_path: Path) -> None:
    done = cramix("demo", "--out", "picture.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("loss", "evaluations", "seconds", "L-BFGS", "Adam", "picture.png"):
        assert word in done.stdout
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_demo_refuses_a_folder_that_is_not_there(tmp_path: Path) -> None:
    done = cramix("demo", "--out", "nowhere/picture.png", cwd=tmp_path)
    assert done.returncode == 2
    assert "nowhere" in done.stderr


def test_fits_come_close_to_the_truth() -> None:
    x, target, fits = demo.run()
    by_name = {fit.method: fit for fit in fits}
    for method in ("Adam", "L-BFGS"):
        assert by_name[method].loss < 0.05 * by_name["start"].loss
        assert cramer_distance(by_name[method].mixture, target).item() < 0.03
    assert len(demo.rows(x, target, fits)) == 4


def test_the_sample_is_always_the_same_and_follows_its_density() -> None:
    torch.manual_seed(0)
    first = sample(500)
    torch.manual_seed(1)
    assert torch.equal(first, sample(500))
    assert not torch.equal(first, sample(500, seed=1))
    assert cramer_distance(truth(), sample(20_000)).item() < 0.02


def test_plot_draws_every_curve_and_atoms_as_steps_only() -> None:
    p = NormalMixture(torch.tensor([0.5, 0.5]), torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
    q = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
    figure = densities_and_cdfs({"with atom": p, "normal": q})
    left, right = figure.axes
    assert [line.get_label() for line in left.lines] == ["normal"]
    assert [line.get_label() for line in right.lines] == ["with atom", "normal"]
    x, y = right.lines[1].get_data()
    assert y == pytest.approx(q.cdf(torch.as_tensor(x)).numpy(), abs=1e-6)
