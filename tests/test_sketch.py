"""Sketches of data along directions, against the data themselves, scipy's energy distance and laws of sums."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import energy_distance
from torch import Tensor

import cramix
from cramix import MultivariateNormalMixture, SliceSketch, sliced_cramer_distance, sliced_cramer_loss
from cramix.distance.sketch.bins import gauss_points
from cramix.distance.sketch.grid import Grid
from tests.oracle import cramer
from tests.refusals import refuses
from tests.sliced_oracle import randn, random_mixture

# Errors of sketches of 20,000 smooth rows relative to the distance, five times what was measured.
SMOOTH = 2e-4


def sketch(x, weights=None, directions=12, bins=256, **options) -> SliceSketch:
    x = torch.as_tensor(x, dtype=torch.float64)
    return SliceSketch(x.shape[1], directions, bins, **options).update(x, weights)


def true_distance(x: Tensor, y: Tensor, directions: Tensor, v=None, w=None) -> float:
    """The root of the mean of C2^2 over directions; the squares of scipy's energy distances are twice that."""
    x, y = (torch.as_tensor(side, dtype=torch.float64) for side in (x, y))
    slices = [energy_distance((x @ e).numpy(), (y @ e).numpy(), v, w) ** 2 / 2 for e in directions]
    return float(np.mean(slices)) ** 0.5


def data(name: str, seed: int = 0, n: int = 400) -> Tensor:
    """Data sets, smooth and hard."""
    x = randn(n, 2, seed=seed)
    if name == "thirds":  # in most bins a few points share mass and moments with other two
        corners = torch.tensor([-0.5, 0.0, 0.0, 0.0, 0.0, 0.5]).double() * (1 - 1e-9)
        bins = torch.arange(32).repeat_interleave(6)
        x = (bins + 0.5 + corners.repeat(32)) if seed % 2 else (bins + 0.5 + 12**-0.5 * (bins % 2 * 2 - 1))
        return torch.stack((x.double(), x.double() / 3), 1)
    return {
        "normal": lambda: x,
        "uniform": lambda: torch.special.ndtr(x),
        "integers": lambda: (3 * x).round(),
        "tenths": lambda: (10 * x).round() / 10,
        "edges": lambda: (64 * x).round() / 64,
        "cauchy": lambda: x / randn(n, 1, seed=seed + 100),
        "lognormal": lambda: (2 * x).exp(),
        "outlier": lambda: torch.cat((x, torch.tensor([[1e6, -1e6]]))),
        "far": lambda: x + 1e9,
        "wide": lambda: x * torch.tensor([1e-8, 1e8]),
        "constant": lambda: torch.full_like(x, 0.3 + seed),
        "two values": lambda: (x > 0.3).double() * 0.7 + 0.1,
        "one row": lambda: x[:1],
    }[name]()


HARD = [
    "uniform", "integers", "tenths", "edges", "cauchy", "lognormal", "outlier", "far", "wide", "constant", "thirds",
    "two values", "one row",
]  # fmt: skip


def near(found, truth: float, tolerance: float) -> None:
    assert abs(float(found) - truth) <= tolerance * abs(truth), (float(found), truth)


# Values


@pytest.mark.parametrize("d", [1, 2, 5])
def test_distances_are_those_of_the_data(d: int) -> None:
    x, y = randn(20_000, d, seed=1), 1.1 * randn(20_000, d, seed=2) + 0.1
    p, q = sketch(x, directions=5, bins=1024), sketch(y, directions=5, bins=1024)
    truth = true_distance(x, y, p.directions)
    near(sliced_cramer_distance(p, q), truth, SMOOTH)
    near(sliced_cramer_distance(q, p), truth, SMOOTH)
    near(sliced_cramer_distance(p, y), truth, 5 * SMOOTH)
    near(sliced_cramer_distance(x.numpy(), q), truth, 5 * SMOOTH)


def test_an_error_of_one_percent_fails() -> None:
    x, y = randn(20_000, 2, seed=1), randn(20_000, 2, seed=2) + 0.1
    p, q = sketch(x), sketch(y * 1.01)
    with pytest.raises(AssertionError):
        near(sliced_cramer_distance(p, q), true_distance(x, y, p.directions), 5 * SMOOTH)


