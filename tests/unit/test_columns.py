"""Columns of Arrow that are made of arrays without pandas are those that Arrow itself makes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from iobench.record.arrow import number_column, numbers

VALUES = [
    np.arange(9, dtype=np.int64),
    np.arange(20, dtype=np.uint16)[::2],
    np.array([0.5, np.nan, -1.0, np.inf] * 5),
    np.array([np.nan]),
    np.empty(0, np.uint32),
]


@pytest.mark.parametrize("values", VALUES, ids=str)
@pytest.mark.parametrize("nan_is_null", [False, True])
def test_numbers_are_arrows_own_there_and_back(values: np.ndarray, nan_is_null: bool) -> None:
    column = number_column(values, nan_is_null=nan_is_null)
    column.validate(full=True)
    assert column.type == pa.from_numpy_dtype(values.dtype)
    assert str(column) == str(pa.array(values, from_pandas=nan_is_null))
    for part in (slice(None), slice(3, None), slice(1, 2)):  # a slice begins within a byte of bits
        back = numbers(column[part])
        assert back.dtype == values.dtype
        np.testing.assert_array_equal(back, values[part])


@pytest.mark.parametrize("column", [pa.array([1, None]), pa.array([True]), pa.array(["1"])])
def test_what_is_no_number_is_refused(column: pa.Array) -> None:
    with pytest.raises(ValueError):
        numbers(column)
