"""A page of an episode: the environment next to the return distributions of all actions, with a time line to scrub."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cramix.extras import require
from cramix.html.page import write_page

if TYPE_CHECKING:
    from cramix.rl.evaluation import Episode

_PILLOW = "PIL.Image", "Pages of episodes need Pillow. Use: pip install 'cramix[plot]'"
# Wider frames are scaled down to this number of pixels.
_MAX_WIDTH = 640
# Bytes of all frames together; above it, neighbouring moments share a frame.
_MAX_BYTES = 3_500_000
_LOSSY, _LOSSLESS = {"quality": 80, "method": 3}, {"lossless": True, "quality": 50, "method": 3}


def write_episode(path: str | Path, episode: Episode, *, title: str = "Episode", about: str = "") -> None:
    """Write a page of an episode as one HTML file that needs no network.

    Readers scrub through the episode, see the return distribution of every action with its mean, quantiles and CVaR,
    compare predictions with the return that followed, and see what other risk measures would have chosen.

    Args:
        path: the file to write.
        episode: of `cramix.rl.evaluation.play`; with `every=1` the page has all steps.
        title: of the page, such as the name of the environment.
        about: a line below the title, such as the algorithm and how long it learned.

    Example:
        >>> from cramix.rl import GMDQN, evaluation
        >>> model, env = GMDQN.from_pretrained("LunarLander-v3"), evaluation.make_visible("LunarLander-v3")
        >>> episode = evaluation.play(model, env, every=1)  # doctest: +SKIP
        >>> write_episode("landing.html", episode, title="LunarLander-v3")  # doctest: +SKIP
    """
    moments = episode.moments
    if len(moments) < 2:
        raise ValueError(f"episode must have a step and an end; got {len(moments)} moments. Play an episode first.")
    frames, share = _encode([moment.frame for moment in moments])
    height, width = moments[0].frame.shape[:2]
    data = {
        "title": title,
        "about": about,
        "risk": episode.risk if isinstance(episode.risk, str) else None,
        "gamma": episode.gamma,
        "rate": episode.rate,
        "names": list(episode.names),
        "steps": [moment.step for moment in moments],
        "scores": [moment.score for moment in moments],
        "actions": [moment.action for moment in moments],
        "realised": [moment.realised for moment in moments],
        "allowed": [None if m.allowed is None else [bool(x) for x in m.allowed] for m in moments],
        "width": width,
        "height": height,
        "frames": frames,
        "share": share,
        "returns": _pack([moment.returns for moment in moments[:-1]]),
    }
    write_page(path, "landing", title=title, data=data)


def require_pillow() -> Any:
    """Return the module that encodes frames; an ImportError names the command that installs it."""
    return require(*_PILLOW)


def _encode(frames: Sequence[np.ndarray]) -> tuple[list[str], int]:
    """Return frames as WebP in base64, and how many moments share each."""
    image = require_pillow()

    def encode(frame: np.ndarray, options: dict[str, Any]) -> bytes:
        picture = image.fromarray(frame)
        if picture.width > _MAX_WIDTH:
            size = _MAX_WIDTH, round(picture.height * _MAX_WIDTH / picture.width)
            picture = picture.resize(size, image.Resampling.LANCZOS)
        file = io.BytesIO()
        picture.save(file, "WEBP", **options)
        return file.getvalue()

    # Drawings are smaller without loss, photographs with it.
    sample = [frames[i] for i in np.linspace(0, len(frames) - 1, 5).round().astype(int)]
    options = min((_LOSSLESS, _LOSSY), key=lambda each: sum(len(encode(frame, each)) for frame in sample))
    encoded, share = [encode(frame, options) for frame in frames], 1
    while sum(map(len, encoded[::share])) > _MAX_BYTES and share < len(frames):
        share *= 2
    return [base64.b64encode(frame).decode() for frame in encoded[::share]], share


def _pack(mixtures: Sequence[Any]) -> dict[str, Any]:
    """Return parameters of mixtures `(actions, k)` as float32 in base64; what never changes is stored once."""
    parts = {}
    for name in ("weights", "means", "scales"):
        values: list[Tensor] = [getattr(p, name).detach().expand(p.means.shape).cpu() for p in mixtures]
        stacked = torch.stack(values).to(torch.float32)  # (moments, actions, k)
        if bool((stacked == stacked[:1]).all()):
            stacked = stacked[:1]
        parts[name] = base64.b64encode(stacked.numpy().astype("<f4").tobytes()).decode()
    return {"components": mixtures[0].means.shape[-1], **parts}
