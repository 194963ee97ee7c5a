"""All parameters of a network in one piece of memory: an update of them is one call, not one for each layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class FlatParameters:
    """Groups of parameters of a module, each laid out in one vector that the parameters become views of.

    Args:
        module: the network; its parameters keep their names and values.
        groups: lists of its parameters; what is in none of them makes the first group.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> flat = FlatParameters(layer, [[layer.bias]])
        >>> _ = flat.vectors[1].fill_(3.0)
        >>> layer.bias
        Parameter containing:
        tensor([3.], requires_grad=True)
    """

    def __init__(self, module: nn.Module, groups: Sequence[Sequence[nn.Parameter]] = ()):
        listed = {id(p) for group in groups for p in group}
        names = {id(p): name for name, p in module.named_parameters()}
        rest = [p for p in module.parameters() if id(p) not in listed]
        self._groups = [group for group in (rest, *groups) if group]
        self._names = [[names[id(p)] for p in group] for group in self._groups]
        self.vectors = []
        for group in self._groups:
            vector = torch.cat([p.detach().flatten() for p in group])
            self.vectors.append(vector)
            for p, view in zip(group, self._split(vector, group), strict=True):
                p.data = view

    @staticmethod
    def _split(vector: Tensor, group: Sequence[Tensor]) -> list[Tensor]:
        return [x.view(p.shape) for x, p in zip(vector.split([p.numel() for p in group]), group, strict=True)]

    def named(self, vectors: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return parameters by name out of vectors laid out as these, for `torch.func.functional_call`."""
        return {
            name: view
            for vector, group, names in zip(vectors, self._groups, self._names, strict=True)
            for name, view in zip(names, self._split(vector, group), strict=True)
        }

    def stacked(
        self, vectors: Sequence[Tensor], modules: str, count: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return parameters by name but for those of equal modules, and these by name inside of one, `(count, ...)`.

        Args:
            vectors: laid out as these.
            modules: the name of the list of equal modules, which comes last in the network.
            count: how many there are.
        """
        apart: dict[str, Tensor] = {}
        together: dict[str, Tensor] = {}
        for vector, group, names in zip(vectors, self._groups, self._names, strict=True):
            named = list(zip(names, group, strict=True))
            before = {name: p for name, p in named if not name.startswith(f"{modules}.")}
            first = {name.removeprefix(f"{modules}.0."): p for name, p in named if name.startswith(f"{modules}.0.")}
            start = sum(p.numel() for p in before.values())
            apart |= zip(before, self._split(vector[:start], list(before.values())), strict=True)
            if first:
                rows = vector[start:].unflatten(0, (count, -1)).split([p.numel() for p in first.values()], -1)
                together |= {name: x.unflatten(-1, p.shape) for x, (name, p) in zip(rows, first.items(), strict=True)}
        return apart, together

    def __deepcopy__(self, memo: dict) -> FlatParameters:
        raise TypeError("FlatParameters must not be copied: it holds the memory of one module. Make another.")
