"""A dataset's manifest that is missing, damaged or not iobench's: one error, of the right kind."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from iobench.base.errors import DatasetError, StorageError
from iobench.data.dataset import load_manifest
from iobench.record.manifest import (
    MANIFEST,
    MARKER,
    MAX_HEADER_BYTES,
    SAMPLES,
    SHARD_COLUMNS,
    SHARDS,
    hash_bytes,
    read_table,
    write_table,
)


@pytest.fixture
def data(make_dataset: Any, tmp_path: Path) -> Path:
    """60 samples in 5 shards, to be damaged."""
    _, root = make_dataset(format="tar", samples_per_shard=12)
    return Path(shutil.copytree(root, tmp_path / "d"))


def refused(root: Path, kind: type[Exception] = DatasetError) -> str:
    with pytest.raises(kind) as caught:
        load_manifest(root)
    assert type(caught.value) is kind
    return str(caught.value)


def write_header(root: Path, **changes: object) -> None:
    header = json.loads((root / MANIFEST).read_text())
    (root / MANIFEST).write_text(json.dumps({**header, **changes}))


def put_table(root: Path, name: str, content: bytes) -> None:
    """Put a table in place of another, with its checksum in the header."""
    (root / name).write_bytes(content)
    tables = json.loads((root / MANIFEST).read_text())["tables"]
    write_header(root, tables={**tables, name: hash_bytes(content)})


# What is not there


@pytest.mark.parametrize(
    ("made", "asked", "advised"),
    [
        ((), "new", "iobench generate NAME --to"),
        ((), "s3:/bucket/data", "A URL has two slashes: s3://"),
        (("mine.yaml",), "mine.yaml", "iobench generate"),
        (("mine.yaml", "mine.manifest/"), "mine.yaml", "--origin"),
        (("folder/",), "folder", "iobench scan"),
        (("half/", f"half/{MARKER}"), "half", "same iobench generate again"),
    ],
)
def test_no_dataset_and_what_to_do(
    tmp_path: Path, made: tuple[str, ...], asked: str, advised: str
) -> None:
    for name in made:
        if name.endswith("/"):
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).write_text("{}")
    assert advised in refused(tmp_path / asked)


def test_a_manifest_that_cannot_be_looked_at_may_be_intact(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.stat

    def refuse(path: Any, *arguments: Any, **more: Any) -> os.stat_result:
        if str(path).endswith(MANIFEST):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", refuse)
        assert str(data / MANIFEST) in refused(data, StorageError)


# The header


def test_a_header_that_is_too_long_is_not_read(data: Path) -> None:
    with (data / MANIFEST).open("ab") as file:
        file.truncate(MAX_HEADER_BYTES + 1)
    assert "4 MiB" in refused(data)


# Tables


def test_a_table_of_another_dataset(data: Path, make_dataset: Any) -> None:
    shutil.copy(make_dataset()[1] / SAMPLES, data / SAMPLES)
    assert SAMPLES in refused(data)


def test_names_of_shards_belong_to_scanned_data_only(data: Path) -> None:
    shards = dict(load_manifest(data).shards)
    names = [f"data/{number}.tar" for number in range(5)]
    put_table(data, SHARDS, write_table(SHARD_COLUMNS, shards, names))
    assert SHARDS in refused(data)


def changed(of: pa.Table, column: str, values: pa.Array) -> bytes:
    table = of.set_column(of.column_names.index(column), column, values)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (lambda count: pa.array([1.0] * count), "'size'"),
        (lambda count: pa.array([None] * count, pa.uint32()), "'size'"),
        (lambda count: pa.array(["a"] * count), "'size'"),
    ],
)
def test_a_column_of_another_type(data: Path, values: Callable[[int], pa.Array], told: str) -> None:
    table = pa.ipc.open_file(pa.memory_map(str(data / SAMPLES))).read_all()
    put_table(data, SAMPLES, changed(table, "size", values(60)))
    assert told in refused(data)


def shard_rows() -> dict[str, Any]:
    return {name: np.ones(2, dtype) for name, dtype in SHARD_COLUMNS.items()}


def test_names_that_this_locale_cannot_write(monkeypatch: pytest.MonkeyPatch) -> None:
    content = write_table(SHARD_COLUMNS, shard_rows(), ["a", "grün"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsencode", lambda name: name.encode("ascii"))
        with pytest.raises(DatasetError, match="LC_ALL"):
            read_table(SHARD_COLUMNS, content)
