"""The objective of boosted trees: derivatives, metric and bound against mpmath and quadrature; both libraries learn."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, stats

from cramix import NormalMixture, crps
from cramix.boosting import MixtureObjective, objective
from cramix.boosting.derivatives import crps_derivatives, crps_metric, nll_derivatives
from tests.refusals import refuses

DERIVATIVES = {"crps": crps_derivatives, "nll": nll_derivatives}


def parameters(k: int, n: int = 4, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, 3 * k, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def split(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return a.tensor_split(3, -1)


def exact_score(loss: str, a: list, y: float) -> mpmath.mpf:
    """The score with the digits of mpmath, the CRPS by quadrature of its definition."""
    k = len(a) // 3
    exps = [mpmath.exp(x) for x in a[:k]]
    w, m, s = [e / sum(exps) for e in exps], a[k : 2 * k], [mpmath.exp(x) for x in a[2 * k :]]
    if loss == "nll":
        return -mpmath.log(sum(wi * mpmath.npdf(y, mi, si) for wi, mi, si in zip(w, m, s, strict=True)))

    def cdf(x: mpmath.mpf) -> mpmath.mpf:
        return sum(wi * mpmath.ncdf(x, mi, si) for wi, mi, si in zip(w, m, s, strict=True))

    nodes = sorted([*m, y])
    below = mpmath.quad(lambda x: cdf(x) ** 2, [-25, *[x for x in nodes if x < y], y])
    return below + mpmath.quad(lambda x: (1 - cdf(x)) ** 2, [y, *[x for x in nodes if x > y], 25])


@pytest.mark.parametrize("loss", DERIVATIVES)
def test_values_and_gradients_agree_with_mpmath(loss: str) -> None:
    a, y = parameters(2, n=1), 0.7
    found = DERIVATIVES[loss](*split(a), torch.tensor([y], dtype=torch.float64))
    with mpmath.workdps(22):
        exact = [mpmath.mpf(x) for x in a[0].tolist()]
        assert found.value.item() == pytest.approx(float(exact_score(loss, exact, mpmath.mpf(y))), rel=1e-12)
        step = mpmath.mpf("1e-7")
        for i in range(len(exact)):
            up, down = (exact_score(loss, [*exact[:i], exact[i] + d, *exact[i + 1 :]], y) for d in (step, -step))
            assert found.gradient[0, i].item() == pytest.approx(float((up - down) / (2 * step)), rel=1e-8, abs=1e-10)


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("loss", DERIVATIVES)
def test_scores_are_those_of_the_mixture(loss: str, k: int) -> None:
    a, y = parameters(k, n=50), 3 * torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    a.requires_grad_()
    found = DERIVATIVES[loss](*split(a), y)
    logits, means, log_scales = split(a)
    p = NormalMixture(logits.softmax(-1), means, log_scales.exp())
    expected = crps(p, y) if loss == "crps" else -p.log_prob(y)
    torch.testing.assert_close(found.value, expected, rtol=1e-10, atol=1e-12)
    (gradient,) = torch.autograd.grad(expected.sum(), a)
    torch.testing.assert_close(found.gradient.detach(), gradient, rtol=1e-9, atol=1e-11)


def test_the_metric_is_the_integral_of_products_of_derivatives() -> None:
    a = parameters(3, n=2)
    found = crps_metric(*split(a))
    x, h = np.linspace(-30, 30, 6001, retstep=True)
    for row, got in zip(a, found, strict=True):
        jacobian = torch.func.jacfwd(lambda v: cdf(v, torch.from_numpy(x)))(row)
        torch.testing.assert_close(got, 2 * h * jacobian.T @ jacobian, rtol=1e-6, atol=1e-7)


def cdf(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    logits, means, log_scales = a.tensor_split(3)
    return torch.special.ndtr((x.unsqueeze(-1) - means) / log_scales.exp()) @ logits.softmax(-1)


def test_the_metric_is_the_expected_second_derivative() -> None:
    """For targets drawn from the prediction itself, by quadrature over the targets."""
    a = parameters(2, n=1, seed=3)
    y, h = torch.linspace(-40, 40, 8001, dtype=torch.float64), 80 / 8000

    def mean_score(v: torch.Tensor) -> torch.Tensor:
        return density @ crps_derivatives(*(p.expand(len(y), -1) for p in split(v.unsqueeze(0))), y).value * h

    logits, means, log_scales = split(a)
    density = NormalMixture(logits.softmax(-1), means, log_scales.exp()).log_prob(y).exp()
    hessian = torch.autograd.functional.hessian(mean_score, a[0])
    torch.testing.assert_close(crps_metric(*split(a))[0], hessian, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_curvature_bounds_each_block_of_the_metric(k: int) -> None:
    a = torch.cat((parameters(k, n=60), torch.zeros(1, 3 * k, dtype=torch.float64)))  # and components that agree
    y = torch.zeros(len(a), dtype=torch.float64)
    curvature, metric = crps_derivatives(*split(a), y).curvature, crps_metric(*split(a))
    for block in range(3):
        part = slice(block * k, (block + 1) * k)
        difference = torch.diag_embed(curvature[:, part]) - metric[:, part, part]
        assert torch.linalg.eigvalsh(difference).min() > -1e-12
    if k == 1:  # then it is the metric itself, apart from logits
        torch.testing.assert_close(curvature[:, 1:], metric.diagonal(dim1=1, dim2=2)[:, 1:])


def test_one_component_takes_the_steps_of_ngboost() -> None:
    """NGBoost's natural gradient of the CRPS, by its own function, times the scale.

    Its metric, `diag(2, s^2) / (2 sqrt(pi))`, is `s` times `2 integral dF dF^T dx`: the directions are the same.
    """
    ngboost = pytest.importorskip("ngboost", reason="ngboost needs pandas < 3", exc_type=ImportError)
    rng = np.random.default_rng(0)
    means, log_scales, y = rng.normal(size=(3, 200))
    mixture = MixtureObjective(NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1)))
    steps, _ = mixture.steps(np.stack((means, log_scales), 1), torch.from_numpy(y))
    theirs = ngboost.manifold.manifold(ngboost.scores.CRPScore, ngboost.distns.Normal)
    expected = theirs(np.stack((means, log_scales))).grad(y, natural=True)
    np.testing.assert_allclose(steps, np.exp(log_scales)[:, None] * expected, rtol=1e-8)


def test_one_component_takes_natural_steps() -> None:
    """The gradient of the CRPS of a normal by quadrature, divided by `1/(s sqrt(pi))` and `s/(2 sqrt(pi))`."""
    m, s, y, d = 0.4, 1.7, 1.1, 1e-5

    def score(m: float, log_s: float) -> float:
        low = integrate.quad(lambda x: stats.norm.cdf(x, m, np.exp(log_s)) ** 2, -40, y, epsabs=1e-13)[0]
        return low + integrate.quad(lambda x: stats.norm.sf(x, m, np.exp(log_s)) ** 2, y, 40, epsabs=1e-13)[0]

    by_mean = (score(m + d, np.log(s)) - score(m - d, np.log(s))) / (2 * d) * s * np.sqrt(np.pi)
    by_scale = (score(m, np.log(s) + d) - score(m, np.log(s) - d)) / (2 * d) / s * 2 * np.sqrt(np.pi)
    mixture = MixtureObjective(NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1)))
    steps, counts = mixture.steps([[m, np.log(s)]], torch.tensor([y], dtype=torch.float64))
    np.testing.assert_allclose(steps[0], [by_mean, by_scale], rtol=1e-6)
    np.testing.assert_array_equal(counts, 1)


@pytest.mark.parametrize("loss", DERIVATIVES)
def test_steps_are_bounded_and_finite(loss: str) -> None:
    mixture = objective(3, loss)
    y = torch.tensor([1e9, -1e9, 0.0, 1e-300], dtype=torch.float64)
    for margins in (np.zeros((4, 9)), 50 * parameters(3).numpy()):
        gradient, curvature = mixture.gradient_and_curvature(margins, y)
        assert np.isfinite(gradient).all()
        assert (curvature > 0).all()
        steps, _ = mixture.steps(margins, y)
        scales = mixture.parameters(margins)[2].exp()
        assert (steps[:, 3:6].abs() <= 3.001 * scales / mixture._unit).all()
        assert (steps[:, [0, 1, 2, 6, 7, 8]].abs() <= 3.001).all()


def branches(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, n)
    return x[:, None], rng.choice([-1, 1], n) * x + rng.normal(0, 0.1, n)


@pytest.mark.parametrize("loss", DERIVATIVES)
@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_both_libraries_learn_two_branches_and_stop(library: str, loss: str) -> None:
    X, y = branches(1000, 0)
    held_X, held_y = branches(300, 1)
    mixture = objective(2, loss, targets=y)
    trainer = pytest.importorskip(library)
    if library == "lightgbm":
        seen = trainer.Dataset(X, y)
        params = {"objective": mixture, "num_class": mixture.n_outputs, "max_depth": 3, "verbose": -1, "metric": "none"}
        stop = trainer.early_stopping(20, verbose=False)
        unseen = trainer.Dataset(held_X, held_y, reference=seen)
        trees = trainer.train(params, seen, 300, [unseen], feval=mixture.metric, callbacks=[stop])
        margins, best = trees.predict(held_X, raw_score=True), trees.best_score["valid_0"][loss]
    else:
        seen, unseen = trainer.DMatrix(X, y), trainer.DMatrix(held_X, held_y)
        params = {
            "num_target": mixture.n_outputs,
            "max_depth": 3,
            "eta": 0.1,
            "base_score": 0,
            "disable_default_eval_metric": 1,
        }
        trees = trainer.train(
            params, seen, 300, evals=[(unseen, "unseen")], obj=mixture, custom_metric=mixture.metric,
            early_stopping_rounds=20, verbose_eval=False
        )  # fmt: skip
        span = (0, trees.best_iteration + 1)
        margins, best = trees.predict(unseen, output_margin=True, iteration_range=span), trees.best_score
    p, t = mixture.mixture(margins), torch.from_numpy(held_y)
    score = (crps(p, t) if loss == "crps" else -p.log_prob(t)).mean().item()
    assert best == pytest.approx(score, rel=1e-4)
    # Better than one normal can be: by symmetry its mean is 0, and its scale is the best of many for this distance.
    deviation = (torch.from_numpy(held_X) ** 2 + 0.1**2).sqrt()
    normals = [
        NormalMixture(torch.ones_like(deviation), 0 * deviation, c * deviation) for c in np.arange(0.5, 1.6, 0.05)
    ]
    assert crps(p, t).mean() < min(crps(normal, t).mean() for normal in normals)


def test_weights_of_the_data_set_count() -> None:
    lightgbm = pytest.importorskip("lightgbm")
    X, y = np.zeros((200, 1)), np.tile([0.0, 10.0], 100)
    weights = np.tile([9.0, 1.0], 100)
    mixture = objective(1, targets=y, sample_weight=weights)
    data = lightgbm.Dataset(X, y, weight=weights).construct()
    margins = np.zeros((200, 2))
    gradient, curvature = mixture(margins, data)
    plain, _ = mixture(margins, lightgbm.Dataset(X, y).construct())
    np.testing.assert_allclose(gradient / curvature, plain, rtol=1e-12)
    np.testing.assert_allclose(curvature[0] / curvature[1], 9)
    name, value, higher_is_better = mixture.metric(margins, data)
    t = torch.from_numpy(y)
    assert (name, higher_is_better) == ("crps", False)
    assert value == pytest.approx(np.average(crps(mixture.mixture(margins), t).numpy(), weights=weights))


def test_bad_arguments_are_refused() -> None:
    refuses(lambda: objective(0), "n_components", "0")
    refuses(lambda: objective(2, "mse"), "loss", "mse")
    refuses(lambda: objective(2, min_scale=0.0), "min_scale", "0.0")
    refuses(lambda: objective(2).mixture(np.zeros((3, 5))), "margins", "(3, 5)")
