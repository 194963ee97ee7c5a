"""The network: observations of all kinds come to it as Stable-Baselines3 has them."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor
from torch import nn

from cramix.rl.agents.ddqn import ExpectedReturns
from cramix.rl.network import Architecture, ReturnNetwork

KINDS = [
    spaces.Discrete(4),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(3),
    spaces.Box(0, 255, (1, 4, 4), np.uint8),
    spaces.Box(-1, 1, (2,), np.float64),
    spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (2,), np.float32)}),
]


def network(space, **changes):
    torch.manual_seed(0)
    extractor = CombinedExtractor if isinstance(space, spaces.Dict) else FlattenExtractor
    arguments = {"net_arch": [5], "activation_fn": nn.Tanh, "members": 1, "features_extractor_class": extractor}
    return ReturnNetwork(space, spaces.Discrete(2), ExpectedReturns, {}, Architecture(**{**arguments, **changes}))


def several(space, n=6):
    space.seed(0)
    drawn = [space.sample() for _ in range(n)]
    if isinstance(space, spaces.Dict):
        return {key: torch.as_tensor(np.stack([x[key] for x in drawn])) for key in space.spaces}
    return torch.as_tensor(np.stack(drawn))


@pytest.mark.parametrize("space", KINDS, ids=str)
def test_observations_as_stable_baselines_has_them(space):
    net, seen = network(space), several(space)
    features = net.features_extractor(preprocess_obs(seen, space))
    torch.testing.assert_close(net(seen).means, net.each[0](features).means)
    assert net(seen).means.shape == (6, 2, 1)


def test_numbers_that_start_elsewhere():
    one, two = network(spaces.Discrete(4)), network(spaces.Discrete(4, start=-2))
    torch.testing.assert_close(one(torch.arange(4)).means, two(torch.arange(-2, 2)).means)


def test_images_may_be_left_as_they_are():
    space = KINDS[3]
    seen = several(space)
    plain, scaled = (network(space, normalize_images=flag) for flag in (False, True))
    scaled.each[0][0][0].weight.data.div_(1 / 255)
    torch.testing.assert_close(plain(seen).means, scaled(seen).means, rtol=1e-4, atol=1e-5)


def test_layers_are_as_told():
    net = network(spaces.Discrete(4), net_arch=[5, 3], layer_norm=True, dueling=True)
    assert [type(x).__name__ for x in net.each[0][0]] == ["Linear", "LayerNorm", "Tanh"] * 2
    assert [x.out_features for x in net.each[0][0] if isinstance(x, nn.Linear)] == [5, 3]
    assert net.returns.values.shared is not None
