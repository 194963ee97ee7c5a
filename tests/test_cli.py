"""The commands: numbers against other packages and closed forms, files, exit codes, words."""

from __future__ import annotations

import errno
import json
import math
import os
import re
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
from cramix.cli import formats, measures, report, tables, writers
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
    writers.write(dict(zip(names.split(","), x.T, strict=True)), path)


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_fit_reports_what_scikit_learn_computes_of_its_model(kind: str, folder: Path) -> None:
    x = two_clusters()
    write_csv(folder / "x.csv", x, "a,b")
    about = run_json("fit", "x.csv", "-k", 2, "--covariance-type", kind, "--out", "m.safetensors")
    model = cramix.load("m.safetensors")
    assert isinstance(model, MultivariateNormalMixture)
    theirs = model.to_sklearn()
    assert theirs.covariance_type == kind
    assert about["mean_log_likelihood"] == pytest.approx(theirs.score(x), rel=1e-9)
    assert about["bic"] == pytest.approx(theirs.bic(x), rel=1e-9)
    assert about["aic"] == pytest.approx(theirs.aic(x), rel=1e-9)
    fitted = GaussianMixture(2, covariance_type=kind, n_init=5, tol=1e-8, random_state=0).fit(x)
    assert about["mean_log_likelihood"] >= fitted.score(x) - 1e-4
    assert (about["n_components"], about["n_rows"], about["n_columns"]) == (2, 300, 2)
    assert about["converged"] is True
    # The object has the whole model, and the heaviest component comes first.
    mixture = about["mixture"]
    assert mixture["columns"] == ["a", "b"]
    parts = [torch.tensor(mixture[key], dtype=D) for key in ("weights", "means", "covariances")]
    assert mixture["weights"] == sorted(mixture["weights"], reverse=True)
    for part, truth in zip(parts, (model.weights, model.means, model.covariances), strict=True):
        assert torch.equal(part, truth)
    again = MultivariateNormalMixture(*parts)
    assert again.log_prob(torch.from_numpy(x)).mean().item() == pytest.approx(about["mean_log_likelihood"], rel=1e-9)


def test_fit_prints_a_table_for_people_and_names_columns(folder: Path) -> None:
    write_csv(folder / "x.csv", two_clusters(), "a[1],b")
    out, err = run("fit", "x.csv", "-k", 2, "--out", "m.safetensors", "--plot", "fit.png")
    assert err == ""  # no progress where nobody looks on
    for word in (
        "mean log likelihood",
        "BIC",
        "AIC",
        "stopped",
        "seconds",
        "weight",
        "a[1]",
        "mean ± standard deviation",
        "fit.png",
    ):
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
    first, again, other = (fit["mixture"] for fit in fits)
    assert first == again
    assert first != other


def test_weights_stand_for_repeated_rows(folder: Path) -> None:
    x = two_clusters(90)
    counts = np.random.default_rng(1).integers(1, 4, len(x))
    write_csv(folder / "weighted.csv", np.column_stack([x, counts]), "a,b,w")
    write_csv(folder / "repeated.csv", x.repeat(counts, 0), "a,b")
    weighted = run_json("fit", "weighted.csv", "-k", 2, "--sample-weight", "w")
    repeated = run_json("fit", "repeated.csv", "-k", 2)
    assert weighted["mixture"]["columns"] == ["a", "b"]
    assert weighted["mean_log_likelihood"] == pytest.approx(repeated["mean_log_likelihood"], abs=1e-6)


def test_fit_takes_columns_in_their_order_and_skips_rows_on_request(folder: Path) -> None:
    x = two_clusters()
    rows = [f"{a},name,{b}" for a, b in x] + ["1,name,", "inf,name,2"]
    (folder / "x.csv").write_text("a,text,b\n" + "\n".join(rows))
    assert "2 of 302 rows" in refuses("fit", "x.csv", "-k", 2, "--columns", "b,a")
    out, _ = run("fit", "x.csv", "-k", 2, "--columns", "b,a", "--skip-bad")
    assert re.search(r"rows skipped +2\b", out)
    about = run_json("fit", "x.csv", "-k", 1, "--columns", "b,a", "--skip-bad")
    assert (about["n_rows"], about["skipped"]) == (300, 2)
    assert about["mixture"]["means"][0] == pytest.approx(x[:, ::-1].mean(0), rel=1e-6)


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".tsv"])
def test_fit_reads_every_kind_of_file(suffix: str, folder: Path) -> None:
    x = two_clusters(90)
    write_csv(folder / f"x{suffix}", x, "a,b")
    about = run_json("fit", f"x{suffix}", "-k", 1)
    assert about["mixture"]["means"][0] == pytest.approx(x.mean(0), rel=1e-6)


