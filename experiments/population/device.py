"""Asynchronous work on a device: CUDA graphs, parallel streams, and tensors mirrored in host memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

_RECOMPILE_LIMIT = 64


class Recorded:
    """A function without arguments; on a GPU it is recorded as a CUDA graph, which later calls replay.

    Args:
        function: works on tensors at fixed addresses.
        device: on other devices than a GPU the function is called each time.
        generator: of its random numbers.
    """

    def __init__(self, function: Callable[[], Any], device: torch.device, generator: torch.Generator | None = None):
        self.function, self.device, self.generator = function, device, generator
        self._graph: torch.cuda.CUDAGraph | None = None
        self._returned: Any = None
        self._calls = 0

    def __call__(self) -> Any:
        """Call the function; the next call overwrites its result."""
        self._calls += 1
        if self.device.type != "cuda" or self._calls <= 3:
            return self.function()  # warm-up: the first calls allocate and compile, which recording does not allow
        if self._graph is None:
            self._graph = self._recorded()
        self._graph.replay()
        return self._returned

    def _recorded(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        if self.generator is not None:
            graph.register_generator_state(self.generator)
        torch.cuda.synchronize(self.device)
        # Its own stream: matrix products of one stream share a workspace, and graphs may be replayed in parallel.
        with torch.cuda.graph(graph, stream=torch.cuda.Stream(self.device)):
            self._returned = self.function()
        return graph


class Branches:
    """Work that may run in parallel, in a stream for each branch of a GPU; on other devices it runs in order.

    A tensor that a branch reads must be kept until `join`. One that it creates must not be used outside the branch:
    results are copied to tensors that were there before.

    Args:
        count: number of branches.
        device: of the work.
    """

    def __init__(self, count: int, device: torch.device):
        cuda = device.type == "cuda"
        self._streams = [torch.cuda.Stream(device) if cuda else None for _ in range(count)]

    def fork(self, i: int) -> AbstractContextManager[None]:
        """Return a context for the work of a branch, which begins after the work so far of the current stream."""
        stream = self._streams[i]
        if stream is not None:
            stream.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(stream)  # does nothing without a stream

    def join(self) -> None:
        """Let the current stream wait for all branches, each of which must have been forked."""
        for stream in self._streams:
            if stream is not None:
                torch.cuda.current_stream().wait_stream(stream)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function compiled anew for each combination of shapes, of which a process may need dozens."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _RECOMPILE_LIMIT)
    return torch.compile(function, dynamic=False)


class Mirror:
    """A tensor on a device and its copy in host memory.

    Args:
        shape: of both.
        dtype: of both.
        device: of the tensor; on the CPU, both are the same tensor.
    """

    def __init__(self, *shape: int, dtype: torch.dtype = torch.float32, device: torch.device):
        self.tensor = torch.zeros(shape, dtype=dtype, device=device)
        cuda = device.type == "cuda"
        self._host = torch.zeros(shape, dtype=dtype, pin_memory=True) if cuda else self.tensor
        # Blocking waits sleep and leave the cores to the environments.
        self._arrived = torch.cuda.Event(blocking=True) if cuda else None

    def send(self, values: np.ndarray) -> None:
        """Fill the tensor, in stream order; the previous values must have been read."""
        self._host.numpy()[...] = values
        if self._arrived is not None:
            self.tensor.copy_(self._host, non_blocking=True)

    def fetch(self) -> np.ndarray:
        """Wait for the device and return the values, in memory that the next call overwrites."""
        if self._arrived is not None:
            self._host.copy_(self.tensor, non_blocking=True)
            self._arrived.record()
            self._arrived.synchronize()
        return self._host.numpy()
