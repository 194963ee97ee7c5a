"""Action masks: no closed action is ever taken, in training, in evaluation, with any exploration."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from cramix.rl import GMDQN, MaskedActions
from cramix.rl.evaluation import evaluate
from cramix.rl.exploration import Exploration
from cramix.rl.masks import apply_mask, without_mask
from tests.refusals import refuses
from tests.rl.games import QUICK, Gates, Steps


class Outside(gymnasium.Wrapper):
    """The mask by a method of a wrapper, as sb3-contrib has it."""

    def __init__(self):
        super().__init__(gymnasium.wrappers.TimeLimit(Gates(), 100))

    def action_masks(self):
        return self.unwrapped.open


class Method(Gates):
    """The mask by a method instead of the info."""

    def action_masks(self):
        return self.open


@pytest.mark.parametrize("env", [Gates, Method, Outside, lambda: gymnasium.wrappers.TimeLimit(Outside(), 100)])
def test_observations_have_the_mask(env):
    masked = MaskedActions(env())
    seen, _ = masked.reset(seed=0)
    assert masked.observation_space.contains(seen)
    np.testing.assert_array_equal(seen["action_mask"], masked.unwrapped.open)
    seen, *_ = masked.step(int(np.flatnonzero(seen["action_mask"])[0]))
    np.testing.assert_array_equal(seen["action_mask"], masked.unwrapped.open)


@pytest.mark.parametrize("n_envs", [1, 3])
def test_training_and_playing_take_open_gates_only(n_envs):
    """The game raises an error at a closed gate."""
    env = DummyVecEnv([lambda: MaskedActions(Gates())] * n_envs)
    model = GMDQN("MultiInputPolicy", env, seed=0, exploration_fraction=0.5, **QUICK).learn(240)
    returns = evaluate(model, lambda: MaskedActions(Gates()), 5)
    assert returns.shape == (5,)
    seen = env.reset()
    for explores in (True, False):
        model.exploration_rate = 0.7
        for _ in range(30):
            actions, _ = model.predict(seen, deterministic=not explores)
            seen, *_ = env.step(actions)


def test_the_network_does_not_see_the_mask():
    model = GMDQN("MultiInputPolicy", MaskedActions(Gates()), seed=0, **QUICK)
    assert set(model.policy.q_net.observed.spaces) == {"observation"}
    one, two = (
        model.return_distribution({"observation": np.zeros(1, np.float32), "action_mask": np.array(mask, np.int8)})
        for mask in ([1, 1, 1, 1], [1, 0, 0, 0])
    )
    assert torch.equal(one.means, two.means)


def test_best_of_what_is_allowed():
    values = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    mask = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 1]])
    assert apply_mask(values, mask).argmax(-1).tolist() == [1, 2, 1]
    assert apply_mask(values, None) is values


def test_random_actions_are_even_over_what_is_allowed():
    exploration = Exploration(4, seed=0)
    mask = np.tile([1, 0, 1, 1], (3000, 1))
    counts = np.bincount(exploration.random(3000, mask), minlength=4)
    assert counts[1] == 0
    assert abs(counts[[0, 2, 3]] - 1000).max() < 130  # 5 standard deviations
    assert set(exploration.random(100, np.zeros((100, 4))).tolist()) == {0, 1, 2, 3}


def test_exploration_has_its_rate():
    exploration = Exploration(1000, seed=0)
    mixed = exploration.mix(np.full(4000, -1), 0.25, None)
    assert abs((mixed >= 0).mean() - 0.25) < 0.035  # 5 standard deviations


def test_refusals():
    with pytest.raises(ValueError, match="action_masks or return info"):
        MaskedActions(Steps()).reset()
    refuses(lambda: MaskedActions(gymnasium.make("Pendulum-v1")), "env", "Box", "discrete")
    refuses(
        lambda: without_mask(spaces.Dict({"action_mask": spaces.MultiBinary(2)})),
        "observations",
        "only that",
        "besides",
    )


class Boxed(gymnasium.ObservationWrapper):
    """Masks as numbers, which can be normalised."""

    def __init__(self, env):
        super().__init__(env)
        parts = dict(env.observation_space.spaces)
        self.observation_space = spaces.Dict({**parts, "action_mask": spaces.Box(0, 1, (int(env.action_space.n),))})

    def observation(self, observation):
        return {**observation, "action_mask": np.asarray(observation["action_mask"], np.float32)}


def test_masks_are_not_normalised():
    def made(**options):
        return VecNormalize(DummyVecEnv([lambda: Boxed(MaskedActions(Gates()))]), **options)

    env = made()
    rest = [key for key in env.norm_obs_keys if key != "action_mask"]
    refuses(lambda: GMDQN("MultiInputPolicy", env, **QUICK).learn(1), "VecNormalize", "among norm_obs_keys")
    GMDQN("MultiInputPolicy", made(norm_obs_keys=rest), **QUICK).learn(40)  # a closed gate is an error
