"""What importing and installing promise: few dependencies, no side effects, typed, one version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cramix

ROOT = Path(__file__).parents[1]


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd="/").stdout


def test_import_loads_torch_numpy_and_nothing_else() -> None:
    """No module beyond torch's and numpy's own is loaded, so the import takes no time beyond theirs."""
    new = run(
        "import sys, torch, numpy; before = set(sys.modules); import cramix;"
        "print('\\n'.join(m for m in set(sys.modules) - before if m.split('.')[0] != 'cramix'))"
    )
    standard = {m for m in new.split() if m.split(".")[0] in sys.stdlib_module_names}
    others = set(new.split()) - standard
    assert {m for m in others if m.split(".")[0] not in {"torch", "numpy"}} == set()
    # Not even torch's own heavy or optional parts.
    assert not {m for m in others if m.startswith(("torch._dynamo", "torch._inductor", "torch.onnx"))}


def test_clusters_are_known_by_the_type_of_their_data() -> None:
    """To see that rows are not those of Dask or Spark loads neither of them."""
    loaded = run(
        "import sys, cramix.data; cramix.data.source([1.0, 2.0]);print('dask' in sys.modules, 'pyspark' in sys.modules)"
    )
    assert loaded.split() == ["False", "False"]


def test_import_changes_no_global_state() -> None:
    state = """
def state():
    import numpy, torch, warnings, signal, os, locale, random
    return (
        torch.get_default_dtype(), torch.get_num_threads(), torch.get_num_interop_threads(), torch.is_grad_enabled(),
        torch.distributions.Distribution._Distribution__validate_args
        if hasattr(torch.distributions.Distribution, "_Distribution__validate_args")
        else torch.distributions.Distribution._validate_args,
        torch.get_rng_state().tolist(), torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        str(torch._tensor_str.PRINT_OPTS), numpy.geterr(), numpy.get_printoptions(), str(numpy.random.get_state()),
        random.getstate(), list(warnings.filters), signal.getsignal(signal.SIGINT), dict(os.environ), os.getcwd(),
        locale.getlocale(),
    )
"""
    assert (
        run(state + "import torch, numpy\nbefore = state()\nimport cramix\nprint(before == state())").strip() == "True"
    )


def test_missing_extras_name_the_pip_command() -> None:
    plot = run(
        "import sys; sys.modules['matplotlib'] = None; sys.modules['matplotlib.figure'] = None\n"
        "import torch, cramix, cramix.plot\n"
        "p = cramix.NormalMixture(torch.ones(1), torch.ones(1), torch.ones(1))\n"
        "try: cramix.plot.mixture_and_points(p)\n"
        "except ImportError as error: print(error)"
    )
    assert "pip install 'cramix[plot]'" in plot
    command = subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules['typer'] = None; from cramix.cli import main; main()"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert command.returncode == 1
    assert "pip install 'cramix[cli]'" in command.stderr
    without = "import sys; sys.modules['typer'] = None; sys.argv = ['cramix', '--version']; from cramix.cli import main"
    assert run(f"{without}; main()") == f"cramix {cramix.__version__}\n"


def test_all_public_names_exist_and_are_documented() -> None:
    for name in cramix.__all__:
        assert getattr(cramix, name).__doc__, name


def test_the_precision_page_holds_its_table() -> None:
    rows = [line for line in (ROOT / "docs" / "precision.md").read_text().splitlines() if line.startswith("| 1e-")]
    assert len(rows) > 10
    assert all(row.count("|") == 6 for row in rows)


def test_one_version() -> None:
    assert f"version: {cramix.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert f"## {cramix.__version__}" in (ROOT / "CHANGELOG.md").read_text()
