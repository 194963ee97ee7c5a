"""Directions: unit vectors, uniform on the sphere or spread evenly, from their generator alone.

Seeds are fixed; for a fresh one the failure rate is stated at each test.
"""

import math

import numpy as np
import pytest
import torch

from cramix import directions
from tests.multivariate_oracle import close, generator, near

SCHEMES = {
    "random": lambda count, dim, seed=0, **o: directions.random(count, dim, generator=generator(seed), **o),
    "orthogonal": lambda count, dim, seed=0, **o: directions.orthogonal(count, dim, generator=generator(seed), **o),
    "reproducible": lambda count, dim, seed=0, **o: directions.reproducible(count, dim, seed=seed, **o),
    "sobol": lambda count, dim, seed=0, **o: directions.sobol(count, dim, seed=seed, **o),
}
every_scheme = pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("count", "dim"), [(1, 1), (1, 5), (7, 2), (5, 7), (100, 3), (64, 16), (300, 1)])
@every_scheme
def test_directions_are_unit_vectors(scheme, count, dim, dtype):
    u = scheme(count, dim, dtype=dtype)
    assert u.shape == (count, dim)
    assert u.dtype == dtype
    close(u.square().sum(-1), np.ones(count), 4 * torch.finfo(dtype).eps)


@every_scheme
def test_the_default_dtype_is_that_of_torch(scheme):
    assert scheme(3, 2).dtype == torch.get_default_dtype()
    assert directions.equispaced(3).dtype == torch.get_default_dtype()


@pytest.mark.parametrize("dim", [2, 3, 6])
@every_scheme
def test_directions_are_uniform_on_the_sphere(scheme, dim):
    # E u = 0, E u u^T = I / d, E u_1^4 = 3 / (d (d + 2)); one number a seed, as directions depend on each other.
    u = torch.stack([scheme(2 * dim - 1, dim, seed=seed, dtype=torch.float64) for seed in range(1500)])
    first, last = u[:, 0], u[:, -1]
    for each in (first, last):
        # At most 48 numbers: a fresh range of seeds fails once in 35,000 times.
        near(each, torch.zeros(dim).double())
        near(each.unsqueeze(-1) * each.unsqueeze(-2), torch.eye(dim).double() / dim)
        near(each.pow(4), torch.full((dim,), 3 / (dim * (dim + 2))).double())


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_orthogonal_directions_are_orthogonal_within_a_block(dim):
    u = directions.orthogonal(3 * dim - (dim > 1), dim, generator=generator(), dtype=torch.float64)
    for block in u.split(dim):
        close(block @ block.T, np.eye(len(block)), 1e-14, 1e-14)
    # Blocks are turned differently, but for the sign in one dimension.
    assert dim == 1 or not torch.allclose(u[:dim].abs(), u[dim : 2 * dim].abs())


def test_orthogonal_directions_average_squares_exactly():
    u = directions.orthogonal(15, 5, generator=generator(), dtype=torch.float64)
    close(u.T @ u / 15, np.eye(5) / 5, 1e-13, 1e-14)


def test_sobol_directions_average_better_than_random_ones():
    def error(u):
        return (u[:, 0].abs().mean() - 0.5).abs().item()  # E |u_1| on the sphere in three dimensions

    quasi = max(error(directions.sobol(1024, 3, seed=seed, dtype=torch.float64)) for seed in range(10))
    plain = np.mean([error(SCHEMES["random"](1024, 3, seed=seed, dtype=torch.float64)) for seed in range(10)])
    assert quasi < plain / 2


def test_a_million_sobol_directions_are_finite():
    assert directions.sobol(2**20, 1, seed=0).abs().eq(1).all()
    assert directions.sobol(2**18, 3, seed=1).isfinite().all()


def test_sobol_points_at_the_ends_have_a_direction(monkeypatch):
    class Ends:
        def __init__(self, dim, **options):
            self.dim = dim

        def draw(self, count, dtype):
            return torch.arange(count, dtype=dtype).unsqueeze(-1).expand(count, self.dim)

    monkeypatch.setattr(directions, "SobolEngine", Ends)
    close(directions.sobol(2, 3, dtype=torch.float64), np.array([[-1.0] * 3, [1.0] * 3]) / math.sqrt(3))


@every_scheme
def test_seeds_reproduce_directions_and_leave_the_global_state_alone(scheme):
    before = torch.get_rng_state()
    first, again, other = (scheme(5, 3, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("scheme", [directions.random, directions.orthogonal, directions.sobol])
def test_without_a_seed_the_global_one_decides(scheme):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        first, second = scheme(5, 3), scheme(5, 3)
        torch.manual_seed(3)
        assert torch.equal(scheme(5, 3), first)
    assert not torch.equal(first, second)


# In the plane


def test_seven_equispaced_directions_are_the_heptagon_up_to_sign():
    u = directions.equispaced(7, dtype=torch.float64).numpy()
    corners = [(math.cos(2 * math.pi * i / 7), math.sin(2 * math.pi * i / 7)) for i in range(7)]
    cosines = np.abs(u @ np.transpose(corners))  # 1 where a direction is a corner or its opposite
    matched = cosines > 1 - 1e-14
    assert (matched.sum(0) == 1).all()
    assert (matched.sum(1) == 1).all()


@pytest.mark.parametrize("count", [1, 2, 7, 64])
@pytest.mark.parametrize("offset", [0.0, 0.3, -2.0])
def test_equispaced_directions_have_equal_angles(count, offset):
    u = directions.equispaced(count, offset=offset, dtype=torch.float64).numpy()
    for i, v in enumerate(u):
        angle = offset + math.pi * i / count
        np.testing.assert_allclose(v, (math.cos(angle), math.sin(angle)), rtol=0, atol=1e-15)


def test_equispaced_directions_average_trigonometric_polynomials_exactly():
    """Even functions of degree below 2 * 7 in the angle have their mean over the circle."""
    u = directions.equispaced(7, offset=0.4, dtype=torch.float64)
    angle = torch.atan2(u[:, 1], u[:, 0])
    for degree in range(2, 13, 2):
        close((degree * angle).cos().mean(), 0.0, 0, 1e-14)
    close((14 * angle).cos().mean(), math.cos(14 * 0.4))


def test_equispaced_directions_hold_exact_zeros():
    assert directions.equispaced(2).tolist() == [[1.0, 0.0], [0.0, 1.0]]


# Errors

BAD = [0, -1, 2.5, "3", None, 1.0]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", ["count", "dim"])
@pytest.mark.parametrize("scheme", [directions.random, directions.orthogonal, directions.sobol])
def test_counts_and_dimensions_are_integers_from_one_on(scheme, name, bad):
    arguments = {"count": 3, "dim": 3, name: bad}
    with pytest.raises(ValueError, match=rf"^{name} must be an integer >= 1; got {bad!r}"):
        scheme(**arguments)


@pytest.mark.parametrize("bad", BAD)
def test_equispaced_refuses_counts(bad):
    with pytest.raises(ValueError, match=rf"^count must be an integer >= 1; got {bad!r}"):
        directions.equispaced(bad)


def test_numbers_of_numpy_are_numbers():
    assert directions.random(np.int64(3), np.int32(2)).shape == (3, 2)
