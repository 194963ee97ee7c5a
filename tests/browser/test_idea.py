"""The page with two mixtures to drag: what it shows follows the handles and equals Python's numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import cramix
from cramix.html.idea import write_idea

PARTS = ("weights", "means", "scales")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("idea") / "idea.html"
    write_idea(found)
    return found


def mixtures(page: Any) -> tuple[list[torch.Tensor], cramix.NormalMixture]:
    """The parameters of the model, which require gradients, and the target."""
    state = page.evaluate("({ model: state.model, target: state.target })")
    model = [torch.tensor(state["model"][part], dtype=torch.float64, requires_grad=True) for part in PARTS]
    target = cramix.NormalMixture(*(torch.tensor(state["target"][part], dtype=torch.float64) for part in PARTS))
    return model, target


def cross_entropy(p: cramix.NormalMixture, q: cramix.NormalMixture) -> torch.Tensor:
    """-E log p(Y) by a fine trapezoid rule around each component of q."""
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    mass = torch.exp(-z.square() / 2) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    total = torch.zeros((), dtype=torch.float64)
    for weight, mean, scale in zip(q.weights, q.means, q.scales, strict=True):
        x, share = (mean + scale * z, mass) if scale > 0 else (mean[None], torch.ones(1, dtype=torch.float64))
        total = total - weight * (share * p.log_prob(x)).sum()
    return total


def check_numbers(page: Any) -> None:
    """Compare both losses and all gradients on the page with autograd's."""
    model, target = mixtures(page)
    p = cramix.NormalMixture(model[0] / model[0].sum(), model[1], model[2])
    column = {"cramer": 3, "likelihood": 4}
    has_density = bool((model[2] > 0).all())
    for loss, value in {
        "cramer": cramix.cramer_loss(p, target),
        "likelihood": cross_entropy(p, target) if has_density else None,
    }.items():
        shown = page.locator(f"#{loss}-value").get_attribute("data-value")
        cells = page.locator(f"#gradients tbody tr > :nth-child({column[loss]})")
        slopes = [cell.get_attribute("data-value") for cell in cells.all()]
        if value is None:
            assert page.locator(f"#{loss}-value").text_content() == "not defined"
            assert slopes == [""] * 6
            continue
        assert float(shown) == pytest.approx(value.item(), rel=1e-6, abs=1e-9)
        weights, means, scales = torch.autograd.grad(value, model, retain_graph=True)
        expected = torch.cat([means, scales, weights]).tolist()
        for got, slope in zip(slopes, expected, strict=True):
            assert float(got) == pytest.approx(slope, rel=1e-6, abs=1e-6)
        assert float(page.locator(f"#{loss}-largest").get_attribute("data-value")) == pytest.approx(
            max(map(abs, expected)), rel=1e-6
        )


def wait_until(page: Any, condition: str) -> None:
    """Wait for a condition; the page's policy forbids Playwright's own waiting, which evaluates strings."""
    for _ in range(200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"waited in vain for {condition}")


def test_the_check_of_numbers_can_fail(open_page: Any, path: Path) -> None:
    page = open_page(path)
    page.evaluate("document.querySelector('#gradients tbody td:nth-child(3)').dataset.value *= 1.01")
    with pytest.raises(AssertionError):
        check_numbers(page)


@pytest.mark.parametrize("preset", ["overlapping", "far apart", "an outlier", "nearly equal", "zero width"])
def test_presets_show_the_numbers_of_python(open_page: Any, path: Path, preset: str) -> None:
    page = open_page(path)
    button = page.get_by_role("button", name=preset)
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert page.locator("#presets [aria-pressed=true]").count() == 1
    assert len(page.locator("#lesson").text_content()) > 40
    check_numbers(page)


def test_far_apart_only_the_likelihood_explodes(open_page: Any, path: Path) -> None:
    page = open_page(path)
    page.get_by_role("button", name="far apart").click()
    rows = page.locator("#gradients tbody tr").all()[:4]  # means and scales
    slopes = [[abs(float(row.locator("td").nth(i).get_attribute("data-value"))) for i in (1, 2)] for row in rows]
    assert max(cramer for cramer, _ in slopes) < 1
    assert max(likelihood for _, likelihood in slopes) > 1000
    assert page.locator("text.arrow.likelihood").count() >= 1  # the number of an arrow that is cut


def centre(page: Any, name: str) -> tuple[float, float]:
    box = page.locator(f"[data-handle={name}] .mark").bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.parametrize(
    ("name", "move", "part", "i"),
    [
        ("model-mean-0", (60, 0), "means", 0),
        ("model-scale-1", (30, 0), "scales", 1),
        ("model-weight-0", (0, 30), "weights", 0),
        ("target-mean-1", (-50, 0), "means", 1),
        ("target-scale-0", (-20, 0), "scales", 0),
        ("target-weight-1", (0, 20), "weights", 1),
    ],
)
@pytest.mark.parametrize("width", [1280, 390])
def test_dragging_moves_one_parameter_and_the_numbers(
    open_page: Any, path: Path, name: str, move: tuple[int, int], part: str, i: int, width: int
) -> None:
    page = open_page(path, width=width)
    side = name.split("-")[0]
    before, value = page.evaluate(f"copy(state.{side})"), page.locator("#cramer-value").text_content()
    curve = page.locator("#densities .curve").nth(0 if side == "model" else 1).get_attribute("d")
    page.locator("#densities").scroll_into_view_if_needed()
    x, y = centre(page, name)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + move[0], y + move[1], steps=4)
    page.mouse.up()
    after = page.evaluate(f"copy(state.{side})")
    assert centre(page, name) == pytest.approx((x + move[0], y + move[1]), abs=1.0)  # the handle follows the pointer
    assert after[part][i] != before[part][i]
    assert sum(after["weights"]) == pytest.approx(1)
    for other in PARTS:
        unchanged = [j for j in range(2) if (other, j) != (part, i) and other + part != "weightsweights"]
        assert [after[other][j] for j in unchanged] == [before[other][j] for j in unchanged]
    assert page.locator("#cramer-value").text_content() != value
    assert page.locator("#densities .curve").nth(0 if side == "model" else 1).get_attribute("d") != curve
    assert page.locator("#presets [aria-pressed=true]").count() == 0
    check_numbers(page)


