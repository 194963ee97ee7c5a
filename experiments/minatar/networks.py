"""The networks of all runs of a population, in one matrix: a convolution, a hidden layer, the last layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from experiments.minatar.arcade import CHANNELS
from experiments.minatar.games import GAMES
from experiments.minatar.games.game import ACTIONS
from experiments.minatar.returns import RETURNS, Layers, Returns
from experiments.minatar.settings import Plan

_PATCH = 3
_PLACES = 64  # of a patch on a screen of 10 x 10 cells
_ALIGNMENT = 4  # numbers; rows and layers start at multiples of 16 bytes, as fast matrix products require
_INPUTS = 96  # of the convolution: the cells of a patch, then zeros up to a multiple of the alignment


class Layout:
    """Where the layers of each run are in its row of parameters: the trunk first, then the last layers.

    Args:
        plan: the runs and their settings.
    """

    def __init__(self, plan: Plan):
        self.plan, s = plan, plan.settings
        self.returns: dict[str, Returns] = {name: RETURNS[name](s.hidden, ACTIONS) for name in plan.segments()}
        self.trunk = {
            "convolution": (_INPUTS, s.filters),
            "hidden": (_PLACES * s.filters, s.hidden),
        }
        ends = [self._place(self.trunk, 0)[1]]
        ends += [self._place(returns.sizes(), ends[0])[1] for returns in self.returns.values()]
        self.width = max(ends)

    def _place(self, sizes: dict[str, tuple[int, int]], start: int) -> tuple[dict[str, tuple[int, int]], int]:
        """Return the offsets of the weights and biases of layers, and the end of the last one."""
        places = {}
        for name, (inputs, outputs) in sizes.items():
            bias = start + _aligned(self.plan.settings.members * inputs * outputs)
            places[name] = (start, bias)
            start = bias + _aligned(self.plan.settings.members * outputs)
        return places, start

    def _layers(self, rows: Tensor, sizes: dict[str, tuple[int, int]], start: int) -> Layers:
        members = self.plan.settings.members
        layers = {}
        for name, (weight, bias) in self._place(sizes, start)[0].items():
            inputs, outputs = sizes[name]
            layers[name] = (
                rows[:, weight : weight + members * inputs * outputs].unflatten(1, (members, inputs, outputs)),
                rows[:, bias : bias + members * outputs].unflatten(1, (members, 1, outputs)),
            )
        return layers

    def views(self, rows: Tensor) -> dict[str, Layers]:
        """Return the layers in `rows` `(runs, width)`: "trunk" of all runs, and those of each algorithm."""
        start = self._place(self.trunk, 0)[1]
        views = {"trunk": self._layers(rows, self.trunk, 0)}
        for name, part in self.plan.segments().items():
            views[name] = self._layers(rows[part], self.returns[name].sizes(), start)
        return views

    def initial(self, generator: torch.Generator) -> Tensor:
        """Return initial parameters `(runs, width)` on the CPU, distributed as those of `torch.nn.Linear`."""
        rows = torch.zeros(len(self.plan.runs), self.width)
        views = self.views(rows)
        for part, layers in views.items():
            for name, (weight, bias) in layers.items():
                bound = torch.full((len(weight), 1, 1, 1), 1 / math.sqrt(weight.shape[-2]))
                if name == "convolution":  # the channels that a game does not have are no inputs
                    inputs = [GAMES[game].channels * _PATCH**2 for _, game, _ in self.plan.runs]
                    bound = torch.tensor(inputs).rsqrt().view(-1, 1, 1, 1)
                for x in (weight, bias):
                    x.copy_((2 * torch.rand(x.shape, generator=generator) - 1) * bound)
                if part != "trunk" and name in self.returns[part].bias():
                    bias.add_(self.returns[part].bias()[name])
        return rows

    def parameters(self, algorithm: str, game: str) -> tuple[int, int]:
        """Return the number of parameters of a run, and of its last layers; without those of empty channels."""
        s = self.plan.settings
        trunk = {**self.trunk, "convolution": (GAMES[game].channels * _PATCH**2, s.filters)}
        count, last = (
            s.members * sum((inputs + 1) * outputs for inputs, outputs in sizes.values())
            for sizes in (trunk, self.returns[algorithm].sizes())
        )
        return count + last, last


def patches(screens: Tensor) -> Tensor:
    """Return the input of the convolution, `(runs, batch * 64, inputs)`, of screens `(runs, batch, ...)`."""
    windows = screens.unfold(3, _PATCH, 1).unfold(4, _PATCH, 1)  # (runs, batch, channels, 8, 8, 3, 3)
    rows = windows.permute(0, 1, 3, 4, 2, 5, 6).reshape(len(screens), screens.shape[1] * _PLACES, -1)
    return pad(rows.float(), (0, _INPUTS - CHANNELS * _PATCH**2))


def activate(products: Tensor, bias: Tensor, trunks: int, members: int) -> tuple[Tensor, ...]:
    """Return the maps `(runs, members, batch, 64 * filters)` of each trunk, see `convolution`."""
    maps = (products + bias).relu()  # (runs, batch * 64, trunks * members * filters)
    each = maps.unflatten(2, (trunks, members, -1)).unflatten(1, (-1, _PLACES))
    return each.permute(3, 0, 4, 1, 2, 5).flatten(4).unbind()


def convolution(
    trunks: Sequence[Layers], inputs: Tensor, activate: Callable[..., tuple[Tensor, ...]] = activate
) -> tuple[Tensor, ...]:
    """Return the maps `(runs, members, batch, 64 * filters)` of each trunk, without gradient, in one product.

    Args:
        trunks: the parameters.
        inputs: the result of `patches`.
        activate: the function of this name, which may be compiled.
    """
    weights, biases = zip(*(trunk["convolution"] for trunk in trunks), strict=True)
    weight, bias = (torch.cat([x.transpose(1, 2).flatten(2) for x in parts], 2) for parts in (weights, biases))
    return activate(inputs @ weight, bias, len(trunks), weights[0].shape[1])


def hidden(trunk: Layers, maps: Tensor) -> Tensor:
    """Return the features `(runs, members, batch, hidden)` of the result of `convolution`, without gradient."""
    weight, bias = trunk["hidden"]
    return _product(maps, weight).add_(bias).relu_()


def features(trunk: Layers, inputs: Tensor) -> Tensor:
    """Return the features `(runs, members, batch, hidden)` of the result of `patches`, without gradient."""
    return hidden(trunk, convolution([trunk], inputs)[0])


def backpropagate(
    trunk: Layers, inputs: Tensor, maps: Tensor, features: Tensor, slopes: Tensor, gradient: Layers
) -> None:
    """Compute the gradients of a trunk; they are written by hand to where they belong, which saves a copy.

    Args:
        trunk: the parameters.
        inputs: the result of `patches`.
        maps: the result of `convolution`.
        features: the result of `hidden`.
        slopes: derivatives with respect to the features, of their shape.
        gradient: takes the derivatives with respect to the parameters.
    """
    slopes = _through_relu(slopes, features)
    of_maps = _through_relu(_product(slopes, trunk["hidden"][0].mT), maps)
    of_places = of_maps.unflatten(3, (_PLACES, -1)).flatten(2, 3)  # (runs, members, batch * 64, filters)
    for member in range(slopes.shape[1]):
        for name, x, dy in (
            ("hidden", maps[:, member], slopes[:, member]),
            ("convolution", inputs, of_places[:, member]),
        ):
            weight, bias = (g[:, member] for g in gradient[name])
            torch.bmm(x.mT, dy, out=weight)
            torch.sum(dy, 1, keepdim=True, out=bias)


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """Return `x @ weight` of runs and members; `matmul` would copy the weights of several members."""
    y = x.new_empty(*x.shape[:-1], weight.shape[-1])
    for member in range(x.shape[1]):
        torch.bmm(x[:, member], weight[:, member], out=y[:, member])
    return y


def _through_relu(slopes: Tensor, result: Tensor) -> Tensor:
    """Return derivatives with respect to the argument of a ReLU from those with respect to its result."""
    return torch.ops.aten.threshold_backward(slopes, result, 0)


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT
