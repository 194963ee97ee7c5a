"""Mixtures as values: moving, copying, indexing, joining, comparing, showing; one- and d-dimensional alike."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from scipy import optimize

from cramix import Diagonal, Factor, Full, MultivariateNormalMixture, NormalMixture, Spherical, Tied

D = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def line(*batch, k=3, seed=0):
    g = generator(seed)
    weights = torch.rand(*batch, k, generator=g, dtype=D).softmax(-1)
    return NormalMixture(
        weights, torch.randn(*batch, k, generator=g, dtype=D), 0.3 + torch.rand(*batch, k, generator=g, dtype=D)
    )


def space(kind, *batch, k=3, d=2, seed=0):
    g = generator(seed)
    weights = torch.rand(*batch, k, generator=g, dtype=D).softmax(-1)
    means = torch.randn(*batch, k, d, generator=g, dtype=D)
    matrices = torch.randn(*batch, k, d, d, generator=g, dtype=D)
    matrices = matrices @ matrices.mT + 0.3 * torch.eye(d, dtype=D)
    variances = 0.3 + torch.rand(*batch, k, d, generator=g, dtype=D)
    kinds = {
        "full": lambda: Full(matrices),
        "full, one for the batch": lambda: Full(matrices.reshape(-1, k, d, d)[0]),
        "tied": lambda: Tied(matrices[..., 0, :, :]),
        "diag": lambda: Diagonal(variances),
        "spherical": lambda: Spherical(variances[..., 0]),
        "spherical, one for all": lambda: Spherical(variances.reshape(-1)[:1]),
        "factor": lambda: Factor(matrices),
    }
    if kind == "points":
        return MultivariateNormalMixture.from_samples(means, weights)
    return MultivariateNormalMixture(weights, means, kinds[kind]())


KINDS = "full", "full, one for the batch", "tied", "diag", "spherical", "spherical, one for all", "factor", "points"
MAKERS = {"line": line, "atoms": lambda *batch, **o: NormalMixture.from_samples(line(*batch, **o).means)}
MAKERS |= {kind: (lambda *batch, kind=kind, **o: space(kind, *batch, **o)) for kind in KINDS}
every = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
SMOOTH = {name: make for name, make in MAKERS.items() if name not in ("atoms", "points")}
every_smooth = pytest.mark.parametrize("make", SMOOTH.values(), ids=SMOOTH)


def moments(p):
    return p.mean, p.variance


def close(p, q):
    for a, b in zip(moments(p), moments(q), strict=True):
        torch.testing.assert_close(a, b)


@every
def test_to_changes_dtype_and_keeps_the_rest(make):
    p = make(4)
    assert p.to(D) is p
    assert p.to("cpu", torch.float64) is p
    q = p.to(torch.float32)
    assert (q.dtype, q.batch_shape, q.is_empirical, q.covariance_type) == (
        torch.float32, p.batch_shape, p.is_empirical, p.covariance_type,
    )  # fmt: skip
    close(q.to(D), p.to(torch.float32).to(dtype=D))
    assert p.to("meta").device.type == "meta"
    assert p.to(q.means).dtype == torch.float32
    with pytest.raises(ValueError, match="floating"):
        p.to(torch.int32)


@every
def test_detach_and_clone(make):
    p = make(2)
    p = p._map(lambda x: x.clone().requires_grad_())
    assert not p.detach().mean.requires_grad
    assert p.detach().means.data_ptr() == p.means.data_ptr()
    copied = p.clone()
    assert copied.means.data_ptr() != p.means.data_ptr()
    assert copied.mean.requires_grad


@every
def test_copies_and_pickles_are_equal(make):
    for p in (make(), make(3)):
        for q in (copy.copy(p), copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
            assert q == p
            assert q.is_empirical == p.is_empirical
            assert q._validate_args == p._validate_args


@every
@pytest.mark.parametrize(
    "index",
    [0, -1, slice(1, 3), [0, 2], (1, 0), (slice(None), 1), ..., (..., 1), (0, ...), (0, ..., 1), None,
     torch.tensor([True, False, True, False]), torch.tensor([3, 3, 0]), (torch.tensor([0, 1]), torch.tensor([1, 0]))],
    ids=str,
)  # fmt: skip
def test_indexing_is_that_of_a_tensor_of_the_batch_shape(make, index):
    p = make(4, 2)
    q = p[index]
    assert q.batch_shape == torch.empty(4, 2)[index].shape
    assert type(q) is type(p)
    assert (q.covariance_type, q.n_components, q.is_empirical) == (p.covariance_type, p.n_components, p.is_empirical)
    trailing = tuple(slice(None) for _ in p.event_shape)
    dotted = isinstance(index, tuple) and any(i is Ellipsis for i in index)
    for a, b in zip(moments(q), moments(p), strict=True):
        whole = index if isinstance(index, tuple) else (index,)
        torch.testing.assert_close(a, b[whole + trailing if dotted or index is Ellipsis else whole])


@every
def test_length_iteration_and_errors(make):
    p = make(4)
    assert len(p) == 4
    assert [q.batch_shape for q in p] == [torch.Size()] * 4
    for bad in (4, (0, 0), "a"):
        with pytest.raises((IndexError, TypeError)):
            p[bad]
    with pytest.raises(TypeError, match="n_components"):
        len(make())
    with pytest.raises(IndexError):
        make()[0]
    assert bool(make())
    assert bool(make(4)[:0])


@every
def test_stack_and_cat_undo_indexing(make):
    p = make(4, 2)
    assert type(p).stack(list(p)) == p
    assert type(p).stack([p[:, 0], p[:, 1]], dim=1) == p
    assert type(p).stack([p[:, 0], p[:, 1]], dim=-1) == p
    assert type(p).cat([p[:1], p[1:]]) == p
    assert type(p).cat([p[:, :1], p[:, 1:]], dim=1) == p


def test_what_cannot_be_joined_is_refused():
    with pytest.raises(ValueError, match="n_components"):
        NormalMixture.stack([line(k=2), line(k=3)])
    with pytest.raises(ValueError, match="covariance_type"):
        MultivariateNormalMixture.stack([space("full"), space("diag")])
    with pytest.raises(ValueError, match="NormalMixture"):
        MultivariateNormalMixture.stack([space("full"), line()])
    with pytest.raises(ValueError, match="at least one"):
        NormalMixture.cat([])
    with pytest.raises(ValueError, match="dim"):
        NormalMixture.cat([line(2)], dim=1)
    with pytest.raises(ValueError, match="dim"):
        NormalMixture.cat([line()])


@every
def test_equality_is_that_of_parameters(make):
    p = make(2)
    assert p == p.clone()
    assert p != make(2, seed=1)
    assert p != p[:1]
    assert p != p.to(torch.float32)
    assert p != "p"
    assert p.__eq__(3) is NotImplemented
    with pytest.raises(TypeError, match="unhashable"):
        hash(p)


@every
@pytest.mark.parametrize("by", ["means", "weights"])
def test_sort_permutes_components_and_nothing_else(make, by):
    p = make(4)
    q = p.sort(by)
    close(q, p)
    first = q.means[..., 0] if q.event_shape else q.means
    keys = first if by == "means" else q.weights
    assert (keys.diff(dim=-1) >= 0).all()
    x = p.sample((5,), generator())
    if not p.is_empirical:
        torch.testing.assert_close(q.log_prob(x), p.log_prob(x))
    assert (p.sort(by, descending=True).weights.flip(-1) - q.weights).abs().max() < 1e-15
    with pytest.raises(ValueError, match=r"by must be .*'scale'"):
        p.sort("scale")


@every_smooth
def test_component_and_prune(make):
    p = make(2)
    x = p.sample((4,), generator())
    parts = torch.stack([p.component(i).log_prob(x) for i in range(3)], -1)
    torch.testing.assert_close((parts + p.weights.log()).logsumexp(-1), p.log_prob(x))
    assert p.component(-1) == p.component(2)
    with pytest.raises(IndexError):
        p.component(3)
    assert p.prune(0.0).n_components == 3


@every_smooth
def test_responsibilities_are_posterior_probabilities(make):
    p = make(2)
    x = p.sample((6,), generator())
    r = p.responsibilities(x)
    assert r.shape == (6, 2, 3)
    expected = torch.stack([p.component(i).log_prob(x).exp() * p.weights[..., i] for i in range(3)], -1)
    torch.testing.assert_close(r, expected / expected.sum(-1, keepdim=True))


@every_smooth
@pytest.mark.parametrize("seed", range(4))
def test_mode_is_the_highest_point_of_the_density(make, seed):
    p = make(seed=seed)
    found = p.mode
    starts = [p.means[i].numpy() for i in range(3)]

    def loss(x):
        return -p.log_prob(torch.tensor(x, dtype=D).reshape(p.event_shape)).item()

    options = {"xatol": 1e-10, "fatol": 1e-14, "maxiter": 5000}
    best = min((optimize.minimize(loss, x, method="Nelder-Mead", options=options) for x in starts), key=lambda o: o.fun)
    assert p.log_prob(found).item() >= -best.fun - 1e-12
    np.testing.assert_allclose(found.numpy().reshape(-1), best.x, atol=1e-6)


@every_smooth
def test_mode_of_a_batch_is_that_of_each(make):
    p = make(4)
    torch.testing.assert_close(p.mode, torch.stack([q.mode for q in p]))
    assert p.to(torch.float32).mode.dtype == torch.float32


def test_what_has_no_density_has_no_mode():
    with pytest.raises(ValueError, match="mode"):
        _ = NormalMixture.from_samples(torch.zeros(3)).mode
    with pytest.raises(ValueError, match="mode"):
        _ = MultivariateNormalMixture.from_samples(torch.zeros(3, 2)).mode


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "points"])
@pytest.mark.parametrize("d", [1, 3])
def test_entropy_of_one_component_is_exact(kind, d):
    p = space(kind, 2, k=1, d=d)
    truth = 0.5 * torch.logdet(2 * math.pi * math.e * p.covariances[..., 0, :, :])
    torch.testing.assert_close(p.entropy(), truth, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "points"])
@pytest.mark.parametrize("d", [1, 2, 4])
def test_entropy_of_several_components(kind, d):
    p = space(kind, d=d, seed=d)
    x = p.sample((400_000,), generator())
    values = -p.log_prob(x)
    error = values.std().item() / len(values) ** 0.5
    assert p.entropy().item() == pytest.approx(values.mean().item(), abs=4 * error + 2e-3)
    if d == 1:
        assert p.entropy().item() == pytest.approx(p.marginal(0).entropy().item(), abs=1e-3)


def test_entropy_is_differentiable():
    p = space("full", 2)
    means = p.means.clone().requires_grad_()
    q = MultivariateNormalMixture(p.weights, means, p.covariance_kind)
    assert torch.autograd.gradcheck(
        lambda m: MultivariateNormalMixture(p.weights, m, p.covariance_kind).entropy(64), means
    )
    assert q.entropy().requires_grad


def test_affine_by_a_number_is_that_by_a_multiple_of_the_identity():
    for kind in KINDS:
        p = space(kind, 2)
        for factor in (-2.0, 0.5):
            q, matrix = p.affine(1.0, factor), p.affine(1.0, factor * torch.eye(2, dtype=D))
            close(q, matrix)
            assert q.covariance_type == p.covariance_type


def test_small_mixtures_show_their_numbers():
    p = NormalMixture([0.25, 0.75], [0.0, 1.5], [1.0, 0.001])
    assert repr(p) == "NormalMixture(weights=[0.25, 0.75], means=[0, 1.5], scales=[1, 0.001])"
    assert "dtype=torch.float64" in repr(p.to(D))
    assert repr(line(4)) == "NormalMixture(batch_shape=(4,), n_components=3, dtype=torch.float64)"
    assert "means=[[0, 1]]" in repr(MultivariateNormalMixture([1.0], [[0.0, 1.0]], Spherical(torch.ones(1))))
    assert repr(p.to("meta")).startswith("NormalMixture(batch_shape=()")
    assert repr(Tied(torch.eye(2))) == "Tied(shape=(2, 2))"
