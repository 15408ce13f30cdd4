"""Parquet files of a run directory: written once and whole, and read with bounded memory."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..base.errors import IobenchError, UnwrittenError, first_line
from ..base.limits import check_plausible
from ..record.arrow import number_column, numbers
from ..record.run import FileDigest, digest_of
from ..record.serving import SERVED_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa


def write_table(
    table: pa.Table,
    path: Path,
    what: str,
    *,
    use_dictionary: Sequence[str] = (),
    column_encoding: Mapping[str, str] | None = None,
) -> FileDigest:
    """Write a table of ``what`` durably and atomically, and return its digest.

    ``use_dictionary`` and ``column_encoding`` are those of ``pyarrow.parquet.write_table``. Raises
    IobenchError, also if the file exists: it is never overwritten.
    """
    import pyarrow.parquet as pq

    temporary = ""
    try:
        unfinished = str(path.with_name(f".{path.stem}-{secrets.token_hex(4)}.part"))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        handle = os.open(unfinished, flags, 0o666)  # the umask applies
        temporary = unfinished
        with os.fdopen(handle, "wb") as file:
            pq.write_table(
                table,
                file,
                compression="zstd",
                use_dictionary=list(use_dictionary) or False,
                column_encoding=column_encoding,
            )
            file.flush()
            os.fsync(file.fileno())
        digest = digest_of(Path(temporary), table.num_rows)
        _publish(temporary, path)
        return digest
    except FileExistsError:
        raise IobenchError(f"{path} exists, and {what} are never overwritten") from None
    except OSError as error:
        raise UnwrittenError(path, error) from error
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)


def read_table(path: Path, what: str, *, row_bytes: int, dictionary: str = "") -> pa.Table:
    """Read a table of ``what``, whose rows take ``row_bytes`` of memory.

    The column ``dictionary`` is read as one, so that each of its values is stored once. Raises
    IobenchError for a missing or damaged file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with damage(path, what):
        # From memory and without Arrow's threads: threads on a file may outlive the read, and then
        # the process ends by SIGABRT (apache/arrow issues 34314, 50482).
        data = path.read_bytes()
        file = pq.ParquetFile(pa.BufferReader(data))
        if dictionary in file.schema_arrow.names:
            file = pq.ParquetFile(pa.BufferReader(data), read_dictionary=[dictionary])
        groups = range(file.metadata.num_row_groups)
        rows = sum(file.metadata.row_group(group).num_rows for group in groups)
        check_plausible(rows * row_bytes, len(data), f"a table of {rows} {what}")
        return file.read(use_threads=False)


@contextmanager
def damage(path: Path, what: str) -> Iterator[None]:
    """Turn what a missing or damaged file raises in the body into an IobenchError of one line."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise IobenchError(f"no {what} at {path}") from None
    except PermissionError as error:
        raise IobenchError(
            f"cannot read the {what} {path}: {error.strerror}", remedy="check the permissions"
        ) from error
    except (OSError, pa.ArrowException, TypeError, ValueError) as error:
        raise IobenchError(
            f"cannot read the {what} {path}: {first_line(error)}",
            remedy="the file is damaged; run again",
        ) from error


def _publish(temporary: str, path: Path) -> None:
    """Rename the finished file. Raises FileExistsError if the name is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # no hard links here: not atomic against a second writer
        if path.exists():
            raise FileExistsError(str(path)) from None
        os.rename(temporary, path)


# The requests of a run: one row for each.

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
        return typed_columns(table, path, types)


def typed_columns(
    table: pa.Table, path: Path, types: Mapping[str, np.dtype[Any]], *beside: str
) -> dict[str, npt.NDArray[Any]]:
    """The columns of a table of ``path`` in these types. Raises IobenchError if one is missing.

    ``beside``: further columns that it must have.
    """
    missing = [name for name in (*beside, *types) if name not in table.column_names]
    if missing:
        raise IobenchError(
            f"{path} lacks the columns {', '.join(missing)}",
            remedy="use a file that this iobench wrote",
        )
    return {
        name: numbers(table[name].combine_chunks()).astype(kind, casting="safe")
        for name, kind in types.items()
    }
