"""LMDB shards: room for any size, one range a sample, and files of other writers."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from iobench.formats.lmdb_tree import Tree
from iobench.load import make_reader
from iobench.registry import CODECS, FORMATS
from iobench.schema.base import build
from iobench.schema.dataset import DatasetSpec
from iobench.schema.workload import ReaderSpec
from iobench.storage.local.storage import LocalStorage
from tests.conftest import MakeDataset

LMDB = FORMATS.open("lmdb")


def by_library(path: Path) -> list[tuple[bytes, bytes]]:
    options = {"subdir": False, "lock": False, "readonly": True}
    with lmdb.open(str(path), **options) as environment, environment.begin() as transaction:
        return list(transaction.cursor())


def foreign(path: Path, fill: Callable[[Any], None], **options: Any) -> memoryview:
    """A file that ``fill`` wrote, with the library's defaults."""
    with lmdb.open(
        str(path), subdir=False, lock=False, sync=False, map_size=64 << 20, **options
    ) as environment:
        fill(environment)
    return memoryview(path.read_bytes())


def unpacked(shard: memoryview) -> list[bytes]:
    return [bytes(sample) for sample in LMDB.unpack(shard, check=True)]


@pytest.mark.parametrize("size", [1, 1300, 2020, 2022, 4081])
def test_samples_of_any_size_fit_into_the_map(size: int) -> None:
    """Its size is fixed before the samples are known: many of those that fill pages worst."""
    count, shard = 5000, bytearray()
    made = build(
        DatasetSpec,
        {"name": "x", "samples": count, "sample_size": {"mean": size}, "format": "lmdb"},
        where="test",
    )
    samples = (bytes([number % 251]) * size for number in range(count))
    offset, stored = LMDB.assemble(
        map(memoryview, samples),
        np.full(count, size),
        shard.extend,
        spec=made,
        codec=CODECS.open("none"),
    )
    assert (stored == size).all()
    assert [shard[at] for at in offset.tolist()] == [number % 251 for number in range(count)]


def test_a_sample_costs_its_own_bytes(make_dataset: MakeDataset) -> None:
    manifest, path = make_dataset(format="lmdb", samples=20, sample_size={"mean": 50_000})
    reader = make_reader(manifest, LocalStorage(path), ReaderSpec(direct=False), bytes_only=True)
    stats = reader.read(np.arange(20), None).stats
    reader.close()
    assert stats.sample_bytes <= stats.bytes_read < stats.sample_bytes + 20 * 8192


class TestForeign:
    """Files of other writers."""

    def test_many_transactions_that_replace_and_delete(self, tmp_path: Path) -> None:
        """Free pages are used again, so that entries lie in any order, below several branches."""
        draw = random.Random(3)

        def fill(environment: Any) -> None:
            for turn in range(12):
                with environment.begin(write=True) as transaction:
                    for _ in range(300):
                        key = b"%d" % draw.randrange(2000)
                        if turn and draw.random() < 0.2:
                            transaction.delete(key)
                        else:
                            size = draw.choice([0, 5, 700, 1900, 2020, 2030, 2040, 4080, 9000])
                            transaction.put(key, draw.randbytes(size))

        shard = foreign(tmp_path / "a.lmdb", fill)
        expected = by_library(tmp_path / "a.lmdb")
        assert len(expected) > 1000
        assert unpacked(shard) == [value for _, value in expected]
        tree = Tree(lambda begin, end: shard[begin:end], len(shard))
        assert [entry.key for entry in tree] == [key for key, _ in expected]

    def test_named_databases(self, tmp_path: Path) -> None:
        def fill(environment: Any) -> None:
            for name in (b"images", b"texts", b"none"):
                environment.open_db(name)
            several = environment.open_db(b"several", dupsort=True)
            with environment.begin(write=True) as transaction:
                for number in range(200):
                    for name in (b"images", b"texts"):
                        transaction.put(
                            b"%d" % number,
                            name * number,
                            db=environment.open_db(name, transaction),
                        )
                    transaction.put(b"x", b"%d" % number, db=several)
                transaction.put(b"main", b"value")

        shard = foreign(tmp_path / "a.lmdb", fill, max_dbs=4)
        numbers = sorted(range(200), key=str)
        assert unpacked(shard) == [
            *(b"images" * number for number in numbers),
            b"value",
            *(b"texts" * number for number in numbers),
        ]
        tree = Tree(lambda begin, end: shard[begin:end], len(shard))
        assert len(list(tree)) == 401
        assert tree.duplicates == 1

    def test_an_empty_file(self, tmp_path: Path) -> None:
        assert unpacked(foreign(tmp_path / "a.lmdb", lambda _: None)) == []


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    def fill(environment: Any) -> None:
        with environment.begin(write=True) as transaction:
            for number in range(120):
                transaction.put(b"%03d" % number, bytes([number]) * (number * 40), append=True)

    return bytes(foreign(tmp_path_factory.mktemp("x") / "a.lmdb", fill))


class TestDamage:
    def test_any_byte(self, shard: bytes) -> None:
        """Whatever is read lies within the file, and anything else is an error in one line."""
        bad, refused = bytearray(shard), 0
        for position in [*range(0, 160, 2), *range(4096, 4256, 2), *range(8192, len(shard), 611)]:
            bad[position] ^= 0x41
            try:
                found = sum(map(len, LMDB.unpack(memoryview(bad), check=True)))
                assert found <= len(bad)
            except ValueError as error:
                refused += 1
                assert "\n" not in str(error)  # noqa: PT017
            bad[position] = shard[position]
        assert refused > 15

    def test_a_page_that_is_used_twice(self, shard: bytes) -> None:
        """A tree that leads back to itself would be endless."""
        with io.BytesIO(shard) as file:
            root = int.from_bytes(file.getbuffer()[4096 + 128 : 4096 + 136], "little")
        bad = bytearray(shard)
        begin = root * 4096
        first = int.from_bytes(bad[begin + 16 : begin + 18], "little")
        second = int.from_bytes(bad[begin + 18 : begin + 20], "little")
        assert bad[begin + 10] == 1, "the root is a branch"
        bad[begin + second : begin + second + 6] = bad[begin + first : begin + first + 6]
        with pytest.raises(ValueError, match="used twice"):
            list(LMDB.unpack(memoryview(bad), check=True))
