"""Settings of the site. `make docs` builds it; warnings are errors."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.ext.autosummary import AutoLink

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE.parent / "src/cramix/__init__.py").read_text())[1]

os.environ.setdefault("TQDM_DISABLE", "1")

project = "cramix"
author = "The cramix developers"
copyright = "the cramix developers, MIT licence"
version = release = VERSION

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinx-mathjax-offline",  # MathJax from a package, so that pages need no network
]
exclude_patterns = ["_build", *(f"gallery/*.{kind}" for kind in ("ipynb", "py", "json", "md5"))]
root_doc = "index"

# Pages in Markdown.
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "attrs_block", "attrs_inline"]
myst_heading_anchors = 4
myst_dmath_double_inline = True
mathjax3_config = {"chtml": {"displayAlign": "left", "scale": 0.9}}
suppress_warnings = ["config.cache"]  # sphinx-gallery's order is a function

# Docstrings.
default_role = "name"  # below
autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_mock_imports = ["skpro"]  # it limits the version of pandas, so it is not installed
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
templates_path = ["_templates"]

# References that cannot be resolved are errors. Names of other packages are not: their sites are not at hand.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!cramix).*"),
    # Mentioned in docstrings, and internal.
    ("py:obj", r"cramix\.(directions|io\.names|distance\.sketch\.error)"),
    ("py:obj", r"cramix\.rl\.(recalibration|replay\.Replay|policy\.ReturnPolicy|evaluation\.\w+)"),
]

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"^(?!plot_)",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1,
    "plot_gallery": "True",
    "reset_modules": ("matplotlib",),
    "image_scrapers": ("matplotlib",),
}

html_theme = "pydata_sphinx_theme"
html_title = "cramix"
html_favicon = "_static/favicon.svg"
html_context = {"default_mode": "auto"}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "cramix", "image_light": "_static/favicon.svg", "image_dark": "_static/favicon.svg"},
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": False,
    "pygments_light_style": "a11y-light",
    "pygments_dark_style": "a11y-dark",
}
html_sidebars = {"index": [], "play": []}


class Name(AutoLink):
    """What is in single backticks: a link where it is the name of something, else code."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the node."""
        found, messages = super().run()
        plain = [nodes.literal(n.rawsource, n.astext()) if isinstance(n, nodes.emphasis) else n for n in found]
        return plain, messages


def as_on_the_site(app: Any, docname: str, source: list[str]) -> None:
    """Links that work in a clone, to files outside of docs/, become links to the pages that include them."""
    text = source[0]
    text = re.sub(r"\]\((?:\.\./)+benchmarks/(\w+)\.md", r"](/measured/\1.md", text)
    text = re.sub(r"\]\((?:\.\./)+(CONTRIBUTING|CHANGELOG)\.md", lambda m: f"](/{m[1].lower()}.md", text)
    text = re.sub(r"^(```python\n.*?\n)\n```$", r"\1```", text, flags=re.M | re.S)  # the blank line ends a doctest
    # Equations can be linked to by their numbers.
    source[0] = re.sub(r"^(\$\$(?:(?!\$\$).)*\\tag\{(\w+)\}\$\$)$", r"(eq-\2)=\n\1", text, flags=re.M | re.S)


def setup(app: Any) -> None:
    """Connect the changes above, and tell pages which generated parts exist."""
    app.add_role("name", Name())
    app.connect("source-read", as_on_the_site)
    for name in ("idea", "report", "landing"):  # of widgets.py
        if (HERE / f"_static/{name}.html").exists():
            app.tags.add(name)
