"""k-means against scikit-learn's, and what it does with weights, empty clusters and blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from cramix.clustering import inertia, kmeans, lloyd, plus_plus

D = torch.float64


def blobs(n: int = 300, k: int = 4, d: int = 3, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return 6 * torch.randn(k, d, generator=g, dtype=D)[torch.arange(n) % k] + torch.randn(n, d, generator=g, dtype=D)


def test_iterations_are_those_of_scikit_learn() -> None:
    x, w = blobs(), torch.rand(300, generator=torch.Generator().manual_seed(1), dtype=D)
    starts = torch.stack([x[i : i + 4] for i in (0, 40, 80)])
    found = lloyd(x, w, starts, 300)
    assert found.converged
    for i, start in enumerate(starts):
        peer = KMeans(4, init=start.numpy(), n_init=1, algorithm="lloyd").fit(x.numpy(), sample_weight=w.numpy())
        np.testing.assert_allclose(found.centres[i], peer.cluster_centers_, rtol=1e-6)
        np.testing.assert_array_equal(found.labels[i], peer.labels_)
        assert inertia(x, w, found)[i].item() == pytest.approx(peer.inertia_, rel=1e-9)


def test_the_best_of_some_runs_is_as_good_as_that_of_scikit_learn() -> None:
    x, w = blobs(500, 7), torch.ones(500, dtype=D)
    found = kmeans(x, w, 7, 10, 300, torch.Generator().manual_seed(2))
    peer = KMeans(7, n_init=10, random_state=0).fit(x.numpy())
    assert inertia(x, w, found).min().item() <= 1.001 * peer.inertia_


def test_seeds_are_distinct_points_by_weight() -> None:
    x, w = blobs(), torch.zeros(300, dtype=D)
    w[:20] = 1
    index = plus_plus(x, w, 20, 5, torch.Generator().manual_seed(3))
    assert all(len(row.unique()) == 20 and row.max() < 20 for row in index)


def test_a_cluster_without_weight_stays() -> None:
    x = torch.tensor([[0.0], [1.0], [10.0]], dtype=D)
    far = torch.tensor([[[0.4], [50.0]], [[0.5], [10.0]]], dtype=D)
    found = lloyd(x, torch.tensor([1.0, 3.0, 0.0], dtype=D), far, 10)
    torch.testing.assert_close(found.centres, torch.tensor([[[0.75], [50.0]], [[0.75], [10.0]]], dtype=D))
