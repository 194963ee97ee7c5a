"""Pictures of agents: distributions of returns, moments of an episode, films."""

from __future__ import annotations

import sys
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image
from scipy import integrate, stats

from cramix import NormalMixture
from cramix.plot import episode_panels, film, return_distributions, write_video
from cramix.plot.figure import COMPONENTS, DENSITY
from cramix.rl.evaluation import Moment
from tests.refusals import refuses

D = torch.float64
WEIGHTS, MEANS, SCALES = [[0.3, 0.7], [0.5, 0.5]], [[-10.0, 20.0], [0.0, 30.0]], [[5.0, 8.0], [6.0, 12.0]]


def two_actions() -> NormalMixture:
    return NormalMixture(*(torch.tensor(x, dtype=D) for x in (WEIGHTS, MEANS, SCALES)))


def pdf(x: np.ndarray, i: int) -> np.ndarray:
    return sum(w * stats.norm(m, s).pdf(x) for w, m, s in zip(WEIGHTS[i], MEANS[i], SCALES[i], strict=True))


def cdf(x: np.ndarray, i: int) -> np.ndarray:
    return sum(w * stats.norm(m, s).cdf(x) for w, m, s in zip(WEIGHTS[i], MEANS[i], SCALES[i], strict=True))


def curves(figure: Figure) -> list[tuple[np.ndarray, np.ndarray]]:
    """Places and heights above the row of every action."""
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) > 2]
    return [(line.get_xdata(), line.get_ydata() + i) for i, line in enumerate(lines)]


def marks(figure: Figure, style: str) -> list[float]:
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 2]
    assert all(line.get_xdata()[0] == line.get_xdata()[1] for line in lines)
    return [line.get_xdata()[0] for line in lines if line.get_linestyle() == style]


def test_rows_are_densities_with_one_unit_for_all() -> None:
    (x, first), (_, second) = curves(return_distributions(two_actions()))
    unit = first.max() / pdf(x, 0).max()
    np.testing.assert_allclose(first, unit * pdf(x, 0), atol=1e-3)
    np.testing.assert_allclose(second, unit * pdf(x, 1), atol=1e-3)
    assert x[0] < -20
    assert x[-1] > 50
    assert 0.5 < first.max() < 1


@pytest.mark.parametrize("level", [0.1, 0.5])
def test_marks_are_the_mean_and_the_mean_of_the_worst(level: float) -> None:
    p = two_actions()
    figure = return_distributions(p, level=level)
    assert marks(figure, "-") == pytest.approx([11.0, 15.0])
    worst = []
    for i in range(2):
        q = p.icdf(torch.full((2,), level, dtype=D))[i].item()
        assert cdf(q, i) == pytest.approx(level, abs=1e-9)
        worst.append(integrate.quad(lambda x, i=i: x * pdf(x, i), -150, q)[0] / level)
    assert marks(figure, "--") == pytest.approx(worst, abs=1e-5)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["mean", f"CVaR {level:g}"]


def test_distribution_functions_on_request_and_for_atoms() -> None:
    for i, (x, y) in enumerate(curves(return_distributions(two_actions(), kind="cdf"))):
        np.testing.assert_allclose(y, 0.86 * cdf(x, i), atol=1e-3)
    atoms = NormalMixture.from_samples(torch.tensor([[0.0, 1.0, 2.0, 3.0], [0.0, 0.0, 0.0, 3.0]], dtype=D))
    for samples, (x, y) in zip(atoms.means.numpy(), curves(return_distributions(atoms)), strict=True):
        between = x[:, None] - samples
        far = (np.abs(between) > 0.02).all(-1)
        np.testing.assert_allclose(y[far], 0.86 * (between[far] > 0).mean(-1), atol=1e-12)


def test_a_narrow_peak_neither_hides_nor_flattens_the_others() -> None:
    scales = torch.tensor([[1e-9], [10.0], [12.0]], dtype=D)
    narrow = NormalMixture(torch.ones(3, 1, dtype=D), torch.tensor([[1.2345], [0.0], [0.0]], dtype=D), scales)
    (x, peak), (_, wide), _ = curves(return_distributions(narrow))
    assert x[peak.argmax()] == pytest.approx(1.2345, abs=x[1] - x[0])
    assert wide.max() > 0.3


def test_the_chosen_action_stands_out() -> None:
    axes = return_distributions(two_actions(), ["left", "right"], chosen=1).axes[0]
    colours = {text.get_text(): to_hex(text.get_color()).upper() for text in axes.texts}
    assert colours["right"] == COMPONENTS
    assert colours["left"] != COMPONENTS
    assert [to_hex(patch.get_facecolor()).upper() for patch in axes.patches] == [DENSITY, COMPONENTS]
    assert {"11.0", "15.0"} <= colours.keys()