def test_one_column_and_many_columns_fit_the_screen(folder: Path) -> None:
    random = np.random.default_rng(0)
    write_csv(folder / "one.csv", random.normal(size=(200, 1)), "a")
    about = run_json("fit", "one.csv", "-k", 2, "--plot", "one.svg", "--out", "one.safetensors")
    assert about["n_columns"] == 1
    model = cramix.load("one.safetensors")
    assert isinstance(model, NormalMixture)
    assert model.means.tolist() == [mean for (mean,) in about["mixture"]["means"]]
    out, _ = run("predict", "one.safetensors", "one.csv")
    assert len(out.splitlines()) == 201
    write_csv(folder / "many.csv", random.normal(size=(200, 12)), ",".join(f"column{i}" for i in range(12)))
    out, _ = run("fit", "many.csv", "-k", 1, "--plot", "many.pdf")
    assert max(map(len, out.splitlines())) <= 80
    for i in range(12):
        assert f" column{i} " in out
    write_csv(folder / "more.csv", random.normal(size=(200, 70)), ",".join(f"column{i}" for i in range(70)))
    out, _ = run("fit", "more.csv", "-k", 1, "--covariance-type", "diag")
    assert "and 10 more columns; --json shows all" in out
    out, _ = run("fit", "one.csv", "-k", 25, "--covariance-type", "tied")
    assert "and 5 lighter components; --json shows all" in out


def test_warnings_are_one_line_each(folder: Path) -> None:
    (folder / "x.csv").write_text("a,b\n" + "1,1\n" * 20 + "2,5\n3,4\n5,1\n")
    _, err = run("fit", "x.csv", "-k", 2)
    assert err.startswith("warning: ")
    assert "collapsed" in err
    assert err.count("\n") == err.count("warning: ")

    x = two_clusters(90)
    write_csv(folder / "x.csv", x, "a,b")
    (covariance,) = run_json("fit", "x.csv", "-k", 1, "--reg-covar", 0.5)["mixture"]["covariances"]
    np.testing.assert_allclose(covariance, np.cov(x.T, bias=True) + 0.5 * np.eye(2), rtol=1e-6)
    assert "reg_covar must be" in refuses("fit", "x.csv", "-k", 2, "--reg-covar", -1)


def test_shrinkage_is_that_of_the_library(folder: Path) -> None:
    x = np.random.default_rng(5).normal(size=(60, 4))
    write_csv(folder / "x.csv", x, "a,b,c,d")
    about = run_json("fit", "x.csv", "-k", 2, "--shrinkage", "inf")
    assert about["shrinkage"] == "inf"
    first, second = about["mixture"]["covariances"]
    np.testing.assert_allclose(first, second)
    assert run_json("fit", "x.csv", "-k", 2, "--shrinkage", 0)["shrinkage"] == 0
    assert [row["shrinkage"] for row in run_json("fit", "x.csv", "-k", "1-3", "--shrinkage", 2)["selection"]] == [2] * 3
    assert "shrinkage must be \"auto\" or a number >= 0; got 'some'" in refuses("fit", "x.csv", "--shrinkage", "some")


def three_clusters() -> np.ndarray:
    random = np.random.default_rng(3)
    return np.concatenate([centre + random.normal(size=(60, 2)) for centre in ([0, 0], [8, 0], [0, 8])])


