"""Metrics: means over batches and processes, correct fractions for calibrated predictions, strict shapes of targets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scoringrules
import torch
from matplotlib.figure import Figure
from scipy import stats

from cramix import Diagonal, MultivariateNormalMixture, NormalMixture, energy_score
from cramix.metrics import CRPS, Calibration, EnergyScore
from tests.processes import in_two
from tests.refusals import refuses

D = torch.float64


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=D)


def predictions(n: int) -> NormalMixture:
    return NormalMixture(random(n, 3).softmax(-1), random(n, 3, seed=1), 0.3 + random(n, 3, seed=2).abs())


def vectors(n: int) -> MultivariateNormalMixture:
    spread = Diagonal(0.3 + random(n, 2, 3, seed=2).abs())
    return MultivariateNormalMixture(random(n, 2).softmax(-1), random(n, 2, 3, seed=1), spread)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_crps_is_the_mean_of_others(weighted: bool) -> None:
    p, y = predictions(50), random(50, seed=3)
    weights = random(50, seed=4).abs() if weighted else None
    truth = scoringrules.crps_mixnorm(y.numpy(), p.means.numpy(), p.scales.numpy(), p.weights.numpy())
    metric = CRPS()
    for part in (slice(0, 7), slice(7, 50)):
        metric.update(p[part], y[part], None if weights is None else weights[part])
    assert metric.compute().item() == pytest.approx(np.average(truth, weights=weights), rel=1e-6)
    metric.reset()
    assert metric(p[:7], y[:7]).item() == pytest.approx(truth[:7].mean(), rel=1e-6)


def test_the_energy_score_is_a_mean_over_batches() -> None:
    p, y = vectors(20), random(20, 3, seed=3)
    metric = EnergyScore()
    for i in range(4):
        part = slice(5 * i, 5 * i + 5)
        metric.update(p[part], y[part])
    torch.testing.assert_close(metric.compute(), energy_score(p, y).mean().float(), rtol=1e-5, atol=0)


def test_right_predictions_are_calibrated() -> None:
    n = 20_000
    g = torch.Generator().manual_seed(0)
    for p in (predictions(n), vectors(n)):
        metric = Calibration(bins=10)
        metric.update(p, p.sample((), generator=g))
        found = metric.compute()
        count = n * max(1, p.event_shape.numel())
        assert metric.counts.sum().item() == count
        # Two tests in a thousand of a right histogram would fail.
        assert stats.chisquare(metric.counts.numpy()).pvalue > 1e-3
        bound = 4 * (found["levels"] * (1 - found["levels"]) / count).sqrt()
        assert ((found["coverage"] - found["levels"]).abs() < bound).all()
        assert found["error"] < bound.max()


def test_coverage_is_that_of_central_intervals() -> None:
    p, y = predictions(300), random(300, seed=3)
    metric = Calibration(bins=7, levels=[0.5, 0.8])
    for part in (slice(0, 100), slice(100, 300)):
        metric.update(p[part], y[part])
    found = metric.compute()
    for level, coverage in zip((0.5, 0.8), found["coverage"], strict=True):
        low, high = p.icdf(torch.tensor([[0.5 - level / 2], [0.5 + level / 2]], dtype=D))
        assert coverage.item() == pytest.approx(((low <= y) & (y <= high)).double().mean().item(), rel=1e-6)
    counts, _ = np.histogram(p.cdf(y).numpy(), 7, (0, 1))
    np.testing.assert_allclose(found["pit"], counts / 300, rtol=1e-6)
    error = (found["coverage"] - found["levels"]).abs().mean()
    torch.testing.assert_close(found["error"], error)


def test_too_sure_and_too_wide_predictions_show() -> None:
    y = random(5000)
    for scale, sign in ((0.5, -1), (2.0, 1)):
        metric = Calibration()
        metric.update(
            NormalMixture(
                torch.ones(5000, 1, dtype=D), torch.zeros(5000, 1, dtype=D), torch.full((5000, 1), scale, dtype=D)
            ),
            y,
        )
        found = metric.compute()
        assert (sign * (found["coverage"] - found["levels"]) > 0).all()
        assert found["error"] > 0.1


_PROCESS = """
import sys, torch, torch.distributed as dist
from cramix import NormalMixture, MultivariateNormalMixture, Diagonal
from cramix.metrics import CRPS, Calibration, EnergyScore
rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=2)
g = torch.Generator().manual_seed(0)
w, m, s = torch.rand(9, 2, generator=g).softmax(-1), torch.randn(9, 2, generator=g), torch.rand(9, 2, generator=g) + 0.1
y = torch.randn(9, generator=g)
mine = slice(0, 2) if rank == 0 else slice(2, 9)  # not as many as in the other
def line(part):
    return NormalMixture(w[part], m[part], s[part])
def space(part):
    means, variances = (t[part].unsqueeze(-1).repeat(1, 1, 2) for t in (m, s))
    return MultivariateNormalMixture(w[part], means, Diagonal(variances))
def once(part):
    return y[part]
def twice(part):
    return y[part].unsqueeze(-1).repeat(1, 2)
