"""Rare outcomes of episodes: found where there are some, and left out where there are not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import norm
from torch import Tensor

from cramix import NormalMixture, crps
from cramix.rl.recalibration import Recalibration, select
from cramix.rl.tail import fit_tail

STEPS = 40


def played(rare: float, episodes: int = 600, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features `(n, 2)`, errors, spreads and numbers of episodes.

    An episode is rare with this probability, or three times that where its first feature is positive. Errors are
    N(0, 1), and N(-40, 10^2) in rare episodes.
    """
    g = torch.Generator().manual_seed(seed)
    kind = torch.randn(episodes, 1, generator=g).sign()
    is_rare = torch.rand(episodes, 1, generator=g) < rare * torch.where(kind > 0, 3.0, 1.0)
    usual = torch.randn(episodes, STEPS, generator=g)
    errors = torch.where(is_rare, -40 + 10 * torch.randn(episodes, STEPS, generator=g), usual)
    features = torch.stack([kind.expand(-1, STEPS), torch.randn(episodes, STEPS, generator=g)], -1)
    numbers = torch.arange(episodes).unsqueeze(-1).expand(-1, STEPS)
    return features.flatten(0, 1), errors.flatten(), torch.ones(episodes * STEPS), numbers.flatten()


def log_normal(errors: Tensor) -> Tensor:
    return torch.distributions.Normal(0.0, 1.0).log_prob(errors)


def test_rare_outcomes_are_found() -> None:
    features, errors, spreads, episodes = played(0.02, 5000)
    tail = fit_tail(features, errors, spreads, log_normal(errors), episodes)
    assert tail is not None
    assert tail.shift == pytest.approx(-40, abs=1.5)
    assert tail.scale == pytest.approx(10, abs=1.5)
    at = torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    np.testing.assert_allclose(tail.probability(at), [0.02, 0.06], rtol=0.25)
    assert abs(tail.weight[2]) < 0.05  # the second feature says nothing


def test_the_fit_is_the_most_probable_one() -> None:
    """The posterior, with other code: scipy finds nothing better near it."""
    features, errors, spreads, episodes = played(0.05, 200)
    tail = fit_tail(features, errors, spreads, log_normal(errors), episodes)
    assert tail is not None
    x, e = features.double().numpy(), errors.double().numpy()
    size = np.mean(e[np.abs(e) > 4] ** 2)
    usual = np.exp(np.maximum(norm.logpdf(e), -30))

    def loss(values: np.ndarray) -> float:
        weight, shift, log_scale = values[:3], values[3], values[4]
        w = expit(weight[0] + x @ weight[1:])
        fit = np.log((1 - w) * usual + w * norm.pdf(e, shift, np.exp(log_scale))).sum()
        prior = STEPS * ((size + shift**2) / (2 * np.exp(2 * log_scale)) + log_scale + (weight[1:] ** 2).sum() / 2)
        return float(prior - fit)

    start = np.array([*tail.weight.tolist(), float(tail.shift), float(tail.scale.log())])
    best = minimize(loss, start, method="BFGS")
    assert loss(start) - best.fun < 1e-3
    np.testing.assert_allclose(start, best.x, rtol=1e-3, atol=1e-3)


def test_gains_are_differences_of_log_likelihoods() -> None:
    features, errors, spreads, episodes = played(0.05)
    tail = fit_tail(features, errors, spreads, log_normal(errors), episodes)
    assert tail is not None
    near = errors.abs() < 5  # where the floor of log densities does nothing
    features, errors = features[near].double(), errors[near].double()
    w = tail.probability(features).numpy()
    truth = np.log((1 - w) * norm.pdf(errors) + w * norm.pdf(errors, tail.shift, tail.scale)) - norm.logpdf(errors)
    np.testing.assert_allclose(tail.gain(features, errors, log_normal(errors)), truth, atol=1e-9)


@pytest.mark.parametrize("rare_episodes", [0, 1, 4])
def test_a_few_rare_episodes_are_no_reason(rare_episodes: int) -> None:
    features, errors, spreads, episodes = played(0.0)
    errors[episodes < rare_episodes] -= 40
    assert fit_tail(features, errors, spreads, log_normal(errors), episodes) is None


def test_a_distribution_without_density_gets_none() -> None:
    features, errors, spreads, episodes = played(0.05)
    assert fit_tail(features, errors, spreads, torch.full_like(errors, -torch.inf), episodes) is None


def predictions(errors: Tensor, features: Tensor) -> tuple[NormalMixture, Tensor, Tensor]:
    """Right predictions of the usual outcome for two actions, the preferred one, and returns."""
    n = len(errors)
    means = torch.stack([5 * features[:, 0], 5 * features[:, 0] - 0.5], -1).unsqueeze(-1)
    raw = NormalMixture(torch.ones(n, 2, 1), means, torch.ones(n, 2, 1))
    return raw, torch.zeros(n, dtype=torch.long), means[:, 0, 0] + errors


def test_recalibrated_spreads_include_rare_outcomes_and_the_order_of_actions_stays() -> None:
    features, errors, _, episodes = played(0.02, 1000)
    raw, preferred, returns = predictions(errors, features)
    plain, layer = Recalibration(1), Recalibration(1)
    plain.fit(raw, preferred, returns)
    layer.fit(raw, preferred, returns, episodes=episodes)
    features, errors, _, _ = played(0.02, 1000, seed=1)
    raw, preferred, returns = predictions(errors, features)
    ratios = []
    for each in (plain, layer):
        p = select(each(raw, preferred), preferred)
        ratios.append(float(p.variance.mean().sqrt() / (returns - p.mean).square().mean().sqrt()))
    assert ratios[0] < 0.6
    assert 0.85 < ratios[1] < 1.15
    both = [crps(select(each(raw, preferred), preferred), returns).mean() for each in (plain, layer)]
    assert both[1] < both[0]
    every = layer(raw, preferred)
    assert every.n_components == 2
    torch.testing.assert_close(every.mean[:, 0] - every.mean[:, 1], torch.full((len(errors),), 0.5), rtol=0, atol=1e-4)
    torch.testing.assert_close(every.weights.sum(-1), torch.ones(len(errors), 2))
    loaded = Recalibration(1)
    loaded.load_state_dict(layer.state_dict())
    assert torch.equal(loaded(raw, preferred).weights, every.weights)
    older = {name: x for name, x in layer.state_dict().items() if not name.startswith("tail")}
    loaded.load_state_dict(older)
    assert loaded(raw, preferred).n_components == 1


def test_atoms_get_no_tail() -> None:
    """Quantiles have no density."""
    features, errors, _, episodes = played(0.05, 100)
    raw, preferred, returns = predictions(errors, features)
    atoms = NormalMixture(
        torch.full((len(errors), 2, 4), 0.25),
        raw.means + torch.linspace(-1.5, 1.5, 4),
        torch.zeros(len(errors), 2, 4),
    )
    layer = Recalibration(1)
    layer.fit(atoms, preferred, returns, episodes=episodes)
    assert layer.tail_scale == 0
    assert layer(atoms, preferred).n_components == 4
