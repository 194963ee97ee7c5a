"""The demo: every method fits, tables are printed, pictures are drawn."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from cramix import demo, fit, sliced_cramer_loss
from cramix.data import parallel_groups, ring_line_square
from cramix.fitting import METHODS
from cramix.plot import panels


def cramix(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "cramix"), *arguments]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # the other tests have the other cores
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=one_thread)


@pytest.mark.slow
def test_demo_prints_tables_and_writes_a_png(tmp_path: Path) -> None:
    done = cramix("demo", "--out", "picture.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("Rand index", "likelihood", "C2", "seconds", "picture.png", *(name[:10] for name in METHODS)):
        assert word in done.stdout
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_demo_refuses_a_folder_that_is_not_there(tmp_path: Path) -> None:
    done = cramix("demo", "--out", "nowhere/picture.png", cwd=tmp_path)
    assert done.returncode == 2
    assert "nowhere" in done.stderr


def test_the_groups_are_found_on_every_seed_and_not_by_scikit_learn() -> None:
    ours, theirs = demo.recover_groups()
    assert len(ours.rand_indices) == len(demo.SEEDS)
    assert min(ours.rand_indices) > 0.95
    assert max(theirs.rand_indices) < 0.1
    assert ours.log_likelihood > theirs.log_likelihood + 0.5
    x, group = parallel_groups()
    assert ours.rand_indices[0] == pytest.approx(
        adjusted_rand_score(group, ours.mixture.responsibilities(x).argmax(-1)), abs=1e-12
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_groups_are_found_in_other_samples_of_them(seed: int) -> None:
    x, group = parallel_groups(seed=seed)
    result = fit(x, 4, generator=torch.Generator().manual_seed(0))
    assert demo.adjusted_rand_index(group, result.mixture.responsibilities(x).argmax(-1)) > 0.95


def test_without_scikit_learn_the_groups_are_shown_beside_em(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    assert [recovery.name for recovery in demo.recover_groups()] == ["cramix", "EM"]


def test_the_rand_index_is_that_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        a, b = random.integers(0, 4, 50), random.integers(0, 3, 50)
        b[:30] = a[:30] % 3
        ours = demo.adjusted_rand_index(torch.from_numpy(a), torch.from_numpy(b))
        assert ours == pytest.approx(adjusted_rand_score(a, b), abs=1e-12)


def test_the_default_is_the_most_likely_in_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {name: METHODS[name] for name in ("merge", "em", "kmeans")}
    monkeypatch.setattr("cramix.demo.METHODS", quick)
    shown: list[str] = []
    contest = demo.compare_methods(shown.append)
    assert shown == list(quick)
    likelihoods = {name: result.log_likelihood for name, result in contest.results.items()}
    assert max(likelihoods.values()) - likelihoods["merge"] < 1e-4
    for name, likelihood, distance, *_ in contest.rows():
        mixture = contest.results[name].mixture
        assert float(likelihood) == pytest.approx(mixture.log_prob(contest.x).mean().item(), abs=1e-3)
        assert float(distance) ** 2 == pytest.approx(sliced_cramer_loss(mixture, contest.x).item(), rel=0.01)
    figure = demo.picture(demo.recover_groups(), contest)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[0] == "true groups"
    assert titles[1] == "cramix: adjusted Rand index 0.99"
    assert [title.split(":")[0] for title in titles[3:6]] == list(quick)


def test_the_groups_are_always_the_same_and_long_and_parallel() -> None:
    x, group = parallel_groups()
    assert torch.equal(x, parallel_groups()[0])
    assert not torch.equal(x, parallel_groups(seed=1)[0])
    axes = []
    for g in range(4):
        values, vectors = torch.linalg.eigh(torch.cov(x[group == g].T))
        assert values[-1] > 500 * values[-2]
        axes.append(vectors[:, -1])
    cosines = torch.stack(axes) @ torch.stack(axes).T
    assert cosines.abs().min() > 0.999


def test_the_data_are_always_the_same_and_lie_on_their_shapes() -> None:
    torch.manual_seed(0)
    first = ring_line_square(2000)
    torch.manual_seed(1)
    assert torch.equal(first, ring_line_square(2000))
    assert not torch.equal(first, ring_line_square(2000, seed=1))
    x, y = first.T
    radius = torch.hypot(x - 1.5, y - 1.5)
    ring = (radius <= 1) & (radius >= 0.4**0.5)
    line = (x >= 2.5) & (x <= 4) & ((y - 1.5).abs() <= 0.1)
    reach = torch.maximum((x - 5.1).abs(), (y - 1.5).abs())
    square = (reach <= 1.1 + 1e-9) & (reach >= 0.9 - 1e-9)
    assert (ring | line | square).all()
    for part, share in ((ring, 0.53), (line, 0.09), (square, 0.38)):
        assert part.double().mean().item() == pytest.approx(share, abs=0.04)


def test_panels_have_a_title_each_and_leave_no_empty_frame() -> None:
    x = ring_line_square(60)
    mixture = fit(x, 2, method="em", generator=torch.Generator().manual_seed(0)).mixture
    figure = panels(x, [(f"fit {i}", mixture) for i in range(4)], columns=3)
    titles = [axes.get_title() for axes in figure.axes if axes.axison]
    assert titles == ["fit 0", "fit 1", "fit 2", "fit 3"]
