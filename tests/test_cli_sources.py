"""The commands on data of any size: folders, patterns, large files, checkpoints, interrupts, refusals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import feather, parquet
from scipy import stats
from typer.testing import CliRunner

import cramix
from cramix.cli import drift, sources, tables, writers
from cramix.cli.app import app
from cramix.fitting.checkpoint import finished_passes

NAMES = ["a", "b"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: object, code: int = 0) -> tuple[str, str]:
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == code, done.output
    return done.stdout, done.stderr


def run_json(*arguments: object) -> dict:
    return json.loads(run(*arguments, "--json")[0])


def refuses(*arguments: object) -> str:
    """Check that a command ends with 2 and one line; return the line."""
    out, line = run(*arguments, code=2)
    assert out == ""
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    return line


def two_clusters(n: int = 600, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    second = random.permutation(n) >= n // 3
    return random.normal(size=(n, 2)) + np.outer(second, [6.0, 3.0])


def arrow(x: np.ndarray, names: list[str] = NAMES) -> pa.Table:
    return pa.table(dict(zip(names, x.T, strict=True)))


def write(x: np.ndarray, path: Path, names: list[str] = NAMES) -> None:
    path.parent.mkdir(exist_ok=True)
    if path.suffix in (".arrow", ".feather"):
        feather.write_feather(arrow(x, names), path)
    else:
        writers.write(dict(zip(names, x.T, strict=True)), path)


def write_parts(x: np.ndarray, folder: Path, suffix: str, parts: int = 3, names: list[str] = NAMES) -> None:
    for i, part in enumerate(np.array_split(x, parts)):
        write(part, folder / f"{i}{suffix}", names)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".arrow", ".npy"])
def test_a_folder_and_a_pattern_are_fitted_as_the_table_of_their_rows(suffix: str, folder: Path) -> None:
    x = two_clusters()
    write_parts(x, folder / "data", suffix)
    write(x, folder / "x.csv")
    of_table = run_json("fit", "x.csv", "-k", 2)
    about = run_json("fit", "data", "-k", 2, "--out", "m.safetensors", "--plot", "m.png")
    assert about["mean_log_likelihood"] == pytest.approx(of_table["mean_log_likelihood"], abs=1e-9)
    assert (about["n_rows"], about["skipped"], about["passes"], of_table["passes"]) == (600, 0, 1, None)
    assert about["mixture"]["columns"] == (["x1", "x2"] if suffix == ".npy" else NAMES)
    assert cramix.load("m.safetensors").n_components == 2
    assert (folder / "m.png").read_bytes().startswith(b"\x89PNG")
    again = run_json("fit", f"data/[0-9]{suffix}", "-k", 2)
    assert (again["data"], again["mixture"]) == (f"data/[0-9]{suffix}", about["mixture"])
    out, _ = run("fit", "data", "-k", "1-3")
    for words in (r"rows +600\b", r"passes over the data +1\b", r"components +2, chosen from 1 to 3 by BIC"):
        assert re.search(words, out)


def test_the_rule_what_is_read_in_parts(folder: Path) -> None:
    write(two_clusters(), folder / "x.csv")
    (folder / "a[1].csv").write_text("a\n1\n")
    with (folder / "large.npy").open("wb") as file:  # it takes no space on the disk
        file.truncate(sources.LARGE)
    with (folder / "large.xlsx").open("wb") as file:
        file.truncate(sources.LARGE)
    whole, parts = ["-", "x.csv", "a[1].csv", "large.xlsx", "nothing.csv"], [".", "*.csv", "x.feather", "large.npy"]
    assert [sources.in_parts(Path(name)) for name in whole] == [False] * 5
    assert [sources.in_parts(Path(name)) for name in parts] == [True] * 4
    assert sources.in_parts(Path("x.csv"), asked=True)
    assert not sources.in_parts(Path("x.csv"), "|", asked=True)


def test_columns_weights_and_index_by_name(folder: Path) -> None:
    x = two_clusters()
    counts = np.random.default_rng(1).integers(1, 4, len(x))
    columns = np.column_stack([np.arange(600), x[:, 1], x[:, 0], counts, np.full(600, 7.0)])
    names = ["id", "b", "a", "w", "c"]
    write_parts(columns, folder / "data", ".csv", names=names)
    write(columns, folder / "x.csv", names)
    options = ("-k", 2, "--sample-weight", "w")
    for choice in (("--columns", "a,b"), ("--exclude", "id,c")):
        table, parts = (run_json("fit", data, *options, *choice) for data in ("x.csv", "data"))
        assert parts["mixture"]["columns"] == table["mixture"]["columns"]
        assert parts["mean_log_likelihood"] == pytest.approx(table["mean_log_likelihood"], abs=1e-9)
        assert parts["notes"] == []
    out, err = run("fit", "data", "-k", 1, "--json")
    assert "note: data: 'id' may be row numbers" in err
    assert "note: data: 'c' never varies. To leave out: --exclude c" in err
    assert [note for note in json.loads(out)["notes"] if note not in err] == []
    assert "data/0.csv has no column 'z'. It has: id, b, a, w, c." in refuses("fit", "data", "--exclude", "z")


def test_bad_rows_are_named_or_skipped_and_counted(folder: Path) -> None:
    x = two_clusters()
    x[450, 1] = np.nan
    write_parts(x, folder / "data", ".parquet")
    line = refuses("fit", "data", "-k", 1)
    assert "data/2.parquet, row group 0, row 51 has a missing number in column 'b'. " in line
    assert line.endswith("Correct it, or skip such rows with --skip-bad.\n")
    about = run_json("fit", "data", "-k", 1, "--skip-bad")
    assert (about["n_rows"], about["skipped"]) == (599, 1)
    assert about["mixture"]["means"][0] == pytest.approx(np.delete(x, 450, 0).mean(0), rel=1e-6)
    assert re.search(r"rows skipped +1\b", run("fit", "data", "-k", 1, "--skip-bad")[0])


def test_refusals(folder: Path) -> None:
    (folder / "empty").mkdir()
    x = two_clusters()
    write(x, folder / "x.csv")
    write_parts(x, folder / "data", ".parquet")
    assert "empty must hold data files; it holds none" in refuses("fit", "empty")
    assert "*.pq matches no file" in refuses("fit", "*.pq")
    assert "nothing.arrow does not exist" in refuses("fit", "nothing.arrow")
    assert "--delimiter is for one text file" in refuses("fit", "data", "--delimiter", "tab")
    assert "--checkpoint is for data that are read in passes" in refuses("fit", "-", "--checkpoint", "c")
    assert "--max-passes is for" in refuses("fit", "x.csv", "--max-passes", 2, "--delimiter", ",")
    same = ("--checkpoint", "m.safetensors", "--out", "m.safetensors")
    assert "--checkpoint and --out must be different files" in refuses("fit", "data", *same)
    assert "nowhere is not a folder" in refuses("fit", "data", "--checkpoint", "nowhere/c")
    assert "at most the 600 rows of data" in refuses("fit", "data", "-k", 601)
    (folder / "c").write_text("no checkpoint")
    assert "checkpoint must be a whole file of a fit" in refuses("fit", "data", "-k", 1, "--checkpoint", "c")
    parquet.write_table(arrow(x[:, [0, 1, 0]], ["a", "b", "more"]), "data/9.parquet")
    line = refuses("fit", "data", "-k", 1)
    assert "data/9.parquet must have the columns of what comes before; it also has more." in line
    assert "with --columns." in line
    parquet.write_table(arrow(x[:, :1], ["a"]), "data/9.parquet")
    assert "data/9.parquet has no column 'b'" in refuses("fit", "data", "-k", 1)
    parquet.write_table(pa.table({"a": x[:, 0], "b": ["text"] * 600}), "data/0.parquet")
    assert "column 'b' must hold numbers; it holds string. Leave it out with: --exclude b" in refuses("fit", "data")
    (folder / "data/0.parquet").write_bytes((folder / "data/1.parquet").read_bytes()[:-100])
    assert "data/0.parquet cannot be read" in refuses("fit", "data")
    (folder / "data/readme.md").write_text("about")
    assert "data/readme.md must end in one of" in refuses("fit", "data/readme.*")


def test_few_rows_of_text_allow_few_components(folder: Path) -> None:
    write_parts(two_clusters(13), folder / "data", ".csv", parts=2)
    assert [row["n_components"] for row in run_json("fit", "data")["selection"]] == [1, 2, 3, 4]


@pytest.mark.parametrize("suffix", [".csv", ".npy", ".parquet"])
def test_predict_of_a_folder_is_that_of_the_table(suffix: str, folder: Path) -> None:
    x = two_clusters(40_000)  # more than is computed with at a time
    x[[5, 39_000]] = np.nan
    write_parts(x, folder / "data", ".parquet")
    write(x, folder / "x.parquet")
    run("fit", "x.parquet", "-k", 2, "--out", "m.safetensors", "--skip-bad")
    line = refuses("predict", "m.safetensors", "data", "--out", f"p{suffix}")
    assert "data/0.parquet, row group 0, row 6 has a missing number in column 'a'" in line
    assert not list(folder.glob("*p.*")), "nothing half-written stays"
    table = run_json("predict", "m.safetensors", "x.parquet", "--skip-bad", "--out", f"t{suffix}")
    parts = run_json("predict", "m.safetensors", "data", "--skip-bad", "--out", f"p{suffix}")
    same = [key for key in table if key not in ("data", "out", "mean_log_likelihood")]
    assert [parts[key] for key in same] == [table[key] for key in same]
    assert parts["mean_log_likelihood"] == pytest.approx(table["mean_log_likelihood"], rel=1e-12)
    p, t = (tables.read(folder / f"{name}{suffix}").rows for name in "pt")
    torch.testing.assert_close(p, t, rtol=1e-9, atol=1e-12)
    assert p[:, 0].tolist() == [i + 1 for i in range(40_000) if i not in (5, 39_000)]


def test_predict_reads_the_models_columns_of_any_files_and_prints_csv(folder: Path) -> None:
    x = two_clusters(60)
    write(x, folder / "x.csv")
    run("fit", "x.csv", "-k", 2, "--out", "m.safetensors")
    write_parts(np.column_stack([x[:, 1], x[:, 0], x[:, 0]]), folder / "data", ".arrow", names=["b", "other", "a"])
    assert run("predict", "m.safetensors", "data")[0] == run("predict", "m.safetensors", "x.csv")[0]
    write_parts(x, folder / "named", ".arrow", names=["a", "c"])
    line = refuses("predict", "m.safetensors", "named", "--out", "p.csv")
    assert "named/0.arrow must have the 2 columns of the model; it lacks b" in line


def drifting(folder: Path, parts: int, shift: float) -> None:
    """Write folders `before` and `after` of parts; column b moves by so many standard deviations."""
    random = np.random.default_rng(2)
    for name, by in (("before", 0.0), ("after", shift)):
        for i in range(parts):
            write(random.normal([0.0, by], size=(300, 2)) * [1, 5000], folder / name / f"{i}.csv")


def test_compare_says_which_columns_moved_and_whether_by_chance(folder: Path) -> None:
    drifting(folder, 5, 0.5)
    about = run_json("compare", "before", "after")
    x, y = (np.concatenate([tables.read(f).rows for f in sorted((folder / s).iterdir())]) for s in ("before", "after"))
    assert (about["a"]["n_rows"], about["b"]["n_rows"], about["n_columns"]) == (1500, 1500, 2)
    a, b = about["columns"]
    assert (a["name"], b["name"]) == ("a", "b")
    # The Cramér distance is the root of half the squared energy distance.
    unit = np.concatenate([x, y]).std(0)
    for j, column in enumerate((a, b)):
        truth = stats.energy_distance(x[:, j] / unit[j], y[:, j] / unit[j]) / 2**0.5
        assert column["distance"] == pytest.approx(truth, rel=0.02)
        assert column["mean_shift"] == pytest.approx((y[:, j] - x[:, j]).mean() / unit[j], abs=1e-6)
    assert about["p_value"] == about["smallest_p_value"] == pytest.approx(2 / 252)
    assert a["p_value"] > 0.05 > b["p_value"]
    vector = np.abs(about["directions"][0]["direction"])
    assert vector[1] > 0.9, "the direction is that of b, though the numbers of b are large"
    out, err = run("compare", "before", "after/*.csv")
    assert err == ""
    for words in ("0.00794: more than chance", "0.00794 with 5 and 5 parts", "standard deviation of A and B together"):
        assert words in out
    assert out.index("│ b ") < out.index("│ a "), "what moved most comes first"
    assert "--raw is for models" in refuses("compare", "before", "after", "--raw")


def test_files_are_the_parts_if_there_are_several(folder: Path) -> None:
    drifting(folder, 2, 3.0)
    assert "0.333: too few parts to tell" in run("compare", "before", "after")[0]
    out, _ = run("compare", "before", "after/0.csv")  # a file of today is one part, however many rows it has
    assert "with 2 and 1 parts" in out
    one = run_json("compare", "before/0.csv", "after/0.*")  # without several files, runs of rows are parts
    assert one["p_value"] == pytest.approx(2 / 252)  # of 64 rows each


def test_no_drift_may_be_chance(folder: Path) -> None:
    drifting(folder, 5, 0.0)
    out, _ = run("compare", "before", "after")
    assert "may be chance" in out


def test_parts_are_merged_where_there_are_many() -> None:
    x = torch.randn(10_000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts = drift.Parts(2, 10)
    for some in x.split(777):
        parts.add(some, "x")
    sizes = [part.n_samples for part in parts.sketches]
    assert sizes == [160] * 62 + [80]
    of_files = drift.Parts(2)
    for i, some in enumerate(x.split(50)):
        of_files.add(some[:30], str(i))
        of_files.add(some[30:], str(i))
    assert [part.n_samples for part in of_files.sketches] == [200] * 50
    assert sum(of_files.sketches).mean.tolist() == pytest.approx(x.mean(0).tolist())


def test_compare_of_a_model_and_a_folder_is_that_of_the_table(folder: Path) -> None:
    x = two_clusters(3000)
    write_parts(x, folder / "data", ".csv")
    write(x, folder / "x.csv")
    run("fit", "x.csv", "-k", 1, "--out", "m.safetensors")
    for first, second, table in (("m.safetensors", "data", "x.csv"), ("data", "m.safetensors", "x.csv")):
        for options in ((), ("--raw",)):
            about = run_json("compare", first, second, *options)
            truth = run_json("compare", "m.safetensors", table, *options)
            assert about["c2"] == pytest.approx(truth["c2"], rel=0.05)
            assert about["directions"] == 64
            assert about["mean_log_likelihood"] == pytest.approx(truth["mean_log_likelihood"], rel=1e-9)


@pytest.mark.slow
def test_the_memory_of_predict_does_not_grow_with_the_rows(folder: Path) -> None:
    cramix.save(cramix.NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1)), "m.safetensors", names=["a"])
    write(np.random.default_rng(0).normal(size=(250_000, 1)), folder / "one" / "0.csv", ["a"])
    (folder / "many").mkdir()
    for i in range(16):
        (folder / f"many/{i}.csv").hardlink_to("one/0.csv")
    program = (
        "import resource, sys; from cramix.cli.app import app\n"
        "try: app(['predict', 'm.safetensors', sys.argv[1], '--out', 'p.csv', '-q'])\n"
        "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peaks = []
    for data in ("one", "many"):
        command = [sys.executable, "-c", program, data]
        peaks.append(int(subprocess.run(command, check=True, capture_output=True, env=ENVIRONMENT).stdout))
    assert peaks[1] - peaks[0] < 50_000  # kilobytes; the result of all rows takes 160 MB


COMMAND = [sys.executable, "-m", "cramix", "fit", "data", "-k", "5", "--seed", "3"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(cramix.__file__).parents[1])}


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A folder with more rows than fit into the sample, read as text so that passes take a while."""
    random = np.random.default_rng(0)
    x = random.normal(size=(1_500_000, 3)) + random.integers(0, 3, size=(1_500_000, 1)) * [2.0, 1.0, 0.5]
    write_parts(x.round(3), tmp_path / "data", ".csv", parts=4, names=["a", "b", "c"])
    return tmp_path


