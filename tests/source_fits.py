"""Three clusters in the plane, and fits to sources with a small sample, so that small data need passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

import cramix
from cramix.fitting import FitResult, MergeDown, Method
from cramix.fitting.reading import read
from cramix.fitting.solve import Options

K, DIM = 3, 2
MEANS = np.array([[0.0, 0.0], [4.0, 1.0], [-3.0, 4.0]])


def draw(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return MEANS[rng.choice(K, n, p=[0.5, 0.3, 0.2])] + rng.normal(size=(n, DIM))


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def in_passes(
    X: object,
    sample: int,
    k: int = K,
    method: Method | None = None,
    options: Options | None = None,
    **settings: object,
) -> FitResult:
    """Fit with a smaller sample than `cramix.fit` has, so that small data need passes."""
    method, options = method or MergeDown(), replace(options or Options(), generator=seeded())
    reading = read(X, method, options, [k], sample=sample, **settings)
    problem = reading.prepare(k)
    with torch.no_grad():
        (result,) = reading.conclude([problem], [method.run(problem)])
    return result


def parameters(mixture: cramix.MultivariateNormalMixture) -> torch.Tensor:
    return torch.cat([mixture.weights, mixture.means.flatten(), mixture.covariances.flatten()])
