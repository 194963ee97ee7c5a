"""Populations: the update, the memory and the play of many agents are those of each alone."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from cramix.rl import ALGORITHMS, GMDQN
from cramix.rl.evaluation import evaluate
from cramix.rl.replay import Replay, Transitions, to_transitions
from cramix.rl.training import Run
from experiments.population.device import Mirror, Recorded
from experiments.population.environments import Environments
from experiments.population.joint_training import train_jointly
from experiments.population.memory import Memory
from experiments.population.vectorized import VectorizedLearner

CPU = torch.device("cpu")
SMALL = {"policy_kwargs": {"net_arch": [16, 16]}, "batch_size": 8, "learning_starts": 50}


def filled_memory(agents: int, generator: torch.Generator, device: torch.device = CPU) -> Memory:
    memory = Memory(agents, 4, 40, 0.9, 3, device)
    for _ in range(40):
        rows = torch.randn(agents, 12, generator=generator)
        rows[:, 8] = torch.randint(2, (agents,), generator=generator)
        rows[:, 10:] = (torch.rand(agents, 1, generator=generator) < 0.2).float()
        memory.add(rows.to(device))
    return memory


@pytest.mark.parametrize(
    ("algo", "compiled", "members"),
    [
        *((algo, False, members) for algo in ALGORITHMS for members in (1, 2)),
        pytest.param("gmdqn", True, 2, marks=pytest.mark.slow),
    ],
)
def test_updates_are_those_of_each_agent_alone(algo, compiled, members):
    settings = {**SMALL, "return_scale": 2.0, "max_grad_norm": 0.1, "fraction_learning_rate": 1e-4, "device": "cpu"}
    settings["policy_kwargs"] = {**SMALL["policy_kwargs"], "members": members}
    if algo == "fqf":
        settings["returns"] = {"quantiles": 4, "cosines": 8}
    models = [ALGORITHMS[algo]("MlpPolicy", "CartPole-v1", seed=seed, **settings) for seed in range(3)]
    for model in models:  # IQN draws its fractions in training mode, so that no two updates are equal
        model.policy.set_training_mode(False)
        model.policy.has_modes = False
    population = VectorizedLearner(models, compile=compiled)
    generator = torch.Generator().manual_seed(0)
    memory = filled_memory(3, generator)
    for step in range(4):
        uniform = torch.rand(3, 8, generator=generator)
        population.update(population.gradients(memory, uniform), 1e-3 / (step + 1))
        batch = memory.draw(uniform)
        for i, model in enumerate(models):
            for group in model.policy.optimizer.param_groups:
                group["lr"] = 1e-3 / (step + 1) * group["rate_factor"]
            model.learner.update(Transitions(*(part[i] for part in batch)), 0.1)
            model.learner.update_target(model.tau)
    for i, model in enumerate(models):
        for name, alone in model.q_net.named_parameters():
            torch.testing.assert_close(population.parameters[name][i], alone, rtol=1e-4, atol=1e-5)
        for name, alone in model.q_net_target.named_parameters():
            torch.testing.assert_close(population.targets[name][i], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n_steps", [1, 3])
def test_memory_draws_what_the_replay_of_each_agent_holds(n_steps):
    """Every drawn row is found among those that the memory of one agent gives for its steps."""
    rng, size, gamma = np.random.default_rng(0), 12, 0.9
    space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    replays = [Replay(size, space, spaces.Discrete(3), gamma=gamma, n_steps=n_steps, seed=0) for _ in range(2)]
    memory = Memory(2, 2, size, gamma, n_steps, torch.device("cpu"))
    for _ in range(size + 5):  # goes round once
        seen, after = rng.normal(size=(2, 2)).astype("f"), rng.normal(size=(2, 2)).astype("f")
        actions, rewards = rng.integers(3, size=2), rng.normal(size=2).astype("f")
        terminated, truncated = rng.random(2) < 0.2, rng.random(2) < 0.1
        ended = terminated | truncated
        numbers = np.stack([actions, rewards, terminated, ended], -1).astype("f")
        memory.add(torch.from_numpy(np.concatenate([seen, after, numbers], -1)))
        for i, replay in enumerate(replays):
            info = {"TimeLimit.truncated": bool(truncated[i] and not terminated[i])}
            replay.add(seen[i : i + 1], after[i : i + 1], actions[i], rewards[i], ended[i : i + 1], [info])
    drawn = memory.draw(torch.rand(2, 400, generator=torch.Generator().manual_seed(0)))
    for i, replay in enumerate(replays):
        truth = {}
        rows = to_transitions(replay._get_samples(np.arange(size)), gamma)
        for seen, action, reward, after, discount in zip(*rows, strict=True):
            truth[round(float(seen[0]), 5)] = (action, reward, after, discount)
        found = set()
        for row in range(400):
            key = round(float(drawn.observations[i, row, 0]), 5)
            action, reward, after, discount = truth[key]
            found.add(key)
            assert drawn.actions[i, row] == action
            np.testing.assert_allclose(drawn.rewards[i, row], reward, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(drawn.next_observations[i, row], after)
            np.testing.assert_allclose(drawn.discounts[i, row], discount, rtol=1e-6)
        assert found == set(truth)


def test_a_mirror_carries_numbers_both_ways():
    mirror = Mirror(2, 3, device=CPU)
    values = np.arange(6.0).reshape(2, 3)
    mirror.send(values)
    assert mirror.tensor.tolist() == values.tolist()
    mirror.tensor.mul_(2)
    assert mirror.fetch().tolist() == (2 * values).tolist()


def test_a_cut_ends_the_returns_of_all_agents():
    memory = Memory(2, 1, 8, 0.5, 2, torch.device("cpu"))
    rows = torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0, 0.0]] * 2)
    memory.add(rows)
    memory.end_episodes()
    memory.add(rows)
    drawn = memory.draw(torch.rand(2, 50, generator=torch.Generator().manual_seed(0)))
    assert drawn.rewards.eq(1.0).all()
    assert drawn.discounts.eq(0.5).all()


@pytest.mark.slow
def test_results_are_those_of_the_models_in_the_folders(tmp_path):
    runs = [
        Run("CartPole-v1", steps=300, seed=seed, settings=SMALL, interval=200, episodes=3, curve_episodes=2)
        for seed in (0, 1)
    ]
    folders = [tmp_path / str(run.seed) for run in runs]
    results = train_jointly(runs, folders, "cpu", workers=1)
    for run, folder, result in zip(runs, folders, results, strict=True):
        model = GMDQN.load(folder / "model.zip")
        assert result["returns"] == evaluate(model, "CartPole-v1", 3).tolist()
        assert [row["step"] for row in result["curve"]] == [200, 300]
        assert (folder / "run.json").exists()
        assert result["seed"] == run.seed
        # It learns on where it is, in its unit.
        assert model.num_timesteps == 300
        assert model._n_updates == 249
        unit = model.policy.unit.clone()
        model.set_env(gymnasium.make("CartPole-v1"))
        model.learn(60)
        assert model._n_updates > 249
        assert model.policy.unit == unit != 1
    weights = [next(GMDQN.load(folder / "model.zip").q_net.parameters()) for folder in folders]
    assert (weights[0] - weights[1]).abs().max() > 0.1


def test_runs_that_differ_in_more_than_seeds_are_refused(tmp_path):
    runs = [Run("CartPole-v1", steps=300), Run("CartPole-v1", steps=400, seed=1)]
    with pytest.raises(ValueError, match="runs must differ only in their seeds"):
        train_jointly(runs, [tmp_path, tmp_path], "cpu")


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "updates"), [({}, 249), ({"train_freq": 4}, 62), ({"gradient_steps": 2}, 498)])
def test_updates_come_as_often_as_asked(tmp_path, monkeypatch, settings, updates):
    """From step 51 to 299, after 50 at random."""
    taken = []
    monkeypatch.setattr(VectorizedLearner, "update", lambda self, gradients, rate: taken.append(rate))
    run = Run("CartPole-v1", steps=300, settings={**SMALL, **settings}, interval=300, episodes=1, curve_episodes=0)
    train_jointly([run], [tmp_path], "cpu", workers=1)
    assert len(taken) == updates


def test_settings_that_agents_cannot_share_are_refused(tmp_path):
    run = Run("CartPole-v1", steps=300, settings={"train_freq": [1, "episode"]})
    with pytest.raises(ValueError, match="train_freq must be one that joint training supports"):
        train_jointly([run], [tmp_path], "cpu")


def test_environments_of_images_are_refused():
    with pytest.raises(ValueError, match="env must have vectors"):
        Environments("CarRacing-v3", 1)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@needs_gpu
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_recorded_and_compiled_updates_on_a_gpu_are_those_on_the_cpu(algo):
    found = []
    for device in ("cpu", "cuda"):
        models = [ALGORITHMS[algo]("MlpPolicy", "CartPole-v1", seed=i, device=device, **SMALL) for i in range(3)]
        population = VectorizedLearner(models, compile=device == "cuda")
        memory = filled_memory(3, torch.Generator().manual_seed(0), torch.device(device))
        uniform = torch.zeros(3, 8, device=device)
        gradients = Recorded(lambda p=population, m=memory, u=uniform: p.gradients(m, u), torch.device(device))
        generator = torch.Generator().manual_seed(1)
        for _ in range(6):  # recorded at the fourth
            uniform.copy_(torch.rand(3, 8, generator=generator))
            population.update(gradients(), 1e-3)
        found.append([x.detach().cpu() for x in population.parameters.values()])
    for ours, truth in zip(*found, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_populations_learn(tmp_path, device):
    runs = [Run("CartPole-v1", steps=3000, seed=seed, interval=3000, episodes=5, curve_episodes=0) for seed in (0, 1)]
    results = train_jointly(runs, [tmp_path / "0", tmp_path / "1"], device, workers=1)
    assert min(result["mean"] for result in results) > 60