def test_without_k_the_lowest_bic_decides(folder: Path) -> None:
    x = three_clusters()
    write_csv(folder / "x.csv", x, "a,b")
    about = run_json("fit", "x.csv")
    theirs = {k: GaussianMixture(k, n_init=2, max_iter=1000, random_state=0).fit(x).bic(x) for k in range(1, 11)}
    assert about["n_components"] == min(theirs, key=theirs.__getitem__) == 3
    bic = {row["n_components"]: row["bic"] for row in about["selection"]}
    assert list(bic) == list(range(1, 11))
    for k in (1, 2, 3):
        assert bic[k] == pytest.approx(theirs[k], rel=1e-4)
    assert (about["bic"], about["mean_log_likelihood"]) == (bic[3], about["selection"][2]["mean_log_likelihood"])
    asked = run_json("fit", "x.csv", "-k", 3)
    assert about["mean_log_likelihood"] == pytest.approx(asked["mean_log_likelihood"], rel=1e-6)
    out, _ = run("fit", "x.csv")
    assert re.search(r"components +3, chosen from 1 to 10 by BIC", out)
    assert re.search(r"3 │ +-\d\.\d{4} │ +\d+\.\d │ +\+0\.0 │ chosen", out)


def test_a_range_of_components(folder: Path) -> None:
    write_csv(folder / "x.csv", three_clusters(), "a,b")
    about = run_json("fit", "x.csv", "-k", "1-2")
    assert [row["n_components"] for row in about["selection"]] == [1, 2]
    assert about["n_components"] == 2
    one = run_json("fit", "x.csv", "-k", "2-2")
    assert one["mean_log_likelihood"] == pytest.approx(about["mean_log_likelihood"], rel=1e-6)


def test_few_rows_allow_few_components_and_collapsed_ones_are_not_chosen(folder: Path) -> None:
    write_csv(folder / "x.csv", two_clusters(13), "a,b")
    about = run_json("fit", "x.csv")
    assert [row["n_components"] for row in about["selection"]] == [1, 2, 3, 4]
    assert about["collapsed"] == 0
    # Five points, each of which may get a component whose likelihood has no bound.
    write_csv(folder / "spikes.csv", np.repeat(np.arange(5.0), 60)[:, None], "a")
    out, err = run("fit", "spikes.csv", "--json", "-k", "1-5")
    about = json.loads(out)
    assert about["selection"][4]["collapsed"] == 5
    assert about["collapsed"] == 0
    assert re.fullmatch("warning: n_components=.*5: not chosen in spite of a better BIC .*\n", err)
    (folder / "one.csv").write_text("a,b\n1,2\n")
    assert "at least 2 rows; it has 1" in refuses("fit", "one.csv")


def test_bad_numbers_of_components_and_bad_choices(folder: Path) -> None:
    write_csv(folder / "x.csv", two_clusters(30), "a,b")
    for k in ("many", 0, "5-2", "0-3", "-3", "1-", "2.5", ""):
        line = refuses("fit", "x.csv", "-k", k)
        assert f"-k must be a number >= 1, such as 3, or a range, such as 1-10; got '{k}'" in line
    assert "at most the 30 rows of x.csv; got 40" in refuses("fit", "x.csv", "-k", "1-40")
    line = refuses("fit", "x.csv", "--covariance-type", "foo")
    assert "--covariance-type must be one of full, tied, diag, spherical; got 'foo'" in line
    assert "--method em needs one number of components" in refuses("fit", "x.csv", "--method", "em")


def test_fit_points_out_index_and_constant_columns(folder: Path) -> None:
    x = two_clusters(60)
    write_csv(folder / "x.csv", np.column_stack([np.arange(1, 61), x, np.full(60, 7.0)]), "rownames,a,b,c")
    _, err = run("fit", "x.csv", "-k", 1, "--quiet")
    assert "note: x.csv: 'rownames' may be row numbers" in err
    assert "note: x.csv: 'c' never varies. To leave out: --exclude c" in err
    out, err = run("fit", "x.csv", "-k", 1, "--exclude", "rownames,c", "--json")
    assert err == ""
    assert json.loads(out)["mixture"]["columns"] == ["a", "b"]


def test_text_columns_are_refused_by_name(folder: Path) -> None:
    (folder / "x.csv").write_text("t,a,sp\n2020-01-01,1,B\n2020-01-02,3,O\n")
    assert "columns 't', 'sp' must hold numbers" in refuses("fit", "x.csv")
    assert "--exclude t,sp" in refuses("fit", "x.csv")
    assert run_json("fit", "x.csv", "--exclude", "t,sp", "-k", 1)["n_columns"] == 1