def moments(count: int) -> list[Moment]:
    random = np.random.default_rng(0)
    frames = random.integers(0, 255, (count, 41, 61, 3), dtype=np.uint8)
    p = two_actions()
    return [Moment(3 * i, frames[i], p.affine(float(i), 1.0), i % 2, float(-i)) for i in range(count)]


def test_panels_show_moments_from_the_first_to_the_last() -> None:
    played = moments(11)
    played[-1] = played[-1]._replace(action=None)
    figure = episode_panels(played, ["left", "right"], count=3, columns=2)
    pictures = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in pictures] == [
        "step 0, score 0: left", "step 15, score -5: right", "step 30, score -10: end",
    ]  # fmt: skip
    for axes, i in zip(pictures, (0, 5, 10), strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), played[i].frame)
    below = [axes for axes in figure.axes if axes.axison]
    assert len(below) == 3
    assert [axes.lines[1].get_xdata()[0] for axes in below] == pytest.approx([11.0, 16.0, 21.0])
    assert len({axes.get_xlim() for axes in below}) == 1


def test_films_have_the_frame_on_the_left_and_the_returns_on_the_right() -> None:
    played = moments(3)
    played[2] = played[2]._replace(returns=played[0].returns, action=0, step=0, score=0.0)
    first, second, third = film(played, ["left", "right"])
    height, width, _ = first.shape
    assert height % 2 == width % 2 == 0
    times = round(height / 41)
    for picture, moment in zip((first, second), played, strict=False):
        large = np.kron(moment.frame, np.ones((times, times, 1), np.uint8))[:height]
        np.testing.assert_array_equal(picture[:, : 60 * times], large[:, : 60 * times])
    right = slice(61 * times + 4, None)
    assert (first[:, right] != second[:, right]).any()
    np.testing.assert_array_equal(first[:, right], third[:, right])  # nothing is left of the one between
    orange = np.array([int(COMPONENTS[i : i + 2], 16) for i in (1, 3, 5)])
    rows = [np.flatnonzero((np.abs(p[:, right] - orange.astype(int)).max(-1) < 8).any(1)) for p in (first, second)]
    assert rows[0].max() < rows[1].min()  # the first action is above the second


def test_a_gif_has_all_pictures_their_time_and_their_colours(tmp_path: Path) -> None:
    pictures = np.full((5, 40, 60, 3), 255, np.uint8)
    for i, picture in enumerate(pictures):
        picture[5:15, 10 * i : 10 * i + 10] = [200, 30 * i, 10]
    write_video(tmp_path / "x.gif", iter(pictures), 20.0)
    with Image.open(tmp_path / "x.gif") as gif:
        assert (gif.n_frames, gif.size) == (5, (60, 40))
        times = []
        for i, picture in enumerate(pictures):
            gif.seek(i)
            times.append(gif.info["duration"])
            found = np.asarray(gif.convert("RGB")).astype(int)
            assert np.abs(found - picture).max() <= 4
    assert times == [50, 50, 50, 50, 1550]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # imageio-ffmpeg leaves pipes open
def test_an_mp4_has_all_pictures_and_holds_the_last(tmp_path: Path) -> None:
    pictures = [np.full((40, 60, 3), 60 * i, np.uint8) for i in range(4)]
    write_video(tmp_path / "x.mp4", pictures, 10.0)
    frames = imageio_ffmpeg.read_frames(str(tmp_path / "x.mp4"))
    about = next(frames)
    assert (about["size"], about["fps"]) == ((60, 40), 10.0)
    means = [np.frombuffer(frame, np.uint8).mean() for frame in frames]
    np.testing.assert_allclose(means, [0, 60, 120] + [180] * 16, atol=6)


def test_videos_that_cannot_be_written_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ImportError, match="film"):
        write_video(tmp_path / "x.mp4", [], 10.0)
    refuses(lambda: write_video(tmp_path / "x.avi", [], 10.0), "path", "x.avi")


def test_bad_input_is_refused() -> None:
    p = two_actions()
    refuses(lambda: return_distributions(p.expand((3, 2))), "mixture", "(3, 2)")
    refuses(lambda: return_distributions(p, ["one"]), "names", "1")
    refuses(lambda: return_distributions(p, chosen=2), "chosen", "2")
    refuses(lambda: return_distributions(p, kind="bars"), "kind", "bars")
    refuses(lambda: episode_panels([]), "moments", "none")
    refuses(lambda: next(film([])), "moments", "none")
