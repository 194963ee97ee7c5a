"""A check of a device: the same games and gradients as on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.minatar.population import Population
from experiments.minatar.settings import ALGORITHMS, Plan, Settings, Variant

_STEPS = 300


def compare_with_cpu(device: torch.device, *, compile: bool = False) -> None:
    """Require that games are equal, and gradients close, for the same random numbers; print the largest difference.

    Args:
        device: to check.
        compile: whether games and update are compiled there, as in training on a GPU.
    """
    settings = Settings(buffer_size=4000, learning_starts=400, members=2, n_steps=3)
    plan = Plan([Variant(name, 1e-3) for name in ALGORITHMS], seeds=(0, 1), settings=settings)
    cpu = torch.device("cpu")
    both = [Population(plan, cpu), Population(plan, device, compile=compile, compile_games=compile)]
    generator = torch.Generator().manual_seed(0)

    def uniform(count: int) -> list[Tensor]:
        x = torch.rand(count, generator=generator)
        return [x, x.to(device)]

    for population, x in zip(both, uniform(sum(both[0].arcade.draws)), strict=True):
        population.arcade.reset(x)
    for step in range(_STEPS):
        actions = torch.randint(6, both[0].actions.shape, generator=generator)
        for population, x in zip(both, uniform(sum(both[0].arcade.draws)), strict=True):
            population.memory.add_screens(population.arcade.screens)
            population.actions.copy_(actions)
            population.arcade.step(population.actions, x)
            population.arcade.join()
            population.memory.add_results(population.actions, population.arcade.rewards, population.arcade.terminal)
        ours, theirs = (population.arcade for population in both)
        for name in ("screens", "rewards", "terminal"):
            if not torch.equal(getattr(ours, name), getattr(theirs, name).cpu()):
                raise ValueError(f"{name} must be equal on {device} and on the CPU; got a difference in step {step}.")
    rows = len(plan.runs), settings.batch_size
    selection = uniform(rows[0] * rows[1])
    draws = uniform(sum(both[0].learner.draws.values()))
    for population, chosen, x in zip(both, selection, draws, strict=True):
        population.memory.add_screens(population.arcade.screens)
        population.learner.differentiate(population.memory, chosen.view(rows), x)
    expected, found = (population.learner.gradient.cpu() for population in both)
    for name, part in both[0].learner.parts.items():
        error = ((expected[part] - found[part]).norm(dim=1) / expected[part].norm(dim=1)).max().item()
        print(f"{name:6} relative error of gradients {error:.1e}")
        if not error < 0.02:  # near ties of actions may be decided differently
            raise ValueError(f"gradients of {name} must be close to those on the CPU; got an error of {error:.2g}.")
    print(f"games are equal over {_STEPS} steps")
