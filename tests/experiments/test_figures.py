"""The paper's experiment: its fits, its figures, and the command that draws them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from cramix import sliced_cramer_loss
from cramix.data import ring_line_square
from experiments import figures, paper, paper_plots

pytestmark = pytest.mark.slow  # all share the fits of the paper


@pytest.fixture(scope="module")
def runs() -> list[paper.Run]:
    return paper.run(ring_line_square(120), seeds=(123,))


def test_the_papers_fits_go_downhill(runs: list[paper.Run]) -> None:
    by_name = {run.method: run for run in runs}
    assert list(by_name) == ["init", "sc2", "nll", "sc2+nll", "merge"]
    x = ring_line_square(120)
    for run in runs:
        assert run.end.cramer == pytest.approx(sliced_cramer_loss(run.mixture, x).item(), rel=1e-6)
        assert run.end.negative_log_likelihood == pytest.approx(-run.mixture.log_prob(x).mean().item(), rel=1e-6)
    init, sc2, nll, both = (by_name[name] for name in ("init", "sc2", "nll", "sc2+nll"))
    assert sc2.end.cramer < 0.05 * init.end.cramer
    assert nll.end.negative_log_likelihood < init.end.negative_log_likelihood - 1
    assert both.end.negative_log_likelihood < sc2.end.negative_log_likelihood
    assert [run.history[-1].step for run in (sc2, nll, both)] == [1200, 1200, 1400]
    # The third begins as the first.
    assert both.history[:120] == sc2.history[:120]
    assert sc2.history[0] == nll.history[0] == init.end


def test_figures_of_the_paper(runs: list[paper.Run]) -> None:
    x = ring_line_square(120)
    assert [axes.get_title().split(",")[0] for axes in paper_plots.fits(x, runs).axes] == [
        "Init", "SC2", "NLL", "SC2+NLL", "cramix",
    ]  # fmt: skip
    left, right = paper_plots.losses(runs).axes
    curves = {line.get_label(): line.get_xydata() for line in left.lines}
    assert curves["SC2+NLL"][0, 0] == curves["SC2"][-1, 0] == 1200
    assert curves["NLL"][-1, 1] == pytest.approx(runs[2].end.cramer)
    assert {line.get_label() for line in right.lines} == {"SC2", "NLL", "SC2+NLL", "cramix"}
    figure = paper_plots.slicing(x, runs[0].mixture, torch.eye(2, dtype=x.dtype))
    assert len(figure.axes) == 3


@pytest.mark.slow
def test_the_command_writes_three_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "ring_line_square", lambda: ring_line_square(60))
    monkeypatch.setattr(paper.run, "__defaults__", ((123,), *paper.run.__defaults__[1:]))
    found = CliRunner().invoke(figures.app, ["--out", str(tmp_path)])
    assert found.exit_code == 0, found.output
    assert {path.name for path in tmp_path.iterdir()} == {"slicing.png", "fits.png", "losses.png"}
    assert "sc2+nll" in found.stdout


def test_bad_data_and_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "three.txt").write_text("1 2 3\n4 5 6\n")
    found = CliRunner().invoke(figures.app, ["--data", str(tmp_path / "three.txt")])
    assert found.exit_code == 2
    assert "must have two columns; got 3" in found.stderr
    found = CliRunner().invoke(figures.app, ["--out", "nowhere"])
    assert found.exit_code == 2
    assert "nowhere is not a folder" in found.stderr
