"""Rows of a known mixture in Parquet files, new rows of the same mixture, and the score of a fit."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

DIM, COMPONENTS = 8, 10
FILES = 8
HELD_OUT = 1_000_000
SEED = 2024
# Rows that are drawn and scored at a time.
_BLOCK = 1 << 18
_BYTES = 4 * DIM * 1.1  # a row of a file, with what Parquet adds

Parameters = tuple[np.ndarray, np.ndarray, np.ndarray]


def truth() -> Parameters:
    """Return weights, means and covariances: a row's most probable component is wrong about once in eight times."""
    rng = np.random.default_rng(SEED)
    weights = rng.dirichlet(np.full(COMPONENTS, 3.0))
    means = 1.2 * rng.standard_normal((COMPONENTS, DIM))
    axes = np.linalg.qr(rng.standard_normal((COMPONENTS, DIM, DIM)))[0]
    roots = axes * np.exp(rng.uniform(np.log(0.5), np.log(2.0), (COMPONENTS, 1, DIM)))
    return weights, means, roots @ roots.transpose(0, 2, 1)


def draw(n: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield n rows of the true mixture in random order, block by block, in float32."""
    weights, means, covariances = truth()
    roots = np.linalg.cholesky(covariances).astype(np.float32)
    for start in range(0, n, _BLOCK):
        label = rng.choice(COMPONENTS, min(_BLOCK, n - start), p=weights)
        x = rng.standard_normal((len(label), DIM), np.float32)
        for j in range(COMPONENTS):
            mine = label == j
            x[mine] = x[mine] @ roots[j].T + means[j].astype(np.float32)
        yield x


def held_out(n: int = HELD_OUT) -> Iterator[np.ndarray]:
    """Yield rows of the true mixture that are in no file."""
    return draw(n, np.random.default_rng([SEED, 1]))


def make(folder: Path, rows: int, files: int = FILES) -> Path:
    """Write rows to Parquet files with pyarrow's defaults, unless they are there; return their folder."""
    made = folder / f"{rows}_rows_{files}_files"
    done = made / "_complete.json"
    if done.exists():
        return made
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    needed, free = rows * _BYTES, shutil.disk_usage(folder).free
    if needed > 0.9 * free:
        raise SystemExit(f"{folder} has {free / 1e9:.1f} GB left; {rows:,} rows need {needed / 1e9:.1f} GB.")
    ends = [rows * (i + 1) // files for i in range(files)]
    for i, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        rng = np.random.default_rng([SEED, 2, files, i])
        with parquet.ParquetWriter(made / f"part_{i:03}.parquet", _schema()) as writer:
            waiting: list[pa.RecordBatch] = []
            for block in draw(end - start, rng):
                waiting.append(pa.record_batch(list(block.T.copy()), schema=_schema()))
                if len(waiting) == 4:  # row groups of 2^20 rows, as pyarrow writes a whole table
                    writer.write_table(pa.Table.from_batches(waiting))
                    waiting = []
            if waiting:
                writer.write_table(pa.Table.from_batches(waiting))
    done.write_text(json.dumps({"rows": rows, "files": files}))
    return made


def _schema() -> pa.Schema:
    return pa.schema([(f"x{j}", pa.float32()) for j in range(DIM)])


def megabytes(folder: Path) -> float:
    """Return the size of the files of a folder."""
    return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.name.endswith(".parquet")) / 1e6


def read_all(folder: Path) -> np.ndarray:
    """Return all rows of the files as an array `(n, d)` in float32, which is filled batch by batch."""
    from pyarrow import dataset

    opened = dataset.dataset(folder)
    x = np.empty((opened.count_rows(), DIM), np.float32)
    start = 0
    for batch in opened.to_batches():
        for j, column in enumerate(batch.columns):
            x[start : start + batch.num_rows, j] = column.to_numpy()
        start += batch.num_rows
    return x


def score(parameters: Parameters, blocks: Iterator[np.ndarray]) -> float:
    """Return the mean log likelihood of rows, in float64, by NumPy and SciPy alone."""
    from scipy.linalg import solve_triangular
    from scipy.special import logsumexp

    weights, means, covariances = parameters
    roots = np.linalg.cholesky(covariances)
    total, n = 0.0, 0
    for block in blocks:
        x = block.astype(np.float64)
        joint = np.empty((len(x), len(weights)))
        for j, (mean, root) in enumerate(zip(means, roots, strict=True)):
            z = solve_triangular(root, (x - mean).T, lower=True)
            scale = np.log(np.diag(root)).sum() + 0.5 * DIM * np.log(2 * np.pi)
            joint[:, j] = np.log(max(weights[j], 1e-300)) - scale - 0.5 * np.einsum("dn,dn->n", z, z)
        total, n = total + logsumexp(joint, 1).sum(), n + len(x)
    return float(total / n)


def blocks_of(folder: Path) -> Iterator[np.ndarray]:
    """Yield the rows of the files of a folder."""
    from pyarrow import dataset

    for batch in dataset.dataset(folder).to_batches():
        yield np.stack([column.to_numpy() for column in batch.columns], 1)