def test_standard_input_is_csv(folder: Path) -> None:
    x = two_clusters(60)
    write_csv(folder / "x.csv", x, "a,b")
    text = (folder / "x.csv").read_text()
    from_file = run_json("fit", "x.csv", "-k", 2, "--out", "m.safetensors")
    done = CliRunner().invoke(app, ["fit", "-", "-k", "2", "--json"], input=text)
    assert json.loads(done.stdout)["data"] == "standard input"
    assert json.loads(done.stdout)["mixture"] == from_file["mixture"]
    done = CliRunner().invoke(app, ["fit", "-", "-k", "2", "--delimiter", "|", "--json"], input=text.replace(",", "|"))
    assert json.loads(done.stdout)["mixture"] == from_file["mixture"]
    done = CliRunner().invoke(app, ["compare", "m.safetensors", "-", "--json"], input=text)
    assert json.loads(done.stdout)["mean_log_likelihood"] == pytest.approx(from_file["mean_log_likelihood"], rel=1e-9)
    done = CliRunner().invoke(app, ["fit", "-"], input="")
    assert (done.exit_code, done.stderr) == (2, "error: standard input is empty.\n")
    assert "cannot both be standard input" in refuses("compare", "-", "-")


def test_predict_says_what_scikit_learn_says_of_the_model(folder: Path) -> None:
    x = three_clusters()
    write_csv(folder / "x.csv", x, "a,b")
    run("fit", "x.csv", "-k", 3, "--out", "m.safetensors")
    theirs = cramix.load("m.safetensors").to_sklearn()
    y = np.concatenate([x[:50], [[40.0, 40.0], [4.0, 4.0]]])
    write_csv(folder / "y.csv", np.column_stack([y[:, 1], np.zeros(52), y[:, 0]]), "b,other,a")  # matched by name
    about = run_json("predict", "m.safetensors", "y.csv", "--out", "p.csv")
    rows = np.genfromtxt(folder / "p.csv", delimiter=",", names=True)
    names = [f"probability_{i}" for i in range(3)]
    assert rows.dtype.names == ("row", "label", *names, "log_density", "outlier")
    np.testing.assert_array_equal(rows["row"], np.arange(1, 53))
    np.testing.assert_array_equal(rows["label"], theirs.predict(y))
    np.testing.assert_allclose(np.column_stack([rows[n] for n in names]), theirs.predict_proba(y), atol=1e-9)
    np.testing.assert_allclose(rows["log_density"], theirs.score_samples(y), rtol=1e-9)
    assert rows["outlier"][-2:].tolist() == [1, 1]
    assert about["outliers"] == rows["outlier"].sum()
    assert about["rows_by_label"] == np.bincount(theirs.predict(y), minlength=3).tolist()
    assert "rows by label" in run("predict", "m.safetensors", "y.csv", "--out", "p.csv")[0]


@pytest.mark.parametrize("fraction", [0.01, 0.2])
def test_outliers_are_a_fraction_of_the_models_own_samples(fraction: float, folder: Path) -> None:
    cramix.save(normal([1.0, -2.0], 4.0), "m.safetensors", names=["a", "b"])
    run("sample", "m.safetensors", "-n", 20_000, "--out", "x.npy", "--seed", 7)
    about = run_json("predict", "m.safetensors", "x.npy", "--out", "p.npy", "--outliers", fraction)
    # The squared distance from the mean is chi-squared.
    distance = stats.chi2(2).isf(fraction)
    assert about["threshold"] == pytest.approx(-0.5 * distance - math.log(2 * math.pi * 4), abs=0.1)
    assert about["outliers"] / 20_000 == pytest.approx(fraction, abs=5 * math.sqrt(fraction / 20_000))
    assert np.load("p.npy").shape == (20_000, 5)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".npy"])
def test_predict_writes_every_format_and_numbers_rows(suffix: str, folder: Path) -> None:
    cramix.save(normal([0.0, 0.0]), "m.safetensors", names=["a", "b"])
    (folder / "x.csv").write_text("a,b\n1,2\n,3\n0.5,0\n")
    assert "1 of 3 rows" in refuses("predict", "m.safetensors", "x.csv", "--out", f"p{suffix}")
    about = run_json("predict", "m.safetensors", "x.csv", "--out", f"p{suffix}", "--skip-bad")
    assert (about["n_rows"], about["skipped"]) == (2, 1)
    table = tables.read(folder / f"p{suffix}")
    assert table.rows[:, 0].tolist() == [1, 3]
    assert table.rows[:, -2].tolist() == pytest.approx(stats.norm.logpdf([[1, 2], [0.5, 0]]).sum(1).tolist())