def test_with_one_row_per_bin_distances_are_exact() -> None:
    x, y = randn(40, 2, seed=1), randn(30, 2, seed=2)
    p, q = sketch(x, bins=1 << 16), sketch(y, bins=1 << 16)
    near(sliced_cramer_distance(p, q), true_distance(x, y, p.directions), 1e-6)


def test_normalizations_are_those_of_slices() -> None:
    x, y = randn(500, 3, seed=1), randn(500, 3, seed=2) + 1
    p, q = sketch(x, bins=1 << 12), sketch(y, bins=1 << 12)
    for normalization in ("mean", "sum", "integral"):
        truth = sliced_cramer_distance(x, y, p.directions, normalization)
        near(sliced_cramer_distance(p, q, normalization=normalization), float(truth), 1e-5)


def test_columns_are_their_distributions() -> None:
    x = randn(5000, 3, seed=3) * torch.tensor([1.0, 10.0, 1e-3]).double()
    columns = sketch(x, bins=1024).columns
    for q in (0.1, 0.5, 0.9):
        assert ((columns.icdf(q) - x.quantile(q, 0)).abs() < 0.01 * x.std(0)).all()
    torch.testing.assert_close(columns.mean, x.mean(0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(columns.variance, x.var(0, correction=0))


@given(st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=8), st.lists(st.integers(1, 9), min_size=8, max_size=8))
def test_gauss_points_have_the_moments_of_their_bin(places: list[float], weights: list[int]) -> None:
    u, w = np.array(places), np.array(weights[: len(places)], dtype=float)
    moments = torch.tensor([float((w * u**k).sum()) for k in range(4)], dtype=torch.float64)
    shares, points = gauss_points(moments)
    assert (shares >= 0).all()
    assert (points.abs() <= 0.5 + 1e-12).all()
    for k in range(4):
        # Where the variance is below 1e-8 the third moment is that of a symmetric pair.
        tolerance = 1e-12 if k < 3 else 1e-8
        assert abs(float((shares * points**k).sum()) - float(moments[k] / moments[0])) < tolerance


# Bounds


@pytest.mark.parametrize("bins", [16, 256])
@pytest.mark.parametrize("first", [*HARD, "normal"])
def test_bounds_hold_on_hard_data(first: str, bins: int) -> None:
    for second in ("normal", first):
        x, y = data(first, 1), data(second, 2)
        p, q = sketch(x, directions=3, bins=bins), sketch(y, directions=3, bins=bins)
        truth = true_distance(x, y, p.directions)
        rounding = 1e-7 * max(x.abs().max(), y.abs().max()).item() ** 0.5
        low, high = p.distance_bounds(q)
        assert low - rounding <= truth <= high + rounding
        assert abs(sliced_cramer_distance(p, q).item() - truth) <= p.error_bound + q.error_bound + rounding


places = st.lists(st.integers(0, 64).map(lambda i: i / 64) | st.floats(0, 1), min_size=1, max_size=30)


@given(places, places, st.floats(0.001, 1.0), st.floats(0.3, 4.0))
def test_bounds_hold_on_any_data(x: list[float], y: list[float], scale: float, stretch: float) -> None:
    x, y = (torch.tensor([0.0, *side, 1.0], dtype=torch.float64).unsqueeze(1) for side in (x, y))
    y = stretch * y
    p, q = sketch(x, bins=8), sketch(y, bins=8)
    mixture = MultivariateNormalMixture([1.0], [[0.5]], [[[scale**2]]]).to(dtype=torch.float64)
    truth, to_mixture = true_distance(x, y, p.directions), sliced_cramer_distance(x, mixture, p.directions).item()
    for other, true, bound in ((q, truth, p.error_bound + q.error_bound), (mixture, to_mixture, p.error_bound)):
        low, high = p.distance_bounds(other)
        assert low - 1e-7 <= true <= high + 1e-7
        assert abs(sliced_cramer_distance(p, other).item() - true) <= bound + 1e-7


@pytest.mark.parametrize("far", [3.0, 20.0, 1e6])
def test_bounds_hold_in_bins_of_different_widths(far: float) -> None:
    """In common bins nothing would be left of the shape of x."""
    x = data("normal", 1)[:, :1]
    y = torch.cat((torch.zeros(10_000, 1), torch.tensor([[far]]))).double()
    for first, second in ((x, y), (y, x), (x, x + far)):
        p, q = sketch(first), sketch(second)
        truth, found = true_distance(first, second, p.directions), sliced_cramer_distance(p, q).item()
        low, high = p.distance_bounds(q)
        assert low - 1e-7 <= truth <= high + 1e-7
        assert abs(found - truth) <= min(p.error_bound + q.error_bound, 1e-3 * truth)


@pytest.mark.parametrize("bins", [16, 256])
@pytest.mark.parametrize("name", [*HARD, "normal"])
def test_bounds_to_mixtures_hold(name: str, bins: int) -> None:
    x, p = data(name, 1), random_mixture(d=2, seed=3)
    q = sketch(x, directions=3, bins=bins)
    truth = sliced_cramer_distance(x, p, q.directions).item()
    rounding = 1e-7 * x.abs().max().item() ** 0.5
    low, high = q.distance_bounds(p)
    assert low - rounding <= truth <= high + rounding
    assert abs(sliced_cramer_distance(q, p).item() - truth) <= q.error_bound + rounding


def test_bounds_are_tight() -> None:
    x, y = data("normal", 1, 20_000), data("normal", 2, 20_000) + 0.5
    p, q = sketch(x, bins=1024), sketch(y, bins=1024)
    truth = true_distance(x, y, p.directions)
    low, high = p.distance_bounds(q)
    assert (1 - 1e-5) * truth < low <= truth <= high < (1 + 1e-3) * truth
    assert p.error_bound < 0.01
    assert sketch(x, bins=2048).error_bound < 0.55 * p.error_bound
    # Data whose bins have the moments of two points, but are three: no bound could be half as large.
    p, q = (sketch(data("thirds", i, 1)[:, :1], directions=1, bins=32) for i in (0, 1))
    low, high = p.distance_bounds(q)
    truth = true_distance(data("thirds", 0, 1)[:, :1], data("thirds", 1, 1)[:, :1], p.directions)
    assert low <= truth <= high < 2 * truth


# Laws

# Subnormal numbers may round to 0, the edge of a bin.
numbers = (
    st.floats(-1e6, 1e6, allow_subnormal=False)
    | st.integers(-20, 20).map(float)
    | st.floats(-1e-3, 1e-3, allow_subnormal=False)
)
rows = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12)


