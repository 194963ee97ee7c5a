"""Heads: mixtures of the right shape, initialized from targets, bounded scales, invariance to units."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from cramix import (
    CramerLoss,
    Diagonal,
    EnergyScore,
    Factor,
    MixtureHead,
    MultivariateNormalMixture,
    NormalMixture,
    Spherical,
)
from tests.refusals import refuses

KINDS = ["diag", "full", "spherical", "low_rank"]
D = torch.float64


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=D)


def head(n_components: int = 3, event_dim: int = 1, covariance_type: str = "diag", **settings: object) -> MixtureHead:
    torch.manual_seed(0)
    return MixtureHead(4, n_components, event_dim, covariance_type, dtype=D, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [(), (5,), (2, 5), (0,)])
def test_a_mixture_for_each_feature_vector(batch: tuple[int, ...]) -> None:
    p = head()(normal(*batch, 4))
    assert isinstance(p, NormalMixture)
    assert p.batch_shape == batch
    assert p.n_components == 3
    q = head(event_dim=2, covariance_type="full")(normal(*batch, 4))
    assert isinstance(q, MultivariateNormalMixture)
    assert (q.batch_shape, q.n_components, q.dim) == (batch, 3, 2)


@pytest.mark.parametrize(
    ("covariance", "kind", "free"),
    [("diag", Diagonal, 3), ("full", Factor, 6), ("spherical", Spherical, 1), ("low_rank", Factor, 9)],
)
def test_each_covariance_type_has_its_unconstrained_numbers(covariance: str, kind: type, free: int) -> None:
    made = head(2, 3, covariance, rank=2)
    p = made(normal(5, 4))
    assert isinstance(p.covariance_kind, kind)
    assert made.linear.out_features == 2 * (1 + 3 + free)
    eigenvalues = torch.linalg.eigvalsh(p.covariances)
    assert (eigenvalues > 0).all()
    # Every unconstrained number has an effect on the weights, means or covariances.
    jacobian = torch.func.jacrev(lambda b: _numbers(made, b))(made.linear.bias)
    assert torch.linalg.matrix_rank(jacobian) == 1 + 2 * (3 + min(free, 6))


def _numbers(made: MixtureHead, bias: torch.Tensor) -> torch.Tensor:
    x = normal(1, 4)
    p = torch.func.functional_call(made, {"linear.bias": bias}, (x,))
    return torch.cat([t.flatten() for t in (p.weights, p.means, p.covariances)])


def test_a_low_rank_is_a_diagonal_and_some_directions() -> None:
    made = head(1, 4, "low_rank", rank=2)
    with torch.no_grad():
        made.linear.bias.normal_(generator=torch.Generator().manual_seed(1))
    (covariance,) = made(normal(4)).covariances.detach()
    free = made.linear(normal(4)).detach()[5:]
    v = free[4:].view(2, 4)
    expected = torch.diag((1e-3 + torch.nn.functional.softplus(free[:4])).square()) + v.T @ v
    torch.testing.assert_close(covariance, expected)


def test_components_start_at_quantiles_of_the_targets() -> None:
    y = torch.from_numpy(np.random.default_rng(0).gamma(2, 50, 1000))
    p = head(4, targets=y)(torch.zeros(4, dtype=D))
    np.testing.assert_allclose(
        p.means.detach(), np.quantile(y, [0.125, 0.375, 0.625, 0.875], method="inverted_cdf"), rtol=1e-9
    )
    torch.testing.assert_close(p.weights.detach(), torch.full((4,), 0.25, dtype=D))
    assert abs(p.mean.item() - y.mean().item()) < 0.1 * y.std().item()
    far = head(4, targets=y)(normal(1000, 4))
    assert (far.mean - y.mean()).abs().max() < y.std()


def test_components_start_apart_where_targets_repeat() -> None:
    y = torch.tensor([0.0] * 90 + [10.0] * 10, dtype=D)
    p = head(3, targets=y)(torch.zeros(4, dtype=D))
    torch.testing.assert_close(p.means.detach(), torch.tensor([0.0, 5.0, 10.0], dtype=D))


@pytest.mark.parametrize("covariance", KINDS)
def test_components_start_at_clusters_of_vectors(covariance: str) -> None:
    centers = torch.tensor([[0.0, 0.0], [100.0, 2.0], [50.0, -3.0]], dtype=D)
    y = centers.repeat(200, 1) + 0.1 * normal(600, 2)
    p = head(3, 2, covariance, targets=y)(torch.zeros(4, dtype=D))
    nearest = torch.cdist(centers, p.means.detach())
    assert (nearest.min(-1).values < 0.1).all()


def test_a_weight_of_a_target_counts_as_repetition() -> None:
    y = normal(50, 2)
    times = torch.randint(0, 4, (50,), generator=torch.Generator().manual_seed(0))
    for dim, targets in ((1, y[:, 0]), (2, y)):
        one, other = head(3, dim), head(3, dim)
        one.initialize(targets, times.double())
        other.initialize(targets.repeat_interleave(times, 0))
        for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b)


def test_without_targets_it_starts_as_a_standard_normal() -> None:
    p = head(8)(torch.zeros(4, dtype=D))
    assert abs(p.mean.item()) < 1e-9
    assert 0.5 < p.variance.item() < 1.5
    q = head(16, 3)(torch.zeros(4, dtype=D))
    assert (q.variance > 0.4).all()
    assert (q.variance < 1.6).all()


@pytest.mark.parametrize("covariance", KINDS)
@pytest.mark.parametrize("standardize", [True, False])
def test_no_scale_goes_below_the_minimum(covariance: str, standardize: bool) -> None:
    y = normal(500, 2) * 1000 + 5000
    made = head(2, 2, covariance, targets=y, min_scale=0.01, standardize=standardize)
    with torch.no_grad():
        made.linear.bias.fill_(-1e6)
    kind = made(normal(5, 4)).covariance_kind
    if covariance in ("full", "low_rank"):  # the diagonal of the factor has the bound; the rest only rotates or adds
        lower = kind.values[..., :2, :].diagonal(dim1=-2, dim2=-1)
    else:
        lower = kind.values.sqrt()
    spread = 0.5 * np.diff(np.quantile(y, [0.15865, 0.84135], axis=0, method="inverted_cdf"), axis=0)[0]
    least = 0.01 * spread.min()
    assert (lower >= 0.99 * least).all()
    line = head(2, targets=y[:, 0], min_scale=0.01, standardize=standardize)
    with torch.no_grad():
        line.linear.bias.fill_(-1e6)
    expected = torch.full((5, 2), 0.01 * spread[0], dtype=D)
    torch.testing.assert_close(line(normal(5, 4)).scales.detach(), expected)


@pytest.mark.parametrize("covariance", KINDS)
@pytest.mark.parametrize("dim", [1, 2])
def test_units_of_the_targets_do_not_matter(covariance: str, dim: int) -> None:
    """A network trained on targets in other units is the same network: the prediction is the affine image."""
    x, y = normal(64, 4), normal(64, dim, seed=1)
    factor, shift = 1e4, -3e6
    results = []
    for targets in (y, shift + factor * y):
        made = head(2, dim, covariance, targets=targets.squeeze(-1))
        optimizer = torch.optim.Adam(made.parameters(), 1e-2)
        for _ in range(5):
            optimizer.zero_grad()
            EnergyScore()(made(x), targets.squeeze(-1)).backward()
            optimizer.step()
        p = made(x)
        spread = p.scales.square() if dim == 1 else p.covariances
        results.append((p.weights, p.means, spread))
    (w, m, s), (weights, means, spread) = results
    torch.testing.assert_close(weights, w, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close((means - shift) / factor, m, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(spread / factor**2, s, rtol=1e-3, atol=1e-5)


def test_standardisation_can_be_left_out() -> None:
    y = 1000 + 50 * normal(200)
    made = head(2, targets=y, standardize=False)
    assert (made.unit == 1).all()
    assert (made.center == 0).all()
    p = made(torch.zeros(4, dtype=D))
    np.testing.assert_allclose(p.means.detach(), np.quantile(y, [0.25, 0.75], method="inverted_cdf"), rtol=1e-9)


@pytest.mark.parametrize("covariance", KINDS)
def test_state_round_trips(covariance: str) -> None:
    y = normal(100, 2) * 7 + 3
    one = head(2, 2, covariance, targets=y)
    other = MixtureHead(4, 2, 2, covariance, dtype=D)
    other.load_state_dict(one.state_dict())
    x = normal(5, 4)
    for a, b in ((one(x), other(x)), (one(x), copy.deepcopy(one)(x))):
        torch.testing.assert_close(a.means, b.means, rtol=0, atol=0)
        torch.testing.assert_close(a.covariances, b.covariances, rtol=0, atol=0)


def test_it_follows_its_network_to_another_dtype() -> None:
    p = nn.Sequential(nn.Linear(2, 4), head(targets=normal(9))).to(torch.float32)(torch.zeros(3, 2))
    assert p.means.dtype == torch.float32


@pytest.mark.parametrize("dim", [1, 2])
def test_outliers_do_not_change_the_units(dim: int) -> None:
    y = normal(1000, dim)
    far = y.clone()
    far[:5] = 1e9
    one, other = head(4, dim, targets=y.squeeze(-1)), head(4, dim, targets=far.squeeze(-1))
    torch.testing.assert_close(one.unit, other.unit, rtol=0.05, atol=0)
    torch.testing.assert_close(one.center, other.center, rtol=0, atol=0.05)
    x = torch.zeros(4, dtype=D)
    assert (one(x).means - other(x).means).abs().max() < 5


@pytest.mark.parametrize("value", [0.0, 1e6, -1e-9])
def test_targets_that_do_not_vary(value: float) -> None:
    y = torch.full((50,), value, dtype=D)
    p = head(targets=y)(torch.zeros(4, dtype=D))
    torch.testing.assert_close(p.means.detach(), y[:3])
    assert (p.scales > 0).all()
    assert (p.scales < 1.1 * max(abs(value), 1)).all()


@pytest.mark.parametrize("far", [1.0, 1e6, 1e30])
def test_the_gradient_is_bounded_however_far_the_targets_are(far: float) -> None:
    """Each mean pulls with at most twice its weight (docs/math.md), in units of the targets seen before."""
    x, y = normal(64, 4), normal(64)
    made = head(3, targets=y)
    CramerLoss()(made(x), far * torch.ones(64, dtype=D)).backward()
    bound = 2 * x.abs().sum(-1).mean() * made.unit * 3
    assert made.linear.weight.grad is not None
    assert made.linear.weight.grad.isfinite().all()
    assert made.linear.weight.grad.abs().sum() <= 3 * bound


@pytest.mark.parametrize(
    ("call", "name", "got"),
    [
        (lambda: MixtureHead(0, 2), "in_features", "0"),
        (lambda: MixtureHead(3, 0), "n_components", "0"),
        (lambda: MixtureHead(3, 2, 1.5), "event_dim", "1.5"),  # type: ignore[arg-type]
        (lambda: MixtureHead(3, 2, covariance_type="tied"), "covariance_type", "tied"),
        (lambda: MixtureHead(3, 2, min_scale=0.0), "min_scale", "0.0"),
        (lambda: MixtureHead(3, 2, 2, "low_rank", rank=0), "rank", "0"),
        (lambda: MixtureHead(3, 2, targets=torch.zeros(5, 2)), "targets", "(5, 2)"),
        (lambda: MixtureHead(3, 2, targets=torch.zeros(0)), "targets", "(0,)"),
        (lambda: MixtureHead(3, 2, targets=torch.tensor([1.0, torch.nan])), "targets", "nan"),
        (lambda: MixtureHead(3, 2, 3, targets=torch.zeros(5)), "targets", "(5,)"),
        (lambda: MixtureHead(3, 2)(torch.zeros(5, 2)), "features", "(5, 2)"),
    ],
)
def test_bad_input_is_refused(call, name, got) -> None:
    refuses(call, name, got)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(("dim", "n_components"), [(1, 1), (1, 3), (2, 3)])
def test_features_that_are_not_finite_are_reported(bad: float, dim: int, n_components: int) -> None:
    x = normal(5, 4)
    x[2, 1] = bad
    refuses(lambda: head(n_components, dim)(x), "features", f"{bad} (1 of 20 values)")
    with pytest.raises(ValueError, match="features must be finite"):
        nn.Sequential(nn.Linear(4, 4, dtype=D), head(n_components, dim))(x)


def test_parameters_that_are_not_finite_are_reported() -> None:
    made = head()
    with torch.no_grad():
        made.linear.weight[0, 0] = torch.nan
    refuses(lambda: made(normal(5, 4)), "weight", "nan (1 of 36 values)")


def test_features_are_not_looked_at_without_validation() -> None:
    x = torch.full((5, 4), torch.nan, dtype=D)
    assert head(validate_args=False)(x).means.isnan().all()
    compiled = torch.compile(head(), fullgraph=True, backend="eager")
    assert compiled(x).means.isnan().all()
    made = head()
    assert torch.func.vmap(lambda row: made(row).means)(x).isnan().all()


@pytest.mark.parametrize("covariance_type", KINDS)
def test_the_default_device_may_be_another(covariance_type: str) -> None:
    y = normal(50, 2)
    with torch.device("meta"):
        for targets in (None, y):
            made = MixtureHead(4, 3, 2, covariance_type, targets=targets, dtype=D)
            assert made.linear.bias.is_meta
            here = MixtureHead(4, 3, 2, covariance_type, targets=targets, device="cpu", dtype=D)
            assert here.unit.device.type == here.linear.bias.device.type == "cpu"
