"""The learner: one update of a policy at a time, compiled where that pays."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping
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
from cramix.rl.risk import Checked
from cramix.torch_internals import lerp_all

Gradients = dict[str, Tensor]
# The other arguments of `_gradients` are networks and their parameters, of which only the numbers change.
_CHANGING = ("objective", "batch", "unit")
# States that the kernel of Adam reads with the shape of the parameter, without a check.
_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")


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
        # What the graph is for, besides numbers: names of the parameters that learn, and the risk measure.
        self._graph_key: tuple[Any, ...] = ()
        self._limit: tuple[float | None, Tensor] | None = None
        self._listed: tuple[Any, list[Gradients], list[list[Tensor]]] | None = None
        self._objective: Objective | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_graph": None, "_limit": None, "_listed": None, "_objective": None}

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
        learning = {name: x for name, x in parameters.items() if x.requires_grad}
        frozen = {name: x for name, x in parameters.items() if name not in learning}
        objective, key = self._loss(), (tuple(learning), policy.measure)
        if new := self._graph is None or key != self._graph_key:
            # One graph for prediction, target, loss and gradient: in networks of this size, calls cost more than
            # layers. A function of the user's may read anything, so that all of it is checked at each call.
            changing = None if isinstance(policy.measure, Checked) else _CHANGING
            self._graph = compiled(_gradients, changing, in_cpp=policy.unit.is_cpu)
            self._graph_key = key
        assert self._graph is not None
        networks = policy.q_net, policy.q_net_target
        limit = self._as_tensor(max_grad_norm)
        try:
            with torch.no_grad():
                gradients, metrics = self._graph(
                    objective, *networks, learning, frozen, targets, batch, policy.unit, limit
                )
        except Exception as error:
            if not new:
                raise
            return self._give_up(_first_line(error), batch, max_grad_norm)
        for name, parameter in learning.items():
            parameter.grad = _like(gradients[name], parameter)
        for parameter in frozen.values():
            parameter.grad = None
        return metrics

    def _as_tensor(self, max_grad_norm: float | None) -> Tensor:
        """Return the limit as a tensor, whose changes need no other graph; infinity does not clip."""
        device = self.policy.unit.device
        if self._limit is None or self._limit[0] != max_grad_norm or self._limit[1].device != device:
            value = float("inf") if max_grad_norm is None else max_grad_norm
            self._limit = max_grad_norm, torch.tensor(value, device=device)
        return self._limit[1]

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
    learning: Gradients,
    frozen: Gradients,
    targets: Gradients,
    batch: Transitions,
    unit: Tensor,
    max_grad_norm: Tensor,
) -> tuple[Gradients, Tensor]:
    """Return the clipped gradients by name, and `METRICS`; a pure function of the parameters.

    Args:
        objective: the loss.
        training: the network in training mode.
        evaluating: the same network in evaluation mode, for targets.
        learning: parameters of the online network that have gradients.
        frozen: its other parameters.
        targets: parameters of the target network.
        batch: transitions.
        unit: one unit of the network in units of the rewards.
        max_grad_norm: infinity does not clip.
    """
    target = objective.target(
        lambda x: functional_call(evaluating, {**frozen, **learning}, (x,)),
        lambda x: functional_call(evaluating, targets, (x,)),
        batch,
        unit,
    )

    def loss(values: Gradients) -> tuple[Tensor, Tensor]:
        prediction = functional_call(training, {**frozen, **values}, (batch.observations,))
        return objective.loss(prediction, target, batch.actions)

    gradients, (_, metrics) = grad_and_value(loss, has_aux=True)(learning)
    norm = torch.stack([x.square().sum() for x in gradients.values()]).sum().sqrt()
    shrink = clip_factor(norm, max_grad_norm)
    return {name: in_order(x * shrink) for name, x in gradients.items()}, torch.cat([norm.unsqueeze(0), metrics])


def clip_factor(norm: Tensor, max_grad_norm: Tensor | float | None) -> Tensor:
    """Return the factor for gradients of this norm, as `torch.nn.utils.clip_grad_norm_` does; None does not clip."""
    return torch.ones_like(norm) if max_grad_norm is None else (max_grad_norm / (norm + 1e-6)).clamp_max(1.0)


def in_order(gradient: Tensor) -> Tensor:
    """Return a gradient in the usual memory order: fused optimisers read it without its strides."""
    return gradient.contiguous()


def _like(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return a gradient in the memory order of its parameter."""
    return gradient if parameter.is_contiguous() else torch.empty_like(parameter).copy_(gradient)


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


def optimizer_state(optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of an optimiser for parameters by their names, `{"name/exp_avg": ..., ...}`."""
    return {
        f"{name}/{part}": torch.as_tensor(x)
        for name, parameter in parameters.items()
        for part, x in optimizer.state.get(parameter, {}).items()
        if x is not None
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Tensor], parameters: Mapping[str, Tensor]
) -> None:
    """Load the result of `optimizer_state` into an optimiser of parameters with the same names, in new tensors."""
    places = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    states: dict[int, dict[str, Tensor]] = {}
    for key, x in state.items():
        name, _, part = key.rpartition("/")
        parameter = parameters.get(name)
        if parameter is None or id(parameter) not in places:
            raise ValueError(f"the optimiser must have states of parameters that learn; got one of {name!r}")
        if part in _MOMENTS and x.shape != parameter.shape:
            raise ValueError(
                f"the optimiser must have a {part} of {name} of shape {tuple(parameter.shape)}; got {tuple(x.shape)}"
            )
        states.setdefault(places[id(parameter)], {})[part] = x
    states = dict(sorted(states.items()))  # in the order of the parameters, as `take_step` needs them
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
