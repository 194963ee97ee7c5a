"""Compute the table of sketches.md: size, speed and error of sketches."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from cramix import MultivariateNormalMixture, SliceSketch, sliced_cramer_distance

HERE = Path(__file__).parent
ROWS, DIM = 1_000_000, 8
BINS = [256, 1024, 4096]


def two_groups(seed: int, shift: float) -> Tensor:
    """Rows of which a third are a group of its own, 3 standard deviations away, or a bit further."""
    x = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x[: ROWS // 3, 0] += 3 + shift
    return x


def study() -> Iterator[str]:
    x, y = two_groups(0, 0.0), two_groups(1, 0.1)
    means = torch.zeros(2, DIM, dtype=torch.float64)
    means[0, 0] = 3
    p = MultivariateNormalMixture([1 / 3, 2 / 3], means, torch.eye(DIM, dtype=torch.float64).expand(2, -1, -1))
    directions = SliceSketch(DIM).directions
    truth, to_mixture = (sliced_cramer_distance(x, side, directions).item() for side in (y, p))
    yield (
        f"| bins | size | rows per second | error of the distance {truth:.2g} | certain bounds "
        f"| error of the distance {to_mixture:.2g} to a mixture |"
    )
    yield "|---|---|---|---|---|---|"
    for bins in BINS:
        first, second = SliceSketch(DIM, bins=bins).update(x[:1000]), SliceSketch(DIM, bins=bins).update(y)
        started = time.perf_counter()
        first.update(x[1000:])
        speed = (ROWS - 1000) / (time.perf_counter() - started)
        error = abs(sliced_cramer_distance(first, second).item() / truth - 1)
        low, high = first.distance_bounds(second)
        of_mixture = abs(sliced_cramer_distance(first, p).item() / to_mixture - 1)
        yield (
            f"| {bins} | {first.nbytes / 1e6:.1f} MB | {speed / 1e6:.1f} million | {error:.0e} "
            f"| {low:.2g} to {high:.2g} | {of_mixture:.0e} |"
        )


def main() -> None:
    torch.set_num_threads(1)
    lines = []
    for line in study():
        print(line, flush=True)
        lines.append(line)
    page, begin, end = HERE / "sketches.md", "<!-- table -->", "<!-- end of table -->"
    table = "\n".join((begin, *lines, end))
    page.write_text(re.sub(f"{begin}.*?{end}", lambda _: table, page.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    main()
