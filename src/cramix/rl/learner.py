"""The learner: one update of a policy at a time, compiled where that pays."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from cramix.rl.adam import take_step
from cramix.rl.objective import Objective
from cramix.rl.policy import ReturnPolicy
from cramix.rl.replay import Transitions
from cramix.torch_internals import lerp_all

Gradients = dict[str, Tensor]
# The other arguments of `_gradients` are networks and their parameters, of which only the numbers change.
_CHANGING = ("objective", "batch", "unit", "max_grad_norm")


class Learner:
    """Takes steps of the optimiser of a policy, and moves its target network.

    Copies and pickles learn on as the original does; only the compiled graph is built again.

    Args:
        policy: holds the networks, the optimiser and the unit of returns.
        compiled: whether the update is compiled. If that fails at the first one, the learner warns and runs without.
    """

    def __init__(self, policy: ReturnPolicy, compiled: bool = False):
        self.policy = policy
        self.compiled = compiled
        self._graph: Callable[..., tuple[Gradients, Tensor]] | None = None

        self._listed: tuple[Any, list[Gradients], list[list[Tensor]]] | None = None
        self._objective: Objective | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_graph": None, "_listed": None, "_objective": None}

    @property
    def is_new(self) -> bool:
        """Whether nothing is compiled yet."""
        return self._graph is None

    def update(self, batch: Transitions, max_grad_norm: float | None = None) -> Tensor:
        """Take one step at the learning rates of the optimiser, and return `METRICS` as one tensor."""
        metrics = self._compiled(batch, max_grad_norm) if self.compiled else self._eager(batch, max_grad_norm)
        take_step(self.policy.optimizer)
        return metrics

    def update_target(self, tau: float) -> None:
        """Move the target network by a fraction towards the online network, and copy statistics of normalisations."""
        (online, target), buffers = self._lists()
        lerp_all(list(target.values()), list(online.values()), tau)
        for new, old in zip(*buffers, strict=True):
            old.copy_(new)

    def _lists(self) -> tuple[list[Gradients], list[list[Tensor]]]:
        """Return the parameters by name and the buffers of both networks; searching them every step would be slow."""
        networks = self.policy.q_net, self.policy.q_net_target
        key = (*networks, self.policy.optimizer)
        listed = self._listed
        if listed is None or listed[0] != key:
            names = [dict[str, Tensor](net.named_parameters()) for net in networks]
            listed = self._listed = (key, names, [list(net.buffers()) for net in networks])
            self._graph, self._objective = None, None  # they are those of other networks
        return listed[1], listed[2]

    def _loss(self) -> Objective:
        """Return the objective of the policy, the same as before unless its measure has changed."""
        if self._objective is None or self._objective.measure is not self.policy.measure:
            online = self.policy.q_net
            self._objective = Objective(online.returns, online.members, self.policy.measure)
        return self._objective

    def _eager(self, batch: Transitions, max_grad_norm: float | None) -> Tensor:
        (online, _), _ = self._lists()
        policy, objective = self.policy, self._loss()
        policy.set_training_mode(False)  # targets are not random, and leave statistics of normalisations alone
        with torch.no_grad():
            target = objective.target(policy.q_net, policy.q_net_target, batch, policy.unit)
        policy.set_training_mode(True)
        loss, metrics = objective.loss(policy.q_net(batch.observations), target, batch.actions)
        policy.optimizer.zero_grad()
        loss.backward()
        parameters = [p for p in online.values() if p.grad is not None]
        norm = get_total_norm([p.grad for p in parameters if p.grad is not None], foreach=True)
        if max_grad_norm is not None:
            clip_grads_with_norm_(parameters, max_grad_norm, norm, foreach=True)
        return torch.cat([norm.unsqueeze(0), metrics])

    def _compiled(self, batch: Transitions, max_grad_norm: float | None) -> Tensor:
        policy = self.policy
        if policy.has_statistics:
            return self._give_up("batch normalisation is not supported", batch, max_grad_norm)
        (parameters, targets), _ = self._lists()
        first = self._graph is None
        # One graph for prediction, target, loss and gradient: in networks of this size, calls cost more than layers.
        self._graph = self._graph or compiled(_gradients, _CHANGING, in_cpp=policy.unit.is_cpu)
        try:
            with torch.no_grad():
                gradients, metrics = self._graph(
                    self._loss(),
                    policy.q_net,
                    policy.q_net_target,
                    parameters,
                    targets,
                    batch,
                    policy.unit,
                    max_grad_norm,
                )
        except Exception as error:
            if not first:
                raise
            return self._give_up(_first_line(error), batch, max_grad_norm)
        for name, parameter in parameters.items():
            parameter.grad = gradients[name]
        return metrics

    def _give_up(self, reason: str, batch: Transitions, max_grad_norm: float | None) -> Tensor:
        warnings.warn(
            f"the update could not be compiled and runs uncompiled, which is slower: {reason}. "
            "Install a C++ compiler, or use compile=False.",
            stacklevel=2,
        )
        self.compiled, self._graph = False, None
        return self._eager(batch, max_grad_norm)


def _gradients(
    objective: Objective,
    training: nn.Module,
    evaluating: nn.Module,
    parameters: Gradients,
    targets: Gradients,
    batch: Transitions,
    unit: Tensor,
    max_grad_norm: float | None,
) -> tuple[Gradients, Tensor]:
    """Return the clipped gradients by name, and `METRICS`; a pure function of the parameters.

    Args:
        objective: the loss.
        training: the network in training mode.
        evaluating: the same network in evaluation mode, for targets.
        parameters: of the online network.
        targets: of the target network.
        batch: transitions.
        unit: one unit of the network in units of the rewards.
        max_grad_norm: None does not clip.
    """
    target = objective.target(
        lambda x: functional_call(evaluating, parameters, (x,)),
        lambda x: functional_call(evaluating, targets, (x,)),
        batch,
        unit,
    )

    def loss(values: Gradients) -> tuple[Tensor, Tensor]:
        return objective.loss(functional_call(training, values, (batch.observations,)), target, batch.actions)

    gradients, (_, metrics) = grad_and_value(loss, has_aux=True)(parameters)
    norm = torch.stack([x.square().sum() for x in gradients.values()]).sum().sqrt()
    shrink = clip_factor(norm, max_grad_norm)
    return {name: in_order(x * shrink) for name, x in gradients.items()}, torch.cat([norm.unsqueeze(0), metrics])


def clip_factor(norm: Tensor, max_grad_norm: float | None) -> Tensor:
    """Return the factor for gradients of this norm, as `torch.nn.utils.clip_grad_norm_` does; None does not clip."""
    return torch.ones_like(norm) if max_grad_norm is None else (max_grad_norm / (norm + 1e-6)).clamp_max(1.0)


def in_order(gradient: Tensor) -> Tensor:
    """Return a gradient in the memory order of its parameter: fused optimisers read both without their strides."""
    return gradient.contiguous()


def compiled(function: Callable, changing: tuple[str, ...] | None = None, in_cpp: bool = False) -> Callable:
    """Return a function compiled as one graph, or not at all: with graph breaks it is slower than uncompiled.

    Args:
        function: to compile.
        changing: arguments that may differ between calls; None is all. Of the others only the numbers in tensors may,
            because the compiler takes long to check the thousands of attributes of a network at every call.
        in_cpp: whether the calls of kernels are compiled too, which takes some seconds more.
    """

    def checked(guards: Iterable[Any]) -> list[bool]:
        return [not guard.name or any(name in guard.name for name in changing or ()) for guard in guards]

    options: dict[str, Any] = {} if changing is None else {"guard_filter_fn": checked}
    if in_cpp:
        options["cpp_wrapper"] = True
    # The compiler caches its graphs with the code object of a function, tries all of them at each call, and gives up
    # after eight. Each learner gets a code object of its own, so that a process can have many.
    own = FunctionType(function.__code__.replace(), function.__globals__, function.__name__)
    return torch.compile(own, dynamic=False, fullgraph=True, options=options or None)


def can_compile(device: torch.device) -> bool:
    """Whether there is a compiler for the device."""
    if device.type == "cuda":
        return True
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state of an optimiser, `{"0/exp_avg": ..., ...}`."""
    states = optimizer.state_dict()["state"]
    return {f"{i}/{name}": torch.as_tensor(x) for i, state in states.items() for name, x in state.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Tensor]) -> None:
    """Load the result of `optimizer_state` into an optimiser, in new tensors."""
    states: dict[int, dict[str, Tensor]] = {}
    for key, x in state.items():
        i, _, name = key.partition("/")
        states.setdefault(int(i), {})[name] = x
    states = dict(sorted(states.items()))  # in the order of the parameters, as `take_step` needs them
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
