"""The page of an episode in a real browser: what it shows, how it is operated, and that its numbers are Python's."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from cramix.cli.app import app
from cramix.html import landing
from cramix.html.landing import write_episode
from cramix.mixture import NormalMixture
from cramix.rl import ALGORITHMS, GMDQN, MaskedActions
from cramix.rl.evaluation import Episode, Moment, make_visible, play
from tests.refusals import refuses

STILL = {"reduced_motion": "reduce"}
RISKS = ("mean", "cvar:0.25", "cvar:0.03", "quantile:0.5", "quantile:0.07", "expectile:0.1", "expectile:0.9")
SMALL = {"seed": 0, "learning_starts": 50, "policy_kwargs": {"net_arch": [32]}, "device": "cpu"}


def made_up(moments: int = 40, actions: int = 3, atoms: bool = False) -> Episode:
    """An episode with frames, rewards and return distributions that are far from each other's."""
    generator = torch.Generator().manual_seed(3)
    found, score = [], 0.0
    for i in range(moments + 1):
        shape = (actions, 4)
        weights = torch.rand(shape, generator=generator).softmax(-1)
        means = 20 * torch.randn(shape, generator=generator) - i
        scales = torch.zeros(shape) if atoms else 0.2 + 9 * torch.rand(shape, generator=generator)
        frame = np.full((60, 90, 3), 40 + 3 * i, np.uint8)
        returns, allowed = NormalMixture(weights, means, scales), np.arange(actions) != i % actions
        best = int(returns.mean.masked_fill(torch.tensor(~allowed), -torch.inf).argmax())
        end = i == moments
        found.append(
            Moment(i, frame, found[-1].returns if end else returns, None if end else best, score, allowed, float(-i))
        )
        score += (-1) ** i * i
    return Episode(found, 10.0, [f"push {i}" for i in range(actions)], 0.99, "mean")


@pytest.fixture(scope="module")
def episode() -> Episode:
    return made_up()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory, episode: Episode) -> Path:
    path = tmp_path_factory.mktemp("page") / "episode.html"
    write_episode(path, episode, title="Pushing <1>", about="made up")
    return path


def scrub(page: Any, moment: int) -> None:
    """Move the time line as a hand does."""
    page.locator("#time").fill(str(moment))


def compare_with(page: Any, risk: str) -> None:
    name, _, level = risk.partition(":")
    page.locator("#measure").select_option(name)
    if level:
        page.locator("#level").fill(level)


def shown(page: Any) -> np.ndarray:
    """The numbers of the table, `(actions, 6)`: as given to the cells, after comparing them with what they show."""
    cells = page.locator("#numbers tbody td").evaluate_all("cells => cells.map(c => [c.dataset.value, c.textContent])")
    for value, text in cells:
        digits = len(text.partition(".")[2])
        assert float(text.replace("−", "-")) == pytest.approx(float(value), abs=0.51 * 10**-digits)
    return np.array([float(value) for value, _ in cells]).reshape(-1, 6)


def exact(p: NormalMixture) -> NormalMixture:
    """The mixture in float64, with weights whose sum is 1 there too."""
    p = p.detach().to("cpu", torch.float64)
    return NormalMixture(p.weights / p.weights.sum(-1, keepdim=True), p.means, p.scales)


def risk_of(p: NormalMixture, risk: str) -> torch.Tensor:
    name, _, level = risk.partition(":")
    methods: dict[str, Callable] = {"cvar": p.cvar, "quantile": p.icdf, "expectile": p.expectile}
    return p.mean if name == "mean" else methods[name](torch.full(p.batch_shape, float(level), dtype=torch.float64))


def agrees(page: Any, episode: Episode, moment: int, risk: str) -> None:
    """Compare the table and the choice with Python's."""
    p = exact(episode.moments[moment].returns)
    allowed, chosen = episode.moments[moment].allowed, episode.moments[moment].action
    columns = ["mean", "quantile:0.1", "quantile:0.5", "quantile:0.9", "cvar:0.1", risk]
    expected = torch.stack([risk_of(p, each) for each in columns], -1).numpy()
    np.testing.assert_allclose(shown(page), expected, rtol=1e-6, atol=1e-6)
    values = expected[:, -1] if allowed is None else np.where(allowed, expected[:, -1], -np.inf)
    best = chosen if values[chosen] > values.max() - 1e-6 else int(values.argmax())
    names, also = episode.names, "also " if best == chosen else ""
    text = f"The agent chose {names[chosen]}; by {risk} it would {also}choose {names[best]}."
    assert page.locator("#choice").inner_text() == text