def test_predict_prints_csv_unless_there_is_a_file(folder: Path) -> None:
    cramix.save(NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1)), "m.safetensors")
    np.save("x.npy", np.array([0.5, 9.0]))
    out, err = run("predict", "m.safetensors", "x.npy")
    assert err == ""
    header, first, second = out.splitlines()
    assert header == "row,label,probability_0,log_density,outlier"
    assert first.startswith("1,0,1,-1.04")
    assert second.endswith(",1")
    assert run("predict", "m.safetensors", "x.npy", "--out", "-")[0] == out


def test_predict_refuses_what_does_not_fit(folder: Path) -> None:
    write_csv(folder / "x.csv", two_clusters(30), "a,b")
    cramix.save(normal([0.0, 0.0]), "m.safetensors", names=["a", "c"])
    cramix.save(NormalMixture.from_samples(torch.tensor([0.0, 2.0])), "atoms.safetensors")
    line = refuses("predict", "m.safetensors", "x.csv", "--out", "p.csv")
    assert "must have the 2 columns of the model; it lacks c. It has: a, b." in line
    assert run_json("predict", "m.safetensors", "x.csv", "--out", "p.csv", "--columns", "a,b")["n_rows"] == 30
    assert "must name the 2 columns" in refuses("predict", "m.safetensors", "x.csv", "--out", "p.csv", "--columns", "a")
    assert "no density" in refuses("predict", "atoms.safetensors", "x.csv", "--out", "p.csv", "--columns", "a")
    assert "is data; this must be a model" in refuses("predict", "x.csv", "m.safetensors", "--out", "p.csv")
    for fraction in (0, 1, 2, -0.1):
        line = refuses("predict", "m.safetensors", "x.csv", "--out", "p.csv", f"--outliers={fraction}")
        assert "--outliers must be a fraction between 0 and 1" in line
    assert "--json and --out -" in run("predict", "m.safetensors", "x.csv", "--json", code=2)[1]


def moved(folder: Path, x: np.ndarray, by: list[float]) -> str:
    write_csv(folder / "moved.csv", x + by, "length,mass")
    return "moved.csv"


def test_compare_measures_in_standard_deviations_of_the_first(folder: Path) -> None:
    x = np.random.default_rng(0).normal(size=(500, 2)) * [5.0, 800.0]
    write_csv(folder / "x.csv", x, "length,mass")
    shifts = ([15.0, 0.0], [0.0, 2400.0])  # three deviations of either column
    distances = [run_json("compare", "x.csv", moved(folder, x, by))["c2"] for by in shifts]
    assert distances[0] == pytest.approx(distances[1], rel=0.05)
    scaled, y = x / x.std(0), (x + shifts[0]) / x.std(0)
    mean = cdist(scaled, y).mean() - 0.5 * (cdist(scaled, scaled).mean() + cdist(y, y).mean())
    assert distances[0] == pytest.approx(math.sqrt(2 / math.pi * mean), rel=1e-6)
    raw = [run_json("compare", "x.csv", moved(folder, x, by), "--raw") for by in shifts]
    assert raw[1]["c2"] > 20 * raw[0]["c2"]
    assert (raw[0]["unit"], run_json("compare", "x.csv", "x.csv")["unit"]) == ("raw", "standard deviations of a")
    assert "standard deviation of each column in A" in run("compare", "x.csv", "x.csv")[0]


def test_the_divergence_has_no_unit_and_the_squared_error_that_of_the_first(folder: Path) -> None:
    cramix.save(normal([0.0, 0.0], 4.0), "a.safetensors")
    cramix.save(normal([3.0, 0.0], 4.0), "b.safetensors")
    about, raw = (run_json("compare", "a.safetensors", "b.safetensors", *options) for options in ((), ("--raw",)))
    assert about["kl_a_b"]["value"] == pytest.approx(raw["kl_a_b"]["value"], rel=1e-6)
    assert about["ise"] == pytest.approx(2 / (4 * math.pi) * (1 - math.exp(-(1.5**2) / 4)), rel=1e-9)
    assert about["c2"] == pytest.approx(raw["c2"] / math.sqrt(2), rel=1e-6)


