"""Parquet, HDF5, LMDB and npz of other writers: every sample that is delivered is what the foreign
library reads, bit for bit.
"""

from __future__ import annotations

import io
import json
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iobench import make_loader
from iobench.dataset import load_manifest
from iobench.errors import DatasetError, UsageError
from iobench.load import make_reader
from iobench.scan import ScanReport, save, scan
from iobench.schema.workload import ReaderSpec
from iobench.storage.local.storage import LocalStorage
from iobench.storage.simulated.memory import MemoryStorage
from iobench.verify import verify
from tests.processes import completed

from .test_scan import QUICK, ok, photo, state

RANDOM = np.random.default_rng(5)


def scanned(root: Path, **more: Any) -> ScanReport:
    return scan(LocalStorage(root), **more)


def delivered(
    root: Path, report: ScanReport, tmp_path: Path, *, decode: bool = True
) -> list[bytes]:
    """Every sample in its order: by a reader in one batch, and by a loader with a worker, whose
    batches are drawn at random.
    """
    folder = save(report, tmp_path / "saved.yaml")
    manifest = load_manifest(folder)
    reading = ReaderSpec(decode=decode, direct=False)
    reader = make_reader(manifest, LocalStorage(root), reading)
    out = memoryview(bytearray(int(reader.room().sum()) + 4096))
    done = reader.read(np.arange(manifest.sample_count), out)
    reader.close()
    found = [
        bytes(out[start : start + length])
        for start, length in zip(done.offsets.tolist(), done.lengths.tolist(), strict=True)
    ]
    loader = make_loader(
        folder,
        origin=str(root),
        batch_size=7,
        reader={"decode": decode, "access": "random"},
        loader={"workers": 1},
    )
    again: dict[int, bytes] = {}
    for batch in loader:
        again.update(
            (i, sample.numpy().tobytes())
            for i, sample in zip(batch.indices.tolist(), batch, strict=True)
        )
    loader.shutdown()
    assert [again[index] for index in range(len(again))] == found
    assert verify(LocalStorage(root), manifest, workers=0).ok
    return found


def write_parquet(path: Path, table: pa.Table, **more: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **more)