@pytest.mark.parametrize("risk", RISKS)
def test_numbers_and_choices_are_those_of_python(
    risk: str, page_file: Path, episode: Episode, open_page: Callable
) -> None:
    page = open_page(page_file, **STILL)
    compare_with(page, risk)
    different = 0
    for moment in (0, 7, 21, 39):
        scrub(page, moment)
        agrees(page, episode, moment, risk)
        different += "also" not in page.locator("#choice").inner_text()
    assert different > 0 or risk in ("mean", "quantile:0.5", "expectile:0.9")
    assert page.locator("#picked-head").inner_text() == risk


def test_a_wrong_number_would_be_noticed(page_file: Path, episode: Episode, open_page: Callable) -> None:
    page = open_page(page_file, **STILL)
    page.evaluate("document.querySelector('#numbers td').dataset.value *= 1.00001")
    with pytest.raises(AssertionError):
        agrees(page, episode, 0, "cvar:0.25")


def test_all_moments_are_compared(page_file: Path, episode: Episode, open_page: Callable) -> None:
    page = open_page(page_file, **STILL)
    compare_with(page, "cvar:0.1")
    differs = []
    for moment in episode.moments[:-1]:
        values = risk_of(exact(moment.returns), "cvar:0.1")
        values[torch.tensor(~moment.allowed)] = -torch.inf
        differs.append(int(values.argmax()) != moment.action)
    text = f"In this episode, cvar:0.1 would choose differently at {sum(differs)} of 40 moments."
    page.wait_for_function("text => document.getElementById('difference').textContent === text", arg=text)
    first = differs.index(True, 1)
    page.locator("#next").click()
    assert page.locator("#time").input_value() == str(first if differs.index(True) == 0 else differs.index(True))
    compare_with(page, "mean")  # as the agent acts
    page.wait_for_function(
        "() => document.getElementById('difference').textContent.includes('as the agent did at all 40')"
    )
    assert page.locator("#next").is_disabled()


def test_what_is_shown_follows_the_time_line(page_file: Path, episode: Episode, open_page: Callable) -> None:
    page = open_page(page_file, **STILL)
    assert page.title() == "Pushing <1>"
    assert page.locator("h1").inner_text() == "Pushing <1>"
    for moment in (0, 13, 30):
        scrub(page, moment)
        about = episode.moments[moment]
        assert page.locator("#step").inner_text() == f"{about.step} of 40"
        assert float(page.locator("#score").inner_text().replace("−", "-")) == about.score
        assert float(page.locator("#realised").inner_text().replace("−", "-")) == about.realised
        own = exact(about.returns).cdf(torch.tensor(about.realised).double())[about.action]
        assert page.locator("#percentile").inner_text().startswith(f"higher than {round(100 * float(own))} %")
        page.wait_for_function("() => document.getElementById('frame').complete")
        middle = page.evaluate(
            "() => { const c = document.createElement('canvas').getContext('2d');"
            "c.drawImage(document.getElementById('frame'), 0, 0); return [...c.getImageData(40, 30, 1, 1).data] }"
        )
        np.testing.assert_allclose(middle[:3], about.frame[30, 40], atol=3)
        barred = page.locator("#numbers tr.barred th").all_inner_texts()
        assert barred == [name for name, ok in zip(episode.names, about.allowed, strict=True) if not ok]
        assert page.locator("#numbers tr.chosen th").inner_text() == episode.names[about.action]
    before = page.locator("#returns").screenshot(), page.locator("#plot").screenshot()
    scrub(page, 31)
    assert page.locator("#returns").screenshot() != before[0]
    assert page.locator("#plot").screenshot() != before[1]


