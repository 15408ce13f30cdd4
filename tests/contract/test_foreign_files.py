"""Files of other writers than iobench, in each format of a library."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iobench.formats import FORMATS
from iobench.formats.lmdb import Tree


def unpacked(form: str, shard: bytes | memoryview) -> list[bytes]:
    return [bytes(each) for each in FORMATS.open(form).unpack(memoryview(shard), check=True)]


def of_hdf5(fill: Any) -> list[bytes]:
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        fill(file)
    return unpacked("hdf5", out.getvalue())


class TestHdf5:
    CUBES = np.random.default_rng(0).random((5, 8, 8, 2)).astype(np.float32)

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"chunks": (2, 8, 8, 2)},
            {"compression": "gzip"},
            {"compression": "lzf", "shuffle": True},
        ],
    )
    def test_each_of_the_first_dimension(self, options: dict[str, Any]) -> None:
        found = of_hdf5(
            lambda file: file.create_dataset("climate/data", data=self.CUBES, **options)
        )
        assert found == [cube.tobytes() for cube in self.CUBES]

    def test_one_dimension_is_one_sample(self) -> None:
        assert of_hdf5(lambda file: file.create_dataset("x", data=np.arange(10))) == [
            np.arange(10).tobytes()
        ]
        assert of_hdf5(lambda file: file.create_dataset("x", data=7.0)) == [
            np.float64(7.0).tobytes()
        ]

    def test_elements_of_their_own_length(self) -> None:
        def images(file: Any) -> None:
            data = file.create_dataset("images", (3,), dtype=h5py.vlen_dtype(np.uint8))
            for number in range(3):
                data[number] = np.full(10 + number, number, np.uint8)
            file["text"] = ["one", "zwö"]

        assert of_hdf5(images) == [bytes(10), b"\1" * 11, b"\2" * 12, b"one", "zwö".encode()]

    def test_other_files_are_not_looked_into(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_bytes(b"secret" * 100)
        with h5py.File(tmp_path / "other.h5", "w") as other:
            other["x"] = np.frombuffer(b"secret" * 100, np.uint8)

        def links(file: Any) -> None:
            file["link"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/x")
            file["soft"] = h5py.SoftLink("/plain")
            file.create_dataset("external", (600,), np.uint8, external=[(str(secret), 0, 600)])
            layout = h5py.VirtualLayout((600,), np.uint8)
            layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (600,))
            file.create_virtual_dataset("virtual", layout)
            file["plain"] = np.frombuffer(b"mine", np.uint8)
            file["loop"] = file["/"]

        assert of_hdf5(links) == [b"mine"]

    def test_a_claim_is_not_believed(self) -> None:
        with pytest.raises(ValueError, match=r"claims 1000000000000000 bytes in 0 stored"):
            of_hdf5(lambda file: file.create_dataset("x", (10**15,), np.uint8, chunks=(1 << 20,)))
        assert (
            of_hdf5(lambda file: file.create_dataset("x", (0, 5), np.uint8, maxshape=(None, 5)))
            == []
        )
        assert of_hdf5(lambda file: file.create_dataset("x", data=h5py.Empty("f4"))) == []


def of_lmdb(path: Path, fill: Callable[[Any], None], **options: Any) -> memoryview:
    """A file that ``fill`` wrote, with the library's defaults."""
    with lmdb.open(
        str(path), subdir=False, lock=False, sync=False, map_size=64 << 20, **options
    ) as environment:
        fill(environment)
    return memoryview(path.read_bytes())


