"""Learners of small networks, and batches for them."""

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from cramix.rl import ALGORITHMS
from cramix.rl.learner import Learner
from cramix.rl.policy import MlpPolicy
from cramix.rl.replay import Transitions
from cramix.rl.risk import parse_risk

STATES, ACTIONS = 4, 3


class Stepper(Learner):
    """A learner whose updates name their learning rate, with the target network of an algorithm."""

    def __init__(self, policy, max_grad_norm=None, tau=1.0, target_update_interval=1):
        super().__init__(policy)
        self.max_grad_norm, self.tau, self.interval, self.count = max_grad_norm, tau, target_update_interval, 0

    def update(self, transitions, rate):
        for group in self.policy.optimizer.param_groups:
            group["lr"] = rate * group["rate_factor"]
        metrics = super().update(transitions, self.max_grad_norm)
        self.count += 1
        if self.count % self.interval == 0:
            self.update_target(self.tau)
        return metrics


def policy(algo, net_arch=(), members=1, learning_rate=1e-3, space=None, **settings):
    rate = learning_rate if callable(learning_rate) else lambda left: learning_rate
    return MlpPolicy(
        spaces.Discrete(STATES) if space is None else space,
        spaces.Discrete(ACTIONS),
        rate,
        list(net_arch),
        nn.Tanh,
        members=members,
        returns_class=ALGORITHMS[algo].returns_class,
        **settings,
    )


def network(algo, seed, net_arch=(), members=1):
    torch.manual_seed(seed)
    return policy(algo, net_arch, members).q_net.eval()


def learner(algo="gmdqn", unit=1.0, risk=None, *, max_grad_norm=None, tau=1.0, target_update_interval=1, **settings):
    """A learner with its online and its target network, which have different weights."""
    nets = [network(algo, seed, settings.get("net_arch", ()), settings.get("members", 1)) for seed in (0, 1)]
    made = policy(algo, **{"optimizer_class": torch.optim.SGD, **settings})
    if algo == "iqn":  # it draws its fractions in training mode, so that no two updates are equal
        made.set_training_mode(False)
        made.has_modes = False
    made.q_net.load_state_dict(nets[0].state_dict())
    made.q_net_target.load_state_dict(nets[1].state_dict())
    made.unit.fill_(unit)
    made.measure = None if risk is None else parse_risk(risk)
    return Stepper(made, max_grad_norm, tau, target_update_interval), made.q_net, made.q_net_target


def batch(rows=8, seed=0):
    random = np.random.default_rng(seed)
    return Transitions(
        torch.tensor(random.integers(STATES, size=rows)),
        torch.tensor(random.integers(ACTIONS, size=rows)),
        torch.tensor(random.normal(size=rows), dtype=torch.float32),
        torch.tensor(random.integers(STATES, size=rows)),
        torch.tensor(random.choice([0.0, 0.9, 0.81], rows), dtype=torch.float32),
    )


def compile_with(monkeypatch, backend):
    """Compile updates by another backend, which has no options of its own; all but inductor need no C++ compiler."""
    compile_ = torch.compile

    def compiled(function, options=None, **rest):
        guards = {name: x for name, x in (options or {}).items() if name == "guard_filter_fn"}
        return compile_(function, backend=backend, options=guards, **rest)

    monkeypatch.setattr(torch, "compile", compiled)


def same(one, two):
    """Whether two agents have the same numbers."""
    states = (model.policy.state_dict().values() for model in (one, two))
    return all(torch.equal(a, b) for a, b in zip(*states, strict=True))
