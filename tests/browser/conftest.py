"""A real headless Chromium for pages; `make browser` installs it with Debian's packages."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

EXECUTABLE = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, driven by Playwright."""
    if EXECUTABLE is None:
        pytest.fail("Tests of pages need Chromium. Run: make browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=EXECUTABLE, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a file in a new window; the test fails on console errors, exceptions and requests of the page."""
    contexts, problems = [], []

    def opened(path: Path, *, width: int = 1280, height: int = 900, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda line: problems.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: _note(request.url, path, problems))
        page.goto(path.resolve().as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not problems


def _note(url: str, path: Path, problems: list[str]) -> None:
    if url != path.resolve().as_uri() and not url.startswith("data:"):
        problems.append(f"request of {url}")
