"""Parquet, HDF5, LMDB and npz of other writers: every sample that is delivered is what the foreign
library reads, bit for bit.
"""

from __future__ import annotations

import io
import pickle
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from iobench import make_loader
from iobench.base.errors import DatasetError
from iobench.data.dataset import load_manifest
from iobench.data.scan.saving import save
from iobench.data.scan.scanner import ScanReport, scan
from iobench.data.verify import verify
from iobench.storage.local.storage import LocalStorage
from tests.looking import contents

from .test_scan import photo

RANDOM = np.random.default_rng(5)


def scanned(root: Path, **more: Any) -> ScanReport:
    return scan(LocalStorage(root), **more)


def delivered(
    root: Path, report: ScanReport, tmp_path: Path, *, decode: bool = True
) -> list[bytes]:
    """Every sample in its order: by a reader in one batch, and by a loader whose batches are drawn
    at random.
    """
    folder = save(report, tmp_path / "saved.yaml")
    manifest = load_manifest(folder)
    found = contents(LocalStorage(root), manifest, decode=decode)
    loader = make_loader(
        folder,
        origin=str(root),
        batch_size=7,
        reader={"decode": decode, "access": "random"},
        loader={"workers": 0},
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


def count_of(what: str, notes: Sequence[str]) -> int:
    """Of how many things the note tells that begins so."""
    [count] = [note.rpartition(": ")[2] for note in notes if note.startswith(what)]
    return int(count)


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
        assert (spec.format, spec.content, spec.codec) == ("parquet", "jpeg", "lz4")
        assert any("snappy" in note for note in report.notes)
        assert count_of("row groups", report.notes) == 8
        assert report.manifest.samples["size"].tolist() == [len(image) for image in self.PHOTOS]
        column = int(report.manifest.samples["stored"][[0, 4, 8, 12, 15, 19, 23, 27]].sum())
        whole = sum(file.stat().st_size for file in root.iterdir())
        assert column < report.manifest.header.stored_bytes < whole // 2
        assert delivered(root, report, tmp_path, decode=False) == list(self.PHOTOS)
        shapes = [image.size for image in map(Image.open, map(io.BytesIO, self.PHOTOS))]
        pixels = delivered(root, report, tmp_path / "decoded")
        assert [len(each) for each in pixels] == [3 * w * h for w, h in shapes]

    @pytest.mark.parametrize(("compression", "codec"), [("none", "none"), ("brotli", "lz4")])
    def test_text_with_nulls(self, tmp_path: Path, compression: str, codec: str) -> None:
        """The largest of several columns."""
        values = [None if number % 7 == 3 else "grün " * (number % 50) for number in range(120)]
        table = pa.table({"n": range(120), "text": values, "more": ["x" * 300] * 120})
        write_parquet(tmp_path / "d/a.parq", table, row_group_size=27, compression=compression)
        report = scanned(tmp_path / "d")
        expected = [(value or "").encode() for value in values]
        assert any("column 'text'" in note for note in report.notes)
        assert report.manifest.spec.codec == codec
        blocks = [sum(map(len, expected[start : start + 27])) for start in range(0, 108, 27)]
        assert report.manifest.spec.block_size == int(np.median(blocks))
        empty = sum(not value for value in values)
        assert count_of("samples", report.notes) == empty
        assert delivered(tmp_path / "d", report, tmp_path) == expected

    def test_fixed_lengths_by_the_footer_alone(self, tmp_path: Path) -> None:
        values = [RANDOM.bytes(3000) for _ in range(500)]
        fields = [pa.field("n", pa.int64()), pa.field("x", pa.binary(3000), nullable=False)]
        table = pa.table({"n": range(500), "x": values}, schema=pa.schema(fields))
        write_parquet(tmp_path / "d/a.parquet", table, row_group_size=128)
        report = scanned(tmp_path / "d")
        assert report.bytes_read <= 64 << 10
        assert not report.notes[1:]  # of snappy alone
        assert report.manifest.spec.block_size == 128 * 3000
        assert delivered(tmp_path / "d", report, tmp_path) == values

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
        expected = [RANDOM.bytes(50) for _ in range(40)]
        table = pa.table({"x": expected, **columns})
        write_parquet(tmp_path / "d/a.parquet", table, row_group_size=8)
        assert pq.read_metadata(tmp_path / "d/a.parquet").serialized_size > 64 << 10
        assert delivered(tmp_path / "d", scanned(tmp_path / "d"), tmp_path) == expected


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
        spec = report.manifest.spec
        assert (spec.format, spec.codec, report.notes) == ("hdf5", "none", [])
        cubes = [cube.tobytes() for cube in self.CUBES]
        plain = [np.arange(1000.0).tobytes(), np.array(7).tobytes()]
        expected = [*cubes, *plain, *cubes, np.arange(70).tobytes()]
        assert delivered(tmp_path / "d", report, tmp_path) == expected

    def test_a_dataset_with_two_names_is_one(self, tmp_path: Path) -> None:
        def fill(file: Any) -> None:
            file["a/x"] = np.arange(100.0)
            file["b/z"] = file["a/x"]

        write_hdf5(tmp_path / "d/a.h5", fill)
        assert scanned(tmp_path / "d").manifest.sample_count == 1

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
        assert count_of("samples left out", report.notes) == 5  # never written
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
            ({"chunks": (4, 30, 40), "compression": "gzip"}, "chunk"),
            ({"chunks": (1, 30, 40), "compression": 4, "shuffle": True}, r"\(shuffle, deflate\)"),
            ({"chunks": (1, 30, 40), "fletcher32": True}, r"\(fletcher32\)"),
        ],
    )
    def test_anything_else_is_chunks_as_stored(
        self, tmp_path: Path, options: dict[str, Any], why: str
    ) -> None:
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
        assert re.match(f"chunks .*{why}.*: {len(expected)}$", note)
        assert report.manifest.spec.codec == "none"
        assert delivered(tmp_path / "d", report, tmp_path) == expected

    @pytest.mark.parametrize(
        ("options", "userblock"),
        [({}, 512), ({"chunks": (7,)}, 0), ({"chunks": (7,), "compression": "gzip"}, 512)],
    )
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
        assert len(report.notes) == 1
        assert count_of("empty samples", report.notes) == 5
        expected = [np.arange(number + 5, dtype=np.int16).tobytes() for number in range(0, 9, 2)]
        expected = [*photos, *expected, *(text.encode() for text in texts[1:])]
        assert delivered(tmp_path / "d", report, tmp_path) == expected

    def test_elements_in_a_way_that_is_not_followed(self, tmp_path: Path) -> None:
        def fill(file: Any) -> None:
            file.create_dataset("a", data=["text"] * 8, chunks=(4,), shuffle=True)
            texts = np.array([["x"] * 4] * 4, object)
            file.create_dataset("b", data=texts, dtype=h5py.string_dtype(), chunks=(2, 2))
            file.create_dataset("c", (3,), np.dtype([("n", "i4"), ("s", h5py.string_dtype())]))

        write_hdf5(tmp_path / "d/a.h5", fill)
        with pytest.raises(DatasetError, match=r"1 shard; datasets left out.*: 3"):
            scanned(tmp_path / "d")

    @pytest.mark.parametrize("alone", [False, True])
    def test_labels_are_no_samples(self, tmp_path: Path, alone: bool) -> None:
        def fill(file: Any) -> None:
            for number in range(0 if alone else 7):
                file[f"images/{number}"] = np.arange(900, dtype=np.uint8)
            file["labels"] = np.arange(7 * 9).reshape(7, 9)

        write_hdf5(tmp_path / "d/a.h5", fill)
        report = scanned(tmp_path / "d")
        assert report.manifest.sample_count == 7
        assert any("labels" in note for note in report.notes) == (not alone)

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
        """No file that others lie in is opened, and links and loops are not followed."""
        secret = tmp_path / "secret"
        secret.write_bytes(b"secret" * 100)
        write_hdf5(tmp_path / "other.h5", lambda file: file.create_dataset("x", data=[7] * 600))

        def fill(file: Any) -> None:
            file["plain"] = np.frombuffer(b"mine", np.uint8)
            file["link"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/x")
            file["soft"], file["loop"] = h5py.SoftLink("/plain"), file["/"]
            file.create_dataset("external", (600,), np.uint8, external=[(str(secret), 0, 600)])
            layout = h5py.VirtualLayout((600,), np.uint8)
            layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (600,))
            file.create_virtual_dataset("virtual", layout)
            file.create_dataset("references", (3,), h5py.ref_dtype)
            compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            compact.set_layout(h5py.h5d.COMPACT)
            space = h5py.h5s.create_simple((5,))
            h5py.h5d.create(file.id, b"compact", h5py.h5t.NATIVE_INT64, space, compact)

        write_hdf5(tmp_path / "d/a.h5", fill)
        report = scanned(tmp_path / "d")
        assert all(note.startswith("datasets left out") for note in report.notes)
        assert sorted(int(note.rpartition(": ")[2]) for note in report.notes) == [1, 1, 2]
        assert delivered(tmp_path / "d", report, tmp_path) == [b"mine"]


@pytest.mark.usefixtures("nothing_left")
class TestNpz:
    @pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
    def test_several_arrays(self, tmp_path: Path, write: Any) -> None:
        (tmp_path / "d").mkdir()
        expected = []
        for n in range(20):
            x, mask, label = RANDOM.random((20, 30 + n)), np.zeros((40, 50), np.uint8), np.array(n)
            write(tmp_path / f"d/{n:03d}.npz", x=x, mask=mask, label=label)
            expected.append(b"".join(each.tobytes() for each in (x, mask, label)))
        report = scanned(tmp_path / "d", checksums=True)
        assert report.manifest.spec.content == "arrays"
        assert len(report.notes) == 1  # of what a clone has in their place
        assert delivered(tmp_path / "d", report, tmp_path) == expected

    def test_objects_are_raw_bytes(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        np.savez(tmp_path / "d/a.npz", x=np.array([{"a": 1}], dtype=object))
        report = scanned(tmp_path / "d")
        assert report.manifest.spec.content == "raw"
        assert "never unpickled" in report.notes[0]
        assert delivered(tmp_path / "d", report, tmp_path) == [(tmp_path / "d/a.npz").read_bytes()]


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
        assert count_of("entries left out", report.notes) == 2
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