class TestLmdb:
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

        shard = of_lmdb(tmp_path / "a.lmdb", fill)
        options = {"subdir": False, "lock": False, "readonly": True}
        with lmdb.open(str(tmp_path / "a.lmdb"), **options) as written, written.begin() as reading:
            expected = list(reading.cursor())
        assert len(expected) > 1000
        assert unpacked("lmdb", shard) == [value for _, value in expected]
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

        shard = of_lmdb(tmp_path / "a.lmdb", fill, max_dbs=4)
        numbers = sorted(range(200), key=str)
        assert unpacked("lmdb", shard) == [
            *(b"images" * number for number in numbers),
            b"value",
            *(b"texts" * number for number in numbers),
        ]
        tree = Tree(lambda begin, end: shard[begin:end], len(shard))
        assert len(list(tree)) == 401
        assert tree.duplicates == 1

    def test_an_empty_file(self, tmp_path: Path) -> None:
        assert unpacked("lmdb", of_lmdb(tmp_path / "a.lmdb", lambda _: None)) == []

    def test_a_page_that_is_used_twice(self, tmp_path: Path) -> None:
        """A tree that leads back to itself would be endless."""

        def fill(environment: Any) -> None:
            with environment.begin(write=True) as transaction:
                for number in range(120):
                    transaction.put(b"%03d" % number, bytes([number]) * (number * 40), append=True)

        bad = bytearray(of_lmdb(tmp_path / "a.lmdb", fill))
        begin = int.from_bytes(bad[4096 + 128 : 4096 + 136], "little") * 4096
        first = int.from_bytes(bad[begin + 16 : begin + 18], "little")
        second = int.from_bytes(bad[begin + 18 : begin + 20], "little")
        assert bad[begin + 10] == 1, "the root is a branch"
        bad[begin + second : begin + second + 6] = bad[begin + first : begin + first + 6]
        with pytest.raises(ValueError, match="used twice"):
            unpacked("lmdb", bytes(bad))


def of_parquet(table: pa.Table, **more: Any) -> list[bytes]:
    out = io.BytesIO()
    pq.write_table(table, out, **more)
    return unpacked("parquet", out.getvalue())


class TestParquet:
    """Hugging Face's images in structs, text, numbers only."""

    IMAGES = tuple(bytes([number]) * (100 + number) for number in range(50))

    @pytest.mark.parametrize(
        ("compression", "version"),
        [
            ("none", "1.0"),
            ("snappy", "1.0"),
            ("gzip", "2.0"),
            ("zstd", "2.0"),
            ("lz4", "1.0"),
            ("brotli", "2.0"),
        ],
    )
    def test_images_in_a_struct(self, compression: str, version: str) -> None:
        images = [
            {"bytes": image, "path": f"{number}.jpg"} for number, image in enumerate(self.IMAGES)
        ]
        table = pa.table({"label": list(range(50)), "text": ["a"] * 50, "image": images})
        found = of_parquet(
            table, row_group_size=8, compression=compression, data_page_version=version
        )
        assert found == list(self.IMAGES)

    @pytest.mark.parametrize(
        "kind",
        [pa.binary(), pa.large_binary(), pa.dictionary(pa.int32(), pa.binary()), pa.binary_view()],
    )
    def test_kinds_of_binary(self, kind: Any) -> None:
        values = [*self.IMAGES[:5], None, b"", *self.IMAGES[:5]]
        column = (
            pa.array(values, pa.binary()).cast(kind)
            if not pa.types.is_dictionary(kind)
            else pa.array(values).dictionary_encode()
        )
        assert of_parquet(pa.table({"n": range(12), "x": column}), row_group_size=5) == [
            value or b"" for value in values
        ]

    def test_fixed_lengths(self) -> None:
        assert of_parquet(pa.table({"x": pa.array([b"abcd", b"efgh", None], pa.binary(4))})) == [
            b"abcd",
            b"efgh",
            b"",
        ]

    def test_text_where_nothing_is_binary(self) -> None:
        assert of_parquet(pa.table({"n": [1, 2], "text": ["grün", ""]})) == ["grün".encode(), b""]

    def test_row_groups_where_there_are_only_numbers(self) -> None:
        table = pa.table({"a": np.arange(1000), "tokens": [list(range(5))] * 1000})
        out = io.BytesIO()
        pq.write_table(table, out, row_group_size=300)
        found = unpacked("parquet", out.getvalue())
        assert len(found) == 4
        assert b"".join(found) in out.getvalue()

    def test_an_empty_file(self) -> None:
        assert of_parquet(pa.table({"x": pa.array([], pa.binary())})) == []
