"""Steps of Adam by the kernel of torch, without the search for its tensors, which takes longer than a small step."""

from __future__ import annotations

from operator import is_
from typing import Any

import torch
from torch import Tensor

# Private parts of torch; one without them takes the steps of its own optimiser.
_HAS_KERNEL = hasattr(torch, "_fused_adam_") and hasattr(torch, "_foreach_add_")


def take_step(optimizer: torch.optim.Optimizer) -> None:
    """Take a step of any optimiser; that of a fused Adam in one call for each group of parameters.

    Adam of torch searches all its tensors at every step, which takes longer than the step of a small network.
    """
    groups, state = optimizer.param_groups, optimizer.state
    parameters = [p for group in groups for p in group["params"]]
    gradients = [p.grad for p in parameters]
    # After the first step all parameters have states, in their own order: looking each of them up would be slow.
    ready = len(state) == len(parameters) and all(map(is_, parameters, state)) and not any(x is None for x in gradients)
    alike = len({(p.dtype, p.device) for p in parameters}) == 1
    if not (_HAS_KERNEL and ready and alike and _is_plain(optimizer) and all(map(_is_fused, groups))):
        optimizer.step()
        return
    states, start = list(state.values()), 0
    with torch.no_grad():
        for group in groups:
            own = slice(start, start + len(group["params"]))
            _fused_step(group, gradients[own], states[own])
            start = own.stop


def _fused_step(group: dict[str, Any], gradients: list[Tensor], states: list[dict[str, Tensor]]) -> None:
    steps = [state["step"] for state in states]
    # Given alpha, this takes the 1 as a tensor: as a number it would be converted for each of the steps.
    torch._foreach_add_(steps, torch.ones((), device=steps[0].device), alpha=1.0)
    torch._fused_adam_(
        group["params"],
        gradients,
        [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states],
        [],
        steps,
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=group["maximize"],
    )


def _is_plain(optimizer: torch.optim.Optimizer) -> bool:
    """Whether this is Adam, and nothing looks at its steps: neither hooks nor a scheduler, which replaces `step`."""
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return type(optimizer) is torch.optim.Adam and not hooks and "step" not in vars(optimizer)


def _is_fused(group: dict[str, Any]) -> bool:
    """Whether a group is fused, and has no state besides the two moments."""
    return bool(group["fused"]) and not (group["amsgrad"] or group["capturable"] or group["decoupled_weight_decay"])