def test_keys_and_clicks_move_through_the_episode(page_file: Path, open_page: Callable) -> None:
    page = open_page(page_file, **STILL)
    at = page.locator("#step").inner_text

    def press(*keys: str) -> str:
        for key in keys:
            page.keyboard.press(key)
        return at()

    assert at() == "0 of 40"
    assert press("ArrowRight", "ArrowRight") == "2 of 40"
    assert press("ArrowLeft") == "1 of 40"
    assert press("Shift+ArrowRight") == "11 of 40"
    assert press("End") == "40 of 40"
    assert page.locator("#choice").inner_text().startswith("The episode is over: 40 steps, score ")
    assert press("Home") == "0 of 40"
    page.locator("#time").focus()
    assert press("ArrowRight") == "1 of 40"  # once, not also by the browser
    page.locator("#measure").focus()
    assert press("ArrowDown", "End", "Home") == "1 of 40"  # a list has these keys for itself
    page.locator("#forward").click()
    assert at() == "2 of 40"
    assert press("ArrowRight") == "3 of 40"
    page.locator("#back").click()
    assert at() == "2 of 40"
    box = page.locator("#plot").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 20)
    assert at() == "20 of 40"
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 8, box["y"] + 30)
    page.mouse.up()
    assert at() == "40 of 40"


def test_it_plays_pauses_and_starts_again(page_file: Path, open_page: Callable) -> None:
    page = open_page(page_file)
    now = "Number(document.getElementById('time').value)"
    assert page.locator("#play").inner_text() == "Pause"  # it starts by itself
    page.wait_for_function(f"() => {now} > 2")
    assert page.locator("#choice").get_attribute("aria-live") == "off"
    page.keyboard.press("Space")
    assert page.locator("#play").inner_text() == "Play"
    assert page.locator("#choice").get_attribute("aria-live") == "polite"
    stopped = page.evaluate(now)
    page.wait_for_timeout(300)
    assert page.evaluate(now) == stopped
    page.keyboard.press("End")
    page.locator("#play").click()
    page.wait_for_function(f"() => {now} > 0 && {now} < 40")
    page.locator("#speed").select_option("2")
    page.wait_for_function(f"() => {now} === 40")
    assert page.locator("#play").inner_text() == "Play"


