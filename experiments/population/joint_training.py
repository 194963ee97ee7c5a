"""Joint training of runs that differ only in their seeds, on one device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.env_util import make_vec_env

from cramix.rl.algorithm import DistributionalDQN, return_scale
from cramix.rl.evaluation import FIRST_SEED
from cramix.rl.folder import remove_partial_files
from cramix.rl.replay import discounted_returns
from cramix.rl.training import Report, Run, curve_seed, finish, start_seed
from experiments.population.checkpoint import NAME, Checkpoint, Progress
from experiments.population.device import Mirror, Recorded
from experiments.population.environments import Environments, Step
from experiments.population.memory import Memory
from experiments.population.vectorized import Parameters, VectorizedLearner


def train_jointly(
    runs: Sequence[Run],
    folders: Sequence[str | Path],
    device: torch.device | str = "cuda",
    workers: int | None = None,
    report: Report | None = None,
) -> list[dict[str, Any]]:
    """Train runs that differ only in their seeds, and return their results; each is written to its own folder.

    Agents are independent. Unlike in `train`, random numbers come from the device, and an update samples the replay
    buffer of one step before. All runs have one checkpoint, in the folder of the first run. The same runs resume from
    it, and the result is that of an uninterrupted run, up to nondeterminism of the device; other runs, even a subset,
    start again.

    Args:
        runs: of one environment, algorithm and length.
        folders: for the models and results, one per run.
        device: of networks and replay buffer.
        workers: number of processes for environments.
        report: called with the step and the latest figures.
    """
    first = runs[0]
    if any(replace(run, seed=first.seed) != first for run in runs):
        raise ValueError("runs must differ only in their seeds; got other differences. Train them separately.")
    paths, device = [Path(folder) for folder in folders], torch.device(device)
    for path in paths:
        remove_partial_files(path, NAME, "run.json", "model.zip", "result.json")
    models = [_model(run, device) for run in runs]
    _check(models[0])
    with Environments(first.env, len(runs), workers) as envs:
        population = _Population(runs, models, envs, device)
        checkpoint = Checkpoint(paths[0], runs, population.learner, population.memory, population.generator)
        population.step, seconds, curve = checkpoint.restore()
        started = time.monotonic() - seconds
        while population.step < first.steps:
            population.learn(min(first.interval, first.steps - population.step), report)
            if first.curve_episodes:
                returns = population.evaluate(first.curve_episodes, curve_seed(population.step))
                for rows, own in zip(curve, returns, strict=True):
                    seconds = time.monotonic() - started
                    row = {"step": population.step, "seconds": seconds, "mean": own.mean(), "std": own.std()}
                    rows.append({name: float(x) if name != "step" else x for name, x in row.items()})
            if population.step < first.steps:
                checkpoint.write(Progress(population.step, time.monotonic() - started, curve))
        seconds = time.monotonic() - started
        final = population.evaluate(first.episodes, 0)
        population.copy_to(models)
    results = []
    # The first run, whose folder has the checkpoint, is the last to be finished.
    for run, path, model, returns, rows in reversed(list(zip(runs, paths, models, final, curve, strict=True))):
        (path / "result.json").unlink(missing_ok=True)  # of a killed process; it belongs to the old model
        results.append(finish(run, path, model, returns, rows, seconds, together=len(runs)))
    checkpoint.remove()
    return results[::-1]


def _model(run: Run, device: torch.device) -> DistributionalDQN:
    env = make_vec_env(run.env, n_envs=1)
    algorithm = run.algorithm()
    model = algorithm("MlpPolicy", env, seed=run.seed, device=device, **algorithm.preset(run.preset, **run.settings))
    env.close()
    return model


def _check(model: DistributionalDQN) -> None:
    """Require settings that joint training supports."""
    wrong = {
        "risk": model.risk != "mean",
        "train_freq": model.train_freq[1].value != "step",  # type: ignore[index, union-attr]
        "gradient_steps": model.gradient_steps < 1,
        "policy_kwargs": model.policy.has_modes,
        "replay_buffer_class": model.replay_buffer_class is not None,
    }
    for name in (name for name, bad in wrong.items() if bad):
        raise ValueError(
            f"{name} must be one that joint training supports; got {getattr(model, name)!r}. Train without a device."
        )


class _Population:
    """Agents, their environments and their replay buffer."""

    def __init__(
        self, runs: Sequence[Run], models: Sequence[DistributionalDQN], envs: Environments, device: torch.device
    ):
        self.run, self.envs, self.device = runs[0], envs, device
        self.model = s = models[0]  # for its settings
        self.learner = VectorizedLearner(models, compile=device.type == "cuda" and bool(s.compile))
        self.memory = Memory(len(runs), envs.width, s.buffer_size, s.gamma, s.n_steps, device)
        self.generator = torch.Generator(device).manual_seed(runs[0].seed)
        self.seeds = [run.seed for run in runs]
        self.every = s.train_freq[0]  # type: ignore[index]
        self.observations = Mirror(len(runs), envs.width, device=device)
        self.epsilon = torch.ones((), device=device)
        self.actions = Mirror(len(runs), dtype=torch.long, device=device)
        self.rows = Mirror(len(runs), 2 * envs.width + 4, device=device)
        self._gradients = Recorded(self._learn_from_memory, device, self.generator)
        self._act = Recorded(self._choose, device, self.generator)
        self._best = Recorded(self._choose_best, device)
        self._add = Recorded(lambda: self.memory.add(self.rows.tensor), device)
        self.step = 0

    def learn(self, steps: int, report: Report | None) -> None:
        """Learn for some steps; the environments are reset first."""
        observations = self.envs.reset([start_seed(seed, self.step) for seed in self.seeds])
        reported = time.monotonic()
        for _ in range(steps):
            before = observations.copy()
            self.observations.send(before)
            remaining = 1 - self.step / self.run.steps
            self.epsilon.fill_(self._exploration_rate())
            self._act()
            actions = self.actions.fetch()
            self.envs.start(actions)
            if self.step > self.model.learning_starts and self.step % self.every == 0:
                for _ in range(self.model.gradient_steps):
                    self.learner.update(self._gradients(), self.model.lr_schedule(remaining))  # while environments step
            step = self.envs.wait()
            self._store(before, actions, step)
            observations = step.observations
            self.step += 1
            if self.step == self.model.learning_starts:
                self._choose_units()
            if report is not None and time.monotonic() - reported > 0.5:
                reported = time.monotonic()
                report(self.step, {})
        self.memory.end_episodes()

    def evaluate(self, episodes: int, seed: int) -> np.ndarray:
        """Return the returns of episodes without exploration, `(agents, episodes)`; all agents have the same seeds."""
        agents, first = len(self.seeds), FIRST_SEED + seed
        returns, total, played = np.full((agents, episodes), np.nan), np.zeros(agents), np.zeros(agents, int)
        observations = self.envs.reset([first] * agents)
        while played.min() < episodes:
            self.observations.send(observations)
            self._best()
            self.envs.start(self.actions.fetch(), first + played + 1)  # episodes that end are followed by the next
            step = self.envs.wait()
            total += step.rewards
            for i in np.flatnonzero(step.ended):
                if played[i] < episodes:
                    returns[i, played[i]] = total[i]
                total[i], played[i] = 0.0, played[i] + 1
            observations = step.observations
        return returns

    def copy_to(self, models: Sequence[DistributionalDQN]) -> None:
        """Copy the learned parameters into models."""
        for i, model in enumerate(models):
            learned = (self.learner.parameters, model.q_net), (self.learner.targets, model.q_net_target)
            for all_agents, network in learned:
                network.load_state_dict({name: x[i] for name, x in all_agents.items()}, strict=False)
            model.policy.unit.copy_(self.learner.units[i])
            model._n_updates = self.learner.updates
            model.num_timesteps = model._n_calls = model._scaled_at = self.step
            model.exploration_rate = self._exploration_rate()

    def _learn_from_memory(self) -> Parameters:
        shape = len(self.seeds), self.model.batch_size
        uniform = torch.rand(shape, generator=self.generator, device=self.device)
        return self.learner.gradients(self.memory, uniform)

    def _choose(self) -> None:
        best = self.learner.best(self.observations.tensor)
        explores = torch.rand(best.shape, generator=self.generator, device=self.device) < self.epsilon
        others = torch.randint(self.envs.actions, best.shape, generator=self.generator, device=self.device)
        self.actions.tensor.copy_(torch.where(explores, others, best))

    def _choose_best(self) -> None:
        self.actions.tensor.copy_(self.learner.best(self.observations.tensor))

    def _store(self, before: np.ndarray, actions: np.ndarray, step: Step) -> None:
        after = step.next_observations
        for name, x in (("rewards", step.rewards), ("observations", before), ("observations", after)):
            if not np.isfinite(x).all():
                raise ValueError(f"{name} must be finite; got {x[~np.isfinite(x)][0]}. Fix the environment.")
        numbers = (actions, step.rewards, step.terminated, step.ended)
        self.rows.send(np.concatenate([before, after, np.stack(numbers, -1)], -1))
        self._add()

    def _choose_units(self) -> None:
        if self.model.return_scale != "auto":
            return
        rows = self.memory.rows[:, : self.step, -3:].cpu().numpy()
        sums = discounted_returns(rows[..., 0].T, rows[..., 2].T > 0, self.model.gamma)
        units = [return_scale(sums[:, i]) for i in range(len(self.seeds))]
        self.learner.units.copy_(torch.tensor(units))

    def _exploration_rate(self) -> float:
        s = self.model
        if self.step < s.learning_starts:
            return 1.0
        fraction = min(1.0, self.step / (self.run.steps * max(s.exploration_fraction, 1e-12)))
        return s.exploration_initial_eps + fraction * (s.exploration_final_eps - s.exploration_initial_eps)
