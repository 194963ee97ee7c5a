"""Pages to play with, for the site: self-contained HTML in docs/_static, made by the commands that users have.

`make docs` runs it before Sphinx. A page whose module is not in the package is left out, here and on the site.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

STATIC = Path(__file__).parent / "_static"


def cramix(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", *arguments], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    from sklearn.datasets import load_wine

    if find_spec("cramix.html.idea"):
        cramix("cramix.html.idea", str(STATIC / "idea.html"))
    if find_spec("cramix.html.report"):
        with tempfile.TemporaryDirectory() as folder:
            wine = load_wine(as_frame=True).data[["alcohol", "flavanoids", "color_intensity", "hue", "proline"]]
            wine.to_csv(table := Path(folder) / "wine.csv", index=False)
            cramix("cramix", "fit", str(table), "-k", "1-6", "--html", str(STATIC / "report.html"))
    if find_spec("cramix.html.landing"):
        cramix("cramix", "play", "LunarLander-v3", "--episodes", "1", "--html", str(STATIC / "landing.html"))


if __name__ == "__main__":
    if find_spec("cramix.html"):
        main()