def on_axes(x, weights=None, bins: int = 16) -> SliceSketch:
    """Along axes alone, whose projections do not round, so that no row crosses the edge of a bin."""
    return SliceSketch(2, torch.eye(2), bins).update(torch.tensor(x, dtype=torch.float64).reshape(-1, 2), weights)


def same(p: SliceSketch, q: SliceSketch) -> None:
    a, b = p._tensors(), q._tensors()
    for name in ("low", "high"):
        assert torch.equal(a[name], b[name])
    size = 1 + a["high"].abs().max() + a["low"].abs().max()
    torch.testing.assert_close(a["weight"], b["weight"])
    torch.testing.assert_close(a["mean"], b["mean"], rtol=0, atol=1e-12 * size.item())
    torch.testing.assert_close(a["scatter"], b["scatter"], rtol=1e-9, atol=1e-11 * size.item() ** 2)
    torch.testing.assert_close(a["moments"], b["moments"], rtol=1e-9, atol=1e-9)


@given(rows, rows, rows)
def test_merging_is_associative_and_commutative(x, y, z) -> None:
    a, b, c = on_axes(x), on_axes(y), on_axes(z)
    same((a + b) + c, a + (b + c))
    same(a + b, b + a)
    same(sum([a, b, c]), on_axes(x + y + z))
    assert (a + SliceSketch(2, torch.eye(2), 16)) == a == on_axes(x)


@given(rows, st.randoms(use_true_random=False), st.integers(1, 5))
def test_order_and_partition_do_not_matter(x, random, step: int) -> None:
    shuffled = random.sample(x, len(x))
    grown = SliceSketch(2, torch.eye(2), 16)
    for start in range(0, len(x), step):
        grown.update(torch.tensor(shuffled[start : start + step], dtype=torch.float64))
    same(grown, on_axes(x))


