"""Model files: one mixture each, with names for its coordinates."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from cramix import io
from cramix.cli import formats
from cramix.cli.refusal import Refusal, check_input, refusing
from cramix.mixture import MultivariateNormalMixture, NormalMixture
from cramix.mixture.coordinates import in_coordinates


class Model(NamedTuple):
    """A mixture without batch, and the names of its coordinates; None where the file has none."""

    mixture: NormalMixture | MultivariateNormalMixture
    names: tuple[str, ...] | None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names, or x1, x2, ... where there are none, or some are the same."""
        distinct = self.names is not None and len(set(self.names)) == len(self.names)
        return self.names if self.names and distinct else formats.default_names(self.mixture.event_shape.numel())

    @property
    def in_coordinates(self) -> MultivariateNormalMixture:
        """The mixture as one in d >= 1 coordinates, in float64."""
        return in_coordinates(self.mixture, torch.float64)


def read(path: Path) -> Model:
    """Read a model file; a `Refusal` says what is wrong with it."""
    if formats.suffix(path) in formats.DATA:
        raise Refusal(
            f"{formats.input_name(path)} is data; this must be a model ({formats.MODEL}), as written by `cramix fit`."
        )
    check_input(path)
    with refusing():
        mixture, names = io.load(path), io.names(path)
    if mixture.batch_shape:
        raise Refusal(f"{path} must hold one mixture; it holds a batch of shape {tuple(mixture.batch_shape)}.")
    return Model(mixture, names)


def as_json(mixture: MultivariateNormalMixture, names: tuple[str, ...]) -> dict[str, object]:
    """Return all parameters: weights `(k,)`, means `(k, d)` and covariance matrices `(k, d, d)`, as nested lists."""
    return {
        "columns": list(names),
        "covariance_type": mixture.covariance_type,
        "weights": mixture.weights.tolist(),
        "means": mixture.means.tolist(),
        "covariances": mixture.covariances.tolist(),
    }
