"""The adapters to skpro: its own checks, and its CRPS against ours. skpro 2.16 needs pandas < 3.1."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from cramix import ConformalRegressor, MixtureRegressor, NormalMixture, crps

skpro = pytest.importorskip(
    "skpro", reason="skpro needs pandas < 3.1: pip install 'cramix[skpro]' in another environment"
)

import pandas as pd  # noqa: E402
from skpro.metrics import CRPS, LogLoss  # noqa: E402
from skpro.utils import check_estimator  # noqa: E402

from cramix.skpro import MixtureDistribution, MixtureProbaRegressor  # noqa: E402

SMALL = {"n_estimators": 2, "hidden_layer_sizes": (8,), "max_iter": 5, "random_state": 0}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("adapter", [MixtureDistribution, MixtureProbaRegressor])
def test_the_checks_of_skpro(adapter: type) -> None:
    assert set(check_estimator(adapter, raise_exceptions=True, verbose=False).values()) == {"PASSED"}


def mixtures(n: int = 5, k: int = 3) -> NormalMixture:
    g = torch.Generator().manual_seed(0)
    weights = torch.rand(n, k, generator=g, dtype=torch.float64)
    means = 3 * torch.randn(n, k, generator=g, dtype=torch.float64)
    return NormalMixture(weights / weights.sum(-1, keepdim=True), means, 0.1 + means.abs())


def test_the_crps_of_skpro_is_exact() -> None:
    p, y = mixtures(), np.linspace(-4, 9, 5)
    frame = MixtureDistribution.of(p, columns=pd.Index(["y"]))
    assert frame.shape == (5, 1)
    expected = crps(p, torch.from_numpy(y)).numpy()
    got = CRPS(multivariate=False).evaluate_by_index(pd.DataFrame({"y": y}), frame)
    np.testing.assert_allclose(np.asarray(got).reshape(-1), expected, rtol=1e-12)
    loss = LogLoss(multivariate=False).evaluate_by_index(pd.DataFrame({"y": y}), frame)
    np.testing.assert_allclose(np.asarray(loss).reshape(-1), -p.log_prob(torch.from_numpy(y)), rtol=1e-12)


def test_energies_are_integrals() -> None:
    """`E|X - x|` by quadrature of the density, and `E|X - X'| = 2 int F (1 - F)`."""
    p = mixtures()[1]
    scalar = MixtureDistribution(p.weights.numpy(), p.means.numpy(), p.scales.numpy())
    cdf = lambda x: p.cdf(torch.tensor(x, dtype=torch.float64)).item()  # noqa: E731
    points = p.means.tolist()
    within = 2 * quad(lambda x: cdf(x) * (1 - cdf(x)), -60, 60, points=points, limit=200)[0]
    assert scalar.energy() == pytest.approx(within, rel=1e-8)
    below = quad(cdf, -60, 0.5, points=points, limit=200)[0]
    above = quad(lambda x: 1 - cdf(x), 0.5, 60, points=points, limit=200)[0]
    assert scalar.energy(0.5) == pytest.approx(below + above, rel=1e-8)
    assert scalar.ppf(0.3) == pytest.approx(p.icdf(torch.tensor(0.3, dtype=torch.float64)).item())


@pytest.mark.parametrize("several", [False, True])
def test_regressors_predict_what_the_wrapped_ones_do(several: bool) -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(80, 2)), columns=["a", "b"], index=np.arange(80)[::-1])
    y = pd.DataFrame({"y": X["a"] + rng.normal(size=80), "z": X["b"]}, index=X.index)[["y", "z"] if several else ["y"]]
    model = MixtureProbaRegressor(MixtureRegressor(**SMALL)).fit(X, y)
    p = model.predict_proba(X.iloc[:7])
    assert p.index.equals(X.index[:7])
    assert list(p.columns) == list(y.columns)
    inner = MixtureRegressor(**SMALL).fit(X, y.to_numpy() if several else y["y"].to_numpy())
    np.testing.assert_allclose(model.predict(X).to_numpy().squeeze(), inner.predict(X), rtol=1e-12)
    quantiles = inner.predict_quantile(X.iloc[:7], [0.1, 0.9]).reshape(7, -1)
    np.testing.assert_allclose(model.predict_quantiles(X.iloc[:7], alpha=[0.1, 0.9]).to_numpy(), quantiles, rtol=1e-9)


def test_any_regressor_that_predicts_mixtures_is_wrapped() -> None:
    rng = np.random.default_rng(0)
    X, y = pd.DataFrame(rng.normal(size=(60, 2))), pd.DataFrame(rng.normal(size=(60, 1)))
    model = MixtureProbaRegressor(ConformalRegressor(MixtureRegressor(**SMALL), random_state=0)).fit(X, y)
    assert math.isfinite(CRPS()(y, model.predict_proba(X)))
    assert model.get_params()["estimator__estimator__max_iter"] == 5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_boosted_trees_pass_the_checks_of_skpro() -> None:
    pytest.importorskip("cramix.boosting", reason="needs the extra trees")
    from cramix import MixtureBoostingRegressor

    model = MixtureProbaRegressor(MixtureBoostingRegressor(2, n_estimators=2, max_iter=5, random_state=0))
    assert model.get_tag("capability:missing")
    assert set(check_estimator(model, raise_exceptions=True, verbose=False).values()) == {"PASSED"}


def test_bad_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"means must be \(k,\) or \(n, d, k\); got shape \(1, 2\)"):
        MixtureDistribution([[0.5, 0.5]], [[0.0, 1.0]], [[1.0, 1.0]])


def test_without_skpro_the_pip_command_is_named() -> None:
    code = (
        "import sys; sys.modules['skpro.distributions.base'] = None\n"
        "try: import cramix.skpro\nexcept ImportError as e: print(e)"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "pip install 'cramix[skpro]'" in out