@given(rows, rows)
def test_a_range_that_grows_is_a_range_known_beforehand(x, y) -> None:
    """Bins that had to cover everything from the start hold the same."""
    both = on_axes(x + y)
    grown = on_axes(x).histograms.on(both.histograms.grid) + on_axes(y).histograms.on(both.histograms.grid)
    torch.testing.assert_close(grown, both.histograms.moments, rtol=1e-9, atol=1e-9)


@given(rows, st.lists(st.integers(0, 3), min_size=12, max_size=12))
def test_a_weight_is_a_repetition(x, counts: list[int]) -> None:
    counts = counts[: len(x)]
    weighted = on_axes(x, torch.tensor(counts))
    assert weighted.n_samples == sum(count > 0 for count in counts)
    same(weighted, on_axes([row for row, count in zip(x, counts, strict=True) for _ in range(count)]))


@given(numbers, numbers, numbers, st.integers(8, 40))
def test_grids_cover_nest_and_never_get_finer(a: float, b: float, c: float, bins: int) -> None:
    low, high = torch.tensor([min(a, b)]).double(), torch.tensor([max(a, b)]).double()
    grid, wider = Grid.over(low, high, bins), Grid.over(low.clamp_max(c), high.clamp_min(c), bins)
    edges = grid.edges(bins)[0]
    assert edges[0] <= low < edges[1]
    assert high < edges[-1]
    assert grid.exponent <= wider.exponent
    if high > low and grid.exponent > torch.frexp(torch.maximum(low.abs(), high.abs())).exponent - 39:
        assert edges[-1] - edges[0] < 4.1 * (high - low) * bins / (bins - 2)


def test_partition_along_drawn_directions() -> None:
    for name in HARD:
        x = data(name)
        whole, parts = sketch(x), sum(sketch(part) for part in x.split(7))
        size = max(x.abs().max().item(), 1e-300)
        # Rounding of variances of 0 moves points by 1e-8 of a bin, which adds as much of its mass to a loss.
        assert sliced_cramer_distance(whole, parts).item() < 1e-5 * size**0.5, name


def test_doubling_the_data_doubles_the_grid() -> None:
    p, q = (sketch(scale * data("normal")) for scale in (1, 1024))
    assert torch.equal(p.histograms.moments, q.histograms.moments)
    assert torch.equal(p.histograms.grid.exponent + 10, q.histograms.grid.exponent)


def test_sketches_on_any_machine_have_the_same_directions() -> None:
    assert torch.equal(SliceSketch(3, 7).directions, SliceSketch(3, 7, 8, seed=0).directions)
    assert not torch.allclose(SliceSketch(3, 7).directions, SliceSketch(3, 7, seed=1).directions)
    expected = np.random.RandomState(0).standard_normal((3, 3, 3))[0, :, 0]
    first = SliceSketch(3, 7).directions[0].numpy()
    np.testing.assert_allclose(first, expected / np.linalg.norm(expected), atol=1e-14)


# Moments


def test_mean_and_covariance_are_exact() -> None:
    x = randn(999, 3, seed=5) * torch.tensor([1.0, 2.0, 1e-3]).double() + 1e6
    w = randn(999, seed=6).exp()
    p = sum(sketch(part, weight) for part, weight in zip(x.split(100), w.split(100), strict=True))
    torch.testing.assert_close(p.mean, torch.as_tensor(np.average(x, 0, w)), rtol=1e-14, atol=0)
    torch.testing.assert_close(p.covariance, torch.as_tensor(np.cov(x.T, aweights=w, ddof=0)), rtol=1e-6, atol=1e-12)
    near(p.total_weight, w.sum().item(), 1e-14)
    assert p.n_samples == 999
    assert torch.equal(p.minimum, x.amin(0))
    assert torch.equal(p.maximum, x.amax(0))


# Losses


