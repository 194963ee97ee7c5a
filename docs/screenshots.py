"""Pictures of every page of the built site, at two widths, light and dark.

`make screenshots` runs it. It needs Chromium (Debian's package, or CHROMIUM=/path/to/chrome) and Playwright's Python
package. Pages are served from memory of this process, so that nothing is read from the network; a page that asks for
another host, logs an error or is wider than the window is reported, and the exit code is 1.

    python docs/screenshots.py docs/_build/html docs/_build/screenshots [PAGE ...]
"""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

WIDTHS = 1280, 390
SCHEMES = "light", "dark"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that does not log."""

    def log_message(self, *_: Any) -> None:
        pass


def pages(site: Path, chosen: list[str]) -> list[str]:
    """All pages of the site but search, indices and sources, or those whose path contains one of `chosen`."""
    left_out = {"search.html", "genindex.html", "py-modindex.html", "sg_execution_times.html"}
    found = sorted(str(path.relative_to(site)) for path in site.rglob("*.html") if "_static" not in path.parts)
    found = [page for page in found if page.split("/")[-1] not in left_out and "_modules" not in page]
    return [page for page in found if not chosen or any(part in page for part in chosen)]


def pictures(browser: Any, address: str, paths: list[str], width: int, scheme: str, out: Path) -> list[str]:
    """Take a picture of each page; return what is wrong with them."""
    problems: list[str] = []
    window = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)

    def note(text: str) -> None:
        problems.append(f"{window.url.removeprefix(address)} at {width}, {scheme}: {text}")

    def on_request(request: Any) -> None:
        if not request.url.startswith((address, "data:", "blob:")):
            note(f"asks for {request.url}")

    window.on("console", lambda message: note(message.text) if message.type == "error" else None)
    window.on("pageerror", lambda error: note(str(error)))
    window.on("request", on_request)
    for path in paths:
        window.goto(f"{address}/{path}", wait_until="networkidle")
        window.evaluate("window.MathJax?.startup?.promise")
        wide = window.evaluate("document.documentElement.scrollWidth")
        if wide > width:
            note(f"is {wide} pixels wide")
        window.screenshot(
            path=out / f"{path.removesuffix('.html').replace('/', '.')}-{width}-{scheme}.png", full_page=True
        )
    window.close()
    return problems


def main(site: Path, out: Path, chosen: list[str]) -> int:
    from playwright.sync_api import sync_playwright

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    problems: list[str] = []
    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
        if chromium is None:
            raise SystemExit("Chromium is missing. Use: apt-get install chromium, or set CHROMIUM to its path.")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width in WIDTHS:
            for scheme in SCHEMES:
                problems += pictures(browser, address, pages(site, chosen), width, scheme, out)
        browser.close()
    server.shutdown()
    print("\n".join(dict.fromkeys(problems)) or f"{len(list(out.glob('*.png')))} pictures in {out}, no problems")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
