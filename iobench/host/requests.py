"""The requests of a run on disk: one row for each, in one Parquet file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

Described = Mapping[str, str]
"""The columns of a kind of requests: the type of each, a comma, and what it is."""


def _types(described: Described) -> dict[str, np.dtype[Any]]:
    return {name: np.dtype(text.split(",")[0]) for name, text in described.items()}


def write_requests(
    path: Path, windows: Sequence[RequestColumns], described: Described = SERVED_COLUMNS
) -> FileDigest:
    """Write the columns of the windows of a run, in their order. Raises IobenchError."""
    import pyarrow as pa

    types = _types(described)
    columns = {
        name: np.concatenate([np.asarray(each[name], kind) for each in windows])
        if windows
        else np.empty(0, kind)
        for name, kind in types.items()
        if name != "trial"
    }
    lengths = [len(each["failed"]) for each in windows]
    columns["trial"] = np.repeat(np.arange(len(windows), dtype=types["trial"]), lengths)
    table = pa.Table.from_arrays([number_column(columns[name]) for name in types], list(types))
    packed = {name: "DELTA_BINARY_PACKED" for name, kind in types.items() if kind.itemsize > 1}
    return write_table(table, path, "requests", column_encoding=packed)


def read_requests(path: Path, described: Described = SERVED_COLUMNS) -> RequestColumns:
    """The columns of this kind of requests. Raises IobenchError for a damaged file."""
    what, types = "requests", _types(described)
    table = read_table(path, what, row_bytes=sum(kind.itemsize for kind in types.values()))
    with damage(path, what):
        missing = [name for name in types if name not in table.column_names]
        if missing:
            raise IobenchError(
                f"{path} lacks the columns {', '.join(missing)}",
                remedy="use a file that this iobench wrote",
            )
        return {
            name: numbers(table[name].combine_chunks()).astype(kind, casting="safe")
            for name, kind in types.items()
        }
