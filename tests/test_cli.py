"""The commands: numbers against other packages and closed forms, files, exit codes, words."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.spatial.distance import cdist
from sklearn.mixture import GaussianMixture
from typer.testing import CliRunner

import cramix
from cramix import Diagonal, MultivariateNormalMixture, NormalMixture
from cramix.cli import measures, report, tables
from cramix.cli.app import app

D = torch.float64


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: object, code: int = 0) -> tuple[str, str]:
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == code, done.output
    return done.stdout, done.stderr


def run_json(*arguments: object) -> dict:
    out, _ = run(*arguments, "--json")
    assert out.count("\n") == 1
    return json.loads(out)


def refuses(*arguments: object) -> str:
    """Check that a command ends with 2 and one line; return the line. With --json it is also in an object."""
    out, line = run(*arguments, code=2)
    assert out == ""
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    out, again = run(*arguments, "--json", code=2)
    assert again == line
    assert json.loads(out) == {"error": {"message": line.removeprefix("error: ").strip(), "exit_code": 2}}
    return line


def two_clusters(n: int = 300) -> np.ndarray:
    random = np.random.default_rng(0)
    return np.concatenate([random.normal(size=(n // 3, 2)), [6, 3] + random.normal(size=(n - n // 3, 2)) * [2, 0.5]])


def normal(mean: list[float], variance: float = 1.0) -> MultivariateNormalMixture:
    """One spherical component."""
    variances = torch.full((1, len(mean)), variance, dtype=D)
    return MultivariateNormalMixture(torch.ones(1, dtype=D), torch.tensor([mean], dtype=D), Diagonal(variances))


def write_csv(path: Path, x: np.ndarray, names: str) -> None:
    tables.write(torch.from_numpy(x), names.split(","), path)


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_fit_reports_what_scikit_learn_computes_of_its_model(kind: str, folder: Path) -> None:
    x = two_clusters()
    write_csv(folder / "x.csv", x, "a,b")
    about = run_json("fit", "x.csv", "-k", 2, "--covariance", kind, "--out", "m.safetensors")
    model = cramix.load("m.safetensors")
    assert isinstance(model, MultivariateNormalMixture)
    theirs = model.to_sklearn()
    assert theirs.covariance_type == kind
    assert about["mean_log_likelihood"] == pytest.approx(theirs.score(x), rel=1e-9)
    assert about["bic"] == pytest.approx(theirs.bic(x), rel=1e-9)
    assert about["aic"] == pytest.approx(theirs.aic(x), rel=1e-9)
    fitted = GaussianMixture(2, covariance_type=kind, n_init=5, tol=1e-8, random_state=0).fit(x)
    assert about["mean_log_likelihood"] >= fitted.score(x) - 1e-4
    assert (about["k"], about["n"], about["d"], about["columns"]) == (2, 300, 2, ["a", "b"])
    assert about["converged"] is True
    weights = [c["weight"] for c in about["components"]]
    assert weights == sorted(model.weights.tolist(), reverse=True)
    heavy = int(model.weights.argmax())
    assert about["components"][0]["mean"] == model.means[heavy].tolist()
    assert about["components"][0]["scales"] == pytest.approx(model.covariances[heavy].diagonal().sqrt().tolist())


def test_fit_prints_a_table_for_people_and_names_columns(folder: Path) -> None:
    write_csv(folder / "x.csv", two_clusters(), "a[1],b")
    out, err = run("fit", "x.csv", "-k", 2, "--out", "m.safetensors", "--plot", "fit.png")
    assert err == ""  # no progress where nobody looks on
    for word in ("mean log likelihood", "BIC", "AIC", "stopped", "seconds", "weight", "a[1]: mean ± scale", "fit.png"):
        assert word in out
    assert (folder / "fit.png").read_bytes().startswith(b"\x89PNG")
    assert cramix.io.names("m.safetensors") == ("a[1]", "b")
    assert "0.65" in out


def test_fit_without_out_writes_nothing_and_quiet_says_nothing(folder: Path) -> None:
    write_csv(folder / "x.csv", two_clusters(), "a,b")
    assert run("fit", "x.csv", "-k", 2, "--quiet") == ("", "")
    assert [path.name for path in folder.iterdir()] == ["x.csv"]


def test_fit_is_the_same_for_the_same_seed(folder: Path) -> None:
    write_csv(folder / "x.csv", two_clusters(60), "a,b")
    fits = [run_json("fit", "x.csv", "-k", 4, "--method", "em", "--seed", seed) for seed in (1, 1, 2)]
    first, again, other = (fit["components"] for fit in fits)
    assert first == again
    assert first != other


def test_weights_stand_for_repeated_rows(folder: Path) -> None:
    x = two_clusters(90)
    counts = np.random.default_rng(1).integers(1, 4, len(x))
    write_csv(folder / "weighted.csv", np.column_stack([x, counts]), "a,b,w")
    write_csv(folder / "repeated.csv", x.repeat(counts, 0), "a,b")
    weighted = run_json("fit", "weighted.csv", "-k", 2, "--weights", "w")
    repeated = run_json("fit", "repeated.csv", "-k", 2)
    assert weighted["columns"] == ["a", "b"]
    assert weighted["mean_log_likelihood"] == pytest.approx(repeated["mean_log_likelihood"], abs=1e-6)


def test_fit_takes_columns_in_their_order_and_drops_rows_on_request(folder: Path) -> None:
    x = two_clusters()
    rows = [f"{a},name,{b}" for a, b in x] + ["1,name,", "inf,name,2"]
    (folder / "x.csv").write_text("a,text,b\n" + "\n".join(rows))
    assert "2 of 302 rows" in refuses("fit", "x.csv", "-k", 2, "--columns", "b,a")
    out, _ = run("fit", "x.csv", "-k", 2, "--columns", "b,a", "--drop-missing")
    assert "rows dropped          2" in out
    about = run_json("fit", "x.csv", "-k", 1, "--columns", "b,a", "--drop-missing")
    assert (about["n"], about["dropped"]) == (300, 2)
    assert about["components"][0]["mean"] == pytest.approx(x[:, ::-1].mean(0), rel=1e-6)


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".tsv"])
def test_fit_reads_every_kind_of_file(suffix: str, folder: Path) -> None:
    x = two_clusters(90)
    write_csv(folder / f"x{suffix}", x, "a,b")
    about = run_json("fit", f"x{suffix}", "-k", 1)
    assert about["components"][0]["mean"] == pytest.approx(x.mean(0), rel=1e-6)


def test_one_column_and_many_columns_fit_the_screen(folder: Path) -> None:
    random = np.random.default_rng(0)
    write_csv(folder / "one.csv", random.normal(size=(200, 1)), "a")
    assert run_json("fit", "one.csv", "-k", 2, "--plot", "one.svg")["d"] == 1
    write_csv(folder / "many.csv", random.normal(size=(200, 12)), ",".join(f"column{i}" for i in range(12)))
    out, _ = run("fit", "many.csv", "-k", 1, "--plot", "many.pdf")
    assert max(map(len, out.splitlines())) <= 80
    assert "10 more columns" in out


def test_warnings_are_one_line_each(folder: Path) -> None:
    (folder / "x.csv").write_text("a,b\n" + "1,1\n" * 20 + "2,5\n3,4\n5,1\n")
    _, err = run("fit", "x.csv", "-k", 2)
    assert err.startswith("warning: ")
    assert "collapsed" in err
    assert err.count("\n") == err.count("warning: ")


def test_the_floor_is_a_part_of_the_variance(folder: Path) -> None:
    x = two_clusters(90)
    write_csv(folder / "x.csv", x, "a,b")
    (component,) = run_json("fit", "x.csv", "-k", 1, "--floor", 0.5)["components"]
    assert component["scales"] == pytest.approx(np.sqrt(1.5 * x.var(0)), rel=1e-5)
    assert "floor must be a number > 0" in refuses("fit", "x.csv", "-k", 2, "--floor", 0)


def test_compare_of_models_gives_closed_forms(folder: Path) -> None:
    shift = 1.5
    cramix.save(normal([0.0, 0.0]), "a.safetensors")
    cramix.save(normal([shift, 0.0]), "b.safetensors")
    about = run_json("compare", "a.safetensors", "b.safetensors")
    assert about["ise"] == pytest.approx(2 / (4 * math.pi) * (1 - math.exp(-(shift**2) / 4)), rel=1e-9)
    for key in ("kl_a_b", "kl_b_a"):
        error = about[key]["standard_error"]
        assert error == pytest.approx(shift / 2**8, rel=0.05)  # the log ratio is normal with this deviation
        assert about[key]["value"] == pytest.approx(shift**2 / 2, abs=4 * error)
    # |Z| of Z ~ N(delta, 2 I) is sqrt 2 times a Rice variable; from lengths to slices it is 2 / pi.
    length = [math.sqrt(2) * stats.rice.mean(d / math.sqrt(2)) for d in (shift, 0.0)]
    assert about["c2"] == pytest.approx(math.sqrt(2 / math.pi * (length[0] - length[1])), rel=1e-6)
    assert about["directions"] is None
    out, _ = run("compare", "a.safetensors", "b.safetensors")
    for word in ("C2", "ISE", "KL(A‖B)", "±", "a model of 1 component\n"):
        assert word in out


def test_compare_of_data_is_the_energy_distance(folder: Path) -> None:
    x, y = two_clusters(90), two_clusters(60)[::-1] + 0.3
    write_csv(folder / "x.csv", x, "a,b")
    write_csv(folder / "y.parquet", y[:, ::-1].copy(), "b,a")  # matched by name
    mean = cdist(x, y).mean() - 0.5 * (cdist(x, x).mean() + cdist(y, y).mean())
    about = run_json("compare", "x.csv", "y.parquet")
    assert about["c2"] == pytest.approx(math.sqrt(2 / math.pi * mean), rel=1e-6)
    assert (about["a"]["n"], about["b"]["n"], about["b"]["kind"]) == (90, 60, "data")
    assert "ise" not in about


def test_compare_of_model_and_data_gives_the_likelihood_either_way_round(folder: Path) -> None:
    x = two_clusters(90)
    write_csv(folder / "x.csv", np.column_stack([x[:, 1], np.zeros(90), x[:, 0]]), "b,other,a")
    cramix.save(normal([1.0, 2.0], 4.0), "m.safetensors", names=["a", "b"])
    truth = stats.multivariate_normal([1.0, 2.0], 4.0).logpdf(x).mean()
    for files in (("m.safetensors", "x.csv"), ("x.csv", "m.safetensors")):
        assert run_json("compare", *files)["mean_log_likelihood"] == pytest.approx(truth, rel=1e-9)


def test_models_are_matched_by_the_names_of_their_columns(folder: Path) -> None:
    p = MultivariateNormalMixture(
        torch.tensor([0.3, 0.7], dtype=D),
        torch.tensor([[0.0, 5.0], [1.0, 2.0]], dtype=D),
        Diagonal(torch.tensor([[1.0, 2.0], [0.5, 1.0]], dtype=D)),
    )
    cramix.save(p, "p.safetensors", names=["a", "b"])
    cramix.save(p.marginal([1, 0]), "q.safetensors", names=["b", "a"])
    assert run_json("compare", "p.safetensors", "q.safetensors")["c2"] == pytest.approx(0, abs=1e-6)
    cramix.save(p.marginal([1, 0]), "q.safetensors")
    assert run_json("compare", "p.safetensors", "q.safetensors")["c2"] > 0.5


def test_univariate_models_compare_with_columns_and_atoms_have_no_density(folder: Path) -> None:
    p = NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1))
    cramix.save(p, "p.safetensors")
    x = np.random.default_rng(0).normal(size=(50, 1))
    np.save("x.npy", x)
    about = run_json("compare", "p.safetensors", "x.npy")
    assert about["mean_log_likelihood"] == pytest.approx(stats.norm.logpdf(x).mean(), rel=1e-6)
    cramix.save(NormalMixture.from_samples(torch.tensor([0.0, 2.0])), "atoms.safetensors")
    about = run_json("compare", "p.safetensors", "atoms.safetensors")
    assert "no density" in about["note"]
    assert about["c2"] > 0


def test_many_points_are_compared_over_slices_and_it_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(folder / "x.csv", two_clusters(90), "a,b")
    write_csv(folder / "y.csv", two_clusters(60) + 0.3, "a,b")
    exact = run_json("compare", "x.csv", "y.csv")["c2"]
    monkeypatch.setattr(measures, "_MOST_PAIRS", 100)
    about = run_json("compare", "x.csv", "y.csv")
    assert about["directions"] == 256
    assert about["c2"] == pytest.approx(exact, rel=0.05)
    assert about["c2"] != exact
    assert "over 256 directions" in run("compare", "x.csv", "y.csv")[0]


def test_the_divergence_in_rounds_is_that_of_all_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "_BLOCK", 1 << 10)
    estimate = measures.kullback_leibler(normal([0.0, 0.0]), normal([1.0, 0.0]))
    assert estimate.standard_error == pytest.approx(1 / 2**8, rel=0.05)
    assert estimate.value == pytest.approx(0.5, abs=4 * estimate.standard_error)


def test_sample_draws_from_the_model_into_every_kind_of_file(folder: Path) -> None:
    p = MultivariateNormalMixture(
        torch.tensor([0.25, 0.75]), torch.tensor([[0.0, 0.0], [6.0, 1.0]]), Diagonal(torch.tensor([[1.0, 4.0]]))
    )
    cramix.save(p, "m.safetensors", names=["a", "b"])
    drawn = []
    for suffix in tables.WRITABLE:
        run("sample", "m.safetensors", "-n", 2000, "--out", f"x{suffix}", "--seed", 5)
        drawn.append(tables.read(folder / f"x{suffix}").rows.float())  # as the model is
        assert torch.equal(drawn[-1], drawn[0])
    x = drawn[0].numpy()
    assert x[:, 1].mean() == pytest.approx(0.75, abs=0.2)
    assert (x[:, 0] > 3).mean() == pytest.approx(0.75, abs=0.04)
    assert (folder / "x.csv").read_text().startswith("a,b\n")
    about = run_json("sample", "m.safetensors", "-n", 2000, "--out", "y.csv", "--seed", 6)
    assert about["columns"] == ["a", "b"]
    assert not torch.equal(tables.read(folder / "y.csv").rows.float(), drawn[0])


def test_sample_prints_csv_and_names_nameless_columns(folder: Path) -> None:
    cramix.save(NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1)), "m.safetensors")
    out, _ = run("sample", "m.safetensors", "-n", 3, "--out", "-")
    header, *rows = out.splitlines()
    assert header == "x1"
    run("sample", "m.safetensors", "-n", 3, "--out", "x.npy")
    assert [np.float32(row) for row in rows] == np.load("x.npy")[:, 0].tolist()
    assert "--json" in run("sample", "m.safetensors", "-n", 3, "--out", "-", "--json", code=2)[1]


@pytest.mark.parametrize("univariate", [True, False])
def test_compress_keeps_type_and_names_and_says_how_close(univariate: bool, folder: Path) -> None:
    g = torch.Generator().manual_seed(0)
    weights, means = torch.full((8,), 1 / 8, dtype=D), torch.randn(8, 2, generator=g, dtype=D)
    means[:4] += 20
    plane = MultivariateNormalMixture(weights, means, torch.eye(2, dtype=D).expand(8, 2, 2))
    p = plane.marginal(0) if univariate else plane
    names = ["a"] if univariate else ["a", "b"]
    cramix.save(p, "large.safetensors", names=names)
    about = run_json("compress", "large.safetensors", "-k", 2, "--out", "small.safetensors")
    q = cramix.load("small.safetensors")
    assert type(q) is type(p)
    assert q.n_components == 2
    assert list(cramix.io.names("small.safetensors") or ()) == names
    assert q.weights.tolist() == pytest.approx([0.5, 0.5], abs=0.02)
    again = run_json("compare", "small.safetensors", "large.safetensors")
    assert about["c2"] == pytest.approx(again["c2"], rel=1e-9)
    assert about["ise"] == pytest.approx(again["ise"], rel=1e-9)
    assert about["c2"] < 0.1
    assert "C2" in run("compress", "large.safetensors", "-k", 2, "--out", "small.safetensors")[0]
    assert "at most the 8 components" in refuses("compress", "large.safetensors", "-k", 9, "--out", "s.safetensors")


def test_refusals(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(folder / "x.csv", two_clusters(30), "a,b")
    cramix.save(normal([0.0, 0.0, 0.0]), "m3.safetensors")
    cramix.save(normal([0.0, 0.0]).expand((2,)), "batch.safetensors")
    (folder / "cut.safetensors").write_bytes((folder / "m3.safetensors").read_bytes()[:-10])
    (folder / "fake.safetensors").write_text("a,b\n1,2\n")
    assert "nothing.csv is not there" in refuses("fit", "nothing.csv", "-k", 1)
    assert "is a folder" in refuses("fit", ".", "-k", 1)
    assert "is a model file" in refuses("fit", "m3.safetensors", "-k", 1)
    assert "is a data file" in refuses("sample", "x.csv", "-n", 1, "--out", "y.csv")
    assert "is a data file" in refuses("compress", "x.csv", "-k", 1, "--out", "s.safetensors")
    assert "at most the 30 rows" in refuses("fit", "x.csv", "-k", 31)
    assert "nowhere is not a folder" in refuses("fit", "x.csv", "-k", 1, "--out", "nowhere/m.safetensors")
    assert "nowhere is not a folder" in refuses("fit", "x.csv", "-k", 1, "--plot", "nowhere/m.png")
    assert "must end in .safetensors" in refuses("fit", "x.csv", "-k", 1, "--out", "m.csv")
    assert "must end in .png" in refuses("fit", "x.csv", "-k", 1, "--plot", "m.bmp")
    assert "must end in .csv" in refuses("sample", "m3.safetensors", "-n", 1, "--out", "x.xlsx")
    assert "whole safetensors" in refuses("sample", "cut.safetensors", "-n", 1, "--out", "y.csv")
    assert "whole safetensors" in refuses("compare", "fake.safetensors", "x.csv")
    assert "one mixture" in refuses("sample", "batch.safetensors", "-n", 1, "--out", "y.csv")
    assert "has d = 3 and x.csv has d = 2" in refuses("compare", "m3.safetensors", "x.csv")
    assert "--method must be one of merge" in refuses("fit", "x.csv", "-k", 1, "--method", "magic")
    assert "x.csv has no column 'c'" in refuses("compare", "x.csv", "x.csv", "--columns", "a,c")
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    assert "cannot be written to" in refuses("fit", "x.csv", "-k", 1, "--out", "m.safetensors")
    assert sorted(path.suffix for path in folder.iterdir()) == [".csv"] + 4 * [".safetensors"]


def test_wrong_usage_is_refused_too(folder: Path) -> None:
    write_csv(folder / "x.csv", two_clusters(30), "a,b")
    for arguments, words in [
        (("fit",), ["DATA"]),
        (("fit", "x.csv"), ["-k"]),
        (("fit", "x.csv", "-k", "many"), ["-k", "integer"]),
        (("fit", "x.csv", "-k", 0), ["-k"]),
        (("fit", "x.csv", "-k", 1, "--covariance", "round"), ["full", "spherical"]),
        (("fit", "x.csv", "-k", 1, "--colour", "red"), ["--colour"]),
        (("sample", "m.safetensors", "-n", 0, "--out", "-"), ["-n"]),
        (("unfit",), ["unfit"]),
        (("fti",), ["Did you mean 'fit'? See: "]),
    ]:
        line = refuses(*arguments)
        assert "--help" in line
        for word in words:
            assert word in line


def test_help_lists_the_commands() -> None:
    for arguments in ((), ("--help",)):
        out, _ = run(*arguments)
        for command in ("demo", "fit", "compare", "compress", "sample"):
            assert command in out
    assert "--drop-missing" in run("fit", "--help")[0]
    assert run("--version")[0] == f"cramix {cramix.__version__}\n"


def test_the_unexpected_ends_with_1_and_its_traceback(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(folder / "x.csv", two_clusters(30), "a,b")

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(cramix, "fit", broken)
    out, err = run("fit", "x.csv", "-k", 1, "--json", code=1)
    assert json.loads(out)["error"] == {"message": "unexpected RuntimeError: a bug", "exit_code": 1}
    assert "Traceback" in err
    assert err.endswith("error: unexpected RuntimeError: a bug\n")


def test_a_full_disk_is_one_line_and_leaves_no_litter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(folder / "x.csv", two_clusters(30), "a,b")

    def full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "m.safetensors")

    monkeypatch.setattr(os, "fsync", full_disk)
    _, err = run("fit", "x.csv", "-k", 1, "--out", "m.safetensors", code=1)
    assert err == "error: m.safetensors: No space left on device\n"
    assert [path.name for path in folder.iterdir()] == ["x.csv"]


def test_missing_packages_name_the_pip_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(folder / "x.csv", two_clusters(30), "a,b")
    for package, options in [
        ("pyarrow", ()),
        ("safetensors", ("--out", "m.safetensors")),
        ("matplotlib.figure", ("--plot", "m.png")),
    ]:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            _, err = run("fit", "x.csv", "-k", 1, *options, code=1)
            assert "pip install 'cramix[" in err
            assert err.count("\n") == 1


def test_numbers_that_json_does_not_know_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    facts = [report.Fact("x", "x", math.inf), report.Fact("y", "y", measures.Estimate(math.nan, 1.0))]
    report.show(facts, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"x": None, "y": {"value": None, "standard_error": 1.0}}
    report.show(facts, as_json=False)
    assert "inf" in capsys.readouterr().out


PROGRAM = str(Path(sys.executable).parent / "cramix")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "FORCE_COLOR": "1"}  # one thread, and a terminal for rich


def test_the_installed_command_shows_progress_on_a_terminal(tmp_path: Path) -> None:
    write_csv(tmp_path / "x.csv", two_clusters(), "a,b")
    command = [PROGRAM, "fit", "x.csv", "-k", "3", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["k"] == 3
    assert "Fitting 3 components to 300 rows: " in done.stderr


def test_an_interrupted_command_says_so_and_leaves_the_old_file_whole(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(200_000, 6)))
    (tmp_path / "m.safetensors").write_text("the last one")
    command = [PROGRAM, "fit", "x.npy", "-k", "20", "--out", "m.safetensors"]
    # Whoever runs the tests in the background has taught them, and so the command, to ignore interrupts.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    options = {"stderr": subprocess.PIPE, "text": True, "cwd": tmp_path, "env": ENVIRONMENT}
    with subprocess.Popen(command, **options, preexec_fn=heed) as job:
        assert job.stderr is not None
        err = ""
        while "merging" not in err and (more := job.stderr.read(1)):
            err += more
        job.send_signal(signal.SIGINT)
        err += job.stderr.read()
    assert job.returncode == 130
    assert err.endswith("stopped\n")
    assert "Traceback" not in err
    assert (tmp_path / "m.safetensors").read_text() == "the last one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.safetensors", "x.npy"]


def test_the_installed_command_is_quiet_when_its_reader_leaves(tmp_path: Path) -> None:
    cramix.save(normal([0.0, 0.0]), tmp_path / "m.safetensors")
    command = [PROGRAM, "sample", "m.safetensors", "-n", "500000", "--out", "-"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, cwd=tmp_path, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"x1,x2\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1
