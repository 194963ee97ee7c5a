"""Arrays, tables and numbers in place of tensors."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from cramix.arrays import as_tensor, column_names


def test_dtypes_are_kept_and_integers_follow():
    assert as_tensor("x", np.zeros(2, np.float32)).dtype == torch.float32
    assert as_tensor("x", np.zeros(2)).dtype == torch.float64
    assert as_tensor("x", np.arange(2)).dtype == torch.float64
    assert as_tensor("x", torch.arange(2)).dtype == torch.get_default_dtype()
    like = torch.zeros(1, dtype=torch.float16)
    for x in (np.arange(2), torch.arange(2), 3, 0.5, [True, False]):
        assert as_tensor("x", x, like).dtype == torch.float16
    assert as_tensor("x", np.zeros(2), torch.zeros(1)).dtype == torch.float64  # promoted later, as torch does


def test_memory_is_shared_where_it_can_be():
    x = np.arange(6.0).reshape(3, 2)
    assert as_tensor("x", x).data_ptr() == x.__array_interface__["data"][0]
    t = torch.zeros(2)
    assert as_tensor("x", t) is t
    x.flags.writeable = False
    assert as_tensor("x", x).tolist() == x.tolist()
    big_endian = np.arange(3.0).astype(">f8")
    assert as_tensor("x", big_endian).tolist() == [0.0, 1.0, 2.0]


def test_tables():
    frame = pd.DataFrame({"a": [1, 2], "b": [0.5, np.nan], "c": pd.array([1, None], dtype="Int64")})
    x = as_tensor("X", frame)
    assert x.shape == (2, 3)
    assert x.dtype == torch.float64
    assert x[1].isnan().tolist() == [False, True, True]
    assert column_names(frame) == ("a", "b", "c")
    assert column_names(np.zeros((2, 2))) is None
    assert as_tensor("x", frame["a"]).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("column", "word"),
    [
        (pd.to_datetime(["2020-01-01", "2020-01-02"]), "dates"),
        (["1", "2"], "text"),
        (pd.to_timedelta(["1 days", "2 days"]), "time spans"),
        (pd.Categorical(["u", "v"]), "text"),
        ([datetime.date(2020, 1, 1)] * 2, "objects"),
    ],
)
def test_columns_without_numbers_are_refused_by_name(column, word):
    frame = pd.DataFrame({"size": [1.0, 2.0], "when": column})
    with pytest.raises(ValueError, match=rf"^X must hold numbers in every column; got 'when' \({word}\)"):
        as_tensor("X", frame)
    with pytest.raises(ValueError, match=f"^y must hold numbers; got {word}"):
        as_tensor("y", frame["when"])


@pytest.mark.parametrize(
    "bad", [np.array(["a"]), np.array([1j]), [[1.0], [1.0, 2.0]], object(), None, 1j * torch.zeros(1)]
)
def test_what_holds_no_numbers_is_refused(bad):
    with pytest.raises(ValueError, match=r"^x must"):
        as_tensor("x", bad)


def test_tables_of_polars():
    frame = pl.DataFrame({"a": [1, 2], "b": [0.5, None], "c": [True, False]})
    x = as_tensor("X", frame)
    assert x.dtype == torch.float64
    assert x[0].tolist() == [1.0, 0.5, 1.0]
    assert x[1].isnan().tolist() == [False, True, False]
    assert column_names(frame) == ("a", "b", "c")
    assert as_tensor("x", frame["a"]).tolist() == [1.0, 2.0]
    assert as_tensor("X", frame.select(pl.col("b").cast(pl.Float32))).dtype == torch.float32
    with pytest.raises(ValueError, match=r"^X must hold numbers in every column; got 'when' \(dates\), 'who' \(text\)"):
        as_tensor("X", frame.with_columns(when=pl.datetime(2020, 1, 1), who=pl.lit("u")))
