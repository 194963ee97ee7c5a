"""Work on a device without waiting for it: calls that are recorded once, tensors with a twin on this side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch


class Recorded:
    """A function without arguments that is recorded on one of its first calls on a GPU, and replayed after that.

    Args:
        function: works on tensors that stay where they are.
        device: elsewhere than on a GPU the function is just called.
        generator: of the random numbers it draws.
    """

    def __init__(self, function: Callable[[], Any], device: torch.device, generator: torch.Generator | None = None):
        self.function, self.device, self.generator = function, device, generator
        self._graph: torch.cuda.CUDAGraph | None = None
        self._returned: Any = None
        self._calls = 0

    def __call__(self) -> Any:
        """Call the function; what it returns is overwritten by the next call."""
        self._calls += 1
        if self.device.type != "cuda" or self._calls <= 3:
            return self.function()  # the first calls make what must not be made while recording
        if self._graph is None:
            self._graph = self._recorded()
        self._graph.replay()
        return self._returned

    def _recorded(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        if self.generator is not None:
            graph.register_generator_state(self.generator)
        torch.cuda.synchronize(self.device)
        with torch.cuda.graph(graph):
            self._returned = self.function()
        return graph


class Mirror:
    """A tensor on a device and its twin in our memory.

    Args:
        shape: of both.
        dtype: of both.
        device: of the tensor; where it is in our memory already, both are one.
    """

    def __init__(self, *shape: int, dtype: torch.dtype = torch.float32, device: torch.device):
        self.tensor = torch.zeros(shape, dtype=dtype, device=device)
        cuda = device.type == "cuda"
        self._twin = torch.zeros(shape, dtype=dtype, pin_memory=True) if cuda else self.tensor
        # A wait that sleeps: the cores are for the environments.
        self._arrived = torch.cuda.Event(blocking=True) if cuda else None

    def send(self, values: np.ndarray) -> None:
        """Fill the tensor, after what the device has been told to do before; the last values must have been read."""
        self._twin.numpy()[...] = values
        if self._arrived is not None:
            self.tensor.copy_(self._twin, non_blocking=True)

    def fetch(self) -> np.ndarray:
        """Wait for the device and return what the tensor holds, in memory that the next call overwrites."""
        if self._arrived is not None:
            self._twin.copy_(self.tensor, non_blocking=True)
            self._arrived.record()
            self._arrived.synchronize()
        return self._twin.numpy()
