"""What targets mean, for every loss, score and distance, through a table of all shapes; weights and missing values."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import scoringrules
import torch
from scipy import integrate, special, stats
from torch import Tensor

from cramix import (
    BlendedLoss,
    CramerLoss,
    Diagonal,
    EnergyScoreLoss,
    MixtureNLLLoss,
    MultivariateNormalMixture,
    NormalMixture,
    SlicedCramerLoss,
    Spherical,
    blended_loss,
    cramer_distance,
    cramer_loss,
    cramer_wold_loss,
    crps,
    density_l2_loss,
    energy_score,
    energy_score_loss,
    lp_distance,
    nll_loss,
    sliced_cramer_distance,
    sliced_cramer_loss,
    sliced_wasserstein_distance,
    sliced_wasserstein_loss,
    wasserstein_distance,
)
from cramix.loss import ramp
from tests.refusals import refuses

D = torch.float64


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=D)


def line(batch: tuple[int, ...] = (4,), k: int = 3, seed: int = 0) -> NormalMixture:
    weights = random(*batch, k, seed=seed).softmax(-1)
    return NormalMixture(weights, 2 * random(*batch, k, seed=seed + 1), 0.3 + random(*batch, k, seed=seed + 2).abs())


def space(batch: tuple[int, ...] = (4,), k: int = 3, dim: int = 2, seed: int = 0) -> MultivariateNormalMixture:
    weights, means = random(*batch, k, seed=seed).softmax(-1), 2 * random(*batch, k, dim, seed=seed + 1)
    return MultivariateNormalMixture(weights, means, Diagonal(0.3 + random(*batch, k, dim, seed=seed + 2).abs()))


def balls(batch: tuple[int, ...] = (4,), k: int = 3, seed: int = 0) -> MultivariateNormalMixture:
    p = space(batch, k, seed=seed)
    return MultivariateNormalMixture(p.weights, p.means, Spherical(p.covariance_kind.values[..., 0]))


# The table of shapes

EYE = torch.eye(2, dtype=D)
LOSSES = {
    "cramer": (line, cramer_loss),
    "energy on the line": (line, energy_score_loss),
    "likelihood on the line": (line, nll_loss),
    "blend on the line": (line, lambda p, y, **o: blended_loss(p, y, share=0.4, **o)),
    "sliced": (space, sliced_cramer_loss),
    "slices": (space, lambda p, y, **o: sliced_cramer_loss(p, y, directions=EYE, **o)),
    "energy": (space, energy_score_loss),
    "likelihood": (space, nll_loss),
    "blend": (space, lambda p, y, **o: blended_loss(p, y, share=0.4, **o)),
    "wasserstein": (space, lambda p, y, **o: sliced_wasserstein_loss(p, y, directions=EYE, **o)),
    "cramer-wold": (balls, lambda p, y, **o: cramer_wold_loss(p, y, bandwidth=0.5, **o)),
}
MODULES = {
    "cramer": (line, CramerLoss),
    "energy on the line": (line, EnergyScoreLoss),
    "likelihood on the line": (line, MixtureNLLLoss),
    "blend on the line": (line, lambda **o: BlendedLoss(9, lambda fraction: 0.4, **o)),
    "sliced": (space, SlicedCramerLoss),
    "energy": (space, EnergyScoreLoss),
    "likelihood": (space, MixtureNLLLoss),
    "blend": (space, lambda **o: BlendedLoss(9, lambda fraction: 0.4, **o)),
}
every_loss = pytest.mark.parametrize(("make", "loss"), LOSSES.values(), ids=LOSSES)

BATCHES = [(), (1,), (2,), (3,), (2, 3)]
SHAPES = [
    shape for rank in range(5) for shape in itertools.product((1, 2, 3), repeat=rank) if rank < 3 or shape[-1] == 2
] + [(0,), (0, 2), (2, 0), (5,), (5, 2)]


def meaning(batch: tuple[int, ...], dim: int | None, shape: tuple[int, ...]) -> str:
    """The rules, written out for each batch shape."""
    if dim is None:
        each = {(): [()], (1,): [(1,)], (2,): [(2,)], (3,): [(3,)], (2, 3): [(2, 3)]}[batch]
        sets = [(1,), (2,), (3,), (5,)] if batch == () else []
    else:
        each = {(): [(2,)], (1,): [(1, 2)], (2,): [(2, 2)], (3,): [(3, 2)], (2, 3): [(2, 3, 2)]}[batch]
        sets = [(1, 2), (2, 2), (3, 2), (5, 2)] if batch == () else []
    return "each" if shape in each else "set" if shape in sets else "error"


def elements(p, y: Tensor) -> list:
    """Mixtures without batch, each with its observation."""
    batch = p.batch_shape
    return [(p[i] if batch else p, y[i] if batch else y) for i in itertools.product(*map(range, batch))]


@pytest.mark.parametrize("batch", BATCHES)
@every_loss
def test_tensor_targets_of_losses(make, loss, batch) -> None:
    p, dim = make(batch), None if make is line else 2
    found = {"each": 0, "set": 0, "error": 0}
    for shape in SHAPES:
        y, kind = random(*shape, seed=5), meaning(batch, dim, shape)
        found[kind] += 1
        if kind == "error":
            refuses(lambda y=y: loss(p, y), "target", f"{shape}")
        elif kind == "each":
            losses = loss(p, y, reduction="none")
            assert losses.shape == batch
            alone = [loss(a, type(p).from_samples(b.unsqueeze(0))) for a, b in elements(p, y)]
            torch.testing.assert_close(losses.flatten(), torch.stack(alone), rtol=1e-6, atol=1e-9)
        else:
            torch.testing.assert_close(loss(p, y), loss(p, type(p).from_samples(y)), rtol=1e-12, atol=1e-14)
    assert found["each"] == 1
    assert found["set"] == (0 if batch else 4)
    assert found["error"] > 20


@pytest.mark.parametrize("batches", list(itertools.product([(), (1,), (3,), (2, 3)], repeat=2)))
@pytest.mark.parametrize(("make", "loss"), [*LOSSES.values(), (line, density_l2_loss), (space, density_l2_loss)])
def test_mixture_targets_of_losses(make, loss, batches) -> None:
    p, q = make(batches[0]), make(batches[1], 2, seed=7)
    if batches[0] and batches[1] and batches[0] != batches[1]:
        refuses(lambda: loss(p, q), "target", f"{batches[1]}")
        return
    losses = loss(p, q, reduction="none")
    batch = batches[0] or batches[1]
    assert losses.shape == batch
    for i in itertools.product(*map(range, batch)):
        alone = loss(p[i] if batches[0] else p, q[i] if batches[1] else q)
        torch.testing.assert_close(losses[i], alone, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("make", "score"), [(line, crps), (line, energy_score), (space, energy_score)])
def test_observations_of_scores(make, score, batch) -> None:
    """What is a set of samples for a loss is several observations for a score."""
    p, dim = make(batch), None if make is line else 2
    loss = cramer_loss if score is crps else energy_score_loss
    for shape in SHAPES:
        y, kind = random(*shape, seed=5), meaning(batch, dim, shape)
        if kind == "error":
            refuses(lambda y=y: score(p, y), "y", f"{shape}")
            continue
        scores = score(p, y)
        pairs = elements(p, y) if kind == "each" else [(p, one) for one in y]
        assert scores.shape == (batch if kind == "each" else shape[:1])
        alone = torch.stack([loss(*pair) for pair in pairs])
        torch.testing.assert_close(scores.flatten(), alone, rtol=1e-6, atol=1e-9)


DISTANCES = {
    "cramer": (line, cramer_distance),
    "lp": (line, lambda p, q: lp_distance(p, q, order=1.5)),
    "wasserstein 1": (line, lambda p, q: wasserstein_distance(p, q, order=1)),
    "wasserstein 2": (line, wasserstein_distance),
    "sliced": (space, sliced_cramer_distance),
    "sliced wasserstein": (space, lambda p, q: sliced_wasserstein_distance(p, q, directions=EYE)),
}


@pytest.mark.parametrize(("make", "distance"), DISTANCES.values(), ids=DISTANCES)
@pytest.mark.parametrize("side", ["p", "q"])
def test_samples_of_distances(make, distance, side) -> None:
    """A tensor is a set of samples, and only where the other side has no batch."""
    good = [(1,), (2,), (3,), (5,)] if make is line else [(1, 2), (2, 2), (3, 2), (5, 2)]
    for batch in BATCHES:
        p = make(batch)
        for shape in SHAPES:
            x = random(*shape, seed=5)
            if make is space and len(shape) == 2 and shape[1] in (1, 3) and not batch:
                name, got = "p and q", "dimension"
            else:
                name, got = side, f"{shape}"

            def call(x=x, p=p):
                return distance(x, p) if side == "p" else distance(p, x)

            if batch == () and shape in good:
                expected = distance(p, type(p).from_samples(x))
                torch.testing.assert_close(call(), expected, rtol=1e-7, atol=1e-12)
            elif got == "dimension":
                with pytest.raises(ValueError, match="p and q must have one event shape"):
                    call()
            else:
                refuses(call, name, got)


@pytest.mark.parametrize(("make", "distance"), DISTANCES.values(), ids=DISTANCES)
def test_batch_shapes_of_distances_broadcast(make, distance) -> None:
    p, q = make((2, 1)), make((3,), 2, seed=7)
    table = distance(p, q)
    assert table.shape == (2, 3)
    torch.testing.assert_close(table[1, 2], distance(p[1, 0], q[2]), rtol=1e-6, atol=1e-9)
    refuses(lambda: distance(make((2,)), q), "p and q", "(3,)")
    x, y = (random(*((n,) if make is line else (n, 2)), seed=n) for n in (5, 7))
    kind = NormalMixture if make is line else MultivariateNormalMixture
    torch.testing.assert_close(distance(x, y), distance(kind.from_samples(x), kind.from_samples(y)))


def test_a_target_that_is_one_short_is_refused() -> None:
    p, y = line((3000,)), random(3000, seed=5)
    assert CramerLoss()(p, y).isfinite()
    for loss in (CramerLoss(), EnergyScoreLoss(), MixtureNLLLoss(), BlendedLoss(3)):
        refuses(lambda loss=loss: loss(p, y[:-1]), "target", "(2999,)", "(3000,)")
        refuses(lambda loss=loss: loss(p, y[:, None]), "target", "(3000, 1)", "(3000,)")
    refuses(lambda: crps(p, y[:-1]), "y", "(2999,)", "(3000,)")
    refuses(lambda: crps(p, y[:, None]), "y", "(3000, 1)", "(3000,)")


@pytest.mark.parametrize(
    ("call", "name", "got"),
    [
        (lambda: cramer_loss(random(4), random(4)), "p", "Tensor"),
        (lambda: cramer_loss(space(), random(4, 2)), "p", "MultivariateNormalMixture"),
        (lambda: sliced_cramer_loss(line(), random(4)), "p", "NormalMixture"),
        (lambda: energy_score_loss(random(4), random(4)), "p", "Tensor"),
        (lambda: nll_loss(None, random(4)), "p", "NoneType"),
        (lambda: crps(space(), random(4, 2)), "p", "MultivariateNormalMixture"),
        (lambda: energy_score([0.0], 0.0), "p", "list"),
        (lambda: cramer_loss(line(), space()), "target", "MultivariateNormalMixture in 2 dimensions"),
        (lambda: sliced_cramer_loss(space(), space(dim=3)), "target", "3 dimensions"),
        (lambda: nll_loss(line(), None), "target", "NoneType"),
        (lambda: nll_loss(line(), line().to_torch()), "target", "MixtureSameFamily"),
        (lambda: crps(line(), line()), "y", "NormalMixture"),
        (lambda: cramer_loss(line(), random(4).to("meta")), "target", "meta"),
        (lambda: cramer_distance(line(()), line(()).to("meta")), "p and q", "meta"),
        (lambda: density_l2_loss(line(), random(4)), "target", "Tensor"),
        (lambda: cramer_loss(line(), ["a", "b", "c", "d"]), "target", "text"),
        (lambda: CramerLoss(reduction="max"), "reduction", "max"),
        (lambda: cramer_loss(line(), random(4), reduction="max"), "reduction", "max"),
        (lambda: CramerLoss(missing="drop"), "missing", "drop"),
        (lambda: nll_loss(line(), random(4), missing="drop"), "missing", "drop"),
        (lambda: EnergyScoreLoss(tolerance=0.0), "tolerance", "0.0"),
        (lambda: BlendedLoss(0), "steps", "0"),
        (lambda: BlendedLoss(5, unit=0.0), "unit", "0.0"),
        (lambda: blended_loss(line(), random(4), share=1.5), "share", "1.5"),
        (lambda: ramp(0.9, 0.1), "begin", "0.9"),
    ],
)
def test_bad_input_is_refused(call, name, got) -> None:
    refuses(call, name, got)


# Kinds and dtypes of targets


@every_loss
def test_arrays_tables_and_numbers_are_targets(make, loss) -> None:
    p, y = make((5,)), random(5, *(() if make is line else (2,)), seed=5)
    expected = loss(p, y)
    table = pd.Series(y.numpy()) if make is line else pd.DataFrame(y.numpy(), columns=["a", "b"])
    for target in (y.numpy(), table, y.tolist()):
        torch.testing.assert_close(loss(p, target), expected)
    if make is line:
        torch.testing.assert_close(loss(make(()), 0.5), loss(make(()), torch.tensor(0.5, dtype=D)))


def test_numpy_in_numpy_out_of_scores() -> None:
    p, q, y = line((5,)), space((5,)), random(5, 2, seed=5)
    for score, mixture, values in ((crps, p, y[:, 0]), (energy_score, p, y[:, 0]), (energy_score, q, y)):
        found = score(mixture, values.numpy())
        assert isinstance(found, np.ndarray)
        np.testing.assert_array_equal(found, score(mixture, values).numpy())
        assert isinstance(score(mixture, values), Tensor)
    assert isinstance(crps(p, pd.Series(y[:, 0].numpy())), np.ndarray)
    assert isinstance(crps(line(()), 0.5), Tensor)
    between = cramer_distance(y[:, 0].numpy(), y[:, 1].numpy())
    assert isinstance(between, np.float64)
    assert between == cramer_distance(y[:, 0], y[:, 1]).item()


@pytest.mark.parametrize(
    "dtypes", [(torch.float32, D), (D, torch.float32), (torch.float16, torch.float32), (D, torch.int64)]
)
@every_loss
def test_dtypes_are_promoted(make, loss, dtypes) -> None:
    p, y = make((4,)).to(dtypes[0]), (3 * random(4, *(() if make is line else (2,)), seed=5)).to(dtypes[1])
    wide = D if D in dtypes else torch.float32
    found = loss(p, y)
    assert found.dtype == wide
    torch.testing.assert_close(found, loss(p.to(wide), y.to(wide)))
    q = make((4,), 2, seed=7).to(dtypes[1] if dtypes[1].is_floating_point else D)
    assert loss(p, q).dtype == wide


def test_one_number_does_not_widen_the_dtype() -> None:
    p = line(()).to(torch.float32)
    assert cramer_loss(p, torch.tensor(0.5, dtype=D)).dtype == torch.float32
    assert crps(p, 0.5).dtype == torch.float32


# Weights of losses and of samples


@every_loss
def test_weights_of_losses(make, loss) -> None:
    p, y = make((4,)), random(4, *(() if make is line else (2,)), seed=5)
    w = torch.tensor([0.5, 0.0, 2.0, 1.0], dtype=D)
    for target in (y, make((4,), 2, seed=7), make((), 2, seed=7)):
        each = loss(p, target, reduction="none")
        torch.testing.assert_close(loss(p, target, sample_weight=w, reduction="none"), w * each)
        torch.testing.assert_close(loss(p, target, sample_weight=w, reduction="sum"), (w * each).sum())
        torch.testing.assert_close(loss(p, target, sample_weight=w), (w * each).sum() / 3.5)
        torch.testing.assert_close(loss(p, target, sample_weight=w.tolist()), (w * each).sum() / 3.5)
        for bad in (w[:3], w.unsqueeze(-1), torch.tensor(1.0)):
            refuses(
                lambda bad=bad, target=target: loss(p, target, sample_weight=bad),
                "sample_weight",
                f"{tuple(bad.shape)}",
            )
        refuses(lambda target=target: loss(p, target, sample_weight=-w), "sample_weight", "-2")
        refuses(lambda target=target: loss(p, target, sample_weight=w * math.nan), "sample_weight", "nan")
    refuses(lambda: loss(p[0], make((), 2, seed=7), sample_weight=w[:1]), "sample_weight", "Tensor")
    one = loss(p[0], y[0], sample_weight=2.0, reduction="sum")
    torch.testing.assert_close(one, 2 * loss(p[0], y[0]))
    torch.testing.assert_close(loss(p[0], y[0], sample_weight=2.0), loss(p[0], y[0]))


@every_loss
def test_weights_of_samples(make, loss) -> None:
    p, x = make(()), random(5, *(() if make is line else (2,)), seed=5)
    w = torch.tensor([0.5, 0.0, 2.0, 1.0, 0.25], dtype=D)
    expected = loss(p, type(p).from_samples(x, w))
    for reduction in ("none", "mean", "sum"):
        torch.testing.assert_close(loss(p, x, sample_weight=w, reduction=reduction), expected)
        torch.testing.assert_close(loss(p, x, sample_weight=3 * w, reduction=reduction), expected)
    refuses(lambda: loss(p, x, sample_weight=w[:4]), "sample_weight", "(4,)", "(5,)")
    with pytest.raises(ValueError, match=r"weight must be >= 0 with a positive sum; got min -2"):
        loss(p, x, sample_weight=-w)


# Missing values


@every_loss
def test_missing_observations_are_ignored_where_asked_for(make, loss) -> None:
    p, y = make((4,)), random(4, *(() if make is line else (2,)), seed=5)
    expected, kept = loss(p, y, reduction="none"), torch.tensor([True, False, True, False])
    gone = y.clone()
    gone[1] = math.nan
    gone[3, ...] = math.nan
    if make is not line:
        gone[3, 0] = 1.0  # one coordinate is enough
    refuses(lambda: loss(p, gone), "target", "nan")
    refuses(lambda: loss(p, gone, missing="error"), "target", "nan")
    each = loss(p, gone, missing="ignore", reduction="none")
    torch.testing.assert_close(each, torch.where(kept, expected, 0))
    torch.testing.assert_close(loss(p, gone, missing="ignore", reduction="sum"), expected[kept].sum())
    torch.testing.assert_close(loss(p, gone, missing="ignore"), expected[kept].mean())
    w = torch.tensor([0.5, 7.0, 2.0, 1.0], dtype=D)
    weighted = loss(p, gone, missing="ignore", sample_weight=w)
    torch.testing.assert_close(weighted, (0.5 * expected[0] + 2 * expected[2]) / 2.5)
    torch.testing.assert_close(loss(p, y, missing="ignore"), expected.mean())
    assert loss(p, torch.full_like(y, math.nan), missing="ignore").isnan()
    assert loss(p, torch.full_like(y, math.nan), missing="ignore", reduction="sum") == 0
    refuses(lambda: loss(p, y * math.inf, missing="ignore"), "target", "inf")


@every_loss
def test_missing_observations_have_no_gradient(make, loss) -> None:
    """Not even where a tiny scale would make the loss of a made-up observation overflow."""
    p, y = make((4,)), random(4, *(() if make is line else (2,)), seed=5)
    gone = y.clone()
    gone[1] = math.nan
    kind = (lambda v: v) if make is line else type(p.covariance_kind)
    values = (p.scales if make is line else p.covariance_kind.values).clone()
    values[1] = 1e-200
    leaves = [t.clone().requires_grad_() for t in (p.weights, p.means, values)]

    def of(index, target: Tensor, **options) -> tuple[Tensor, ...]:
        parts = [t[index] for t in leaves]
        q = type(p)(*parts[:2], kind(parts[2]), validate_args=False)
        return torch.autograd.grad(loss(q, target, **options), leaves)

    found, expected = of(slice(None), gone, missing="ignore"), of([0, 2, 3], y[[0, 2, 3]])
    for a, b in zip(found, expected, strict=True):
        assert a.isfinite().all()
        assert (a[1] == 0).all()
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


@every_loss
def test_missing_samples_of_a_set_are_dropped(make, loss) -> None:
    p, x, w = make(()), random(5, *(() if make is line else (2,)), seed=5), random(5, seed=6).exp()
    gone = torch.cat((x, x[:2]))
    gone[5:] = math.nan
    weights = torch.cat((w, w[:2]))
    refuses(lambda: loss(p, gone), "target", "nan")
    torch.testing.assert_close(loss(p, gone, missing="ignore"), loss(p, x))
    torch.testing.assert_close(loss(p, gone, missing="ignore", sample_weight=weights), loss(p, x, sample_weight=w))
    refuses(lambda: loss(p, torch.full_like(x, math.nan), missing="ignore"), "target", "5")


def test_missing_samples_under_transforms_have_no_weight() -> None:
    p, x = line(()), random(5, seed=5)
    gone = torch.cat((x, torch.full((2,), math.nan, dtype=D)))

    def loss(x: Tensor) -> Tensor:
        return cramer_loss(p, x, missing="ignore")

    torch.testing.assert_close(torch.vmap(loss)(gone.unsqueeze(0))[0], loss(x))
    (gradient,) = torch.autograd.grad(loss(leaf := gone.clone().requires_grad_()), leaf)
    assert gradient.isfinite().all()


def test_scores_refuse_missing_observations() -> None:
    for score, p, y in ((crps, line((2,)), random(2)), (energy_score, space((2,)), random(2, 2))):
        y[0] = math.nan
        refuses(lambda score=score, p=p, y=y: score(p, y), "y", "nan")


@pytest.mark.parametrize(("make", "module"), MODULES.values(), ids=MODULES)
def test_modules_are_their_functions(make, module) -> None:
    loss = dict(LOSSES)[next(name for name, value in MODULES.items() if value == (make, module))][1]
    p, y, w = make((4,)), random(4, *(() if make is line else (2,)), seed=5), random(4, seed=6).exp()
    y[2] = math.nan
    for reduction in ("none", "mean", "sum"):
        found = module(reduction=reduction, missing="ignore")(p, y, w)
        torch.testing.assert_close(found, loss(p, y, sample_weight=w, reduction=reduction, missing="ignore"))
    assert repr(module(missing="ignore")).endswith("reduction='mean', missing='ignore')")
    assert repr(module(reduction="sum")).endswith("reduction='sum')")


# Values


def test_one_sample_each_is_the_crps_of_others() -> None:
    p, y = line((4,)), random(4, seed=5)
    others = scoringrules.crps_mixnorm(y.numpy(), p.means.numpy(), p.scales.numpy(), p.weights.numpy())
    for value in (
        CramerLoss(reduction="none")(p, y),
        EnergyScoreLoss(reduction="none")(p, y),
        crps(p, y),
        energy_score(p, y),
        cramer_loss(p, NormalMixture.from_samples(y.unsqueeze(-1)), reduction="none"),
    ):
        np.testing.assert_allclose(value, others, rtol=1e-9)


def integral_of_squares(p: NormalMixture, i: int, x: Tensor, weights: Tensor) -> float:
    """`integral (F - G)^2` between the steps of G."""
    places, order = x.sort()
    levels = np.concatenate([[0], (weights[order] / weights.sum()).cumsum(0)])
    edges = [-60.0, *places.tolist(), 60.0]

    def f(t: float) -> float:
        return float((p.weights[i] * torch.from_numpy(stats.norm.cdf(t, p.means[i], p.scales[i]))).sum())

    parts = zip(edges[:-1], edges[1:], levels, strict=True)
    return sum(integrate.quad(lambda t, g=g: (f(t) - g) ** 2, a, b, limit=200)[0] for a, b, g in parts)


@pytest.mark.parametrize("weighted", [False, True])
def test_several_samples_for_each_mixture(weighted: bool) -> None:
    p, x = line((3,)), random(3, 5, seed=6)
    weights = torch.rand(3, 5, generator=torch.Generator().manual_seed(0), dtype=D) if weighted else None
    shares = torch.ones(3, 5, dtype=D) if weights is None else weights
    truth = [integral_of_squares(p, i, x[i], shares[i]) for i in range(3)]
    target = NormalMixture.from_samples(x, weights)
    np.testing.assert_allclose(CramerLoss(reduction="none")(p, target), truth, rtol=1e-7)
    shares = shares / shares.sum(-1, keepdim=True)
    scores = torch.stack([(shares[i] * crps(p[i], x[i])).sum() for i in range(3)])
    torch.testing.assert_close(EnergyScoreLoss(reduction="none")(p, target), scores, rtol=1e-6, atol=0)
    likelihood = -(shares * p.log_prob(x.T).T).sum(-1)
    torch.testing.assert_close(MixtureNLLLoss(reduction="none")(p, target), likelihood)


@pytest.mark.parametrize("weighted", [False, True])
def test_several_vectors_for_each_mixture(weighted: bool) -> None:
    p, x = space((3,)), random(3, 5, 2, seed=6)
    weights = torch.rand(3, 5, generator=torch.Generator().manual_seed(0), dtype=D) if weighted else None
    shares = torch.full((3, 5), 0.2, dtype=D) if weights is None else weights / weights.sum(-1, keepdim=True)
    target = MultivariateNormalMixture.from_samples(x, weights)
    one_by_one = torch.stack([energy_score(p, y) for y in x.unbind(1)], -1)
    score = (shares * one_by_one).sum(-1)
    torch.testing.assert_close(EnergyScoreLoss(reduction="none")(p, target), score, rtol=1e-6, atol=0)
    own = 0.5 * (shares.unsqueeze(-1) * shares.unsqueeze(-2) * torch.cdist(x, x)).sum((-1, -2))
    sliced = SlicedCramerLoss(reduction="none")(p, target)
    torch.testing.assert_close(sliced, (score - own) * 2 / math.pi, rtol=1e-6, atol=1e-9)
    likelihood = -(shares * p.log_prob(x.movedim(1, 0)).T).sum(-1)
    torch.testing.assert_close(MixtureNLLLoss(reduction="none")(p, target), likelihood)


@pytest.mark.parametrize("dim", [1, 2, 3, 10])
def test_the_energy_score_of_a_ball_in_closed_form(dim: int) -> None:
    """`E|delta + s Z|` is a hypergeometric function of |delta|^2 / s^2."""
    scale, y = 0.7, random(dim, seed=dim)

    def mean_length(delta: float, s: float) -> float:
        ratio = math.sqrt(2) * special.gamma((dim + 1) / 2) / special.gamma(dim / 2)
        return s * ratio * special.hyp1f1(-0.5, dim / 2, -(delta**2) / (2 * s**2))

    truth = mean_length(y.norm().item(), scale) - 0.5 * mean_length(0.0, math.sqrt(2) * scale)
    p = MultivariateNormalMixture(
        torch.ones(1, dtype=D), torch.zeros(1, dim, dtype=D), Spherical(torch.tensor([scale**2], dtype=D))
    )
    assert energy_score(p, y).item() == pytest.approx(truth, rel=1e-6)
    wrong = mean_length(y.norm().item(), 1.01 * scale) - 0.5 * mean_length(0.0, math.sqrt(2) * 1.01 * scale)
    assert energy_score(p, y).item() != pytest.approx(wrong, rel=1e-4)


def test_the_energy_score_of_an_ensemble_counts_its_self_energy() -> None:
    x, y = random(6, 2), random(2, seed=1)
    truth = (x - y).norm(dim=-1).mean() - 0.5 * torch.cdist(x, x).mean()
    torch.testing.assert_close(energy_score(MultivariateNormalMixture.from_samples(x), y), truth, rtol=1e-6, atol=0)
    on_line = (x[:, 0] - y[0]).abs().mean() - 0.5 * (x[:, :1] - x[:, 0]).abs().mean()
    torch.testing.assert_close(energy_score(NormalMixture.from_samples(x[:, 0]), y[0]), on_line)


@pytest.mark.slow
def test_a_mixture_as_target_is_the_limit_of_its_samples() -> None:
    g = torch.Generator().manual_seed(0)
    for p, q in ((line(()), line((), 2, seed=9)), (space(()), space((), 2, seed=9))):
        x = q.sample((200_000,), generator=g)
        for loss in (EnergyScoreLoss(), MixtureNLLLoss(), CramerLoss() if isinstance(p, NormalMixture) else None):
            if loss is None:
                continue
            each = loss.__class__(reduction="none")(p.expand((len(x),)), x)
            error = 4 * each.std().item() / len(x) ** 0.5
            if isinstance(loss, CramerLoss):  # a distance: less the self energy of the target, half its mean difference
                each = each - 0.5 * (x - x.roll(1)).abs()
                error = 4 * each.std().item() / len(x) ** 0.5
            # the likelihood in the plane is by quasi-random nodes
            slack = 0.02 if isinstance(loss, MixtureNLLLoss) and isinstance(p, MultivariateNormalMixture) else 1e-6
            assert abs(loss(p, q).item() - each.mean().item()) < error + slack


def test_the_cross_entropy_to_a_mixture() -> None:
    p, q = line(()), line((), 2, seed=9)
    truth, _ = integrate.quad(
        lambda t: -(q.log_prob(torch.tensor(t, dtype=D)).exp() * p.log_prob(torch.tensor(t, dtype=D))).item(),
        -30, 30, limit=200,
    )  # fmt: skip
    assert MixtureNLLLoss()(p, q).item() == pytest.approx(truth, rel=1e-3)
    # One component: the log density is a quadratic, of which any rule with the right moments is exact.
    one = space((2,), 1, dim=3)
    q = space((2,), 2, dim=3, seed=9)
    centred = q.mean - one.means.squeeze(-2)
    variances = one.covariance_kind.values.squeeze(-2)
    square = (q.variance + centred.square()) / variances
    exact = 0.5 * (square + variances.log() + math.log(2 * math.pi)).sum(-1)
    torch.testing.assert_close(MixtureNLLLoss(reduction="none")(one, q), exact)


@pytest.mark.parametrize(
    "loss", [CramerLoss, EnergyScoreLoss, MixtureNLLLoss, lambda reduction: BlendedLoss(9, reduction=reduction)]
)
def test_reductions(loss) -> None:
    p, y = line((4,)), random(4, seed=5)
    each = loss(reduction="none")(p, y)
    assert each.shape == (4,)
    torch.testing.assert_close(loss(reduction="mean")(p, y), each.mean())
    torch.testing.assert_close(loss(reduction="sum")(p, y), each.sum())


@pytest.mark.parametrize("module", [EnergyScoreLoss(), MixtureNLLLoss(), BlendedLoss(2, lambda part: 0.3)])
@pytest.mark.parametrize("make", [line, space])
@pytest.mark.parametrize("target", ["one", "several", "weighted", "mixture"])
def test_gradients(module, make, target) -> None:
    p = make((2,), 2)
    event = p.event_shape
    y = random(2, *event, seed=5)
    weights = torch.full((2, 4), 0.5, dtype=D) + 0.1 * random(2, 4).abs() if target == "weighted" else None
    if target in ("several", "weighted"):
        y = type(p).from_samples(random(2, 4, *event, seed=5), weights)
    if target == "mixture":
        y = make((2,), 2, seed=7)
    logits = p.weights.log().clone().requires_grad_()
    means = p.means.clone().requires_grad_()
    spread = (p.scales if make is line else p.covariance_kind.values).clone().requires_grad_()

    def f(logits, means, spread):
        kind = spread if make is line else Diagonal(spread)
        q = type(p)(logits.softmax(-1), means, kind, validate_args=False)
        return module(q, y)

    torch.autograd.gradcheck(f, (logits, means, spread), eps=1e-5, atol=2e-5, rtol=1e-4)


def test_a_target_mixture_is_a_constant() -> None:
    q = NormalMixture(torch.ones(1, dtype=D), torch.zeros(1, dtype=D, requires_grad=True), torch.ones(1, dtype=D))
    p = line(())
    p.means.requires_grad_()
    for loss in (EnergyScoreLoss(), MixtureNLLLoss()):
        loss(p, q).backward()
    assert q.means.grad is None


def test_the_blend_goes_from_cramer_to_likelihood() -> None:
    for p, y, first in ((line(), random(4), cramer_loss), (space(), random(4, 2), sliced_cramer_loss)):
        last = nll_loss(p, y)
        loss = BlendedLoss(10, ramp(0.4, 0.8), unit=3.0)
        values = []
        for _ in range(11):
            values.append(loss(p, y))
            loss.step()
        shares = [0, 0, 0, 0, 0, 0.25, 0.5, 0.75, 1, 1, 1]
        expected = [(1 - a) * first(p, y) / 3 + a * last for a in shares]
        torch.testing.assert_close(values, expected)
        other = BlendedLoss(10, ramp(0.4, 0.8), unit=3.0)
        other.load_state_dict({"done": torch.tensor(6)})
        torch.testing.assert_close(other(p, y), expected[6])


def test_a_share_of_nothing_is_not_computed() -> None:
    """An atom has no likelihood, which is no matter as long as it does not count."""
    p = NormalMixture.from_samples(torch.tensor([0.0, 1.0]))
    assert blended_loss(p, torch.tensor([0.5]), share=0.0).isfinite()
    with pytest.raises(ValueError, match="atom"):
        blended_loss(p, torch.tensor([0.5]), share=0.1)