def test_losses_and_gradients_are_those_of_all_points() -> None:
    x = torch.cat((randn(10_000, 2, seed=1), 0.5 * randn(10_000, 2, seed=2) + 3))
    q = sketch(x, directions=16)
    p = random_mixture(d=2, seed=3)
    leaves = [t.clone().requires_grad_() for t in (p.weights, p.means, p.covariances)]

    def gradients(target, **options):
        loss = sliced_cramer_loss(MultivariateNormalMixture(*leaves, validate_args=False), target, **options)
        return loss.item(), torch.autograd.grad(loss, leaves)

    truth, true_gradients = gradients(x, directions=q.directions)
    found, found_gradients = gradients(q)
    near(found, truth, 1e-5)
    for a, b in zip(found_gradients, true_gradients, strict=True):
        assert (a - b).norm() < 1e-6 * b.norm()
    without, same_gradients = gradients(q, target_self_energy=False)
    assert without > found
    for a, b in zip(found_gradients, same_gradients, strict=True):
        torch.testing.assert_close(a, b)
    with pytest.raises(AssertionError):
        near(1.01 * found, truth, 1e-5)


def test_a_loss_of_few_points_by_high_precision() -> None:
    x = randn(20, 1, seed=1)
    p = random_mixture(d=1, k=2, seed=2)
    truth = cramer(p.marginal(0), cramix.NormalMixture.from_samples(x[:, 0]))
    near(sliced_cramer_loss(p, sketch(x, bins=1 << 14)), truth, 1e-6)


def test_the_loss_of_a_fit_that_is_right_is_as_small_as_for_the_data() -> None:
    """Steps of points in place of data would add 2e-5 to a loss of 1e-5."""
    x, p = randn(20_000, 2, seed=4), random_mixture(d=2, k=1, seed=5)
    x = p.sample((20_000,), generator=torch.Generator().manual_seed(0))
    q = sketch(x, bins=128)
    truth = sliced_cramer_loss(p, x, directions=q.directions).item()
    assert abs(sliced_cramer_loss(p, q).item() - truth) < 0.1 * truth


def test_modules_batches_dtypes_and_weights() -> None:
    q = sketch(randn(500, 2, seed=1), directions=4)
    p = random_mixture(3, d=2, seed=2, dtype=torch.float32)
    each = sliced_cramer_loss(p, q, reduction="none")
    assert each.dtype == torch.float32
    assert each.shape == (3,)
    for i in range(3):
        torch.testing.assert_close(each[i], sliced_cramer_loss(p[i], q))
    torch.testing.assert_close(cramix.SlicedCramerLoss()(p, q), each.mean())
    weight = torch.tensor([1.0, 0.0, 3.0])
    torch.testing.assert_close(cramix.SlicedCramerLoss()(p, q, weight), (weight * each).sum() / 4)
    torch.testing.assert_close(sliced_cramer_distance(p, q), each.sqrt())
    blocks = q.losses(p, block=64)
    torch.testing.assert_close(blocks.mean(-1), each)


def test_a_distance_of_zero_has_a_gradient() -> None:
    p = sketch(data("normal"))
    assert sliced_cramer_distance(p, p) == 0
    mixture = random_mixture(d=2, k=1, seed=5)
    x = mixture.sample((3000,), generator=torch.Generator().manual_seed(1))
    means = mixture.means.clone().requires_grad_()
    moved = MultivariateNormalMixture(mixture.weights, means, mixture.covariance_kind)
    loss = sliced_cramer_loss(moved, sketch(x, bins=16))
    assert loss >= 0
    assert torch.autograd.grad(loss, means)[0].norm() > 0


def test_gradients_come_through_in_inference_mode_and_after_it() -> None:
    x = data("normal")
    with torch.inference_mode():
        q = sketch(x)
        assert q.error_bound > 0
        q.slices  # noqa: B018, computed here and used below
    means = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    p = MultivariateNormalMixture(torch.ones(1).double(), means, torch.eye(2).double().unsqueeze(0))
    sliced_cramer_loss(p, q.update(x)).backward()
    assert means.grad is not None
    assert means.grad.isfinite().all()


# Values of a value


