"""mixture.js in Chromium, against mpmath and scipy."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

MIXTURES = {
    "smooth": {"weights": [0.3, 0.7], "means": [-1.0, 2.0], "scales": [0.5, 1.5]},
    "one": {"weights": [1.0], "means": [0.3], "scales": [2.0]},
    "atoms": {"weights": [0.25, 0.5, 0.25], "means": [-2.0, 0.0, 3.0], "scales": [0.0, 1.0, 0.0]},
    "narrow": {"weights": [0.5, 0.4, 0.1], "means": [-3.0, 0.0, 30.0], "scales": [1e-3, 4.0, 0.2]},
    "all atoms": {"weights": [0.2, 0.8], "means": [1.0, 4.0], "scales": [0.0, 0.0]},
}
Mixture = dict[str, list[float]]


@pytest.fixture
def js(open_page: Any, tmp_path: Any) -> Any:
    path = tmp_path / "functions.html"
    script = files("cramix.html").joinpath("mixture.js").read_text(encoding="utf-8")
    path.write_text(f'<!doctype html><meta charset="utf-8"><script>"use strict";{script}</script>', encoding="utf-8")
    page = open_page(path)
    return lambda code, *arguments: page.evaluate(f"a => ({code})(...a)", list(arguments))


def components(p: Mixture) -> list[tuple[Any, Any, Any]]:
    return [tuple(map(mp.mpf, triple)) for triple in zip(p["weights"], p["means"], p["scales"], strict=True)]


def cdf(p: Mixture, x: Any) -> Any:
    return mp.fsum(w * (mp.ncdf((x - m) / s) if s else mp.mpf(x >= m)) for w, m, s in components(p))


def log_pdf(parts: Any, x: Any) -> Any:
    return mp.log(mp.fsum(w * mp.npdf(x, m, s) for w, m, s in parts))


def nodes(*mixtures: Mixture) -> list[Any]:
    """Points between which CDFs and densities are smooth."""
    found = {m + z * s for p in mixtures for _, m, s in components(p) for z in range(-12, 13, 2)}
    return sorted(found)


def test_erf_is_right_to_rounding(js: Any) -> None:
    xs = np.concatenate([np.linspace(-7, 7, 281), 10.0 ** np.arange(-12, 0)]).tolist()
    got = js("xs => xs.map(erf)", xs)
    np.testing.assert_allclose(got, [float(mp.erf(x)) for x in xs], rtol=1e-14)


def test_normal_cdf_keeps_relative_accuracy_in_the_lower_tail(js: Any) -> None:
    xs = np.linspace(-37, 9, 461).tolist()
    np.testing.assert_allclose(js("xs => xs.map(normalCdf)", xs), stats.norm.cdf(xs), rtol=2e-12)


@pytest.mark.parametrize("name", MIXTURES)
def test_cdf_and_pdf(js: Any, name: str) -> None:
    p = MIXTURES[name]
    xs = [*np.linspace(-9, 12, 43), *p["means"]]
    np.testing.assert_allclose(
        js("(p, xs) => xs.map(x => cdf(p, x))", p, xs), [float(cdf(p, x)) for x in xs], rtol=1e-12
    )
    expected = [sum(w * stats.norm.pdf(x, m, s) for w, m, s in zip(*p.values(), strict=True) if s) for x in xs]
    np.testing.assert_allclose(js("(p, xs) => xs.map(x => pdf(p, x))", p, xs), expected, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("u", [1e-9, 0.05, 0.2, 0.25, 0.5, 0.74, 0.999])
@pytest.mark.parametrize("name", MIXTURES)
def test_quantile_is_the_smallest_point_with_enough_mass(js: Any, name: str, u: float) -> None:
    p = MIXTURES[name]
    q = js("quantile", p, u)
    step = 1e-9 * max(1.0, abs(q))
    assert float(cdf(p, q + step)) >= u
    assert float(cdf(p, q - step)) < u


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.25, 0.4, 1.0])
@pytest.mark.parametrize("name", MIXTURES)
def test_cvar_is_the_mean_of_the_lowest_part(js: Any, name: str, alpha: float) -> None:
    p = MIXTURES[name]
    # CVaR = max over c of c - E(c - X)+ / alpha, at c a quantile (Rockafellar and Uryasev).
    q = mp.mpf(js("quantile", p, alpha))

    def short(m: Any, s: Any) -> Any:
        if not s:
            return max(q - m, mp.mpf(0))
        z = (q - m) / s
        return (q - m) * mp.ncdf(z) + s * mp.npdf(z)

    expected = q - mp.fsum(w * short(m, s) for w, m, s in components(p)) / mp.mpf(alpha)
    assert js("cvar", p, alpha) == pytest.approx(float(expected), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("tau", [0.01, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("name", MIXTURES)
def test_expectile_balances_both_sides(js: Any, name: str, tau: float) -> None:
    p = MIXTURES[name]

    def balance(e: Any) -> Any:
        above = mp.fsum(
            w * ((m - e) * mp.ncdf((m - e) / s) + s * mp.npdf((m - e) / s) if s else max(m - e, mp.mpf(0)))
            for w, m, s in components(p)
        )
        mean = mp.fsum(w * m for w, m, _ in components(p))
        return tau * above - (1 - tau) * (above - (mean - e))

    got = mp.mpf(js("expectile", p, tau))
    step = mp.mpf(10) ** -9 * (1 + abs(got))
    assert balance(got - step) > 0 > balance(got + step)


PAIRS = [("smooth", "one"), ("atoms", "smooth"), ("narrow", "atoms"), ("all atoms", "atoms"), ("one", "narrow")]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_cramer_loss_and_gradients(js: Any, first: str, second: str) -> None:
    p, q = MIXTURES[first], MIXTURES[second]
    found = js("cramer", p, q)
    value = mp.quad(lambda x: (cdf(p, x) - cdf(q, x)) ** 2, nodes(p, q))
    assert found["value"] == pytest.approx(float(value), rel=1e-10)
    for name in ("weights", "means", "scales"):
        for i in range(len(p["weights"])):
            if p["scales"][i] == 0 and name != "weights":
                continue  # where the integrand has corners; see the test of atoms
            expected = difference(lambda r: closed_form(r, q), p, name, i)
            assert found[name][i] == pytest.approx(float(expected), rel=1e-9, abs=1e-12), (name, i)


def test_cramer_gradient_of_an_atom_is_that_of_the_crps(js: Any) -> None:
    p, q = {"weights": [1.0], "means": [0.7], "scales": [0.0]}, MIXTURES["smooth"]
    found = js("cramer", p, q)
    assert found["means"] == [pytest.approx(float(2 * cdf(q, 0.7) - 1), abs=1e-12)]
    assert found["scales"] == [0]


def test_near_equal_mixtures_keep_their_digits(js: Any) -> None:
    p = {"weights": [0.3, 0.7], "means": [-15.0, 15.0], "scales": [0.5, 1.5]}
    q = {"weights": [0.3, 0.7], "means": [-15.0, 15.0 + 1e-6], "scales": [0.5, 1.5]}
    with mp.workdps(40):
        expected = closed_form(p, q)
    assert expected < 1e-12
    assert js("cramer", p, q)["value"] == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize(
    ("first", "second"),
    [("smooth", "one"), ("smooth", "atoms"), ("narrow", "one"), ("one", "narrow"), ("narrow", "all atoms")],
)
def test_cross_entropy_and_gradients(js: Any, first: str, second: str) -> None:
    p, q = MIXTURES[first], MIXTURES[second]
    found = js("crossEntropy", p, q)

    def expected(r: Any) -> Any:
        parts = parameters(r)
        total = sum(w for w, _, _ in parts)
        parts = [(w / total, m, s) for w, m, s in parts]
        points = nodes(p, q)
        smooth = [(w, m, s) for w, m, s in components(q) if s]
        low, high = (min(m - 12 * s for _, m, s in smooth), max(m + 12 * s for _, m, s in smooth)) if smooth else (0, 0)
        inside = [x for x in points if low <= x <= high]
        value = mp.fsum(-w * log_pdf(parts, m) for w, m, s in components(q) if not s)
        if smooth:
            value += mp.quad(lambda x: -mp.exp(log_pdf(smooth, x)) * log_pdf(parts, x), inside)
        return value

    with mp.workdps(20):
        assert found["value"] == pytest.approx(float(expected(p)), rel=1e-9)
        for name in ("weights", "means", "scales"):
            slope = difference(expected, p, name, 0, step=mp.mpf(10) ** -7)
            assert found[name][0] == pytest.approx(float(slope), rel=2e-6, abs=1e-8), name


def test_a_model_with_an_atom_has_no_cross_entropy(js: Any) -> None:
    assert js("crossEntropy", MIXTURES["atoms"], MIXTURES["one"]) is None


def test_entropy(js: Any) -> None:
    assert js("entropy", MIXTURES["one"]) == pytest.approx(stats.norm.entropy(0.3, 2.0), rel=1e-12)
    assert js("entropy", MIXTURES["atoms"]) is None


def parameters(p: Any) -> list[tuple[Any, Any, Any]]:
    return [tuple(map(mp.mpf, triple)) for triple in zip(p["weights"], p["means"], p["scales"], strict=True)]


def closed_form(p: Any, q: Any) -> Any:
    """E|X - Y| - E|X - X'| / 2 - E|Y - Y'| / 2 in mpmath, with normalised weights."""

    def energy(a: Any, b: Any) -> Any:
        total = sum(w for w, _, _ in a) * sum(w for w, _, _ in b)
        return mp.fsum(v * w * absolute(m - n, mp.sqrt(s * s + t * t)) for v, m, s in a for w, n, t in b) / total

    def absolute(m: Any, s: Any) -> Any:
        if not s:
            return abs(m)
        return m * mp.erf(m / s / mp.sqrt(2)) + s * mp.sqrt(2 / mp.pi) * mp.exp(-((m / s) ** 2) / 2)

    a, b = parameters(p), parameters(q)
    return energy(a, b) - (energy(a, a) + energy(b, b)) / 2


def difference(f: Any, p: Mixture, name: str, i: int, step: Any = None) -> Any:
    """A central difference of a function of a mixture by one parameter."""
    with mp.workdps(40 if step is None else 20):
        step = mp.mpf(10) ** -12 if step is None else step

        def moved(sign: int) -> Any:
            r = {key: [mp.mpf(x) for x in values] for key, values in p.items()}
            r[name][i] += sign * step
            return f(r)

        return (moved(1) - moved(-1)) / (2 * step)
