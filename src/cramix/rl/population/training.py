"""Runs of one algorithm that differ in their seeds, trained together on one device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.env_util import make_vec_env

from cramix.rl.algorithm import DistributionalDQN, return_scale
from cramix.rl.population.checkpoint import NAME, Checkpoint, Progress
from cramix.rl.population.device import Mirror, Recorded
from cramix.rl.population.environments import Environments, Seen
from cramix.rl.population.learner import PopulationLearner
from cramix.rl.population.memory import Memory
from cramix.rl.replay import discounted_returns
from cramix.rl.runs.evaluation import FIRST_SEED
from cramix.rl.runs.folder import remove_halves
from cramix.rl.runs.training import Run, conclude, curve_seed, start_seed
from cramix.rl.settings import Settings

Tell = Callable[[int, dict[str, Any]], None]


def train_together(
    runs: Sequence[Run],
    folders: Sequence[str | Path],
    device: torch.device | str = "cuda",
    workers: int | None = None,
    tell: Tell | None = None,
) -> list[dict[str, Any]]:
    """Train runs that differ in their seeds only, and return their results; each is written to a folder of its own.

    Agents do not know of each other. What differs from `train`: random numbers come from the device, and an update sees
    the memory of one step before. There is one checkpoint for all, in the folder of the first run. With the same runs
    training goes on from there, and ends as if it had not been interrupted, as exactly as the device computes; with
    others, such as what is left of them, it starts anew.

    Args:
        runs: of one environment, algorithm and length.
        folders: for the models and results, one a run.
        device: where networks and memory are.
        workers: processes for environments.
        tell: called with the number of steps and the latest figures.
    """
    first = runs[0]
    if any(replace(run, seed=first.seed) != first for run in runs):
        raise ValueError("runs must differ in their seeds only; got others. Train them apart.")
    places, device = [Path(folder) for folder in folders], torch.device(device)
    for place in places:
        remove_halves(place, NAME, "run.json", "model.zip", "result.json")
    models = [_model(run, device) for run in runs]
    _check(models[0].settings)
    with Environments(first.env, len(runs), workers) as envs:
        population = _Population(runs, models, envs, device)
        kept = Checkpoint(places[0], runs, population.learner, population.memory, population.generator)
        population.step, seconds, curve = kept.restore()
        started = time.monotonic() - seconds
        while population.step < first.steps:
            population.learn(min(first.interval, first.steps - population.step), tell)
            if first.curve_episodes:
                returns = population.evaluate(first.curve_episodes, curve_seed(population.step))
                for rows, own in zip(curve, returns, strict=True):
                    seconds = time.monotonic() - started
                    row = {"step": population.step, "seconds": seconds, "mean": own.mean(), "std": own.std()}
                    rows.append({name: float(x) if name != "step" else x for name, x in row.items()})
            if population.step < first.steps:
                kept.write(Progress(population.step, time.monotonic() - started, curve))
        seconds = time.monotonic() - started
        final = population.evaluate(first.episodes, 0)
        population.hand_back(models)
    results = []
    # The first, whose folder has the checkpoint, is the last to be done.
    for run, place, model, returns, rows in reversed(list(zip(runs, places, models, final, curve, strict=True))):
        (place / "result.json").unlink(missing_ok=True)  # of a program that was killed; it belongs to its model
        results.append(conclude(run, place, model, returns, rows, seconds, together=len(runs)))
    kept.remove()
    return results[::-1]


def _model(run: Run, device: torch.device) -> DistributionalDQN:
    env = make_vec_env(run.env, n_envs=1)
    model = run.algorithm()("MlpPolicy", env, preset=run.preset, seed=run.seed, device=device, **run.settings)
    env.close()
    return model


def _check(settings: Settings) -> None:
    """Require settings that all agents of a population can follow together."""
    wrong = {
        "risk": settings.risk != "mean",
        "train_freq": isinstance(settings.train_freq, tuple) and settings.train_freq[1] != "step",
        "gradient_steps": settings.gradient_steps < 1,
    }
    for name in (name for name, bad in wrong.items() if bad):
        raise ValueError(
            f"{name} must be one that agents follow in step; got {getattr(settings, name)!r}. Train one by one."
        )


class _Population:
    """Agents, their environments and their memory."""

    def __init__(
        self, runs: Sequence[Run], models: Sequence[DistributionalDQN], envs: Environments, device: torch.device
    ):
        self.run, self.envs, self.device = runs[0], envs, device
        self.settings = runs[0].algorithm().presets[runs[0].preset].replace(**runs[0].settings)
        compile = device.type == "cuda" and bool(self.settings.compile)
        self.learner = PopulationLearner([model.learner for model in models], compile=compile)
        s = self.settings
        self.memory = Memory(len(runs), envs.width, s.buffer_size, s.gamma, s.n_steps, device)
        self.generator = torch.Generator(device).manual_seed(runs[0].seed)
        self.seeds = [run.seed for run in runs]
        self.every = s.train_freq[0] if isinstance(s.train_freq, tuple) else s.train_freq
        self.sight = Mirror(len(runs), envs.width, device=device)
        self.exploration = torch.ones((), device=device)
        self.actions = Mirror(len(runs), dtype=torch.long, device=device)
        self.rows = Mirror(len(runs), 2 * envs.width + 4, device=device)
        self._gradients = Recorded(self._learn_from_memory, device, self.generator)
        self._act = Recorded(self._choose, device, self.generator)
        self._best = Recorded(self._choose_best, device)
        self._add = Recorded(lambda: self.memory.add(self.rows.tensor), device)
        self.step = 0

    def learn(self, steps: int, tell: Tell | None) -> None:
        """Go on by some steps, from environments that start anew."""
        now = self.envs.reset([start_seed(seed, self.step) for seed in self.seeds])
        told = time.monotonic()
        for _ in range(steps):
            before = now.copy()
            self.sight.send(before)
            remaining = 1 - self.step / self.run.steps
            self.exploration.fill_(self._rate_of_exploration())
            self._act()
            actions = self.actions.fetch()
            self.envs.start(actions)
            if self.step > self.settings.learning_starts and self.step % self.every == 0:
                for _ in range(self.settings.gradient_steps):
                    self.learner.update(self._gradients(), self.settings.rate(remaining))  # while environments step
            seen = self.envs.seen()
            self._remember(before, actions, seen)
            now = seen.now
            self.step += 1
            if self.step == self.settings.learning_starts:
                self._choose_units()
            if tell is not None and time.monotonic() - told > 0.5:
                told = time.monotonic()
                tell(self.step, {})
        self.memory.cut()

    def evaluate(self, episodes: int, seed: int) -> np.ndarray:
        """Return the returns of episodes without exploration, `(agents, episodes)`, from the same seeds for all."""
        agents, first = len(self.seeds), FIRST_SEED + seed
        returns, total, played = np.full((agents, episodes), np.nan), np.zeros(agents), np.zeros(agents, int)
        now = self.envs.reset([first] * agents)
        while played.min() < episodes:
            self.sight.send(now)
            self._best()
            self.envs.start(self.actions.fetch(), first + played + 1)  # who has ended goes on with the next
            seen = self.envs.seen()
            total += seen.rewards
            for i in np.flatnonzero(seen.ended):
                if played[i] < episodes:
                    returns[i, played[i]] = total[i]
                total[i], played[i] = 0.0, played[i] + 1
            now = seen.now
        return returns

    def hand_back(self, models: Sequence[DistributionalDQN]) -> None:
        """Put what was learned into models."""
        for i, model in enumerate(models):
            for own, all_agents in zip(model.learner.vectors, self.learner.vectors, strict=True):
                own.copy_(all_agents[i])
            for own, all_agents in zip(model.learner.targets, self.learner.targets, strict=True):
                own.copy_(all_agents[i])
            model.policy.unit.copy_(self.learner.units[i])
            model.learner.updates = model._n_updates = self.learner.updates
            model.num_timesteps = self.step
            model.exploration_rate = self._rate_of_exploration()

    def _learn_from_memory(self) -> Sequence[torch.Tensor]:
        shape = len(self.seeds), self.settings.batch_size
        uniform = torch.rand(shape, generator=self.generator, device=self.device)
        return self.learner.gradients(self.memory, uniform)

    def _choose(self) -> None:
        best = self.learner.best(self.sight.tensor)
        explores = torch.rand(best.shape, generator=self.generator, device=self.device) < self.exploration
        others = torch.randint(self.envs.actions, best.shape, generator=self.generator, device=self.device)
        self.actions.tensor.copy_(torch.where(explores, others, best))

    def _choose_best(self) -> None:
        self.actions.tensor.copy_(self.learner.best(self.sight.tensor))

    def _remember(self, before: np.ndarray, actions: np.ndarray, seen: Seen) -> None:
        for name, x in (("rewards", seen.rewards), ("observations", before), ("observations", seen.after)):
            if not np.isfinite(x).all():
                raise ValueError(f"{name} must be finite; got {x[~np.isfinite(x)][0]}. Mend the environment.")
        numbers = (actions, seen.rewards, seen.terminated, seen.ended)
        self.rows.send(np.concatenate([before, seen.after, np.stack(numbers, -1)], -1))
        self._add()

    def _choose_units(self) -> None:
        if self.settings.return_scale != "auto":
            return
        rows = self.memory.rows[:, : self.step, -3:].cpu().numpy()
        sums = discounted_returns(rows[..., 0].T, rows[..., 2].T > 0, self.settings.gamma)
        units = [return_scale(sums[:, i]) for i in range(len(self.seeds))]
        self.learner.units.copy_(torch.tensor(units))

    def _rate_of_exploration(self) -> float:
        s = self.settings
        if self.step < s.learning_starts:
            return 1.0
        part = min(1.0, self.step / (self.run.steps * max(s.exploration_fraction, 1e-12)))
        return s.exploration_initial_eps + part * (s.exploration_final_eps - s.exploration_initial_eps)
