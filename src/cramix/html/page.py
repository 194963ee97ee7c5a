"""One HTML file from a page's parts: markup, styles, scripts and data."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from cramix.atomic import replacing

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>
{styles}
</style>
</head>
<body>
{body}
<script type="application/json" id="data">{data}</script>
<script>
"use strict";
{scripts}
</script>
</body>
</html>
"""


def write_page(path: str | Path, name: str, *, title: str, data: Any, shared: Sequence[str] = ()) -> None:
    """Write a page as one file, atomically.

    The markup is in `NAME.html` of this package, styles in `base.css` and `NAME.css`, scripts in `mixture.js`,
    `base.js`, those shared and `NAME.js`. Scripts share one scope and read the data with `pageData()`.

    Args:
        path: the file to write.
        name: of the page's parts.
        title: of the document.
        data: anything that JSON can hold; numbers that are not finite become null.
        shared: more scripts of this package, such as `chart.js`.
    """
    parts = files("cramix.html")

    def read(*names: str) -> str:
        return "\n".join(parts.joinpath(each).read_text(encoding="utf-8") for each in names)

    text = _PAGE.format(
        title=html.escape(title),
        styles=read("base.css", f"{name}.css"),
        body=read(f"{name}.html"),
        data=_json(data),
        scripts=read("mixture.js", "base.js", *shared, f"{name}.js"),
    )
    with replacing(Path(path)) as file:
        file.write(text.encode())


def _json(data: Any) -> str:
    """Return JSON that is safe inside a script element."""
    text = json.dumps(_finite(data), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _finite(x: Any) -> Any:
    if isinstance(x, float):
        return x if abs(x) < float("inf") else None
    if isinstance(x, dict):
        return {key: _finite(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [_finite(value) for value in x]
    return x