def test_copies_pickles_and_equality() -> None:
    p = sketch(data("normal"))
    for copied in (copy.copy(p), copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
        assert copied == p
        assert copied is not p
        copied.update(data("normal", 3))
        assert copied != p
    assert p == sketch(data("normal"))
    assert p != sketch(data("normal"), bins=128)
    assert p != "p"
    with pytest.raises(TypeError):
        hash(p)
    q = sketch(data("normal", 1))
    before = copy.copy(q)
    assert (p + q).n_samples == 800
    assert q == before


def test_repr_tells_what_is_in_it() -> None:
    assert repr(SliceSketch(3, 7, 64)).startswith("SliceSketch(n_samples=0, dim=3, directions=7, bins=64, range=none")
    p = SliceSketch(2, 4, 64).update([[-1.5, 0.0], [2.0, 3.25]])
    assert repr(p) == f"SliceSketch(n_samples=2, dim=2, directions=4, bins=64, range=[-1.5, 3.25], nbytes={p.nbytes:,})"
    assert 6 * 64 * 32 <= p.nbytes < 6 * 64 * 32 + 1000


def test_arrays_tables_and_lists_are_rows() -> None:
    x = randn(50, 2, seed=1)
    truth = SliceSketch(2, 4, 64).update(x)
    table = pandas.DataFrame(x.numpy(), columns=["a", "b"])
    for given_rows in (x.numpy(), table, x.tolist(), x.clone().requires_grad_()):
        assert SliceSketch(2, 4, 64).update(given_rows) == truth
    assert SliceSketch(2, 4, 64).update(x.float(), np.ones(50)) == SliceSketch(2, 4, 64).update(x.float())
    assert SliceSketch(1).update(x[:, 0]) == SliceSketch(1).update(x[:, :1])


def test_an_empty_batch_does_nothing() -> None:
    p = SliceSketch(2, 4, 64)
    assert p.update(torch.empty(0, 2)) == SliceSketch(2, 4, 64) == p.update(torch.ones(3, 2), torch.zeros(3))
    p.update([[1.0, 2.0]])
    before = copy.copy(p)
    assert p.update(np.empty((0, 2)), np.empty(0)) == before


# Files


def test_files_are_exact_to_the_bit(tmp_path: Path) -> None:
    for p in (sketch(data("cauchy")), SliceSketch(2, 5, 32), SliceSketch(1).update([0.1])):
        p.save(tmp_path / "p")
        found = SliceSketch.load(tmp_path / "p")
        assert found == p
        assert repr(found) == repr(p)
        assert found.update(data("normal")[:, : p.dim]) == copy.copy(p).update(data("normal")[:, : p.dim])
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_files_that_are_no_sketches_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    p = sketch(data("normal"))
    p.save(tmp_path / "p")
    content = (tmp_path / "p").read_bytes()
    (tmp_path / "cut").write_bytes(content[:-100])
    (tmp_path / "pickle").write_bytes(pickle.dumps(p))
    for name in ("cut", "pickle"):
        with pytest.raises(ValueError, match="must be a whole safetensors file"):
            SliceSketch.load(tmp_path / name)
    cramix.save(random_mixture(d=2), tmp_path / "mixture")
    with pytest.raises(ValueError, match="must hold a sketch of format 1; got none"):
        SliceSketch.load(tmp_path / "mixture")
    good = {name: x.contiguous() for name, x in p._tensors().items()}
    for name, bad in {
        "moments": good["moments"][:, 1:].contiguous(),
        "mean": good["mean"].float(),
        "low": good["high"] + 1,
        "weight": torch.tensor(-1.0).double(),
        "directions": torch.full_like(good["directions"], torch.nan),
        "other": torch.zeros(1),
    }.items():
        save_file({**good, name: bad}, tmp_path / "bad", {"cramix_sketch": "1"})
        with pytest.raises(ValueError, match="must hold a sketch that save has written; got"):
            SliceSketch.load(tmp_path / "bad")


# Bad input


def test_bad_arguments_are_refused() -> None:
    refuses(lambda: SliceSketch(0), "dim", "0", ">= 1")
    refuses(lambda: SliceSketch(2, 0), "directions", "0")
    refuses(lambda: SliceSketch(2, "exact"), "directions", "'exact'")
    refuses(lambda: SliceSketch(2, torch.eye(3)), "directions", "(3, 3)", "(t, 2)")
    refuses(lambda: SliceSketch(2, torch.zeros(1, 2)), "directions", "1 of length 0")
    refuses(lambda: SliceSketch(2, 4, 7), "bins", "7", ">= 8")
    refuses(lambda: SliceSketch(2, seed=-1), "seed", "-1")


def test_bad_rows_are_refused_and_change_nothing() -> None:
    p = sketch(data("normal"), directions=4)
    before = copy.copy(p)
    x = torch.zeros(3, 2)
    refuses(lambda: p.update(torch.zeros(3, 4)), "batch", "(3, 4)", "(n, 2)")
    refuses(lambda: p.update(torch.zeros(3)), "batch", "(3,)", "(n, 2)")
    refuses(lambda: p.update([[0.0, np.nan], [1.0, 2.0]]), "batch", "nan (1 of 4 values)", "finite")
    refuses(lambda: p.update([[0.0, np.inf]]), "batch", "inf", "finite")
    refuses(lambda: p.update([[0.0, 1e200]]), "batch", "1e+200", "at most")
    refuses(lambda: p.update([["a", "b"]]), "batch", "text", "numbers")
    refuses(lambda: p.update(x, torch.tensor([1.0, -2.0, 0.0])), "sample_weight", "min -2", ">= 0")
    refuses(lambda: p.update(x, torch.tensor([1.0, np.nan, 0.0])), "sample_weight", "nan", "finite")
    refuses(lambda: p.update(x, torch.ones(2)), "sample_weight", "(2,)", "(3,)")
    assert p == before


def test_sketches_that_do_not_fit_are_refused() -> None:
    p = sketch(data("normal"), directions=4)
    refuses(lambda: p.merge(sketch(torch.zeros(1, 3))), "sketch and other", "2 and 3", "as many columns")
    refuses(lambda: p + SliceSketch(2, 5, 256), "other", "4 and 5", "same directions")
    refuses(lambda: p + SliceSketch(2, 4, 256, seed=1), "other", "others", "same directions")
    refuses(lambda: p + SliceSketch(2, 4, 128), "other", "256 and 128", "as many bins")
    refuses(lambda: p.merge("q"), "other", "str", "SliceSketch")
    with pytest.raises(TypeError):
        p + 1
    refuses(lambda: sliced_cramer_distance(p, SliceSketch(2, 4, 256)), "q", "empty", "rows")
    refuses(lambda: sliced_cramer_distance(p, sketch(data("normal"), directions=5)), "q", "4 and 5", "same directions")
    refuses(lambda: sliced_cramer_distance(p, torch.zeros(1, 3)), "q", "3", "2")
    refuses(lambda: sliced_cramer_distance(p, p, 16), "directions", "int", "left out")
    refuses(lambda: sliced_cramer_distance(p, p, torch.eye(2)), "directions", "Tensor", "left out")
    for attribute in ("mean", "covariance", "minimum", "maximum", "slices", "columns", "error_bound"):
        refuses(lambda name=attribute: getattr(SliceSketch(2), name), "sketch", "empty", "rows")


def test_losses_that_know_no_sketches_say_so() -> None:
    p, q = random_mixture(d=2), sketch(data("normal"))
    refuses(lambda: cramix.nll_loss(p, q), "target", "SliceSketch")
    refuses(lambda: cramix.sliced_wasserstein_loss(p, q), "target", "SliceSketch")
    refuses(lambda: cramix.cramer_distance(p.marginal(0), q), "q", "SliceSketch")
    refuses(lambda: sliced_cramer_loss(p, q, sample_weight=[1.0]), "sample_weight", "list", "None")
    refuses(lambda: sliced_cramer_loss(p.marginal(0), q), "p", "NormalMixture")
    refuses(lambda: sliced_cramer_loss(p, sketch(torch.zeros(1, 3))), "p", "2", "3")
    refuses(lambda: sliced_cramer_loss(p, q, directions=8), "directions", "int", "left out")
    refuses(lambda: q.distance_bounds(random_mixture(3, d=2)), "other", "(3,)", "without batch")
    refuses(lambda: q.distance_bounds(torch.zeros(3, 2)), "other", "Tensor", "MultivariateNormalMixture")
    refuses(lambda: q.distance_bounds(random_mixture(d=3)), "other", "3", "as many columns")
    x = MultivariateNormalMixture.from_samples(data("normal"))
    refuses(lambda: sliced_cramer_loss(x, q, target_self_energy=False), "target_self_energy", "False")
