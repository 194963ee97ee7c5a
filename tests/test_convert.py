"""Multivariate mixtures from and to torch's and scikit-learn's: their values, both ways."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture
from torch.distributions import Categorical, Independent, MixtureSameFamily, MultivariateNormal, Normal

from cramix import Diagonal, Factor, Full, MultivariateNormalMixture, Spherical, Tied
from tests.multivariate_oracle import KINDS, close, every_kind, free_parameters, generator, of_free, tensor

SKLEARN = {"full": Full, "tied": Tied, "diag": Diagonal, "spherical": Spherical}
every_type = pytest.mark.parametrize("covariance_type", SKLEARN)
VALUES = torch.randn(6, 1, 3, generator=generator(5), dtype=torch.float64)


def data(dtype=np.float64):
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0, 3.0], [4.0, -2.0, 0.0]])
    return (centres[rng.integers(2, size=120)] + rng.normal(size=(120, 3)) @ rng.normal(size=(3, 3))).astype(dtype)


def fitted(covariance_type, dtype=np.float64):
    return GaussianMixture(2, covariance_type=covariance_type, random_state=0).fit(data(dtype))


# torch


@every_kind
def test_to_torch_has_the_same_density_and_moments(kind):
    p = of_free(kind, *free_parameters(kind, ((2,), (2,), ())))
    theirs = p.to_torch()
    assert isinstance(theirs, MixtureSameFamily)
    assert isinstance(theirs.component_distribution, MultivariateNormal)
    assert theirs.batch_shape == p.batch_shape
    assert theirs.event_shape == p.event_shape
    close(p.log_prob(VALUES), theirs.log_prob(VALUES), 1e-10, 1e-11)
    close(p.mean, theirs.mean)
    close(p.variance, theirs.variance, 1e-11)


@every_kind
def test_round_trip_through_torch_keeps_values(kind):
    p = of_free(kind, *free_parameters(kind, ((2,), (2,), ())))
    back = MultivariateNormalMixture.from_torch(p.to_torch())
    assert isinstance(back.covariance_kind, Factor)
    close(back.weights, p.weights)
    close(back.means, p.means, 0, 0)
    close(back.covariances, p.covariances)
    close(back.log_prob(VALUES), p.log_prob(VALUES), 1e-9, 1e-10)


@pytest.mark.parametrize("given", ["covariance_matrix", "precision_matrix", "scale_tril"])
def test_from_torch_takes_any_parametrisation_and_logits(given):
    kind = KINDS["full"]
    logits, means, free = free_parameters(kind, ((2,), (2,), (2,)))
    matrices = kind.valid(free)
    if given == "scale_tril":
        matrices = torch.linalg.cholesky(matrices)
    theirs = MixtureSameFamily(Categorical(logits=logits), MultivariateNormal(means, **{given: matrices}))
    p = MultivariateNormalMixture.from_torch(theirs)
    close(p.log_prob(VALUES), theirs.log_prob(VALUES), 1e-9, 1e-10)
    close(p.variance, theirs.variance, 1e-10)


def test_from_torch_takes_independent_normals():
    logits, means, free = free_parameters(KINDS["diagonal"], ((2,), (2,), (2,)))
    theirs = MixtureSameFamily(Categorical(logits=logits), Independent(Normal(means, free.exp()), 1))
    p = MultivariateNormalMixture.from_torch(theirs)
    assert isinstance(p.covariance_kind, Diagonal)
    close(p.log_prob(VALUES), theirs.log_prob(VALUES))
    close(p.covariance.diagonal(dim1=-2, dim2=-1), theirs.variance)


def test_conversions_pass_gradients_on():
    kind = KINDS["full"]
    leaves = [x.requires_grad_() for x in free_parameters(kind)]
    direct, there, back = (
        torch.autograd.grad(change(of_free(kind, *leaves)).log_prob(VALUES).sum(), leaves)
        for change in (lambda p: p, lambda p: p.to_torch(), lambda p: p.from_torch(p.to_torch()))
    )
    for expected, *others in zip(direct, there, back, strict=True):
        for got in others:
            close(got, expected, 1e-9, 1e-10)


@pytest.mark.parametrize(
    ("mixture", "got"),
    [
        (MultivariateNormal(torch.zeros(2), torch.eye(2)), "MultivariateNormal"),
        (MixtureSameFamily(Categorical(torch.ones(2)), Normal(torch.zeros(2), torch.ones(2))), "Normal"),
        (
            MixtureSameFamily(
                Categorical(torch.ones(2)), Independent(Normal(torch.zeros(2, 3, 4), torch.ones(2, 3, 4)), 2)
            ),
            "Independent",
        ),
        (None, "NoneType"),
    ],
    ids=["no mixture", "univariate", "matrices", "None"],
)
def test_from_torch_refuses(mixture, got):
    with pytest.raises(ValueError, match=rf"^mixture must .*; got {got}"):
        MultivariateNormalMixture.from_torch(mixture)


# scikit-learn


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@every_type
def test_from_sklearn_has_the_same_density(covariance_type, dtype):
    model = fitted(covariance_type, dtype)
    p = MultivariateNormalMixture.from_sklearn(model)
    assert type(p.covariance_kind) is SKLEARN[covariance_type]
    assert p.means.numpy().dtype == model.means_.dtype
    x = data(model.means_.dtype)
    rounding = 1e-3 if p.means.dtype == torch.float32 else 1e-9
    close(p.log_prob(torch.as_tensor(x)), model.score_samples(x), rounding, rounding)
    close(p.responsibilities(torch.as_tensor(x)), model.predict_proba(x), 10 * rounding, 10 * rounding)


@every_type
def test_parameters_are_counted_as_scikit_learn_counts_them(covariance_type):
    model = fitted(covariance_type)
    assert MultivariateNormalMixture.from_sklearn(model).n_parameters == model._n_parameters()


@every_type
def test_from_sklearn_copies(covariance_type):
    model = fitted(covariance_type)
    p = MultivariateNormalMixture.from_sklearn(model)
    before = p.covariances.clone()
    model.covariances_ *= 2
    model.means_ += 1
    close(p.covariances, before, 0, 0)
    assert not np.allclose(p.means.numpy(), model.means_)


@every_type
def test_round_trip_through_sklearn_keeps_a_fitted_model(covariance_type):
    model = fitted(covariance_type)
    back = MultivariateNormalMixture.from_sklearn(model).to_sklearn()
    assert back.covariance_type == covariance_type
    for name in ("weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_"):
        theirs, ours = getattr(model, name), getattr(back, name)
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)
    x = data()
    np.testing.assert_allclose(back.score_samples(x), model.score_samples(x), rtol=1e-9)
    np.testing.assert_allclose(back.predict_proba(x), model.predict_proba(x), rtol=1e-7, atol=1e-10)
    np.testing.assert_array_equal(back.predict(x), model.predict(x))
    assert back.score(x) == pytest.approx(model.score(x))
    assert back.bic(x) == pytest.approx(model.bic(x))


@every_kind
def test_to_sklearn_takes_every_kind(kind):
    p = of_free(kind, *free_parameters(kind))
    model = p.to_sklearn()
    x = VALUES[:, 0].numpy()
    close(p.log_prob(VALUES[:, 0]), model.score_samples(x), 1e-9, 1e-10)
    close(p.responsibilities(VALUES[:, 0]), model.predict_proba(x), 1e-8, 1e-10)
    assert model.n_features_in_ == 3


def test_a_model_from_to_sklearn_samples_the_mixture():
    p = of_free(KINDS["full"], *free_parameters(KINDS["full"]))
    model = p.to_sklearn()
    model.random_state = 0
    x, _ = model.sample(20_000)
    deviation = (x.mean(0) - p.mean.numpy()) / (p.stddev.numpy() / 20_000**0.5)
    assert (np.abs(deviation) < 5).all()  # a fresh seed fails once in 600,000 times


def test_a_model_from_to_sklearn_fits_on():
    p = of_free(KINDS["full"], *free_parameters(KINDS["full"], k=2))
    model = p.to_sklearn()
    model.warm_start = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(data())
    assert model.score(data()) > p.to_sklearn().score(data())


def test_to_sklearn_leaves_gradients_and_memory_behind():
    logits, means, free = free_parameters(KINDS["diagonal"])
    means.requires_grad_()
    p = of_free(KINDS["diagonal"], logits, means, free)
    model = p.to_sklearn()
    model.means_ += 1
    assert not np.allclose(p.means.detach().numpy(), model.means_)


def test_to_sklearn_refuses_a_batch():
    p = of_free(KINDS["tied"], *free_parameters(KINDS["tied"], ((2,), (2,), ())))
    with pytest.raises(ValueError, match=r"^mixture must have no batch axes; got \(2,\)\. Convert one at a time"):
        p.to_sklearn()


def test_to_sklearn_and_to_torch_refuse_points():
    p = MultivariateNormalMixture.from_samples(tensor([[0.0, 1.0], [2.0, 3.0]]))
    for convert in (p.to_sklearn, p.to_torch):
        with pytest.raises(ValueError, match=r"covariances must be positive definite for .*; got a variance of 0"):
            convert()


@pytest.mark.parametrize("model", [GaussianMixture(2), None, "model"])
def test_from_sklearn_refuses_a_model_that_is_not_fitted(model):
    with pytest.raises(ValueError, match=r"^model must be a fitted GaussianMixture; got .* Call fit first"):
        MultivariateNormalMixture.from_sklearn(model)


def run(code):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_sklearn_is_imported_by_to_sklearn_and_not_before():
    code = """
import sys, torch, cramix
p = cramix.MultivariateNormalMixture(torch.ones(1), torch.zeros(1, 2), torch.eye(2).unsqueeze(0))
before = "sklearn" in sys.modules
p.to_sklearn()
print(before, "sklearn" in sys.modules)
"""
    assert run(code) == "False True"


def test_a_missing_sklearn_names_the_pip_command():
    code = """
import sys
sys.modules["sklearn"] = sys.modules["sklearn.mixture"] = None
import torch, cramix
p = cramix.MultivariateNormalMixture(torch.ones(1), torch.zeros(1, 2), torch.eye(2).unsqueeze(0))
try: p.to_sklearn()
except ImportError as error: print(error)
"""
    assert "pip install 'cramix[sklearn]'" in run(code)