def test_keys_move_handles(open_page: Any, path: Path) -> None:
    page = open_page(path)
    page.locator("#presets button").last.focus()
    page.keyboard.press("Tab")
    handle = page.locator("[data-handle=model-mean-0]")
    assert handle.evaluate("e => e === document.activeElement")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    assert page.evaluate("state.model.means[0]") == pytest.approx(-3 + 0.55)
    assert float(handle.get_attribute("aria-valuenow")) == pytest.approx(-2.45)
    page.keyboard.press("Tab")  # the scale
    for key in ("Home", "ArrowLeft"):
        page.keyboard.press(key)
    assert page.evaluate("state.model.scales[0]") == 0
    check_numbers(page)
    page.keyboard.press("PageUp")
    assert page.evaluate("state.model.scales[0]") == pytest.approx(0.5)
    page.keyboard.press("Tab")  # the weight
    page.keyboard.press("ArrowUp")
    assert page.evaluate("state.model.weights") == pytest.approx([0.51, 0.49])
    page.keyboard.press("End")
    assert page.evaluate("state.model.weights") == [1, 0]
    page.keyboard.press("ArrowDown")
    assert page.evaluate("state.model.weights") == pytest.approx([0.99, 0.01])
    check_numbers(page)


def test_touch_drags(open_page: Any, path: Path) -> None:
    page = open_page(path, width=390, has_touch=True, is_mobile=True)
    page.locator("#densities").scroll_into_view_if_needed()
    x, y = centre(page, "target-mean-0")
    touch = page.context.new_cdp_session(page)
    for kind, left in (("touchStart", x), ("touchMove", x + 20), ("touchMove", x + 40), ("touchEnd", None)):
        points = [] if left is None else [{"x": left, "y": y}]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    assert page.evaluate("state.target.means[0]") > -1 + 0.5
    check_numbers(page)


def test_handles_speak(open_page: Any, path: Path) -> None:
    page = open_page(path)
    sliders = page.get_by_role("group", name="Densities").get_by_role("slider").all()
    assert len(sliders) == 12
    assert len({slider.get_attribute("aria-label") for slider in sliders}) == 12
    first = sliders[0]
    assert first.get_attribute("aria-label") == "mean of component 1 of the model"
    assert first.get_attribute("aria-valuetext").startswith("-3; gradient of the Cramér distance -0.")
    assert all(
        svg.get_attribute("aria-labelledby") or svg.get_attribute("aria-label") for svg in page.locator("svg[id]").all()
    )


def test_descent_by_python_and_by_the_page(open_page: Any, path: Path) -> None:
    page = open_page(path, reduced_motion="reduce")
    model, target = mixtures(page)
    logits, means, scales = model[0].detach().log(), model[1].detach().clone(), model[2].detach().clone()
    rate = 10**-0.25
    for _ in range(50):
        values = [t.requires_grad_() for t in (logits.detach(), means.detach(), scales.detach())]
        p = cramix.NormalMixture(values[0].softmax(-1), values[1], values[2])
        slopes = torch.autograd.grad(cramix.cramer_loss(p, target), values)
        logits, means, scales = (v.detach() - rate * slope for v, slope in zip(values, slopes, strict=True))
        scales = scales.abs()
    page.get_by_role("button", name="Descend").click()  # reduced motion: 50 steps at once
    assert page.locator("#steps").text_content() == "step 50"
    run = page.evaluate("runs[0].model")
    assert run["means"] == pytest.approx(means.tolist(), abs=1e-6)
    assert run["scales"] == pytest.approx(scales.tolist(), abs=1e-6)
    assert run["weights"] == pytest.approx(logits.softmax(-1).tolist(), abs=1e-6)
    page.get_by_role("button", name="Go on").click()
    assert page.locator("#steps").text_content() == "step 100"
    page.get_by_role("button", name="Back to the start").click()
    assert page.locator("#steps").text_content() == "step 0"


def test_descent_runs_and_pauses_where_motion_is_welcome(open_page: Any, path: Path) -> None:
    page = open_page(path)
    page.get_by_role("button", name="far apart").click()
    page.get_by_role("button", name="Descend").click()
    wait_until(page, "runs[0].history.length > 60")
    page.get_by_role("button", name="Pause").click()
    taken = page.locator("#steps").text_content()
    page.wait_for_timeout(150)
    assert page.locator("#steps").text_content() == taken
    ends = page.evaluate("runs.map(run => run.history.at(-1).cramer)")
    assert ends[0] < 0.1
    assert ends[1] is None or ends[1] > 10
    assert page.locator("#cramer-chart path.line").count() == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_screen_in_both_schemes(open_page: Any, path: Path, width: int, scheme: str) -> None:
    page = open_page(path, width=width, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 28)"
    )
    page.set_viewport_size({"width": 600, "height": 800})
    wait_until(page, "document.querySelector('#densities').viewBox.baseVal.width < 600")
    check_numbers(page)