def test_constant_columns_are_no_unit(folder: Path) -> None:
    x = two_clusters(30)
    write_csv(folder / "x.csv", np.column_stack([x, np.full(30, 7.1)]), "a,b,c")
    _, err = run("compare", "x.csv", "x.csv", code=2)
    assert "these are constant: c. Leave them out with --exclude c, or add --raw" in err
    for options in (("--raw",), ("--exclude", "c")):
        assert run_json("compare", "x.csv", "x.csv", *options)["c2"] == pytest.approx(0, abs=1e-6)


def test_compare_of_some_columns_takes_the_marginal_of_a_model(folder: Path) -> None:
    x = two_clusters(90)
    write_csv(folder / "x.csv", x, "a,b")
    cramix.save(normal([1.0, 2.0], 4.0), "m.safetensors", names=["a", "b"])
    truth = stats.norm(2, 2).logpdf(x[:, 1]).mean()
    for options in (("--columns", "b"), ("--exclude", "a")):
        assert run_json("compare", "m.safetensors", "x.csv", *options)["mean_log_likelihood"] == pytest.approx(truth)


def test_python_m_cramix_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "cramix", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"cramix {cramix.__version__}\n"


def test_compare_of_models_gives_closed_forms(folder: Path) -> None:
    shift = 1.5
    cramix.save(normal([0.0, 0.0]), "a.safetensors")
    cramix.save(normal([shift, 0.0]), "b.safetensors")
    about = run_json("compare", "a.safetensors", "b.safetensors", "--raw")
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
    for word in ("C2", "ISE", "KL(A‖B)", "±", "a model with 1 component\n"):
        assert word in out


def test_compare_of_data_is_the_energy_distance(folder: Path) -> None:
    x, y = two_clusters(90), two_clusters(60)[::-1] + 0.3
    write_csv(folder / "x.csv", x, "a,b")
    write_csv(folder / "y.parquet", y[:, ::-1].copy(), "b,a")  # matched by name
    mean = cdist(x, y).mean() - 0.5 * (cdist(x, x).mean() + cdist(y, y).mean())
    about = run_json("compare", "x.csv", "y.parquet", "--raw")
    assert about["c2"] == pytest.approx(math.sqrt(2 / math.pi * mean), rel=1e-6)
    assert (about["a"]["n_rows"], about["b"]["n_rows"], about["b"]["kind"]) == (90, 60, "data")
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
    monkeypatch.setattr(measures, "cramer", partial(measures.cramer, most_pairs=100))
    about = run_json("compare", "x.csv", "y.csv")
    assert about["directions"] == 256
    assert about["c2"] == pytest.approx(exact, rel=0.05)
    assert about["c2"] != exact
    assert "over 256 directions" in run("compare", "x.csv", "y.csv")[0]


def test_the_divergence_in_blocks_is_that_of_all_draws() -> None:
    estimate = measures.kullback_leibler(normal([0.0, 0.0]), normal([1.0, 0.0]), block=1 << 10)
    assert estimate.standard_error == pytest.approx(1 / 2**8, rel=0.05)
    assert estimate.value == pytest.approx(0.5, abs=4 * estimate.standard_error)


def test_sample_draws_from_the_model_into_every_kind_of_file(folder: Path) -> None:
    p = MultivariateNormalMixture(
        torch.tensor([0.25, 0.75]), torch.tensor([[0.0, 0.0], [6.0, 1.0]]), Diagonal(torch.tensor([[1.0, 4.0]]))
    )
    cramix.save(p, "m.safetensors", names=["a", "b"])
    drawn = []
    for suffix in formats.DATA_OUT:
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


