"""The requests of a serving run on disk: one row for each, in one Parquet file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.errors import IobenchError
from ..record.arrow import number_column, numbers
from ..record.run import FileDigest
from ..record.serving import SERVED_COLUMNS
from .tables import damage, read_table, write_table

RequestColumns = dict[str, npt.NDArray[Any]]

_TYPES = {name: np.dtype(text.split(",")[0]) for name, text in SERVED_COLUMNS.items()}
_ROW_BYTES = sum(kind.itemsize for kind in _TYPES.values())


def write_requests(path: Path, windows: Sequence[RequestColumns]) -> FileDigest:
    """Write the columns of the windows of a run, in their order. Raises IobenchError."""
    import pyarrow as pa

    columns = {
        name: np.concatenate([np.asarray(each[name], kind) for each in windows])
        if windows
        else np.empty(0, kind)
        for name, kind in _TYPES.items()
        if name != "trial"
    }
    lengths = [len(each["failed"]) for each in windows]
    columns["trial"] = np.repeat(np.arange(len(windows), dtype=_TYPES["trial"]), lengths)
    table = pa.Table.from_arrays([number_column(columns[name]) for name in _TYPES], list(_TYPES))
    packed = {name: "DELTA_BINARY_PACKED" for name, kind in _TYPES.items() if kind.itemsize > 1}
    return write_table(table, path, "requests", column_encoding=packed)


def read_requests(path: Path) -> RequestColumns:
    """The columns of ``SERVED_COLUMNS``. Raises IobenchError for a damaged file."""
    what = "requests"
    table = read_table(path, what, row_bytes=_ROW_BYTES)
    with damage(path, what):
        missing = [name for name in _TYPES if name not in table.column_names]
        if missing:
            raise IobenchError(
                f"{path} lacks the columns {', '.join(missing)}",
                remedy="use a file that this iobench wrote",
            )
        return {
            name: numbers(table[name].combine_chunks()).astype(kind, casting="safe")
            for name, kind in _TYPES.items()
        }