def stopped(folder: Path, sign: int, options: list[str], after: int) -> tuple[int, str]:
    """Run the command, and send a signal in the pass that follows so many; return exit code and standard error."""
    # Whoever runs the tests in the background has taught them, and so the command, to ignore interrupts.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    with subprocess.Popen([*COMMAND, *options], **pipes, cwd=folder, env=ENVIRONMENT, preexec_fn=heed) as job:
        while job.poll() is None and finished_passes(folder / "c") < after:
            time.sleep(0.01)
        time.sleep(0.05)
        assert job.poll() is None, "it was too fast"
        job.send_signal(sign)
        assert job.stderr is not None
        return job.wait(), job.stderr.read()


@pytest.mark.slow
def test_a_killed_fit_goes_on_and_ends_the_same(many: Path) -> None:
    options = {"capture_output": True, "text": True, "cwd": many, "env": ENVIRONMENT}
    whole = subprocess.run([*COMMAND, "--json"], **options, check=True)
    kept = ["--checkpoint", "c", "--json"]
    assert stopped(many, signal.SIGKILL, kept, after=2)[0] == -signal.SIGKILL
    assert finished_passes(many / "c") == 2
    code, err = stopped(many, signal.SIGINT, kept, after=3)
    assert (code, err) == (
        130,
        "Going on after 2 passes: c\nstopped; c keeps 3 passes. The same command goes on from there.\n",
    )
    done = subprocess.run([*COMMAND, *kept], **options, check=True)
    assert done.stderr.startswith("Going on after 3 passes: c\n")
    first, second = json.loads(whole.stdout), json.loads(done.stdout)
    assert second["mixture"] == first["mixture"]  # to the bit
    for key in ("mean_log_likelihood", "bic", "passes", "n_rows"):
        assert second[key] == first[key]
    assert (first["resumed_after"], second["resumed_after"]) == (None, 3)
    assert first["passes"] > 3
    assert not (many / "c").exists()


@pytest.mark.slow
def test_an_interrupt_says_how_to_keep_a_checkpoint(many: Path) -> None:
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    environment = ENVIRONMENT | {"FORCE_COLOR": "1"}  # a terminal for rich
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(COMMAND, **pipes, cwd=many, env=environment, preexec_fn=heed) as job:
        assert job.stderr is not None
        err = ""
        while "rows/s" not in err and (more := job.stderr.read(1)):
            err += more
        job.send_signal(signal.SIGINT)
        err += job.stderr.read()
    assert job.returncode == 130
    assert "pass 1 of at most 10: " in err
    assert "Traceback" not in err
    message = "stopped; nothing is kept. With --checkpoint FILE, the same command goes on after the last pass.\n"
    assert err.endswith(message)
    _, err = stopped(many, signal.SIGINT, ["--checkpoint", "c"], after=1)
    assert err == "stopped; c keeps 1 pass. The same command goes on from there.\n"
    other = [*COMMAND[:-1], "4", "--checkpoint", "c"]
    done = subprocess.run(other, capture_output=True, text=True, cwd=many, env=ENVIRONMENT, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: checkpoint must belong to the same data, settings and seed; c does not.")