def test_many_rows_are_drawn_some_at_a_time(folder: Path) -> None:
    cramix.save(NormalMixture(torch.ones(1), torch.zeros(1), torch.ones(1)), "m.safetensors")
    run("sample", "m.safetensors", "-n", 200_000, "--out", "x.npy")
    x = np.load("x.npy")
    assert (x.shape, x.dtype) == ((200_000, 1), np.float32)
    assert len(np.unique(x)) > 190_000  # not the same rows again
    assert stats.kstest(x[:, 0], "norm").pvalue > 1e-3


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
    again = run_json("compare", "large.safetensors", "small.safetensors")
    assert about["c2"] == pytest.approx(again["c2"], rel=1e-6)
    assert about["ise"] == pytest.approx(again["ise"], rel=1e-6)
    assert about["c2"] < 0.1
    assert about["mixture"]["weights"] == q.weights.tolist()
    assert "C2" in run("compress", "large.safetensors", "-k", 2, "--out", "small.safetensors")[0]
    assert "at most the 8 components" in refuses("compress", "large.safetensors", "-k", 9, "--out", "s.safetensors")


def test_refusals(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(folder / "x.csv", two_clusters(30), "a,b")
    cramix.save(normal([0.0, 0.0, 0.0]), "m3.safetensors")
    cramix.save(normal([0.0, 0.0]).expand((2,)), "batch.safetensors")
    (folder / "cut.safetensors").write_bytes((folder / "m3.safetensors").read_bytes()[:-10])
    (folder / "fake.safetensors").write_text("a,b\n1,2\n")
    assert "nothing.csv does not exist" in refuses("fit", "nothing.csv", "-k", 1)
    assert "is a folder" in refuses("compress", ".", "-k", 1, "--out", "s.safetensors")
    assert "is a model; this must be data" in refuses("fit", "m3.safetensors", "-k", 1)
    assert "is data; this must be a model" in refuses("sample", "x.csv", "-n", 1, "--out", "y.csv")
    assert "is data; this must be a model" in refuses("compress", "x.csv", "-k", 1, "--out", "s.safetensors")
    assert "at most the 30 rows" in refuses("fit", "x.csv", "-k", 31)
    assert "nowhere is not a folder" in refuses("fit", "x.csv", "-k", 1, "--out", "nowhere/m.safetensors")
    assert "nowhere is not a folder" in refuses("fit", "x.csv", "-k", 1, "--plot", "nowhere/m.png")
    assert "must end in .safetensors" in refuses("fit", "x.csv", "-k", 1, "--out", "m.csv")
    assert "must end in .png" in refuses("fit", "x.csv", "-k", 1, "--plot", "m.bmp")
    assert "must end in .csv" in refuses("sample", "m3.safetensors", "-n", 1, "--out", "x.xlsx")
    assert "whole safetensors" in refuses("sample", "cut.safetensors", "-n", 1, "--out", "y.csv")
    assert "whole safetensors" in refuses("compare", "fake.safetensors", "x.csv")
    assert "one mixture" in refuses("sample", "batch.safetensors", "-n", 1, "--out", "y.csv")
    assert "must have the 3 columns of the model" in refuses("compare", "m3.safetensors", "x.csv")
    assert "has 3 columns and x.csv has 2" in refuses("compare", "m3.safetensors", "x.csv", "--columns", "a,b")
    assert "--method must be one of merge" in refuses("fit", "x.csv", "-k", 1, "--method", "magic")
    assert "x.csv has no column 'c'" in refuses("compare", "x.csv", "x.csv", "--columns", "a,c")
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    assert "is not writable" in refuses("fit", "x.csv", "-k", 1, "--out", "m.safetensors")
    assert sorted(path.suffix for path in folder.iterdir()) == [".csv"] + 4 * [".safetensors"]


def test_wrong_usage_is_refused_too(folder: Path) -> None:
    write_csv(folder / "x.csv", two_clusters(30), "a,b")
    for arguments, words in [
        (("fit",), ["DATA"]),
        (("predict", "m.safetensors"), ["DATA"]),
        (("fit", "x.csv", "--seed", "many"), ["--seed", "integer"]),
        (("fit", "x.csv", "--reg-covar", "small"), ["--reg-covar", "number"]),
        (("compress", "m.safetensors", "-k", 0, "--out", "s.safetensors"), ["-k"]),
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
        for command in ("demo", "fit", "predict", "compare", "compress", "sample"):
            assert command in out
    assert "Exit codes: 0 success, 2 invalid input, 1 internal error." in run("--help")[0]
    assert "--skip-bad" in run("fit", "--help")[0]
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
    assert json.loads(done.stdout)["n_components"] == 3
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
