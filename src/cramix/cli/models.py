"""Model files as the commands want them: one mixture, with names for its coordinates."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from cramix import io
from cramix.cli.refusal import Refusal, check_input, refusing
from cramix.cli.sources import SUFFIXES, default_names
from cramix.mixture import MultivariateNormalMixture, NormalMixture

SUFFIX = ".safetensors"


class Model(NamedTuple):
    """An unbatched mixture, and the names of its coordinates, None where the file has none."""

    mixture: NormalMixture | MultivariateNormalMixture
    names: tuple[str, ...] | None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names, or x1, x2, ..."""
        return self.names or default_names(self.mixture.event_shape.numel())


def read(path: Path) -> Model:
    """Read a model file; a `Refusal` says what is wrong with it."""
    if path.suffix.lower() in SUFFIXES:
        raise Refusal(f"{path} is a data file; here must be a model ({SUFFIX}), as `cramix fit` writes it.")
    check_input(path)
    with refusing():
        mixture, names = io.load(path), io.names(path)
    if mixture.batch_shape:
        raise Refusal(f"{path} must hold one mixture; it holds a batch of shape {tuple(mixture.batch_shape)}.")
    return Model(mixture, names)
