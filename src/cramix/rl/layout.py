"""The memory layout of a network: all parameters in one vector, so that an update is one call and not one per layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class FlatParameters:
    """Groups of parameters of a module, each in one vector; the parameters become views of it.

    Args:
        module: the network; its parameters keep their names and values.
        groups: lists of its parameters; those in none of the lists are the first group.

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
        """Return the parameters in vectors of this layout by name, for `torch.func.functional_call`."""
        return {
            name: view
            for vector, group, names in zip(vectors, self._groups, self._names, strict=True)
            for name, view in zip(names, self._split(vector, group), strict=True)
        }

    def stacked(
        self, vectors: Sequence[Tensor], modules: str, count: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return two dictionaries: the parameters outside a list of equal modules, and the stacked ones of that list.

        The latter are `(count, ...)`, by their name inside one module.

        Args:
            vectors: in this layout.
            modules: the name of the list of equal modules, which is the last part of the network.
            count: its length.
        """
        outside: dict[str, Tensor] = {}
        inside: dict[str, Tensor] = {}
        for vector, group, names in zip(vectors, self._groups, self._names, strict=True):
            named = list(zip(names, group, strict=True))
            before = {name: p for name, p in named if not name.startswith(f"{modules}.")}
            first = {name.removeprefix(f"{modules}.0."): p for name, p in named if name.startswith(f"{modules}.0.")}
            start = sum(p.numel() for p in before.values())
            outside |= zip(before, self._split(vector[:start], list(before.values())), strict=True)
            if first:
                rows = vector[start:].unflatten(0, (count, -1)).split([p.numel() for p in first.values()], -1)
                inside |= {name: x.unflatten(-1, p.shape) for x, (name, p) in zip(rows, first.items(), strict=True)}
        return outside, inside

    def __deepcopy__(self, memo: dict) -> FlatParameters:
        raise TypeError("FlatParameters must not be copied: it owns the memory of one module. Create another one.")
