"""Features extractors: by class or by name, and the small one for images."""

import itertools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.envs import FakeImageEnv
from stable_baselines3.common.torch_layers import NatureCNN

from cramix.rl import GMDQN
from cramix.rl.features import SmallCNN, find_features_extractor
from tests.refusals import refuses
from tests.rl.games import QUICK, Steps
from tests.rl.learners import same

SMALL = {**QUICK, "policy_kwargs": {"features_extractor_class": "SmallCNN", "members": 1}, "buffer_size": 60}


def images(size=30):
    return FakeImageEnv(screen_height=size, screen_width=size, n_channels=1, discrete=True)


def test_the_small_network_by_loops():
    """Two convolutions and a linear layer, written with loops over patches."""
    torch.manual_seed(0)
    net = SmallCNN(spaces.Box(0, 1, (2, 21, 46)), features_dim=7).double()
    first, second, last = (layer for layer in net.layers if hasattr(layer, "weight"))

    def convolved(layer, maps, size, stride):
        rows, columns = (1 + (side - size) // stride for side in maps.shape[1:])
        out = torch.zeros(len(layer.weight), rows, columns, dtype=maps.dtype)
        for i, j in itertools.product(range(rows), range(columns)):
            patch = maps[:, stride * i : stride * i + size, stride * j : stride * j + size]
            out[:, i, j] = torch.relu((layer.weight * patch).sum((1, 2, 3)) + layer.bias)
        return out

    images = torch.rand(3, 2, 21, 46, dtype=torch.float64)
    expected = [torch.relu(last(convolved(second, convolved(first, x, 8, 4), 4, 2).flatten())) for x in images]
    torch.testing.assert_close(net(images), torch.stack(expected))


@pytest.mark.parametrize("name", ["SmallCNN", "NatureCNN"])
def test_the_order_of_channels_in_memory_changes_nothing(name):
    torch.manual_seed(0)
    net = find_features_extractor(name)(spaces.Box(0, 255, (4, 84, 84), np.uint8)).double()
    images = torch.rand(2, 4, 84, 84, dtype=torch.float64)
    torch.testing.assert_close(net(images.contiguous(memory_format=torch.channels_last)), net(images))


def test_the_small_network_of_atari_has_the_published_size():
    net = SmallCNN(spaces.Box(0, 255, (4, 84, 84), np.uint8))
    # 16 filters of 8 x 8, 32 of 4 x 4, and 256 units for 32 maps of 9 x 9.
    assert sum(p.numel() for p in net.parameters()) == 16 * (256 + 1) + 32 * (256 + 1) + 256 * (2592 + 1)


def test_extractors_have_names():
    assert find_features_extractor("SmallCNN") is SmallCNN
    assert find_features_extractor(NatureCNN) is NatureCNN
    model = GMDQN("CnnPolicy", images(), **SMALL)
    assert isinstance(model.q_net.features_extractor, SmallCNN)
    assert isinstance(GMDQN("CnnPolicy", images(36), **QUICK).q_net.features_extractor, NatureCNN)


def test_other_names_and_small_images_are_refused():
    def made(name, env):
        return lambda: GMDQN(
            "CnnPolicy", env, **{**SMALL, "policy_kwargs": {"features_extractor_class": name, "members": 1}}
        )

    refuses(made("LargeCNN", images()), "features_extractor_class", "'LargeCNN'")
    refuses(made("SmallCNN", images(19)), "observation_space", "(1, 19, 19)")
    refuses(lambda: SmallCNN(gymnasium.spaces.Box(0, 1, (3,))), "observation_space", "(3,)")
    refuses(lambda: SmallCNN(spaces.Box(0, 1, (1, 30, 30)), 0), "features_dim", "0")
    refuses(lambda: SmallCNN(spaces.Box(0, 1, (40, 36, 30))), "observation_space", "(40, 36, 30)")
    refuses(lambda: SmallCNN(spaces.Dict(x=spaces.Box(0, 1, (3,)))), "observation_space", "Dict('x'")
    refuses(made("CombinedExtractor", images()), "features_extractor_class", "CombinedExtractor")
    with pytest.raises(ValueError, match="observation_space must have images"):
        GMDQN("MlpPolicy", Steps(), **{**QUICK, "policy_kwargs": {"features_extractor_class": SmallCNN}})


@pytest.mark.parametrize("named", ["SmallCNN", SmallCNN])
def test_files_hold_the_name(named, tmp_path):
    kwargs = {"features_extractor_class": named, "features_extractor_kwargs": {"features_dim": 8}, "members": 1}
    model = GMDQN("CnnPolicy", images(), seed=0, **{**SMALL, "policy_kwargs": kwargs}).learn(40)
    assert model._n_updates > 0
    model.save(tmp_path / "agent.zip")
    again = GMDQN.load(tmp_path / "agent.zip")
    assert same(model, again)
    assert isinstance(again.q_net.features_extractor, SmallCNN)
    assert again.policy_kwargs["features_extractor_class"] == named
