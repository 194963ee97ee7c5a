"""Steps of Adam are those of torch, to the last bit."""

import copy

import pytest
import torch
from torch import nn

from cramix.rl.adam import take_step

KINDS = {
    "fused": (torch.optim.Adam, {"fused": True}),
    "decaying": (torch.optim.Adam, {"fused": True, "weight_decay": 0.1, "betas": (0.8, 0.9), "eps": 1e-3}),
    "ascending": (torch.optim.Adam, {"fused": True, "maximize": True}),
    "amsgrad": (torch.optim.Adam, {"fused": True, "amsgrad": True}),
    "not fused": (torch.optim.Adam, {}),
    "AdamW": (torch.optim.AdamW, {"fused": True}),
    "SGD": (torch.optim.SGD, {"momentum": 0.9}),
}


def twins(kind="fused"):
    """Two equal optimisers with two groups of parameters each."""
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))]
    nets.append(copy.deepcopy(nets[0]))
    made, options = KINDS[kind]
    groups = [[{"params": net[0].parameters()}, {"params": net[1].parameters(), "lr": 0.02}] for net in nets]
    return [(list(net.parameters()), made(each, lr=0.01, **options)) for net, each in zip(nets, groups, strict=True)]


def take_steps(ours, theirs, count=3):
    for i in range(count):
        for parameters, optimizer in (ours, theirs):
            generator = torch.Generator().manual_seed(i)
            for p in parameters:
                p.grad = torch.randn(p.shape, generator=generator)
            optimizer.param_groups[0]["lr"] = 0.01 / (i + 1)
        take_step(ours[1])
        theirs[1].step()


def check_equal(ours, theirs):
    for p, q in zip(ours[0], theirs[0], strict=True):
        assert torch.equal(p, q)
        for name, x in theirs[1].state[q].items():
            assert torch.equal(torch.as_tensor(ours[1].state[p][name]), torch.as_tensor(x))


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_torch(kind):
    ours, theirs = twins(kind)
    take_steps(ours, theirs)
    check_equal(ours, theirs)


def test_states_that_are_loaded_or_lost_are_used():
    ours, theirs = twins()
    take_steps(ours, theirs)
    for _, optimizer in (ours, theirs):
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    take_steps(ours, theirs)
    check_equal(ours, theirs)
    for _, optimizer in (ours, theirs):
        optimizer.state.clear()
    take_steps(ours, theirs)
    check_equal(ours, theirs)
    for _, optimizer in (ours, theirs):  # in another order
        last = optimizer.state.popitem()
        rest = dict(optimizer.state)
        optimizer.state.clear()
        optimizer.state.update([last, *rest.items()])
    take_steps(ours, theirs)
    check_equal(ours, theirs)


def test_parameters_without_gradient_stay():
    ours, theirs = twins()
    take_steps(ours, theirs)
    for parameters, _ in (ours, theirs):
        parameters[0].grad = None
    take_step(ours[1])
    theirs[1].step()
    check_equal(ours, theirs)


def test_hooks_and_schedulers_see_every_step():
    (_, optimizer), other = ours, _ = twins()
    take_steps(ours, other)
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(1))
    take_steps(ours, other)
    assert len(seen) == 3
    schedule = torch.optim.lr_scheduler.StepLR(other[1], 1)
    take_step(other[1])
    schedule.step()  # warns if it saw no step