def test_with_reduced_motion_it_waits_and_steps(page_file: Path, open_page: Callable) -> None:
    page = open_page(page_file, **STILL)
    page.wait_for_timeout(400)
    assert page.locator("#play").inner_text() == "Play"
    assert page.locator("#step").inner_text() == "0 of 40"
    page.evaluate(
        "() => { window.seen = []; const before = go;"
        "go = moment => { seen.push([performance.now(), moment]); before(moment) } }"
    )
    page.keyboard.press("Space")
    page.wait_for_function("() => seen.length >= 3")
    page.keyboard.press("Space")
    times, moments = zip(*page.evaluate("seen"), strict=True)
    assert moments[:3] == (1, 2, 3)
    assert min(np.diff(times[:3])) > 250  # two steps a second, whatever the speed
    assert page.locator("#play").evaluate("e => getComputedStyle(e).transitionDuration") == "0s"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_is_readable(width: int, scheme: str, page_file: Path, open_page: Callable) -> None:
    page = open_page(page_file, width=width, color_scheme=scheme, **STILL)
    for moment in (3, 40):
        scrub(page, moment)
        assert page.evaluate("document.documentElement.scrollWidth") == width
    sizes = page.locator("p, td, th, dd, button, label").evaluate_all(
        "all => all.filter(e => e.checkVisibility()).map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 11
    contrasts = page.locator("h1, p, th, td, dt, dd, b").evaluate_all(CONTRAST)
    assert min(contrasts) >= 4.5  # the level AA of WCAG
    shot = Image.open(io.BytesIO(page.screenshot()))
    assert (sum(shot.convert("RGB").getpixel((2, 2))) < 150) == (scheme == "dark")


# Contrast of text on the page's background, as WCAG defines it.
CONTRAST = """all => {
  const light = text => { const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map(Number).map(x => x / 255)
    .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b };
  const ground = light(getComputedStyle(document.body).backgroundColor);
  return all.map(e => light(getComputedStyle(e).color))
    .map(x => (Math.max(x, ground) + 0.05) / (Math.min(x, ground) + 0.05));
}"""


def test_screen_readers_and_keyboards_are_served(page_file: Path, episode: Episode, open_page: Callable) -> None:
    page = open_page(page_file, **STILL)
    scrub(page, 5)
    action = episode.names[episode.moments[5].action]
    text = page.locator("#time").get_attribute("aria-valuetext")
    assert re.fullmatch(rf"step 5 of 40, score −?\d+, {action}", text)
    assert page.get_by_role("slider", name="Moment of the episode").count() == 1
    assert page.get_by_role("slider", name="Level of the risk measure").count() == 1
    assert page.get_by_role("combobox", name="Compare with").count() == 1
    assert page.get_by_role("status").get_attribute("aria-live") == "polite"
    assert page.get_by_role("img", name="Pushing <1> at step 5").count() == 1
    for name in episode.names:
        assert page.get_by_role("img", name=re.compile(f"{name}: mean −?[\\d.]+, 80 % between")).count() == 1
    assert page.get_by_role("img", name=re.compile("inside the band at \\d+ % of the moments")).count() == 1
    assert page.get_by_role("table", name="Discounted return from here, for every action").count() == 1
    assert page.get_by_role("rowheader", name=action).count() == 1
    page.wait_for_function("() => !document.getElementById('next').disabled")
    page.locator("#play").focus()
    page.keyboard.press("Shift+Tab")
    reached = []
    for _ in range(8):
        reached.append(page.evaluate("document.activeElement.id"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.keyboard.press("Tab")
    assert reached == ["time", "play", "back", "forward", "next", "speed", "measure", "level"]


@pytest.mark.parametrize("algo", ["gmdqn", "qrdqn", "c51", "ddqn"])
def test_all_kinds_of_agents_have_pages(algo: str, tmp_path: Path, open_page: Callable) -> None:
    model = ALGORITHMS[algo]("MlpPolicy", "CartPole-v1", **SMALL).learn(120)
    episode = play(model, make_visible("CartPole-v1"), every=1)
    write_episode(tmp_path / "page.html", episode, title="CartPole-v1")
    page = open_page(tmp_path / "page.html", **STILL)
    for risk in ("cvar:0.23", "quantile:0.37", "expectile:0.2"):
        compare_with(page, risk)
        for moment in (0, len(episode.moments) // 2):
            scrub(page, moment)
            agrees(page, episode, moment, risk)
    has_atoms = bool((episode.moments[0].returns.scales == 0).any())
    assert ("distribution functions" in page.locator("#notes").inner_text()) == has_atoms == (algo != "gmdqn")


def test_masked_actions_and_time_limits_are_named(tmp_path: Path, open_page: Callable) -> None:
    def taxi() -> gymnasium.Env:
        return MaskedActions(gymnasium.make("Taxi-v4", render_mode="rgb_array", max_episode_steps=5))

    model = GMDQN("MultiInputPolicy", taxi(), **SMALL)
    episode = play(model, taxi(), every=1)
    write_episode(tmp_path / "page.html", episode)
    page = open_page(tmp_path / "page.html", **STILL)
    barred = page.locator("#numbers tr.barred th").all_inner_texts()
    assert barred == [n for n, ok in zip(episode.names, episode.moments[0].allowed, strict=True) if not ok] != []
    assert "A time limit ended the episode." in page.locator("#notes").inner_text()
    assert page.locator("#realised").inner_text() == "–"


def test_atoms_at_the_edge_of_a_level(tmp_path: Path, open_page: Callable) -> None:
    episode = made_up(moments=2, atoms=True)
    write_episode(tmp_path / "page.html", episode)
    page = open_page(tmp_path / "page.html", **STILL)
    for risk in RISKS:
        compare_with(page, risk)
        agrees(page, episode, 0, risk)


def test_hard_mixtures_have_python_s_risk_measures(page_file: Path, open_page: Callable) -> None:
    page = open_page(page_file, **STILL)
    generator = torch.Generator().manual_seed(5)
    for case in range(40):
        k = 1 + case % 9
        weights = torch.rand(k, generator=generator, dtype=torch.float64).pow(3)
        means = 300 * torch.rand(k, generator=generator, dtype=torch.float64) - 100
        scales = 10 ** (6 * torch.rand(k, generator=generator, dtype=torch.float64) - 4)
        scales[torch.rand(k, generator=generator) < 0.3] = 0  # atoms among densities
        p = NormalMixture(weights / weights.sum(), means, scales)
        parts = {name: getattr(p, name).tolist() for name in ("weights", "means", "scales")}
        for level in (0.001, 0.1, 0.5, 0.97):
            found = page.evaluate("([p, u]) => [quantile(p, u), cvar(p, u), expectile(p, u)]", [parts, level])
            at = torch.tensor(level, dtype=torch.float64)
            expected = [float(x) for x in (p.icdf(at), p.cvar(at), p.expectile(at))]
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-7), (parts, level)


def test_large_frames_are_scaled_down_and_shared(
    tmp_path: Path, open_page: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (450, 900, 3), np.uint8)
    whole = made_up(moments=9)
    moments = [moment._replace(frame=np.roll(noise, 7 * i, 0)) for i, moment in enumerate(whole.moments)]
    monkeypatch.setattr(landing, "_MAX_BYTES", 400_000)
    write_episode(tmp_path / "page.html", whole._replace(moments=moments))
    assert (tmp_path / "page.html").stat().st_size < 650_000
    page = open_page(tmp_path / "page.html", **STILL)
    share = page.evaluate("data.share")
    assert share > 1
    assert f"{share} neighbouring moments share a picture" in page.locator("#notes").inner_text()
    sources = []
    for moment in (0, share - 1, share, 9):
        scrub(page, moment)
        sources.append(page.locator("#frame").get_attribute("src"))
    assert sources[0] == sources[1] != sources[2]
    page.wait_for_function("() => document.getElementById('frame').naturalWidth === 640")
    write_episode(tmp_path / "long.html", whole._replace(moments=[*whole.moments[::3], whole.moments[-1]]))
    assert "The page shows one step in 3." in open_page(tmp_path / "long.html", **STILL).locator("#notes").inner_text()


def test_an_episode_without_steps_is_refused(tmp_path: Path, episode: Episode) -> None:
    refuses(lambda: write_episode(tmp_path / "x.html", episode._replace(moments=episode.moments[:1])), "episode", "1")


def test_the_command_writes_the_page_and_no_film(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_page: Callable
) -> None:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    done = CliRunner().invoke(app, ["play", "LunarLander-v3", "--episodes", "1", "--html", "landing.html", "--json"])
    torch.set_num_threads(threads)
    assert done.exit_code == 0, done.output
    about = json.loads(done.stdout)
    assert (about["html"], about["film"]) == ("landing.html", None)
    assert [path.name for path in tmp_path.iterdir()] == ["landing.html"]
    assert 100_000 < Path("landing.html").stat().st_size < 6_000_000
    page = open_page(Path("landing.html"), **STILL)
    steps = page.evaluate("data.steps")
    assert steps == list(range(len(steps)))
    model = GMDQN.from_pretrained("LunarLander-v3", device="cpu")
    episode = play(model, make_visible("LunarLander-v3"), every=1)
    assert page.evaluate("data.scores") == pytest.approx([moment.score for moment in episode.moments])
    assert about["returns"][0] == pytest.approx(episode.score)
    assert page.locator("#about").inner_text().startswith("GMDQN, trained for 300,000 steps · score ")
    for moment in (0, 60, len(steps) - 2):
        scrub(page, moment)
        agrees(page, episode, moment, "cvar:0.25")


def test_paths_that_cannot_be_written_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path, words in (("x.htm", "x.htm must end in .html."), ("nowhere/x.html", "nowhere is not a folder.")):
        done = CliRunner().invoke(app, ["play", "LunarLander-v3", "--html", path])
        assert done.exit_code == 2
        assert words in done.stderr
    assert list(tmp_path.iterdir()) == []