@pytest.mark.usefixtures("nothing_left")
class TestParquet:
    PHOTOS = tuple(photo(number, 20 + number) for number in range(30))

    def images(self, root: Path, **more: Any) -> None:
        """As Hugging Face's datasets write images, beside columns that nobody asked for, large ones
        before and behind.
        """
        for part in range(2):
            mine = self.PHOTOS[part * 15 : part * 15 + 15]
            table = pa.table(
                {
                    "embedding": [RANDOM.random(500).tolist() for _ in mine],
                    "image": [
                        {"bytes": image, "path": f"{number}.jpg"}
                        for number, image in enumerate(mine)
                    ],
                    "label": list(range(15)),
                    "noise": [RANDOM.random(2000).tolist() for _ in mine],
                }
            )
            write_parquet(
                root / f"train-{part:05d}-of-00002.parquet",
                table,
                **{"row_group_size": 4, "compression": "snappy", **more},
            )

    def test_images_in_structs(self, tmp_path: Path) -> None:
        self.images(root := tmp_path / "d")
        report = scanned(root, checksums=True)
        spec = report.manifest.spec
        assert (spec.format, spec.content, spec.codec, spec.samples) == (
            "parquet",
            "jpeg",
            "lz4",
            30,
        )
        assert any("snappy" in note for note in report.notes)
        assert any(note.startswith("8 row groups ") for note in report.notes)
        assert report.manifest.samples["size"].tolist() == [len(image) for image in self.PHOTOS]
        column = int(report.manifest.samples["stored"][[0, 4, 8, 12, 15, 19, 23, 27]].sum())
        assert (
            column
            < report.manifest.header.stored_bytes
            < sum(file.stat().st_size for file in root.iterdir()) // 2
        )
        assert delivered(root, report, tmp_path, decode=False) == list(self.PHOTOS)

    def test_pixels(self, tmp_path: Path) -> None:
        from PIL import Image

        self.images(root := tmp_path / "d")
        shapes = [image.size for image in map(Image.open, map(io.BytesIO, self.PHOTOS))]
        assert [len(pixels) for pixels in delivered(root, scanned(root), tmp_path)] == [
            3 * w * h for w, h in shapes
        ]

    @pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
    def test_text_with_nulls(self, tmp_path: Path, compression: str) -> None:
        values = [None if number % 7 == 3 else "grün " * (number % 50) for number in range(400)]
        table = pa.table({"n": range(400), "text": values, "more": ["x" * 300] * 400})
        write_parquet(tmp_path / "d/a.parq", table, row_group_size=90, compression=compression)
        report = scanned(tmp_path / "d")
        expected = [(value or "").encode() for value in values]
        assert report.manifest.spec.codec == {"snappy": "lz4", "brotli": "lz4"}.get(
            compression, compression
        )
        blocks = [sum(map(len, expected[start : start + 90])) for start in range(0, 360, 90)]
        assert report.manifest.spec.block_size == int(np.median(blocks))
        empty = sum(not value for value in values)
        assert any(note.startswith(f"{empty} samples ") for note in report.notes)
        assert delivered(tmp_path / "d", report, tmp_path) == expected

    def test_fixed_lengths_by_the_footer_alone(self, tmp_path: Path) -> None:
        values = [RANDOM.bytes(3000) for _ in range(500)]
        schema = pa.schema(
            [pa.field("n", pa.int64()), pa.field("x", pa.binary(3000), nullable=False)]
        )
        write_parquet(
            tmp_path / "d/a.parquet",
            pa.table({"n": range(500), "x": values}, schema=schema),
            row_group_size=128,
        )
        report = scanned(tmp_path / "d")
        assert report.bytes_read <= 64 << 10
        assert not report.notes[1:]  # of snappy alone
        assert report.manifest.spec.block_size == 128 * 3000
        assert delivered(tmp_path / "d", report, tmp_path) == values

    def test_fixed_lengths_with_nulls_are_read(self, tmp_path: Path) -> None:
        values = [None if number % 3 else bytes([number]) * 16 for number in range(60)]
        write_parquet(
            tmp_path / "d/a.parquet",
            pa.table({"x": pa.array(values, pa.binary(16))}),
            row_group_size=25,
        )
        assert delivered(tmp_path / "d", scanned(tmp_path / "d"), tmp_path) == [
            value or b"" for value in values
        ]

    def test_numbers_alone_are_row_groups(self, tmp_path: Path) -> None:
        table = pa.table({"a": RANDOM.random(50_000), "tokens": [list(range(5))] * 50_000})
        write_parquet(tmp_path / "d/a.parquet", table, row_group_size=12_000)
        report = scanned(tmp_path / "d")
        assert report.bytes_read <= 64 << 10
        assert any("5 row groups " in note for note in report.notes)
        metadata, whole = (
            pq.read_metadata(tmp_path / "d/a.parquet"),
            (tmp_path / "d/a.parquet").read_bytes(),
        )
        expected = []
        for number in range(5):
            chunks = [metadata.row_group(number).column(column) for column in range(2)]
            start = min(chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks)
            expected.append(
                whole[start : start + sum(chunk.total_compressed_size for chunk in chunks)]
            )
        assert delivered(tmp_path / "d", report, tmp_path) == expected

    def test_groups_and_files_without_rows(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        schema = pa.schema([pa.field("x", pa.binary())])
        with pq.ParquetWriter(tmp_path / "d/a.parquet", schema) as writer:
            for values in ([b"one", b"two"], [], [b"three"], []):
                writer.write_table(pa.table({"x": values}, schema=schema))
        write_parquet(tmp_path / "d/b.parquet", pa.table({"x": []}, schema=schema))
        report = scanned(tmp_path / "d")
        assert any("1" in note and "b.parquet" in note for note in report.notes)
        assert delivered(tmp_path / "d", report, tmp_path) == [b"one", b"two", b"three"]

    def test_a_footer_longer_than_a_guess(self, tmp_path: Path) -> None:
        columns = {f"column_{number:04d}": [f"{number}"] * 40 for number in range(300)}
        write_parquet(
            tmp_path / "d/a.parquet",
            pa.table({"x": [RANDOM.bytes(50) for _ in range(40)], **columns}),
            row_group_size=8,
        )
        assert pq.read_metadata(tmp_path / "d/a.parquet").serialized_size > 64 << 10
        expected = pq.read_table(tmp_path / "d/a.parquet", columns=["x"])["x"].to_pylist()
        assert delivered(tmp_path / "d", scanned(tmp_path / "d"), tmp_path) == expected

    def test_only_nulls_is_no_data(self, tmp_path: Path) -> None:
        write_parquet(tmp_path / "d/a.parquet", pa.table({"x": pa.array([None] * 5, pa.binary())}))
        with pytest.raises(DatasetError, match="1 shard"):
            scanned(tmp_path / "d")

    def test_damage_is_one_line(self, tmp_path: Path) -> None:
        self.images(root := tmp_path / "d")
        victim = root / "train-00001-of-00002.parquet"
        good = victim.read_bytes()
        length = int.from_bytes(good[-8:-4], "little")
        bad = {
            "no PAR1": good[: len(good) // 2],
            "encrypted": good[:-4] + b"PARE",
            "claims 4294967295 bytes": good[:-8] + b"\xff" * 4 + b"PAR1",
            "footer is damaged": good[: -length - 8] + b"\x15" * length + good[-8:],
            "would lie|would end|is damaged": good[100_000:],  # whose footer points behind its end
            "is damaged": good[:4] + bytes(len(good) - length - 12) + good[-length - 8 :],
            "Parquet": b"PAR1",
        }
        for why, data in bad.items():
            victim.write_bytes(data)
            with pytest.raises(DatasetError, match=why) as caught:
                scanned(root)
            assert victim.name in str(caught.value)
            assert "\n" not in str(caught.value)

    def test_fewer_rows_than_the_footer_tells_of(self, tmp_path: Path) -> None:
        """Rows of a fixed length are believed by the footer alone, until they are read."""
        schema = pa.schema([pa.field("x", pa.binary(16), nullable=False)])
        write_parquet(
            path := tmp_path / "d/a.parquet",
            pa.table({"x": [bytes([n]) * 16 for n in range(50)]}, schema),
            compression="none",
        )
        good = path.read_bytes()
        refused = 0
        for position in range(
            good.rindex(b"PAR1") - 4 - int.from_bytes(good[-8:-4], "little"), len(good) - 8
        ):
            bad = bytearray(good)
            bad[position] ^= 0x02
            path.write_bytes(bad)
            try:
                scan(LocalStorage(tmp_path / "d"), checksums=True, workers=0)
            except DatasetError as error:
                refused += 1
                assert "\n" not in str(error)  # noqa: PT017
        assert refused

    def test_no_byte_of_a_footer_ends_the_process(self, tmp_path: Path) -> None:
        """pyarrow itself does so where a chunk's description doesn't add up."""
        write_parquet(
            tmp_path / "a.parquet",
            pa.table({"n": range(6), "x": [b"abc"] * 6}),
            row_group_size=3,
            store_schema=False,
        )
        data = bytearray((tmp_path / "a.parquet").read_bytes())
        storage = MemoryStorage(objects={"a.parquet": memoryview(data)})
        refused = 0
        for position in range(len(data) - 8 - int.from_bytes(data[-8:-4], "little"), len(data)):
            right = data[position]
            for wrong in (0xFF, right ^ 1, right ^ 0x10):
                data[position] = wrong
                try:
                    scan(storage, workers=0)
                except DatasetError as error:
                    assert "\n" not in str(error)  # noqa: PT017
                    refused += 1
            data[position] = right
        assert refused > 100


def write_hdf5(path: Path, fill: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        fill(file)


@pytest.mark.usefixtures("nothing_left")
class TestHdf5:
    CUBES = RANDOM.integers(0, 99, (12, 30, 40), dtype=np.int16)

    def test_contiguous_and_chunks_of_whole_samples(self, tmp_path: Path) -> None:
        def fill(file: Any) -> None:
            file["a/cubes"] = self.CUBES
            file["b"] = np.arange(1000.0)
            file["c"] = 7
            file.create_dataset(
                "d", data=self.CUBES, chunks=(5, 30, 40), maxshape=(None, 30, 40)
            )  # the last chunk is not full
            file.create_dataset("e", data=np.arange(70), chunks=(100,), maxshape=(None,))

        write_hdf5(tmp_path / "d/a.h5", fill)
        report = scanned(tmp_path / "d", checksums=True)
        assert (report.manifest.spec.format, report.manifest.spec.codec, report.notes) == (
            "hdf5",
            "none",
            [],
        )
        expected = [cube.tobytes() for cube in self.CUBES]
        assert delivered(tmp_path / "d", report, tmp_path) == [
            *expected,
            np.arange(1000.0).tobytes(),
            np.array(7).tobytes(),
            *expected,
            np.arange(70).tobytes(),
        ]

    def test_one_deflated_chunk_for_each_sample(self, tmp_path: Path) -> None:
        def fill(file: Any) -> None:
            file.create_dataset("cubes", data=self.CUBES, chunks=(1, 30, 40), compression="gzip")
            file.create_dataset("line", data=np.arange(5000), chunks=(5000,), compression=9)

        write_hdf5(tmp_path / "d/a.hdf5", fill)
        report = scanned(tmp_path / "d", checksums=True)
        assert (report.manifest.spec.codec, report.notes) == ("gzip", [])
        assert report.manifest.spec.compress_ratio > 1.5
        expected = [*(cube.tobytes() for cube in self.CUBES), np.arange(5000).tobytes()]
        assert delivered(tmp_path / "d", report, tmp_path) == expected

    def test_a_chunk_that_was_not_worth_it_and_one_that_was_not_written(
        self, tmp_path: Path
    ) -> None:
        def fill(file: Any) -> None:
            data = file.create_dataset("x", (4, 100), np.uint8, chunks=(1, 100), compression="gzip")
            data[0] = 1
            data.id.write_direct_chunk((2, 0), bytes(range(100)), filter_mask=1)
            file.create_dataset("never", (3, 100), np.uint8)

        write_hdf5(tmp_path / "d/a.h5", fill)
        report = scanned(tmp_path / "d")
        assert any(note.startswith("5 samples ") for note in report.notes)  # never written
        assert any(note.startswith("1 sample ") for note in report.notes)  # deflated
        with h5py.File(tmp_path / "d/a.h5") as file:
            stored = [file["x"].id.read_direct_chunk((row, 0))[1] for row in (0, 2)]
            assert file["x"][2].tobytes() == stored[1]
        assert delivered(tmp_path / "d", report, tmp_path) == stored

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"chunks": (1, 30, 10)}, "chunks"),
            ({"chunks": (4, 15, 40), "compression": "gzip"}, "chunks"),
            (
                {"chunks": (4, 30, 40), "compression": "gzip"},
                "chunk",
            ),
            (
                {"chunks": (1, 30, 40), "compression": "gzip", "shuffle": True},
                r"\(shuffle, deflate\)",
            ),
            ({"chunks": (1, 30, 40), "compression": "lzf"}, r"\(lzf\)"),
            ({"chunks": (1, 30, 40), "fletcher32": True}, r"\(fletcher32\)"),
        ],
    )
    def test_anything_else_is_chunks_as_stored(
        self, tmp_path: Path, options: dict[str, Any], why: str
    ) -> None:
        import re

        write_hdf5(
            tmp_path / "d/a.h5", lambda file: file.create_dataset("x", data=self.CUBES, **options)
        )
        report = scanned(tmp_path / "d")
        with h5py.File(tmp_path / "d/a.h5") as file:
            chunks = [
                file["x"].id.get_chunk_info(number).chunk_offset
                for number in range(file["x"].id.get_num_chunks())
            ]
            expected = [file["x"].id.read_direct_chunk(chunk)[1] for chunk in chunks]
        (note,) = report.notes
        assert re.match(f"{len(expected)} chunks .*{why}", note)
        assert report.manifest.spec.codec == "none"
        assert delivered(tmp_path / "d", report, tmp_path) == expected

    def test_where_only_some_are_deflated_all_are_as_stored(self, tmp_path: Path) -> None:
        write_hdf5(
            tmp_path / "d/a.h5",
            lambda file: file.create_dataset(
                "x", data=self.CUBES, chunks=(1, 30, 40), compression="gzip"
            ),
        )
        write_hdf5(tmp_path / "d/b.h5", lambda file: file.create_dataset("x", data=self.CUBES))
        report = scanned(tmp_path / "d")
        assert any(note.startswith("12 samples ") for note in report.notes)
        with h5py.File(tmp_path / "d/a.h5") as file:
            stored = [file["x"].id.read_direct_chunk((number, 0, 0))[1] for number in range(12)]
        assert delivered(tmp_path / "d", report, tmp_path) == [
            *stored,
            *(cube.tobytes() for cube in self.CUBES),
        ]

    @pytest.mark.parametrize(
        "options", [{}, {"chunks": (7,)}, {"chunks": (7,), "compression": "gzip"}]
    )
    @pytest.mark.parametrize("userblock", [0, 512])
    def test_elements_of_their_own_length(
        self, tmp_path: Path, options: dict[str, Any], userblock: int
    ) -> None:
        photos = [photo(number, 20 + 9 * number) for number in range(20)]
        texts = ["grün " * number for number in range(30)]
        (tmp_path / "d").mkdir()
        with h5py.File(tmp_path / "d/a.h5", "w", userblock_size=userblock) as file:
            images = file.create_dataset("images", (20,), h5py.vlen_dtype(np.uint8), **options)
            numbers = file.create_dataset("numbers", (9,), h5py.vlen_dtype(np.int16), **options)
            for number in range(20):
                images[number] = np.frombuffer(photos[number], np.uint8)
            for number in range(0, 9, 2):
                numbers[number] = np.arange(number + 5)
            file.create_dataset("text", data=texts, **options)
        report = scanned(tmp_path / "d", checksums=True)
        (note,) = report.notes
        assert note.startswith("5 samples ")
        expected = [np.arange(number + 5, dtype=np.int16).tobytes() for number in range(0, 9, 2)]
        assert delivered(tmp_path / "d", report, tmp_path) == [
            *photos,
            *expected,
            *(text.encode() for text in texts[1:]),
        ]

    def test_elements_in_a_way_that_is_not_followed(self, tmp_path: Path) -> None:
        def fill(file: Any) -> None:
            file.create_dataset("a", data=["text"] * 8, chunks=(4,), shuffle=True)
            file.create_dataset(
                "b",
                data=np.array([["x"] * 4] * 4, object),
                dtype=h5py.string_dtype(),
                chunks=(2, 2),
            )
            file.create_dataset("c", (3,), np.dtype([("n", "i4"), ("s", h5py.string_dtype())]))

        write_hdf5(tmp_path / "d/a.h5", fill)
        with pytest.raises(
            DatasetError,
            match=r"1 shard.*3 datasets",
        ):
            scanned(tmp_path / "d")

    def test_a_user_block_before_it(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        with h5py.File(tmp_path / "d/a.h5", "w", userblock_size=1024) as file:
            file["a"] = self.CUBES
            file.create_dataset("b", data=self.CUBES, chunks=(3, 30, 40))
        expected = [cube.tobytes() for cube in self.CUBES]
        assert delivered(tmp_path / "d", scanned(tmp_path / "d"), tmp_path) == expected * 2

    def test_only_metadata_is_read(self, tmp_path: Path) -> None:
        def fill(file: Any) -> None:
            for number in range(20):
                file[f"group/{number:03d}.jpg"] = np.frombuffer(photo(number, 300), np.uint8)
            file["cubes"] = np.zeros((50, 100_000), np.float32)

        write_hdf5(tmp_path / "d/a.h5", fill)
        report = scanned(tmp_path / "d")
        assert report.manifest.sample_count == 70
        assert report.bytes_read < (tmp_path / "d/a.h5").stat().st_size / 10
        assert report.manifest.spec.content == "raw"  # some are photographs, others are not

    def test_what_is_left_out_is_told(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_bytes(b"secret" * 100)
        write_hdf5(
            tmp_path / "other.h5",
            lambda file: file.create_dataset("x", data=np.zeros(600, np.uint8)),
        )

        def fill(file: Any) -> None:
            file["link"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/x")
            file["soft"] = h5py.SoftLink("/plain")
            file.create_dataset("external", (600,), np.uint8, external=[(str(secret), 0, 600)])
            layout = h5py.VirtualLayout((600,), np.uint8)
            layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (600,))
            file.create_virtual_dataset("virtual", layout)
            file["plain"] = np.frombuffer(b"mine", np.uint8)
            file.create_dataset("references", (3,), h5py.ref_dtype)
            file["loop"] = file["/"]
            file["null"] = h5py.Empty("f4")
            file.create_dataset("no rows", (0, 5), np.uint8)
            compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            compact.set_layout(h5py.h5d.COMPACT)
            h5py.h5d.create(
                file.id, b"compact", h5py.h5t.NATIVE_INT64, h5py.h5s.create_simple((5,)), compact
            )

        write_hdf5(tmp_path / "d/a.h5", fill)
        report = scanned(tmp_path / "d")
        told = [note.partition(" are left out")[0] for note in report.notes]
        assert sorted(told) == ["1 datasets", "1 datasets", "2 datasets"]
        assert delivered(tmp_path / "d", report, tmp_path) == [b"mine"]

    def test_damage_is_one_line(self, tmp_path: Path) -> None:
        write_hdf5(
            path := tmp_path / "d/a.h5",
            lambda file: file.create_dataset("x", data=self.CUBES, chunks=(1, 30, 40)),
        )
        good = path.read_bytes()
        for data in (
            b"plain text" * 100,
            good[:2000],
            good[:-1],
            good[:8] + bytes(5000),
            b"\x89HDF\r\n\x1a\n",
        ):
            path.write_bytes(data)
            with pytest.raises(DatasetError, match=r"a\.h5 cannot be read: .{10}") as caught:
                scanned(tmp_path / "d")
            assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("chunks", [None, (2,)])
    def test_damage_of_elements_of_their_own_length(
        self, tmp_path: Path, chunks: tuple[int, ...] | None
    ) -> None:
        def fill(file: Any) -> None:
            options = {} if chunks is None else {"chunks": chunks, "compression": "gzip"}
            data = file.create_dataset("x", (6,), h5py.vlen_dtype(np.uint8), **options)
            for number in range(6):
                data[number] = np.arange(10 + number, dtype=np.uint8)

        write_hdf5(path := tmp_path / "d/a.h5", fill)
        good = path.read_bytes()
        for position in range(0, len(good), 13):
            for bad in (bytearray(good), bytearray(good[:position])):
                if position < len(bad):
                    bad[position] ^= 0x41
                path.write_bytes(bad or b"x")
                try:
                    scanned(tmp_path / "d", workers=0)
                except DatasetError as error:
                    assert "\n" not in str(error)  # noqa: PT017

    def test_flipped_bits_of_its_metadata(self, tmp_path: Path) -> None:
        def fill(file: Any) -> None:
            file.create_dataset("x", data=np.zeros((3, 8)), chunks=(1, 8))
            file["text"] = ["one", "two"]

        write_hdf5(path := tmp_path / "d/a.h5", fill)
        good = path.read_bytes()
        for position in range(0, len(good), 17):
            bad = bytearray(good)
            bad[position] ^= 0x41
            path.write_bytes(bad)
            try:
                manifest = scanned(tmp_path / "d", workers=0).manifest
            except DatasetError as error:
                assert "\n" not in str(error)  # noqa: PT017
            else:
                assert (manifest.samples["offset"] + manifest.samples["stored"]).max() <= len(good)

    def test_the_missing_package_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_hdf5(tmp_path / "d/a.h5", lambda file: file.create_dataset("x", data=self.CUBES))
        monkeypatch.setitem(sys.modules, "h5py", None)
        with pytest.raises(UsageError, match=r"\[hdf5\]"):
            scanned(tmp_path / "d")


@pytest.mark.usefixtures("nothing_left")
class TestNpz:
    ARRAYS = tuple(
        {
            "x": RANDOM.random((20, 30 + n)),
            "mask": np.zeros((40, 50), np.uint8),
            "label": np.array(n),
        }
        for n in range(20)
    )

    @pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
    def test_several_arrays(self, tmp_path: Path, write: Any) -> None:
        (tmp_path / "d").mkdir()
        for number, arrays in enumerate(self.ARRAYS):
            write(tmp_path / f"d/{number:03d}.npz", **arrays)
        report = scanned(tmp_path / "d", checksums=True)
        assert report.manifest.spec.content == "arrays"
        assert report.notes == [
            "a clone's files hold one stored array each, so that decoding them costs less"
        ]
        expected = []
        for number in range(20):
            with np.load(tmp_path / f"d/{number:03d}.npz") as file:
                expected.append(b"".join(file[name].tobytes() for name in file.files))
        assert delivered(tmp_path / "d", report, tmp_path) == expected

    def test_one_stored_array_is_read_in_place(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        for number in range(5):
            np.savez(tmp_path / f"d/{number}.npz", x=np.arange(number + 100))
        report = scanned(tmp_path / "d")
        assert report.manifest.spec.content == "npz"
        assert delivered(tmp_path / "d", report, tmp_path) == [
            np.arange(number + 100).tobytes() for number in range(5)
        ]

    def test_objects_are_raw_bytes(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        np.savez(tmp_path / "d/a.npz", x=np.array([{"a": 1}], dtype=object))
        report = scanned(tmp_path / "d")
        assert report.manifest.spec.content == "raw"
        assert "never unpickled" in report.notes[0]
        assert delivered(tmp_path / "d", report, tmp_path) == [(tmp_path / "d/a.npz").read_bytes()]

    def test_a_member_that_claims_memory_is_not_believed(self, tmp_path: Path) -> None:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(
                header, {"descr": "|u1", "fortran_order": False, "shape": (1 << 40,)}
            )
            archive.writestr("x.npy", header.getvalue() + bytes(1000))
        data = bytearray(out.getvalue())
        sizes = data.rindex(b"PK\x01\x02") + 24  # of the central directory: uncompressed size
        data[sizes : sizes + 4] = (0xFFFFFFF0).to_bytes(4, "little")
        (tmp_path / "d").mkdir()
        (tmp_path / "d/a.npz").write_bytes(data)
        report = scanned(tmp_path / "d")
        assert report.manifest.spec.content == "raw"
        assert "claims a size" in report.notes[0]


class Pickled:
    """Unpickling one would end the process."""

    def __init__(self, number: int) -> None:
        self.data = bytes([number]) * (number * 100)

    def __reduce__(self) -> Any:
        return sys.exit, (self.data,)


@pytest.mark.usefixtures("nothing_left")
class TestLmdb:
    def write(self, path: Path, count: int = 30, *, subdir: bool = False) -> list[bytes]:
        """A file as the Open Catalyst Project writes it; what its samples are, by the library."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with lmdb.open(str(path), subdir=subdir, map_size=1 << 24, sync=False) as environment:
            for number in range(count):
                with environment.begin(write=True) as transaction:
                    transaction.put(b"%d" % number, pickle.dumps(Pickled(number), -1))
            with environment.begin(write=True) as transaction:
                transaction.put(b"length", pickle.dumps(count, -1))
            with environment.begin() as transaction:
                return [bytes(value) for key, value in transaction.cursor() if key != b"length"]

    def test_pickled_objects_are_delivered_as_they_are(self, tmp_path: Path) -> None:
        root = tmp_path / "d"
        expected = self.write(root / "data.0000.lmdb") + self.write(root / "data.0001.lmdb", 5)
        report = scanned(root, checksums=True)
        spec = report.manifest.spec
        assert (spec.format, spec.content, spec.codec) == ("lmdb", "raw", "none")
        assert len(report.notes) == 1
        assert "2 entries are left out" in report.notes[0]
        assert {entry.key for entry in report.left_out} == {
            "data.0000.lmdb-lock",
            "data.0001.lmdb-lock",
        }
        assert delivered(root, report, tmp_path) == expected

    def test_a_directory_with_a_lock_file(self, tmp_path: Path) -> None:
        expected = self.write(tmp_path / "d", 40, subdir=True)
        report = scanned(tmp_path / "d")
        assert (report.manifest.spec.format, report.manifest.key(0)) == ("lmdb", "data.mdb")
        assert [entry.key for entry in report.left_out] == ["lock.mdb"]
        assert delivered(tmp_path / "d", report, tmp_path) == expected


def build(kind: str, root: Path) -> None:
    """20 to 100 samples of each kind."""
    if kind == "parquet":
        TestParquet().images(root)
    elif kind == "hdf5-gzip":
        data = RANDOM.integers(0, 9, (100, 2000))
        write_hdf5(
            root / "a.h5",
            lambda file: file.create_dataset("x", data=data, chunks=(1, 2000), compression=1),
        )
    else:
        root.mkdir()
        for number, arrays in enumerate(TestNpz.ARRAYS):
            np.savez_compressed(root / f"{number:03d}.npz", **arrays)


@pytest.mark.parametrize("kind", ["parquet", "hdf5-gzip", "npz"])
def test_scanned_run_and_cloned_and_left_as_it_was(kind: str, tmp_path: Path) -> None:
    build(kind, root := tmp_path / "data")
    before = state(root)
    found = json.loads(
        ok("scan", root, "--save", "mine.yaml", "--checksums", "--json", cwd=tmp_path)
    )
    doc = json.loads(
        ok(
            "run",
            "resnet50-h100",
            "--data",
            "mine.manifest",
            "--origin",
            root,
            *QUICK,
            "--set",
            "reader.check=content",
            "--json",
            cwd=tmp_path,
        )
    )
    assert doc["validity"] == "valid"
    assert doc["job"]["verdict"]
    assert doc["job"]["repetitions"][0]["samples"] == found["samples"]
    assert doc["job"]["dataset"]["changed"] == []
    mine = load_manifest(tmp_path / "mine.manifest")
    assert verify(LocalStorage(root), mine, workers=0).ok
    ok("generate", "mine.yaml", "--to", "clone", cwd=tmp_path)
    clone = load_manifest(tmp_path / "clone")
    assert clone.sample_count == found["samples"]
    assert clone.header.sample_bytes == pytest.approx(mine.header.sample_bytes, rel=0.1)
    if kind == "hdf5-gzip":
        assert clone.samples["stored"].sum() == pytest.approx(mine.samples["stored"].sum(), rel=0.2)
    if kind == "parquet":
        groups = [
            len(np.unique(m.samples["shard"].astype(np.int64) << 40 | m.samples["offset"]))
            for m in (mine, clone)
        ]
        assert abs(groups[0] - groups[1]) <= max(2, groups[0] // 3)
    assert state(root) == before


def test_a_damaged_file_ends_a_scan_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name in ("a.parquet", "a.h5", "a.lmdb"):
        (tmp_path / "d" / name).write_bytes(b"nothing of the kind" * 100)
        done = completed("scan", "d", "--save", "x.yaml", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert len(done.stderr.strip().splitlines()) == 1
        assert f"{name} cannot be read" in done.stderr
        (tmp_path / "d" / name).unlink()
    assert not (tmp_path / "x.yaml").exists()
