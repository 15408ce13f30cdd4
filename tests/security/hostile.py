"""Datasets as somebody with bad intentions makes them: any column or header, right checksums."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from iobench.record.manifest import (
    MANIFEST,
    SAMPLE_COLUMNS,
    SAMPLES,
    SHARD_COLUMNS,
    SHARDS,
    hash_bytes,
    read_table,
    write_table,
)

Columns = dict[str, Any]


def planted(
    source: Path,
    target: Path,
    *,
    header: dict[str, Any] | None = None,
    samples: Callable[[Columns], object] | None = None,
    shards: Callable[[Columns], object] | None = None,
    names: list[str] | None = None,
) -> Path:
    """A copy of a dataset in which something else stands; the manifest's checksums are made right.

    ``names``: the shards' own names, as of a scanned dataset.
    """
    shutil.copytree(source, target)
    tables = {}
    for name, columns, change in (
        (SAMPLES, SAMPLE_COLUMNS, samples),
        (SHARDS, SHARD_COLUMNS, shards),
    ):
        arrays, own = read_table(columns, (target / name).read_bytes())
        arrays = {column: array.copy() for column, array in arrays.items()}
        if change is not None:
            change(arrays)
        more = (names or own) if name == SHARDS else None
        replace_table(target, name, write_table(columns, arrays, more))
        tables[name] = arrays
    document = json.loads((target / MANIFEST).read_text())
    (target / MANIFEST).write_text(json.dumps(document | (header or {})))
    return target


def replace_table(root: Path, name: str, data: bytes) -> None:
    """Another table in a dataset, with its checksum."""
    (root / name).write_bytes(data)
    document = json.loads((root / MANIFEST).read_text())
    document["tables"][name] = hash_bytes(data)
    (root / MANIFEST).write_text(json.dumps(document))


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        made.bind(f"/proc/self/fd/{folder}/{path.name}")  # a path in full may be too long
        os.close(folder)
