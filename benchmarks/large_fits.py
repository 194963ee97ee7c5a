"""Fits to large files, one in a process: `python benchmarks/large_fits.py NAME FOLDER` prints what `measured` returns.

A process of its own makes the peak memory that of the fit. Time counts from the files to the parameters, without
imports and without the start of Java or of a cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from large_files import COMPONENTS, DIM, Parameters, draw, read_all, truth

EM_SAMPLE = 100_000
BATCH = 20_000
SPARK_MEMORY = "8g"


class Outcome(NamedTuple):
    """What a fit gave: its parameters, None if it only reads; passes over the rows; more numbers for the page."""

    parameters: Parameters | None
    seconds: float
    passes: int | None
    more: dict[str, Any] | None = None


def measured(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as numbers and lists, with the peak memory of the process and those it has started."""
    return {
        "parameters": None if outcome.parameters is None else [x.tolist() for x in outcome.parameters],
        "seconds": outcome.seconds,
        "passes": outcome.passes,
        **_peak_now(),
        **(outcome.more or {}),
    }


def reading(times: int) -> Callable[[Path], Outcome]:
    """Read all columns of all files with pyarrow, and do nothing else."""

    def run(folder: Path) -> Outcome:
        from pyarrow import dataset

        started = time.perf_counter()
        for _ in range(times):
            for batch in dataset.dataset(folder).to_batches():
                assert batch.num_columns == DIM
        return Outcome(None, time.perf_counter() - started, times)

    return run


def ours(**settings: Any) -> Callable[[Path], Outcome]:
    """Fit the files by their folder."""

    def run(folder: Path) -> Outcome:
        import cramix

        warm_up()
        started = time.perf_counter()
        result = cramix.fit(str(folder), COMPONENTS, generator=_generator(), **settings)
        return _outcome(result, time.perf_counter() - started)

    return run


def ours_in_memory(folder: Path) -> Outcome:
    """Read all rows into an array, and fit that."""
    import cramix

    warm_up()
    started = time.perf_counter()
    result = cramix.fit(read_all(folder), COMPONENTS, generator=_generator())
    return _outcome(result, time.perf_counter() - started)


def ours_batch_by_batch(folder: Path) -> Outcome:
    """Learn from batches, each of which is seen once."""
    import cramix

    warm_up()
    model = cramix.CramerMixture(COMPONENTS, random_state=0)
    started = time.perf_counter()
    for batch in _batches(folder):
        model.partial_fit(batch)
    seconds = time.perf_counter() - started
    return Outcome(_numpy(model.weights_, model.means_, model.covariances_), seconds, 1)


def em(tol: float, from_truth: bool = False) -> Callable[[Path], Outcome]:
    """Read all rows into an array, and fit that with scikit-learn from one start."""

    def run(folder: Path) -> Outcome:
        from sklearn.mixture import GaussianMixture

        settings: dict[str, Any] = {"n_init": 1, "max_iter": 1000, "tol": tol, "random_state": 0}
        if from_truth:
            weights, means, covariances = truth()
            precisions = np.linalg.inv(covariances)
            settings |= {"weights_init": weights, "means_init": means, "precisions_init": precisions}
        with _best_threads() as threads:
            started = time.perf_counter()
            x = read_all(folder)
            # Means over many rows in float32 lack the digits that a small tolerance looks at.
            model = GaussianMixture(COMPONENTS, **settings).fit(x.astype(np.float64) if tol < 1e-5 else x)
            seconds = time.perf_counter() - started
        parameters = _numpy(model.weights_, model.means_, model.covariances_)
        return Outcome(parameters, seconds, model.n_iter_, {"threads": threads})

    return run


def em_on_a_sample(folder: Path) -> Outcome:
    """Draw rows in one pass, and fit them with scikit-learn from ten starts."""
    from pyarrow import dataset
    from sklearn.mixture import GaussianMixture

    with _best_threads() as threads:
        started = time.perf_counter()
        opened = dataset.dataset(folder)
        rows = opened.count_rows()
        chosen = np.sort(np.random.default_rng(0).choice(rows, min(EM_SAMPLE, rows), replace=False))
        x = np.stack([column.to_numpy() for column in opened.take(chosen).columns], 1)
        model = GaussianMixture(COMPONENTS, n_init=10, max_iter=1000, random_state=0).fit(x)
        seconds = time.perf_counter() - started
    return Outcome(_numpy(model.weights_, model.means_, model.covariances_), seconds, 1, {"threads": threads})


