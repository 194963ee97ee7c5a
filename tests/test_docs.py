"""The pages: links lead somewhere, equations have one number each, code runs, the words are those of the library."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
DOCS = sorted(p for p in (ROOT / "docs").rglob("*.md") if not {"_build", "gallery", "generated"} & set(p.parts))
PAGES = [*DOCS, ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "benchmarks").glob("*.md"))]


def blocks(text: str) -> list[tuple[str, str]]:
    """Return language and content of the fenced blocks."""
    return re.findall(r"^```([^\n`]*)\n(.*?)^```$", text, re.M | re.S)


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page: headings as on GitHub, and equations."""
    text = path.read_text()
    headings = re.findall(r"^#{1,4} (.+)$", prose(text), re.M)
    words = [re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", h)).lower() for h in headings]
    return {w.replace(" ", "-") for w in words} | {f"eq-{n}" for n in re.findall(r"\\tag\{(\w+)\}", text)}


def broken_links(page: Path, text: str) -> list[str]:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        if re.match(r"https?:|mailto:", target):
            continue
        name, _, anchor = target.partition("#")
        path = page if not name else (page.parent / name).resolve()
        if page.is_relative_to(ROOT / "docs") and (name == "gallery/index" or "gallery/plot_" in name):
            path = ROOT / "examples" / f"{path.name}.py" if "plot_" in name else ROOT / "examples/GALLERY_HEADER.rst"
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text()) == []


def test_broken_links_are_noticed() -> None:
    page = ROOT / "docs" / "math.md"
    text = "[a](no.md) [b](others.md#no) [c](#no) [d](others.md#formulas) [e](#gradients) [f](https://example.org)"
    assert broken_links(page, text) == ["no.md", "others.md#no", "#no"]


def test_every_equation_has_a_number_of_its_own_and_in_order() -> None:
    for name, prefix in (("math.md", ""), ("others.md", "O")):
        text = (ROOT / "docs" / name).read_text()
        found = re.findall(r"\\tag\{(\w+)\}", text)
        assert found == [f"{prefix}{n}" for n in range(1, len(found) + 1)]
        assert len(found) == len(re.findall(r"\\tag\{\w+\}\$\$$", text, re.M))


def test_docstrings_cite_equations_that_exist() -> None:
    math = anchors(ROOT / "docs/math.md") | anchors(ROOT / "docs/others.md")
    cited = set()
    for path in (ROOT / "src").rglob("*.py"):
        for first, last in re.findall(r"\beqs?\. (O?\d+)(?: to (O?\d+))?", path.read_text()):
            cited |= {first, last} - {""}
    assert len(cited) > 20
    assert {f"eq-{n}" for n in cited} <= math


# Blocks of Python that no doctest can run, and why.
NOT_RUN = {
    ("networks.md", "skpro"): "skpro limits the version of pandas; tests/test_other_environments.py runs it",
    ("rl_sb3.md", "rl_zoo3"): "reads the command line; tests/test_other_environments.py runs it",
    ("scale.md", "pyspark"): "needs Java; the test below runs it where there is one",
}


@pytest.mark.parametrize("page", [*DOCS, ROOT / "README.md"], ids=lambda p: str(p.relative_to(ROOT)))
def test_code_is_run_or_is_a_command(page: Path) -> None:
    """Doctests run all that has prompts. Everything else is a command, output, or a directive of the site."""
    for language, code in blocks(page.read_text()):
        if language == "python":
            known = any(page.name == name and word in code for name, word in NOT_RUN)
            assert known or code.startswith(">>> "), f"code without prompts does not run: {code[:80]}"
            assert known or code.endswith("\n\n"), f"a blank line has to end the output: {code[-80:]}"
        elif language in ("sh", "console"):
            assert re.match(r"(\$ )?(pip|make|cramix|python)\b", code), code
        else:
            assert language == "text" or language.startswith("{"), f"a block without a language: {code[:80]}"
            assert not re.search(r"^(import|from) \w+", code, re.M), f"code as text does not run: {code[:80]}"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
@pytest.mark.filterwarnings("ignore")
def test_the_page_on_data_of_any_size_is_right_about_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    import pyarrow as pa
    from pyarrow import parquet

    (code,) = (code for _, code in blocks((ROOT / "docs/scale.md").read_text()) if "pyspark" in code)
    rng = np.random.default_rng(0)
    table = {"x": rng.normal(size=500), "y": rng.normal(size=500), "w": rng.uniform(1, 2, 500), "z": np.zeros(500)}
    parquet.write_table(pa.table(table), tmp_path / "rows.parquet")
    names: dict = {}
    exec(code.replace("s3://bucket/rows/", str(tmp_path)), names)
    assert names["result"].mixture.means.shape == (5, 2)
    names["spark"].stop()


# Words that the library does not use, or no longer, and those that no native writer would.
WRONG_WORDS = [
    r"covariances=\"",
    r"\bn_networks\b",
    r"\bp_order\b",
    r"\btarget_term\b",
    r"\bnegative_log_likelihood_loss\b",
    r"\bmax_iterations\b",
    r"\bNLLLoss\b",
    r"\bMixtureWarning\b",
    r"\bn_slices\b",
    r"\bown terms?\b",
    r"\btold by\b",
    r"\banew\b",
    r"\bmend(s|ed|ing)?\b",
]


def wrong_words(text: str) -> list[str]:
    return [m[0] for word in WRONG_WORDS for m in re.finditer(word, text.replace("MixtureNLLLoss", ""), re.I)]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_words_are_those_of_the_library(page: Path) -> None:
    assert wrong_words(page.read_text()) == []


def test_wrong_words_are_noticed() -> None:
    assert wrong_words('fit(x, 2, covariances="full") anew; recommend MixtureNLLLoss') == ['covariances="', "anew"]
