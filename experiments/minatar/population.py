"""A population on MinAtar: environments, replay buffers and networks of all runs, stepped together."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from experiments.minatar.arcade import Arcade
from experiments.minatar.games.game import ACTIONS
from experiments.minatar.learner import Learner
from experiments.minatar.memory import Memory
from experiments.minatar.settings import Plan
from experiments.population.device import Branches, Recorded


class Population:
    """All runs of a plan on one device. On a GPU a step is one CUDA graph, and agents act beside the update.

    Args:
        plan: the runs and their settings.
        device: of all tensors.
        seed: of everything random.
        compile: whether parts of the update are compiled.
        compile_games: whether the games are compiled, too.
    """

    def __init__(
        self,
        plan: Plan,
        device: torch.device,
        seed: int = 0,
        *,
        compile: bool = False,
        compile_games: bool = False,
    ):
        self.plan, self.device = plan, device
        s, runs = plan.settings, len(plan.runs)
        self.learner = Learner(plan, device, torch.Generator().manual_seed(seed), compile=compile)
        self.memory = Memory(runs, s.envs, s.buffer_size, s.gamma, s.n_steps, device)
        counts = len(plan.variants), len(plan.seeds), s.envs
        self.arcade = Arcade(list(plan.games), *counts, device, compile=compile_games)
        self.generator = torch.Generator(device).manual_seed(seed)
        self.steps = 0  # of each run
        self.count = torch.zeros((), device=device)  # the same on the device, divided by the environments
        self.actions = torch.zeros(runs, s.envs, dtype=torch.long, device=device)
        self.running = torch.zeros(runs, s.envs, device=device)  # returns of the current episodes
        self.finished = torch.zeros(2, runs, device=device)  # sum and number of the returns since the last report
        rows = runs * s.envs
        self._sizes = [sum(self.arcade.draws), rows, rows, runs * s.batch_size, sum(self.learner.draws.values())]
        self._uniform = torch.zeros(sum(self._sizes), device=device)
        self._draw()
        self.arcade.reset(self._parts()[0])
        self._acting = Branches(1, device)
        self._explore = Recorded(lambda: self._step(learns=False), device, self.generator)
        self._learn = Recorded(lambda: self._step(learns=True), device, self.generator)

    def step(self) -> None:
        """Step all environments, and update all networks unless it is too early."""
        s = self.plan.settings
        learns = self.steps >= s.learning_starts
        (self._learn if learns else self._explore)()
        self.steps += s.envs
        if learns and (self.steps // s.envs) % s.target_interval == 0:
            self.learner.update_target()

    def take_finished(self) -> tuple[Tensor, Tensor]:
        """Return the mean return and the number of the episodes that ended since the last call, `(runs)`."""
        total, count = self.finished.clone().cpu()
        self.finished.zero_()
        return total / count, count

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that a checkpoint must hold, by name."""
        own = {"count": self.count, "running": self.running, "finished": self.finished}
        parts = {"learner": self.learner.tensors(), "memory": self.memory.tensors(), "arcade": self.arcade.tensors()}
        return own | {f"{part}/{name}": x for part, tensors in parts.items() for name, x in tensors.items()}

    def _draw(self) -> None:
        self._uniform.uniform_(generator=self.generator)

    def _parts(self) -> tuple[Tensor, ...]:
        return self._uniform.split(self._sizes)

    def _step(self, learns: bool) -> None:
        self._draw()
        of_games, explores, others, selection, of_returns = self._parts()
        self.memory.add_screens(self.arcade.screens)
        with self._acting.fork(0):
            self._act(explores, others)
            self.arcade.step(self.actions, of_games)
        if learns:
            self.learner.differentiate(self.memory, selection.view(len(self.actions), -1), of_returns)
        self._acting.join()
        if learns:
            self.learner.descend()  # not before the agents have acted
        self.arcade.join()
        rewards, terminal = self.arcade.rewards, self.arcade.terminal
        self.memory.add_results(self.actions, rewards, terminal)
        self.running.add_(rewards)
        self.finished.add_(torch.stack([(self.running * terminal).sum(1), terminal.sum(1)]))
        self.running.mul_(~terminal)
        self.count.add_(1)

    def _act(self, explores: Tensor, others: Tensor) -> None:
        """Choose actions by two uniform numbers for each environment: whether it explores, and the random action."""
        shape = self.actions.shape
        best = self.learner.values(self.arcade.screens).argmax(-1)
        random = (others.view(shape) * ACTIONS).long().clamp_(max=ACTIONS - 1)
        self.actions.copy_(torch.where(explores.view(shape) < self._exploration_rate(), random, best))

    def _exploration_rate(self) -> Tensor:
        s = self.plan.settings
        fraction = ((self.count * s.envs - s.learning_starts) / s.exploration_steps).clamp(0, 1)
        return 1 - (1 - s.exploration_final_eps) * fraction


@torch.no_grad()
def play_episodes(
    arcade: Arcade, act: Callable[[Tensor], Tensor], max_steps: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return the returns of one episode in each environment, `(runs, envs)`, and whether they ended.

    An episode that has not ended after `max_steps` counts with its return so far.

    Args:
        arcade: the environments.
        act: screens to actions.
        max_steps: the longest episode.
        generator: of the environments.
    """
    device = arcade.rewards.device
    uniform = torch.zeros(sum(arcade.draws), device=device)
    arcade.reset(uniform.uniform_(generator=generator))
    returns = torch.zeros_like(arcade.rewards)
    over = torch.zeros_like(arcade.terminal)
    actions = torch.zeros_like(returns, dtype=torch.long)

    def step() -> None:
        actions.copy_(act(arcade.screens))
        arcade.step(actions, uniform.uniform_(generator=generator))
        arcade.join()
        returns.add_(arcade.rewards * ~over)
        over.logical_or_(arcade.terminal)

    recorded = Recorded(step, device, generator)
    for i in range(max_steps):
        recorded()
        if i % 100 == 99 and bool(over.all()):
            break
    return returns.cpu(), over.cpu()


def evaluate(population: Population, envs: int, max_steps: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the returns of one episode in each of some environments without exploration, and whether they ended.

    Actions are sticky as in training.

    Args:
        population: its networks act.
        envs: environments of each run.
        max_steps: the longest episode.
        seed: of the environments.
    """
    plan, device = population.plan, population.device
    arcade = Arcade(list(plan.games), len(plan.variants), len(plan.seeds), envs, device)
    generator = torch.Generator(device).manual_seed(seed)
    return play_episodes(arcade, lambda screens: population.learner.values(screens).argmax(-1), max_steps, generator)