@contextmanager
def _best_threads() -> Iterator[int]:
    """Give scikit-learn's matrix products one thread or two, whichever is faster on a few rows."""
    from sklearn.mixture import GaussianMixture
    from threadpoolctl import threadpool_limits

    x = next(draw(EM_SAMPLE, np.random.default_rng(0)))
    seconds = {}
    for threads in (1, 2):
        with threadpool_limits(threads, "blas"):
            GaussianMixture(2, max_iter=1).fit(x[:1000])
            started = time.perf_counter()
            GaussianMixture(COMPONENTS, max_iter=5, tol=0, init_params="random_from_data", random_state=0).fit(x)
            seconds[threads] = time.perf_counter() - started
    best = min(seconds, key=seconds.__getitem__)
    with threadpool_limits(best, "blas"):
        yield best


def tgmm_batch_by_batch(folder: Path) -> Outcome:
    """tgmm wants a fit to a first batch, which gets ten starts; the others follow by its online EM."""
    import tgmm
    import torch

    started = time.perf_counter()
    batches = _batches(folder)
    model = tgmm.GaussianMixture(COMPONENTS, DIM, n_init=10, random_state=0, device="cpu")
    model.fit(torch.from_numpy(next(batches)))
    for batch in batches:
        model.partial_fit(torch.from_numpy(batch))
    seconds = time.perf_counter() - started
    return Outcome(_numpy(model.weights_, model.means_, model.covariances_), seconds, 1)


def mllib(tol: float | None) -> Callable[[Path], Outcome]:
    """Fit with Spark MLlib in this machine's cores; a tolerance is that of the mean log likelihood.

    MLlib's own `tol` is compared with the total log likelihood of all rows, and is 0.01 by default.
    """

    def run(folder: Path) -> Outcome:
        from pyspark.ml.clustering import GaussianMixture
        from pyspark.ml.feature import VectorAssembler

        with _spark() as (spark, start):
            started = time.perf_counter()
            frame = spark.read.parquet(str(folder))
            vectors = VectorAssembler(inputCols=frame.columns, outputCol="features").transform(frame)
            settings = {} if tol is None else {"tol": tol * frame.count()}
            # It caches its rows by itself.
            model = GaussianMixture(k=COMPONENTS, maxIter=100, seed=0, **settings).fit(vectors.select("features"))
            seconds = time.perf_counter() - started
            found = [(g.mean.toArray(), g.cov.toArray()) for g in model.gaussians]
            parameters = np.array(model.weights), *(np.stack(x) for x in zip(*found, strict=True))
            return Outcome(parameters, seconds, model.summary.numIter, {"start": start, **_peak_now()})

    return run


class Contestant(NamedTuple):
    """A fit, and the largest number of rows it is tried on."""

    run: Callable[[Path], Outcome]
    most: int | None = None


READ_ONCE, READ_THRICE = "reading the files once", "reading the files three times"
OURS, OURS_ONE_PASS, OURS_IN_MEMORY = "cramix, files", "cramix, files, max_passes=1", "cramix, array"
REFERENCE = "reference: EM from the truth, tol=1e-6"
EM, EM_EXACT = "scikit-learn, array", "scikit-learn, array, tol=1e-4"
SPARK, SPARK_DEFAULT = "Spark MLlib, tol=1e-4 a row", "Spark MLlib, default tol"
CONTESTANTS = {
    READ_ONCE: Contestant(reading(1)),
    READ_THRICE: Contestant(reading(3)),
    OURS: Contestant(ours()),
    OURS_ONE_PASS: Contestant(ours(max_passes=1)),
    OURS_IN_MEMORY: Contestant(ours_in_memory, 10**7),
    "cramix, partial_fit": Contestant(ours_batch_by_batch, 10**6),
    "tgmm, partial_fit": Contestant(tgmm_batch_by_batch, 10**6),
    "scikit-learn, n_init=10, sample of 10^5": Contestant(em_on_a_sample, 10**7),
    REFERENCE: Contestant(em(1e-6, from_truth=True), 10**7),
    SPARK_DEFAULT: Contestant(mllib(None), 10**6),
    SPARK: Contestant(mllib(1e-4), 10**7),
    EM: Contestant(em(1e-3), 10**7),
    EM_EXACT: Contestant(em(1e-4), 10**7),
}


