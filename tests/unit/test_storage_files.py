"""An object of a storage read as a Python file."""

from __future__ import annotations

import io
import random
import zipfile

import pytest

from iobench.storage.files import StorageFile
from iobench.storage.simulated.memory import MemoryStorage

DATA = random.Random(4).randbytes(10_007)


@pytest.mark.parametrize("size", [None, len(DATA)])
def test_it_reads_as_a_file_of_the_same_bytes(size: int | None) -> None:
    file, truth = (
        StorageFile(MemoryStorage(objects={"a": memoryview(DATA)}), "a", size),
        io.BytesIO(DATA),
    )
    within = ((0, 0, 7), (5_000, 0, 10), (3, 1, 100), (-9, 2, 100), (-1, 1, 1))
    beyond = ((20_000, 0, 5), (-20_000, 1, 5), (0, 2, 1))
    for offset, whence, count in within + beyond:
        assert file.seek(offset, whence) == truth.seek(offset, whence)
        assert file.read(count) == truth.read(count)
        assert file.tell() == truth.tell()


def test_libraries_can_read_it() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("inner", DATA)
    file = StorageFile(MemoryStorage(objects={"a": memoryview(packed.getvalue())}), "a")
    with zipfile.ZipFile(io.BufferedReader(file, 512)) as archive:
        assert archive.read("inner") == DATA
