"""Learners of small networks, and batches for them."""

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from cramix.rl import ALGORITHMS, Settings
from cramix.rl.learner import Learner
from cramix.rl.network import Architecture, ReturnNetwork
from cramix.rl.replay import Transitions
from cramix.rl.risk import parse_risk

STATES, ACTIONS = 4, 3


def network(algo, seed, net_arch=(), members=1):
    torch.manual_seed(seed)
    kind = ALGORITHMS[algo]
    return ReturnNetwork(
        spaces.Discrete(STATES),
        ACTIONS,
        kind.returns_class,
        dict(kind.presets["default"].returns),
        Architecture(net_arch, activation_fn=nn.Tanh, members=members),
    )


def learner(algo="gmdqn", unit=1.0, risk=None, net_arch=(), members=1, **settings):
    settings = {"optimizer": torch.optim.SGD, "max_grad_norm": None, "tau": 1.0, **settings}
    measure = None if risk is None else parse_risk(risk)
    nets = network(algo, 0, net_arch, members), network(algo, 1, net_arch, members)
    return Learner(*nets, torch.tensor(unit), Settings(**settings), measure), *nets


def batch(rows=8, seed=0):
    random = np.random.default_rng(seed)
    return Transitions(
        torch.tensor(random.integers(STATES, size=rows)),
        torch.tensor(random.integers(ACTIONS, size=rows)),
        torch.tensor(random.normal(size=rows), dtype=torch.float32),
        torch.tensor(random.integers(STATES, size=rows)),
        torch.tensor(random.choice([0.0, 0.9, 0.81], rows), dtype=torch.float32),
    )


def same(one, two):
    """Whether two agents have the same numbers."""
    states = (model.policy.state_dict().values() for model in (one, two))
    return all(torch.equal(a, b) for a, b in zip(*states, strict=True))