@contextmanager
def _array(folder: Path) -> Iterator[Callable[[], Any]]:
    x = read_all(folder)
    yield lambda: x


@contextmanager
def _mapped(folder: Path) -> Iterator[Callable[[], Any]]:
    with tempfile.NamedTemporaryFile(suffix=".npy", dir=folder.parent) as file:
        np.save(file, read_all(folder))
        file.flush()
        yield lambda: np.load(file.name, mmap_mode="r")


@contextmanager
def _path(folder: Path) -> Iterator[Callable[[], Any]]:
    yield lambda: str(folder)


@contextmanager
def _stream(folder: Path) -> Iterator[Callable[[], Any]]:
    from pyarrow import dataset

    yield lambda: dataset.dataset(folder).scanner().to_reader()


def _dask(processes: int) -> Callable[[Path], Any]:
    @contextmanager
    def opened(folder: Path) -> Iterator[Callable[[], Any]]:
        import dask.dataframe as dd
        from distributed import Client, LocalCluster

        settings = {"n_workers": processes, "threads_per_worker": 1, "dashboard_address": None}
        with (
            tempfile.TemporaryDirectory() as scratch,
            LocalCluster(**settings, local_directory=scratch) as cluster,
            Client(cluster),
        ):
            yield lambda: dd.read_parquet(sorted(map(str, folder.glob("*.parquet"))))

    return opened


@contextmanager
def _dataframe(folder: Path) -> Iterator[Callable[[], Any]]:
    with _spark() as (spark, _):
        yield lambda: spark.read.parquet(str(folder))


class Engine(NamedTuple):
    """A way to hand rows to cramix, and the number of files they are in."""

    opened: Callable[[Path], Any]
    files: int = 8


ENGINES = {
    "array": Engine(_array),
    "numpy.memmap": Engine(_mapped),
    "Parquet, 1 file": Engine(_path, 1),
    "Parquet, 7 files": Engine(_path, 7),
    "Parquet, 100 files": Engine(_path, 100),
    "Arrow stream": Engine(_stream),
    "Dask, one process": Engine(_dask(1)),
    "Dask, two processes": Engine(_dask(2)),
    "Spark, local[2]": Engine(_dataframe),
}


def with_engine(engine: Engine, folder: Path) -> Outcome:
    """Fit rows as they come, then time one EM pass over them, which fits to more rows consist of."""
    import cramix

    warm_up()
    with engine.opened(folder) as rows:
        started = time.perf_counter()
        result = cramix.fit(rows(), COMPONENTS, generator=_generator())
        seconds = time.perf_counter() - started
        expectation = _expectation(result.mixture)
        cramix.source(rows()).sum(expectation)  # the first one may start processes
        started = time.perf_counter()
        found = cramix.source(rows()).sum(expectation)
        more = {"pass_rows_per_second": found.weight / (time.perf_counter() - started)}
        return _outcome(result, seconds, more | _peak_now())


def costs_of_passes(folder: Path) -> Outcome:
    """Time the two kinds of passes over the files, and measure what they would send to other machines."""
    import cramix
    from cramix.data.survey import Surveying
    from cramix.fitting.reading import SAMPLE

    warm_up()
    weights, means, covariances = truth()
    rows = cramix.source(str(folder))
    expectation = _expectation(cramix.MultivariateNormalMixture(*map(_tensor, (weights, means, covariances))))
    surveying = Surveying(SAMPLE, 0, rows.n_rows)
    found: dict[str, Any] = {"rows": rows.n_rows, "megabytes_libraries": _megabytes(os.getpid(), "VmRSS")}
    for name, function in (("survey", surveying), ("expectation", expectation)):
        cramix.source(str(min(folder.glob("*.parquet")))).sum(function)  # imports and caches do not count
        started = time.perf_counter()
        total = rows.sum(function)
        found[f"{name}_rows_per_second"] = rows.n_rows / (time.perf_counter() - started)
        found |= {f"{name}_bytes_out": len(pickle.dumps(function)), f"{name}_bytes_back": len(pickle.dumps(total))}
    return Outcome(None, 0.0, None, found | core_times(folder, rows, expectation))


