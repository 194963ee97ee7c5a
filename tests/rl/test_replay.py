"""The memory: n-step returns against a loop, ends of episodes, several environments, files."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from cramix.rl.replay import Replay, returns_in, to_transitions
from tests.rl.games import Steps

GAMMA = 0.9
PLACES = spaces.Box(-np.inf, np.inf, (1,), np.float64)
KINDS = ("going", "terminated", "truncated", "cut")


def memory(size=40, n_envs=1, n_steps=3, space=PLACES, seed=0):
    return Replay(size, space, spaces.Discrete(5), "cpu", n_envs, gamma=GAMMA, n_steps=n_steps, seed=seed)


def draw(replay, size, env=None):
    return to_transitions(replay.sample(size, env), GAMMA)


def story(length, n_envs, seed=0):
    """Steps of environments: observations are the times, so each can be told from every other."""
    random = np.random.default_rng(seed)
    kinds = random.choice(3, p=[0.8, 0.1, 0.1], size=(length, n_envs))
    rewards = random.normal(size=(length, n_envs)).astype(np.float32)
    return kinds, rewards, random.integers(5, size=(length, n_envs)), set(random.choice(length, length // 12).tolist())


def fill(replay, kinds, rewards, actions, cuts):
    for t in range(len(kinds)):
        seen = 100.0 * np.arange(replay.n_envs)[:, None] + t
        infos = [{"TimeLimit.truncated": bool(kind == 2)} for kind in kinds[t]]
        replay.add(seen, seen + 0.5, actions[t], rewards[t], kinds[t] > 0, infos)
        if t in cuts:
            replay.end_episodes()


def unrolled(kinds, rewards, cuts, n_steps, t, env):
    """The sum of up to n rewards from t, the time of the last of them, and the discount of what comes next."""
    total = 0.0
    for k in range(n_steps):
        total += GAMMA**k * rewards[t + k, env]
        over = kinds[t + k, env] > 0 or t + k in cuts or t + k == len(kinds) - 1
        if over or k == n_steps - 1:
            return total, t + k, 0.0 if kinds[t + k, env] == 1 else GAMMA ** (k + 1)
    raise AssertionError


@pytest.mark.parametrize("n_steps", [1, 3, 5])
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("length", [25, 40, 41, 100])
def test_sums_of_rewards_by_a_loop(length, n_envs, n_steps):
    told = story(length, n_envs)
    kinds, rewards, actions, cuts = told
    replay = memory(40 * n_envs, n_envs, n_steps)
    fill(replay, *told)
    assert replay.size() == min(length, 40)
    b = draw(replay, 600)
    times, envs = np.mod(b.observations.numpy()[:, 0], 100).astype(int), (b.observations[:, 0] // 100).int().numpy()
    assert set(times) == set(range(max(0, length - 40), length))
    assert set(envs) == set(range(n_envs))
    for i in range(600):
        t, env = times[i], envs[i]
        total, last, discount = unrolled(kinds, rewards, cuts, n_steps, t, env)
        assert b.rewards[i].item() == pytest.approx(total, rel=1e-5, abs=1e-6)
        assert b.next_observations[i].item() == 100 * env + last + 0.5
        assert b.discounts[i].item() == pytest.approx(discount)
        assert b.actions[i].item() == actions[t, env]


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("sparing", [False, True])
@pytest.mark.parametrize("mapped", [False, True])
def test_transitions_are_the_samples_of_stable_baselines(n_envs, sparing, mapped):
    space, actions = spaces.Dict({"place": PLACES}) if mapped else PLACES, spaces.Discrete(5, start=2)
    told = story(60, n_envs)
    found = []
    for _ in range(2):
        replay = Replay(
            40 * n_envs, space, actions, "cpu", n_envs, sparing, not sparing, n_steps=3, gamma=GAMMA, seed=1
        )
        for t, (kinds, rewards, chosen) in enumerate(zip(*told[:3], strict=True)):
            seen = [{"place": x} if mapped else x for x in (np.full((n_envs, 1), t), np.full((n_envs, 1), t + 1.0))]
            infos = [{"TimeLimit.truncated": bool(kind == 2)} for kind in kinds]
            replay.add(*seen, chosen + 2, rewards, kinds > 0, infos)
        found.append(replay)
    ours, theirs = found[0].transitions(50, None, 2), to_transitions(found[1].sample(50), GAMMA, 2)
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_draws_have_the_types_that_networks_take():
    replay = memory()
    fill(replay, *story(10, 1))
    b = draw(replay, 4)
    assert (b.observations.dtype, b.rewards.dtype, b.discounts.dtype) == (torch.float32,) * 3
    assert (b.actions.dtype, b.rewards.shape, b.observations.shape) == (torch.int64, (4,), (4, 1))


def test_draws_are_of_the_seed():
    first, again, other = (memory(seed=s) for s in (0, 0, 1))
    for replay in (first, again, other):
        fill(replay, *story(30, 1))
    assert torch.equal(draw(first, 50).observations, draw(again, 50).observations)
    assert not torch.equal(draw(first, 50).observations, draw(other, 50).observations)


@pytest.mark.parametrize("length", [25, 70])
def test_returns_to_the_end_by_a_loop(length):
    kinds, rewards, actions, cuts = story(length, 2)
    replay = memory(80, 2)
    fill(replay, kinds, rewards, actions, cuts)
    first = max(0, length - 40)
    found = returns_in(replay, GAMMA)
    assert found.shape == (min(length, 40), 2)
    for place in range(len(found)):
        for env in range(2):
            t, total, discount = first + place, 0.0, 1.0
            while t < length:
                total += discount * rewards[t, env]
                if kinds[t, env] or t in cuts:
                    break
                t, discount = t + 1, discount * GAMMA
            assert found[place, env] == pytest.approx(total, rel=1e-5, abs=1e-6)


def test_cut_of_an_empty_memory_does_nothing():
    replay = memory()
    replay.end_episodes()
    assert not replay.dones.any()


def test_dict_observations():
    space = Steps(kind="dict").observation_space
    replay = memory(20, 2, 1, space)
    for t in range(6):
        seen = {"place": np.full((2, 2), t, np.float32), "room": np.array([t, 10 + t])}
        after = {key: x + 1 for key, x in seen.items()}
        replay.add(seen, after, np.zeros(2), np.ones(2), np.zeros(2, bool), [{}, {}])
    b = draw(replay, 50)
    assert b.observations["room"].shape == (50, 1)
    torch.testing.assert_close(b.next_observations["place"], b.observations["place"] + 1)
    torch.testing.assert_close(b.next_observations["room"], b.observations["room"] + 1)
    torch.testing.assert_close(b.observations["place"][:, 0].long(), b.observations["room"][:, 0] % 10)
    assert b.observations["room"].dtype == torch.int64


@pytest.fixture
def normalised():
    env = VecNormalize(DummyVecEnv([lambda: Steps(length=50)]), gamma=GAMMA)
    env.reset()
    for _ in range(30):
        env.step(np.array([0]))
    return env


def test_normalised_by_the_statistics_of_now(normalised):
    plain, both = (memory(100, space=normalised.observation_space) for _ in range(2))
    for replay in (plain, both):
        for t in range(20):
            seen = np.array([[t, 1.0]])
            replay.add(seen, seen + 1, [0], np.array([t], np.float32), [False], [{}])
    raw, scaled = draw(plain, 30), draw(both, 30, env=normalised)
    np.testing.assert_allclose(scaled.observations, normalised.normalize_obs(raw.observations.numpy()), rtol=1e-5)
    size = np.sqrt(normalised.ret_rms.var + normalised.epsilon)
    torch.testing.assert_close(scaled.rewards, raw.rewards / size.astype(np.float32), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(returns_in(both, GAMMA, normalised), returns_in(plain, GAMMA) / size, rtol=1e-4)


@pytest.mark.parametrize("length", [25, 70])
def test_files_give_the_same_memory(tmp_path, length):
    one, two = memory(80, 2), memory(80, 2)
    fill(one, *story(length, 2))
    one.save(tmp_path / "memory.npz")
    two.load(tmp_path / "memory.npz")
    for a, b in zip(draw(one, 50), draw(two, 50), strict=True):
        assert torch.equal(a, b)
    fill(one, *story(30, 2, seed=1))
    fill(two, *story(30, 2, seed=1))
    for a, b in zip(draw(one, 50), draw(two, 50), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "other",
    [
        {"size": 60},
        {"size": 80, "n_envs": 2},
        {"space": spaces.Box(-1, 1, (3,), np.float32)},
        {"space": spaces.Dict({"a": PLACES})},
    ],
)
def test_a_file_of_another_memory_is_refused_and_nothing_changes(tmp_path, other):
    one, two = memory(), memory(**other)
    fill(one, *story(30, 1))
    one.save(tmp_path / "memory.npz")
    with pytest.raises(ValueError, match=r"memory.npz must be an intact replay buffer"):
        two.load(tmp_path / "memory.npz")
    assert two.size() == 0
    assert not two.rewards.any()


def test_a_damaged_file_is_refused_and_nothing_changes(tmp_path):
    path = tmp_path / "memory.npz"
    one = memory(8)
    fill(one, *story(6, 1))
    one.save(path)
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    damages = [whole[:n] for n in (0, 1, 100, len(whole) // 2, len(whole) - 1)]
    for place in random.integers(len(whole), size=200):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << random.integers(8)
        damages.append(bytes(damaged))
    refused = 0
    for content in damages:
        path.write_bytes(content)
        two = memory(8)
        try:
            two.load(path)
        except ValueError as error:
            assert "intact replay buffer" in str(error)  # noqa: PT017
            assert two.size() == 0
            assert not two.rewards.any()
            refused += 1
        else:  # a bit that nobody reads
            np.testing.assert_array_equal(two.rewards, one.rewards)
    assert refused > 150


@pytest.mark.parametrize("content", [np.zeros(3), np.array([{"code": 1}], dtype=object)])
def test_another_file_of_numpy_is_refused(tmp_path, content):
    np.save(tmp_path / "memory.npy", content)
    with pytest.raises(ValueError, match="intact replay buffer"):
        memory().load(tmp_path / "memory.npy")


def test_no_file_is_said_as_such(tmp_path):
    with pytest.raises(FileNotFoundError):
        memory().load(tmp_path / "none.npz")
