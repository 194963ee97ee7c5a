"""The sliced Cramér distance without slices, against slices, closed forms and other libraries."""

from __future__ import annotations

import gc
import math

import pytest
import torch

from cramix import MultivariateNormalMixture, Spherical, sliced_cramer_loss
from cramix.distance import energy
from cramix.distance.exact import points_energy
from tests.sliced_oracle import factor_of, randn, random_mixture


def test_batches_of_points_and_of_mixtures_broadcast() -> None:
    p, x = random_mixture(3, seed=1), randn(2, 1, 7, 2, seed=2)
    together = sliced_cramer_loss(p, x, reduction="none")
    assert together.shape == (2, 3)
    for i in range(2):
        torch.testing.assert_close(together[i], sliced_cramer_loss(p, x[i, 0], reduction="none"))
    y = randn(3, 7, 2, seed=3)
    p = random_mixture(2, 3, seed=4)
    together = sliced_cramer_loss(p, y, reduction="none")
    for i in range(3):
        alone = sliced_cramer_loss(random_mixture(2, 3, seed=4), y[i], reduction="none")
        torch.testing.assert_close(together[:, i], alone[:, i])


@pytest.mark.parametrize("d", [1, 2, 5])
def test_without_the_target_term_the_own_energy_of_the_points_is_left_out(d: int) -> None:
    p, x, w = random_mixture(d=d, seed=5), randn(40, d, seed=6), randn(40, seed=7).exp()
    w = w / w.sum()
    own = 0.5 * torch.einsum("i,ij,j->", w, torch.cdist(x, x), w)
    q = MultivariateNormalMixture.from_samples(x, w)
    without = sliced_cramer_loss(p, q, target_term=False)
    assert without.item() - factor_of(d) * own.item() == pytest.approx(sliced_cramer_loss(p, q).item(), abs=3e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1e-30, 1e-3, 7.0, 1e30])
def test_directions_of_any_length(length: float, dtype: torch.dtype) -> None:
    p, x = random_mixture(d=3, seed=8, dtype=dtype), randn(20, 3, seed=9, dtype=dtype)
    directions = randn(5, 3, seed=10, dtype=dtype)
    expected = sliced_cramer_loss(p, x, directions)
    torch.testing.assert_close(sliced_cramer_loss(p, x, length * directions), expected)


def _other_data(x: torch.Tensor) -> None:
    x.data = 3 * randn(*x.shape, seed=12)


@pytest.mark.parametrize(
    "change",
    [lambda x: x.mul_(3), lambda x: x.data.mul_(3), lambda x: x.numpy().__imul__(3), _other_data],
    ids=["in place", "through data", "through numpy", "other data"],
)
def test_the_own_energy_of_points_is_not_taken_from_memory_after_a_change(change) -> None:
    p, x = random_mixture(seed=11), randn(30, 2, seed=12)
    before = sliced_cramer_loss(p, x)
    change(x)
    after = sliced_cramer_loss(p, x)
    assert after != before
    assert after == sliced_cramer_loss(p, x.clone())


def test_the_own_energy_of_points_is_not_taken_from_memory_for_other_weights() -> None:
    p, x = random_mixture(seed=11), randn(30, 2, seed=12)
    a, b = (MultivariateNormalMixture.from_samples(x, w) for w in (None, randn(30, seed=13).exp()))
    values = [sliced_cramer_loss(p, q).item() for q in (a, b, a, b)]
    copied = MultivariateNormalMixture.from_samples(x.clone(), b.weights)
    assert values[0] == values[2] != values[1] == values[3] == sliced_cramer_loss(p, copied).item()