def core_times(folder: Path, rows: Any, expectation: Any) -> dict[str, float]:
    """Return nanoseconds of a core for each row: to read it, and what an EM pass computes with it.

    Core time, unlike the time on the clock, is hardly disturbed by other processes.
    """
    import torch

    started = time.process_time()
    reading(1)(folder)
    read = time.process_time() - started
    started = time.process_time()
    rows.sum(expectation)
    found = {"read_ns": 1e9 * read / rows.n_rows, "pass_ns": 1e9 * (time.process_time() - started) / rows.n_rows}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    n = 1 << 14
    (coefficients,) = expectation.coefficients
    coefficients = coefficients[0].float()
    features = expectation.family.features(torch.randn(n, DIM))
    shares = torch.rand(COMPONENTS, n)
    square = torch.randn(1024, 1024)
    operations: dict[str, Callable[[], Any]] = {
        "densities_ns": lambda: coefficients @ features,
        "sums_ns": lambda: shares @ features.T,
        "exponentials_ns": lambda: shares.exp(),
    }
    found |= {name: 1e9 * _least(operation) / n for name, operation in operations.items()}
    found["gigaflops"] = 2 * 1024**3 / _least(lambda: square @ square) / 1e9
    found["flops"] = 4.0 * coefficients.numel()
    torch.set_num_threads(threads)
    return found


def _least(operation: Callable[[], Any], times: int = 100) -> float:
    """Return the least core time of an operation, in seconds."""
    found = []
    for _ in range(times):
        started = time.thread_time()
        operation()
        found.append(time.thread_time() - started)
    return min(found)


def warm_up() -> None:
    """Fit something small, so that imports and caches do not count."""
    import cramix

    cramix.fit(np.random.default_rng(0).standard_normal((1000, DIM)), 2, generator=_generator())


def _expectation(mixture: Any) -> Any:
    """Return the function of an EM pass at a mixture."""
    import torch

    from cramix.fitting.passes import Expectation
    from cramix.fitting.stepwise import Stepwise

    fit = Stepwise.after(mixture.to(dtype=torch.float64), "full", 1.0)
    coefficients = fit.family.coefficients(*fit.family.parameters(fit.sums))
    return Expectation(fit.family, fit.units, (coefficients,), torch.float32)


def _outcome(result: Any, seconds: float, more: dict[str, Any] | None = None) -> Outcome:
    parameters = _numpy(result.mixture.weights, result.mixture.means, result.mixture.covariances)
    return Outcome(parameters, seconds, result.passes, {"converged": result.converged, **(more or {})})


def _numpy(*values: Any) -> Any:
    return tuple(np.asarray(x, dtype=np.float64) for x in values)


def _tensor(x: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(x)


def _generator() -> Any:
    import torch

    return torch.Generator().manual_seed(0)


def _batches(folder: Path) -> Iterator[np.ndarray]:
    from pyarrow import dataset

    for batch in dataset.dataset(folder).to_batches(batch_size=BATCH):
        yield np.stack([column.to_numpy() for column in batch.columns], 1)


@contextmanager
def _spark() -> Iterator[tuple[Any, float]]:
    """Start Spark with two cores, and yield the session with the seconds that took."""
    import logging

    from pyspark.sql import SparkSession

    logging.disable(logging.WARNING)
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": SPARK_MEMORY,
            "spark.local.dir": folder,
            "spark.sql.warehouse.dir": folder,
            "spark.log.level": "OFF",
        }
        started = time.perf_counter()
        spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
        spark.range(1).count()
        try:
            yield spark, time.perf_counter() - started
        finally:
            spark.stop()


def _peak_now() -> dict[str, float]:
    """Return the peak memory while processes that were started still run."""
    return {"megabytes": sum(_megabytes(process, "VmHWM") for process in _with_descendants(os.getpid()))}


def _with_descendants(process: int) -> list[int]:
    found = [process]
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in task.read_text().split():
            found += _with_descendants(int(child))
    return found


def _megabytes(process: int, field: str) -> float:
    """Return a field of the status of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1000 for line in lines if line.startswith(field)), 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=[*CONTESTANTS, *ENGINES, "costs"])
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # the tables show fits that do not converge
    if options.name == "costs":
        outcome = costs_of_passes(options.folder)
    elif options.name in ENGINES:
        outcome = with_engine(ENGINES[options.name], options.folder)
    else:
        outcome = CONTESTANTS[options.name].run(options.folder)
    print(json.dumps(measured(outcome)))


if __name__ == "__main__":
    main()
