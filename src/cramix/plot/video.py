"""Video files: GIF, or MP4 with imageio-ffmpeg."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from cramix.atomic import replacing
from cramix.extras import require

SUFFIXES = ".gif", ".mp4"
# The packages that write them, and how to install those.
_PILLOW = "PIL.Image", "GIF files need Pillow. Use: pip install 'cramix[plot]'"
_FFMPEG = "imageio_ffmpeg", "MP4 files need imageio-ffmpeg. Use: pip install 'cramix[film]', or write a .gif"
# Seconds for which the last image is shown.
_HOLD = 1.5
# Colours of a GIF, how many of them are exact, and the number of images they are chosen from.
_COLOURS, _EXACT, _SAMPLED = 128, 32, 9


def write_video(path: str | Path, pictures: Iterable[np.ndarray], rate: float) -> None:
    """Write images to a video file, atomically.

    Args:
        path: with the suffix .gif or .mp4, which determines the format.
        pictures: images `(height, width, 3)` of bytes, all of one shape; height and width are even for .mp4.
        rate: images per second.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "two.gif"
        >>> write_video(path, [np.zeros((8, 8, 3), np.uint8), np.full((8, 8, 3), 255, np.uint8)], rate=2)
        >>> path.stat().st_size > 0
        True
    """
    path = Path(path)
    require_video(path)
    {".gif": _gif, ".mp4": _mp4}[path.suffix.lower()](path, pictures, rate)


def require_video(path: Path) -> None:
    """Require a known suffix, and the package that writes such files."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"path must end in {' or '.join(SUFFIXES)}; got {path}. Use .gif.")
    require(*(_PILLOW if suffix == ".gif" else _FFMPEG))


def _gif(path: Path, pictures: Iterable[np.ndarray], rate: float) -> None:
    image = require(*_PILLOW)
    # Compressed, because colours can be chosen only when all images are known.
    shape, packed = (0, 0, 3), list[bytes]()
    for picture in pictures:
        shape = picture.shape
        packed.append(zlib.compress(picture.tobytes(), 1))

    def unpack(data: bytes) -> np.ndarray:
        return np.frombuffer(zlib.decompress(data), np.uint8).reshape(shape)

    some = [packed[i] for i in np.linspace(0, len(packed) - 1, _SAMPLED).round().astype(int)]
    palette = _palette(image, np.concatenate([unpack(data) for data in some]))
    # One palette without dithering: regions that do not change have equal bytes and are not written again.
    frames = [image.fromarray(unpack(x)).quantize(palette=palette, dither=image.Dither.NONE) for x in packed]
    times = [round(100 / rate) * 10] * len(frames)  # GIF counts hundredths of a second
    times[-1] += round(1000 * _HOLD)
    with replacing(path) as file:
        frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=False)


def _palette(image: Any, sheet: np.ndarray) -> Any:
    """Return a palette for an image: its most common colours exactly, the others quantised."""
    whole = image.fromarray(sheet)
    counts = whole.getcolors(sheet.shape[0] * sheet.shape[1])
    common = [part for _, colour in sorted(counts, reverse=True)[:_EXACT] for part in colour]
    palette = image.new("P", (1, 1))
    palette.putpalette(common + whole.quantize(_COLOURS - _EXACT).getpalette()[: 3 * (_COLOURS - _EXACT)])
    return palette


def _mp4(path: Path, pictures: Iterable[np.ndarray], rate: float) -> None:
    ffmpeg = require(*_FFMPEG)
    with tempfile.TemporaryDirectory() as folder:
        target, writer, picture = Path(folder) / "film.mp4", None, None
        for picture in pictures:
            if writer is None:
                size = picture.shape[1], picture.shape[0]
                writer = ffmpeg.write_frames(str(target), size, fps=rate, macro_block_size=2, ffmpeg_log_level="error")
                writer.send(None)
            writer.send(np.ascontiguousarray(picture))
        assert writer is not None, "a video has at least one image"
        for _ in range(round(rate * _HOLD)):
            writer.send(np.ascontiguousarray(picture))
        writer.close()
        with replacing(path) as file:
            file.write(target.read_bytes())