def test_the_memory_of_own_energies_is_used_and_ends_with_the_points(monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(energy, "points_energy", lambda points: calls.append(0) or points_energy(points))
    p, x = random_mixture(seed=11), randn(30, 2, seed=12)
    held = len(energy._known)
    for _ in range(3):
        sliced_cramer_loss(p, x)
    assert len(calls) == 1
    assert len(energy._known) == held + 1
    del x
    gc.collect()
    assert len(energy._known) == held


def test_an_own_energy_from_inference_serves_a_training_step() -> None:
    p, x = random_mixture(seed=11), randn(30, 2, seed=12)
    with torch.inference_mode():
        inside = sliced_cramer_loss(p, x)
    means = p.means.clone().requires_grad_()
    value = sliced_cramer_loss(MultivariateNormalMixture(p.weights, means, p.covariances), x)
    value.backward()
    assert value.item() == pytest.approx(inside.item(), rel=1e-14)
    assert means.grad.abs().max() > 1e-3


def test_any_layout_in_memory() -> None:
    p, x = random_mixture(4, d=3, seed=14), randn(4, 20, 3, seed=15)
    weights, means, matrices = (
        t.permute(*reversed(range(t.ndim))).contiguous().permute(*reversed(range(t.ndim)))
        for t in (p.weights, p.means, p.covariances)
    )
    turned = MultivariateNormalMixture(weights, means, matrices)
    y = x.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert not y.is_contiguous()
    assert not means.is_contiguous()
    expected = sliced_cramer_loss(p, x, reduction="none")
    for a, b in ((turned, x), (p, y), (turned, y), (y, turned)):
        torch.testing.assert_close(sliced_cramer_loss(a, b, reduction="none"), expected)
    q = random_mixture(4, d=3, seed=16)
    torch.testing.assert_close(sliced_cramer_loss(turned, q), sliced_cramer_loss(p, q))
    torch.testing.assert_close(sliced_cramer_loss(y, x + 1), sliced_cramer_loss(x, x + 1))


def test_elements_of_a_batch_with_shared_points_do_not_disturb_each_other() -> None:
    """One far away, and one without any size: a point on the only point."""
    p, x = random_mixture(seed=17), randn(9, 2, seed=18)
    far = MultivariateNormalMixture(p.weights.expand(2, 3), torch.stack((p.means, p.means + 1e9)), p.covariances)
    values = sliced_cramer_loss(far, x, reduction="none").tolist()
    assert values[0] == pytest.approx(sliced_cramer_loss(p, x).item(), abs=1e-6)
    assert values[1] == pytest.approx(1e9 * 2**0.5 * factor_of(2), rel=1e-6)
    variances = torch.tensor([[0.0], [1e-18]], dtype=torch.float64)
    zeros = torch.zeros(2, 1, 2, dtype=torch.float64)
    none = MultivariateNormalMixture(torch.ones(2, 1, dtype=torch.float64), zeros, Spherical(variances))
    values = sliced_cramer_loss(none, zeros[0], reduction="none").tolist()
    # E|sZ| - 1/2 E|sqrt(2) sZ| with E|Z| = sqrt(pi / 2) in the plane
    assert values == pytest.approx([0, factor_of(2) * (math.pi / 2) ** 0.5 * (1 - 0.5**0.5) * 1e-9], abs=1e-15)


@pytest.mark.parametrize("outlier", [0.0, 1e3, 1e5])
@pytest.mark.parametrize(("k", "n"), [(3, 100), (10, 2001), (1, 17000)], ids=["small", "blocks", "many points"])
def test_float32_keeps_one_in_a_million(k: int, n: int, outlier: float) -> None:
    p, x = random_mixture(k=k, seed=19, dtype=torch.float32), randn(n, 2, seed=20, dtype=torch.float32)
    x[0] += outlier
    truth = sliced_cramer_loss(p.to(torch.float64), x.double(), tolerance=1e-11).item()
    size = x.double().square().sum(-1).mean().sqrt().item()
    assert sliced_cramer_loss(p, x).item() == pytest.approx(truth, abs=1e-6 * size)


@pytest.mark.parametrize("d", [2, 5, 10])
def test_many_equal_points_in_float32(d: int) -> None:
    """Half of them are one, whose distances to each other must come out as 0."""
    n = 17_000
    p, x = random_mixture(d=d, k=1, seed=70, dtype=torch.float32), randn(n, d, seed=71, dtype=torch.float32)
    x[: n // 2] = x[0]
    weights = torch.cat((torch.tensor([n / 2]), torch.ones(n // 2))).double()
    merged = MultivariateNormalMixture.from_samples(torch.cat((x[:1], x[n // 2 :])).double(), weights)
    truth = sliced_cramer_loss(p.to(torch.float64), merged, tolerance=1e-10).item()
    assert sliced_cramer_loss(p, x).item() == pytest.approx(truth, abs=1e-6)


def test_equal_points_feel_no_force_from_each_other() -> None:
    x = randn(40, 5, seed=72).requires_grad_()
    value = sliced_cramer_loss(x, x.detach()[torch.arange(39, -1, -1)])
    assert value < 1e-15
    assert torch.autograd.grad(value, x)[0].abs().max() < 1e-15
