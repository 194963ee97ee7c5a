"""Pictures of the pages at two widths, light and dark: `python -m tests.browser.screenshots FOLDER`."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from playwright.sync_api import sync_playwright

import cramix
from cramix.html.idea import write_idea
from cramix.html.report import write_report
from tests.browser.conftest import EXECUTABLE

_WIDTHS, _SCHEMES = (1280, 390), ("light", "dark")


def _write_pages(folder: Path) -> None:
    write_idea(folder / "idea.html")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 3, generator=generator) * torch.tensor([1.0, 0.5, 2.0])
    x += 3.0 * (torch.arange(600) % 3)[:, None]
    selection = cramix.select(x, range(1, 6), folds=0, generator=generator)
    best = selection.results[selection.by_bic]
    write_report(folder / "report.html", best, x, names=["length", "width", "mass"], considered=selection.results)


def take(out: Path) -> None:
    """Write the pages to a temporary folder, and pictures of them to another."""
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder, sync_playwright() as driver:
        _write_pages(Path(folder))
        browser = driver.chromium.launch(executable_path=EXECUTABLE, args=["--no-sandbox"])
        for path, width, scheme in product(sorted(Path(folder).iterdir()), _WIDTHS, _SCHEMES):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.goto(path.as_uri())
            page.screenshot(path=out / f"{path.stem}-{width}-{scheme}.png", full_page=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.browser.screenshots FOLDER")
    take(Path(sys.argv[1]))
