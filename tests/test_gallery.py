"""Every example of the gallery runs, draws, and keeps the claim that its title and its pictures make."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

plt = pytest.importorskip("matplotlib.pyplot")

EXAMPLES = Path(__file__).parents[1] / "examples"
Names = dict[str, Any]
CLAIMS: dict[str, Callable[[Names], None]] = {}
SLOW: set[str] = set()


def claim(name: str, *, slow: bool = False) -> Callable[[Callable[[Names], None]], Callable[[Names], None]]:
    """Register the check of an example, a function of the names that it leaves."""

    def register(check: Callable[[Names], None]) -> Callable[[Names], None]:
        CLAIMS[f"plot_{name}.py"] = check
        if slow:
            SLOW.add(f"plot_{name}.py")
        return check

    return register


@claim("fit_1d")
def _peaks_that_kernels_flatten(found: Names) -> None:
    def peaks(p: Any) -> int:
        y = p.log_prob(found["grid"]).exp()
        inner = y[1:-1]
        return int(((inner > y[:-2]) & (inner > y[2:]) & (inner > 0.42)).sum())

    assert peaks(found["truth"]) == peaks(found["mixture"]) == 5
    assert peaks(found["kernels"]) == 0
    assert found["errors"]["mixture"] < 0.5 * found["errors"]["kernels"]


@claim("fit_2d", slow=True)
def _one_optimum_from_all_seeds(found: Names) -> None:
    scores, best = found["scores"], found["best"]
    assert (scores["cramix"] > best - 0.001).all()
    assert (scores["EM, best of ten starts"] > best - 0.001).sum() < len(scores["cramix"])
    assert (scores["EM, one start"] > best - 0.001).mean() < 0.5


@claim("corner")
def _three_cultivars(found: Names) -> None:
    assert found["choice"].by_bic == 3
    assert found["agreement"] > 0.9
    assert len(found["figure"].axes) == 36


@claim("methods", slow=True)
def _the_default_is_the_best(found: Names) -> None:
    results = found["results"]
    best = max(result.log_likelihood for result in results.values())
    assert results["merge"].log_likelihood > best - 1e-6
    assert "merge" in found["reached"]
    assert len(found["reached"]) < len(results) == 9


@claim("choose_k", slow=True)
def _four_groups(found: Names) -> None:
    assert found["choice"].by_bic == found["choice"].by_held_out == 4
    assert found["by_em"] < 4
    assert all(found["em"][k] > found["choice"].bic[k] + 50 for k in range(3, 9))


@claim("compress", slow=True)
def _eight_components_are_enough(found: Names) -> None:
    distances, spread = found["distances"], found["spread"]
    assert distances[8] < 0.005 * spread
    assert distances[16] < distances[8] < distances[4]


@claim("drift")
def _only_the_shape_of_vibration_has_drifted(found: Names) -> None:
    drift = found["found"]
    vibration = found["columns"].index("vibration")
    assert (drift.column_p_values < 0.01).nonzero().flatten().tolist() == [vibration]
    assert drift.mean_shifts.abs().max() < 0.1


@claim("outliers")
def _absurd_rows_are_left_out(found: Names) -> None:
    assert found["model"].result_.outliers == (600, 601, 602)
    assert "rows 600, 601, 602" in str(found["caught"][0].message)
    assert found["agreement"]["cramix"] > 0.95
    assert found["agreement"]["scikit-learn"] < 0.1


@claim("sample_weight")
def _weights_lead_to_the_population(found: Names) -> None:
    late = 1 - found["population"].cdf(45.0).item()
    assert found["over"]["weighted"] == pytest.approx(late, abs=0.02)
    assert found["over"]["plain"] > late + 0.2


@claim("missing_values")
def _filled_as_it_was(found: Names) -> None:
    assert found["distances"]["mixture"] < 0.5 * found["distances"]["regression"]
    assert 0.8 < found["inside"] <= 0.97


@claim("error_bars")
def _the_groups_behind_the_noise(found: Names) -> None:
    assert found["distances"]["behind"] < 0.3 * found["distances"]["plain"]
    torch.testing.assert_close(found["behind"].means, found["truth"].means, atol=1.0, rtol=0)


@claim("cramer_distance")
def _the_area_and_the_bound(found: Names) -> None:
    assert found["loss"].item() == pytest.approx(found["area"].item(), abs=1e-6)
    assert found["cramer"].max() <= 1 + 1e-12
    assert found["likelihood"][-1].item() == pytest.approx(1000, rel=1e-9)
    narrow_cramer, narrow_likelihood = (torch.cat(values).flatten() for values in zip(*found["narrow"], strict=True))
    assert narrow_cramer.max() <= 1 + 1e-12
    assert narrow_likelihood.max() > 1e5


@claim("slices")
def _slices_scatter_around_the_exact_loss(found: Names) -> None:
    exact, drawn = found["exact"], found["drawn"]
    for values in drawn.values():
        assert abs(values.mean().item() - exact) < 5 * values.std().item() / len(values) ** 0.5
    assert 0.02 < drawn[1024].std().item() / exact < 0.08
    assert drawn[16].std() / drawn[1024].std() == pytest.approx(8, rel=0.3)


@claim("streaming")
def _forgetting_follows(found: Names) -> None:
    assert np.mean(found["errors"]["forgets"][-20:]) < 0.3
    assert np.mean(found["errors"]["remembers"][-20:]) > 1


@claim("arm", slow=True)
def _both_answers(found: Names) -> None:
    assert found["sampled"] < 0.06
    assert found["mean"] > 0.15


@claim("likelihood_or_cramer")
def _gradients_with_and_without_a_bound(found: Names) -> None:
    assert max(found["norms"]["Cramér"]) < 2
    assert max(found["norms"]["likelihood"]) > 100
    assert found["errors"]["Cramér"] < 0.06 < 0.12 < found["errors"]["likelihood"]


@claim("forecast", slow=True)
def _a_cycle_ahead(found: Names) -> None:
    assert found["past"] == pytest.approx(34.5, abs=0.1)
    assert found["score"] < 17
    assert 0.8 <= found["inside"] < 0.95  # too careful, as the picture says


@claim("conformal", slow=True)
def _promised_coverage(found: Names) -> None:
    assert found["means"]["model"] < 0.8
    assert 0.87 < found["means"]["conformal"] < 0.93


@claim("boosted_trees", slow=True)
def _intervals_of_trees(found: Names) -> None:
    assert found["score"] < 0.6 * found["alone"]
    assert 0.86 < found["inside"] < 0.94
    assert 0.75 < found["covered"]["bridge"][90] < found["covered"]["other rows"][90]


@claim("bridge")
def _mean_and_cvar_part_ways(found: Names) -> None:
    road, bridge = found["road"], found["bridge"]
    assert bridge.mean > road.mean
    assert bridge.cvar(0.1) < road.cvar(0.1)
    assert found["trips"].mean() == pytest.approx(bridge.mean.item(), abs=0.5)
    assert found["worst"].mean() == pytest.approx(bridge.cvar(0.1).item(), abs=0.5)
    below, above = found["crossing"] - 0.01, found["crossing"] + 0.01
    assert bridge.cvar(below) < road.cvar(below)
    assert bridge.cvar(above) > road.cvar(above)


@claim("landing")
def _it_lands(found: Names) -> None:
    assert found["episode"].score > 200
    assert len(found["figure"].axes) == 16


@pytest.fixture
def pyplot(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """pyplot without a screen, whose settings and figures end with the test."""
    import matplotlib

    matplotlib.use("Agg")
    monkeypatch.setattr(plt, "show", lambda: None)
    plt.close("all")
    with plt.rc_context(), torch.random.fork_rng():
        yield plt
    plt.close("all")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in CLAIMS])
def test_example(name: str, pyplot: Any) -> None:
    found = runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    CLAIMS[name](found)
    numbers = pyplot.get_fignums()
    assert numbers, "no figure"
    for number in numbers:
        figure = pyplot.figure(number)
        figure.canvas.draw()
        image = np.asarray(figure.canvas.buffer_rgba())
        assert image[..., :3].std() > 10  # an empty figure: 0
        texts = [axes.get_title(loc) for axes in figure.axes for loc in ("left", "center")]
        assert any([*texts, figure.get_suptitle()]), "no title"


def test_every_example_has_a_claim() -> None:
    assert {path.name for path in EXAMPLES.glob("plot_*.py")} == set(CLAIMS)
    assert len(CLAIMS) >= 15


@pytest.mark.parametrize("name", CLAIMS)
def test_form_for_sphinx_gallery(name: str) -> None:
    """A docstring with a question as its title, and text between the parts."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    title, rule, *body = (ast.get_docstring(ast.parse(text)) or "").splitlines()
    assert title.endswith("?")
    assert rule == "=" * len(title)
    assert 1 < " ".join(body).count(".") < 8
    assert text.count("\n# %%\n") >= 3
    assert text.rstrip().endswith("plt.show()")