for metric, of, target in ((CRPS(), line, once), (EnergyScore(), space, twice), (Calibration(bins=3), line, once)):
    metric.update(of(mine), target(mine))
    together = metric.compute()
    alone = type(metric)(**({"bins": 3} if isinstance(metric, Calibration) else {}))
    alone.sync_on_compute = False
    alone.update(of(slice(None)), target(slice(None)))
    expected = alone.compute()
    pairs = [(together[k], expected[k]) for k in expected] if isinstance(expected, dict) else [(together, expected)]
    for got, wanted in pairs:
        torch.testing.assert_close(got, wanted)
    if rank == 0:
        print("same")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_processes_add_up(tmp_path: Path) -> None:
    assert in_two(_PROCESS, tmp_path).split() == ["same"] * 3


def test_pictures() -> None:
    p, y = predictions(300), random(300, seed=3)
    metric = Calibration(bins=6)
    metric.update(p, y)
    figure, (left, right) = metric.plot()
    heights, edges, _ = left.patches[-1].get_data()
    np.testing.assert_allclose(heights * np.diff(edges), metric.compute()["pit"], rtol=1e-6)
    np.testing.assert_allclose(right.lines[-1].get_ydata(), metric.compute()["coverage"], rtol=1e-6)
    assert metric.plot(ax=(left, right))[0] is figure
    score = CRPS()
    score.update(p, y)
    _, axes = score.plot(ax=Figure().subplots())
    assert axes.lines[0].get_ydata()[0] == pytest.approx(score.compute().item())


def test_bad_input_is_refused() -> None:
    refuses(lambda: Calibration(bins=0), "bins", "0")
    refuses(lambda: Calibration(levels=[0.5, 1.0]), "levels", "1.0")
    refuses(lambda: Calibration().update(predictions(3), random(4)), "y", "(4,)")
    refuses(lambda: EnergyScore().update(vectors(3), random(3)), "y", "(3,)")
    refuses(lambda: CRPS().update(predictions(3), random(3), random(2).abs()), "sample_weight", "(2,)")
    refuses(lambda: CRPS().update(predictions(3), random(3), -random(3).abs()), "sample_weight", "-")
    refuses(lambda: CRPS().update(vectors(3), random(3, 3)), "p", "MultivariateNormalMixture")


METRICS = [CRPS, EnergyScore, Calibration]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("shape", [(), (1,), (4,), (5, 1), (1, 5), (2, 5), (5, 5), (1, 1, 5)])
def test_only_one_observation_for_each_mixture_is_accepted(metric: type, shape: tuple[int, ...]) -> None:
    refuses(lambda: metric().update(predictions(5), random(*shape)), "y", str(shape))
    if metric is not CRPS:
        refuses(lambda: metric().update(vectors(5), random(*shape)), "y", str(shape))
        refuses(lambda: metric().update(vectors(5), random(*shape, 3)), "y", str((*shape, 3)))


@pytest.mark.parametrize("metric", METRICS)
def test_a_mixture_without_batch_has_several_observations(metric: type) -> None:
    pairs = [(NormalMixture(random(3).softmax(-1), random(3, seed=1), torch.ones(3, dtype=D)), random(7, seed=2))]
    if metric is not CRPS:
        kind = Diagonal(0.3 + random(2, 3, seed=2).abs())
        pairs.append((MultivariateNormalMixture(random(2).softmax(-1), random(2, 3, seed=1), kind), random(7, 3)))
    for p, y in pairs:
        together, one_by_one, expanded = metric(), metric(), metric()
        together.update(p, y)
        expanded.update(p.expand((7,)), y)
        for each in y:
            one_by_one.update(p, each)
        for other in (one_by_one, expanded):
            torch.testing.assert_close(together.compute(), other.compute())
        refuses(lambda p=p, y=y: metric().update(p, y.unsqueeze(0)), "y", "(1, 7")
        refuses(lambda p=p, y=y: metric().update(p, y.unsqueeze(-1)), "y", ", 1)")


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("make", [predictions, vectors])
def test_a_weight_counts_as_so_many_observations(metric: type, make) -> None:
    if metric is CRPS and make is vectors:
        return
    p = make(40)
    y = p.sample((), generator=torch.Generator().manual_seed(0))
    times = torch.randint(0, 4, (40,), generator=torch.Generator().manual_seed(1))
    weighted, repeated = metric(), metric()
    weighted.update(p, y, times.double())
    for i in range(4):
        part = times > i
        repeated.update(p[part], y[part])
    torch.testing.assert_close(weighted.compute(), repeated.compute())


def test_observations_may_be_numpy_arrays() -> None:
    p, y = predictions(5), random(5)
    one, other = CRPS(), CRPS()
    one.update(p, y)
    other.update(p, y.numpy())
    assert one.compute() == other.compute()


def test_without_torchmetrics_the_pip_command_is_named() -> None:
    code = (
        "import sys; sys.modules['torchmetrics'] = None\ntry: import cramix.metrics\nexcept ImportError as e: print(e)"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "pip install 'cramix[metrics]'" in out
