"""The layer that corrects return distributions, on data whose distribution is known."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from cramix import NormalMixture, crps
from cramix.rl.recalibration import Recalibration, select

MEMBERS = 2


def predictions(n: int = 4000, actions: int = 3, seed: int = 0) -> NormalMixture:
    """Mixtures `(n, actions)` of four components whose spread and location vary."""
    g = torch.Generator().manual_seed(seed)
    means = 20 * torch.randn(n, 1, 1, generator=g) + torch.randn(n, actions, 4, generator=g)
    scales = torch.rand(n, actions, 4, generator=g) + 0.5
    return NormalMixture(torch.rand(n, actions, 4, generator=g).softmax(-1), means, scales)


def fitted(raw: NormalMixture, returns: torch.Tensor, preferred: torch.Tensor) -> Recalibration:
    layer = Recalibration(MEMBERS)
    layer.fit(raw, preferred, returns)
    return layer


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def too_wide(one_thread) -> tuple[NormalMixture, torch.Tensor, torch.Tensor, Recalibration]:
    """Returns with a third or a half of the predicted spread, by the sign of the mean, and a shift of one spread."""
    raw = predictions()
    preferred = raw.mean.argmax(-1)
    own = select(raw, preferred)
    spread = own.variance.sqrt() * torch.where(own.mean > 0, 1 / 3, 1 / 2)
    noise = torch.randn(len(spread), generator=torch.Generator().manual_seed(1))
    returns = own.mean + spread + spread * noise
    return raw, preferred, returns, fitted(raw, returns, preferred)


def test_an_unfitted_layer_changes_nothing():
    raw = predictions(5)
    assert Recalibration(MEMBERS)(raw, torch.zeros(5, dtype=torch.long)) is raw


def test_spread_and_shift_are_found(too_wide):
    _, _, _, layer = too_wide
    raw = predictions(4000, seed=5)  # not those of the fit
    preferred = raw.mean.argmax(-1)
    own, p = select(raw, preferred), select(layer(raw, preferred), preferred)
    clear = own.mean.abs() > 3  # between the signs the correction is a smooth function
    factor = (p.variance.sqrt() / own.variance.sqrt())[clear]
    expected = torch.where(own.mean > 0, 1 / 3, 1 / 2)[clear]
    assert (factor / expected).log().abs().mean() < 0.1
    shift = ((p.mean - own.mean) / own.variance.sqrt())[clear]
    assert (shift - expected).abs().mean() < 0.05
    noise = torch.randn(4000, generator=torch.Generator().manual_seed(6))
    spread = own.variance.sqrt() * torch.where(own.mean > 0, 1 / 3, 1 / 2)
    y = own.mean + spread * (1 + noise)
    inside = (p.cdf(y)[clear] - 0.5).abs() <= 0.4
    assert 0.77 < inside.float().mean() < 0.83
    best = spread[clear].mean() / math.pi**0.5  # the mean CRPS of the true normal distributions
    assert crps(p, y)[clear].mean() < 1.05 * best
    assert crps(own, y)[clear].mean() > 1.5 * best


def test_the_order_of_means_stays(too_wide):
    raw, preferred, _, layer = too_wide
    for doubt in (0.0, 0.7):
        changed = copy.deepcopy(layer)
        changed.doubt.fill_(doubt)
        p = changed(raw, preferred)
        differences = raw.mean - raw.mean[:, :1]
        torch.testing.assert_close(p.mean - p.mean[:, :1], differences, rtol=1e-3, atol=1e-3)


def test_without_doubt_all_actions_have_one_affine_map(too_wide):
    raw, preferred, _, layer = too_wide
    p = layer(raw, preferred)
    factor = p.variance.sqrt() / raw.variance.sqrt()
    torch.testing.assert_close(factor, factor[:, :1].expand_as(factor), rtol=1e-3, atol=0)
    torch.testing.assert_close(p.skewness, raw.skewness, rtol=1e-2, atol=1e-3)


def test_doubt_moves_spreads_to_that_of_the_preferred_action(too_wide):
    """The formula of the docstring, with other code."""
    raw, preferred, _, layer = too_wide
    plain, changed = layer(raw, preferred), copy.deepcopy(layer)
    changed.doubt.fill_(0.7)
    p = changed(raw, preferred)
    rows = np.arange(len(preferred))
    s, m = plain.variance.sqrt().double().numpy(), plain.mean.double().numpy()
    own_s, own_m = s[rows, preferred][:, None], m[rows, preferred][:, None]
    z = (own_m - m) / own_s
    c = z**2 / (z**2 + 0.49)
    np.testing.assert_allclose(p.variance.sqrt().numpy(), own_s * (s / own_s) ** c, rtol=2e-3)
    np.testing.assert_allclose(p.variance.sqrt().numpy()[rows, preferred], own_s[:, 0], rtol=1e-3)
    np.testing.assert_allclose(p.weights.sum(-1).numpy(), 1, rtol=1e-5)
    # Far from each other they keep theirs, close to each other they share one.
    assert c.max() > 0.5
    assert np.abs(np.log(p.variance.sqrt().numpy() / own_s))[c < 0.01].max() < 0.05


@pytest.mark.parametrize("true_spreads", [True, False])
def test_doubt_is_found_where_differences_of_spreads_are_noise(true_spreads):
    """Two nearly equal actions, whose predicted spreads differ by a factor of up to four."""
    g = torch.Generator().manual_seed(0)
    n = 3000
    means = torch.stack([torch.zeros(n), -0.05 * torch.rand(n, generator=g)], -1).unsqueeze(-1)
    scales = (1.4 * torch.rand(n, 2, 1, generator=g) - 0.7).exp()
    raw = NormalMixture(torch.ones(n, 2, 1), means, scales)
    preferred, other = torch.zeros(n, dtype=torch.long), torch.ones(n, dtype=torch.long)
    layer = Recalibration(1)
    layer.fit(raw, preferred, select(raw, preferred).mean + scales[:, 0, 0] * torch.randn(n, generator=g))
    spread = scales[:, 1, 0] if true_spreads else scales[:, 0, 0]
    returns = select(raw, other).mean + spread * torch.randn(n, generator=g)
    layer.fit_doubt(raw, preferred, other, returns)
    assert (layer.doubt == 0) == true_spreads
    p = layer(raw, preferred)
    ratio = (p.variance[:, 1] / p.variance[:, 0]).sqrt().log()
    truth = (spread / scales[:, 0, 0]).log()
    assert (ratio - truth).abs().mean() < 0.1


def test_where_the_data_do_not_decide_nearly_equal_actions_share_a_spread(too_wide):
    raw, preferred, returns, layer = too_wide
    again = copy.deepcopy(layer)
    again.doubt.fill_(1.0)
    again.fit_doubt(raw[:20], preferred[:20], (preferred[:20] + 1) % 3, returns[:20])
    assert again.doubt == pytest.approx(0.2)
    # Spreads of all actions are predicted to be equal, so that every doubt fits the data as well.
    g = torch.Generator().manual_seed(0)
    equal = NormalMixture(torch.ones(500, 2, 1), torch.rand(500, 2, 1, generator=g), torch.ones(500, 2, 1))
    layer = Recalibration(1)
    first = torch.zeros(500, dtype=torch.long)
    layer.fit(equal, first, equal.mean[:, 0] + torch.randn(500, generator=g))
    layer.fit_doubt(equal, first, first + 1, equal.mean[:, 1] + torch.randn(500, generator=g))
    assert layer.doubt == pytest.approx(0.2)


def test_states_far_from_all_known_ones_get_finite_corrections(too_wide):
    _, _, _, layer = too_wide
    raw = predictions(4)
    far = NormalMixture(raw.weights, raw.means + 1e6, raw.scales)
    p = layer(far, torch.zeros(4, dtype=torch.long))
    factor = p.variance.sqrt() / far.variance.sqrt()
    assert ((factor > 0.1) & (factor < 1)).all()


def test_atoms_have_a_spread_too():
    """Quantiles: all scales are 0."""
    g = torch.Generator().manual_seed(0)
    means = 3 * torch.randn(500, 2, 8, generator=g)
    raw = NormalMixture(torch.full((500, 2, 8), 1 / 8), means, torch.zeros(500, 2, 8))
    preferred = raw.mean.argmax(-1)
    own = select(raw, preferred)
    returns = own.mean + 0.2 * own.variance.sqrt() * torch.randn(500, generator=g)
    p = select(fitted(raw, returns, preferred)(raw, preferred), preferred)
    assert (p.scales == 0).all()
    assert (p.variance / own.variance).sqrt().mean() < 0.4


def test_one_seed_gives_one_fit(too_wide):
    raw, preferred, returns, layer = too_wide
    again = fitted(raw, returns, preferred)
    assert all(torch.equal(x, y) for x, y in zip(layer.buffers(), again.buffers(), strict=True))


def test_copies_and_states_are_the_layer(too_wide):
    raw, preferred, _, layer = too_wide
    loaded = Recalibration(MEMBERS)
    assert not loaded.state_dict()
    loaded.load_state_dict(layer.state_dict())
    expected = layer(raw, preferred)
    for other in (loaded, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(raw, preferred).means, expected.means)
    loaded.load_state_dict({})  # a file without it
    assert not loaded.active
