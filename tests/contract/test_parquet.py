"""Parquet shards: pyarrow alone is the truth, reading is by row group, and what that costs is
counted.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import simplejpeg

from iobench.errors import CorruptSampleError, SpecError, UsageError
from iobench.generator.plan import plan_shards
from iobench.load import BatchLoader, make_loader, make_reader
from iobench.registry import FORMATS
from iobench.schema.base import build
from iobench.schema.dataset import DatasetSpec
from iobench.schema.manifest import Manifest
from iobench.schema.workload import ReaderSpec
from iobench.storage.local.storage import LocalStorage
from iobench.storage.simulated.memory import MemoryStorage
from iobench.verify import verify
from tests.pairs import pairs

pytestmark = pytest.mark.usefixtures("nothing_left")

TRANSPORTS = [("ring", 0), ("ring", 2), ("tensor", 2), ("thread", 2)]
SIZES = {"distribution": "lognormal", "mean": 3000, "sigma": 0.8, "min": 200, "max": 20_000}
PARQUET = FORMATS.open("parquet")


def rows(manifest: Manifest, path: Path) -> list[bytes]:
    """Every row's bytes, by pyarrow alone."""
    found = []
    for key in manifest.keys():  # noqa: SIM118
        table = pq.read_table(path / key, page_checksum_verification=True)
        found += [b"".join(row.values()) for row in table.to_pylist()]
    return found


@pytest.fixture
def load() -> Iterator[Any]:
    made: list[BatchLoader] = []

    def make(*arguments: Any, **more: Any) -> BatchLoader:
        made.append(make_loader(*arguments, **more))
        return made[-1]

    yield make
    for loader in made:
        loader.shutdown()


def taken(loader: BatchLoader) -> list[bytes]:
    found: dict[int, bytes] = {}
    for batch in loader:
        for index, sample in zip(batch.indices.tolist(), batch, strict=True):
            assert index not in found
            found[index] = sample.numpy().tobytes()
    return [found[index] for index in range(len(found))]


SPECS: list[dict[str, Any]] = [
    {"samples_per_shard": 23, "block_size": 60_000},
    {
        "samples_per_shard": 25,
        "sample_size": SIZES,
        "block_size": 9000,
        "codec": "zstd:1",
        "compress_ratio": 3,
    },
    {
        "sample_size": SIZES,
        "columns": 7,
        "block_size": 16_384,
        "codec": "lz4",
        "compress_ratio": 2,
    },
    {"sample_size": {"mean": 761}, "columns": 200, "block_size": 7610, "codec": "gzip"},
    {"content": "npz", "columns": 3, "codec": "zstd"},
    {"content": "jpeg", "block_size": 100_000, "samples_per_shard": 30},
]


@pytest.mark.parametrize(
    ("spec", "way", "access"), pairs(SPECS, TRANSPORTS, ["sequential", "random"])
)
def test_every_byte_is_right(
    make_dataset: Any, load: Any, spec: dict[str, Any], way: tuple[str, int], access: str
) -> None:
    transport, workers = way
    manifest, path = make_dataset(format="parquet", **spec)
    expected = rows(manifest, path)
    undo = {
        "raw": bytes,
        "npz": lambda data: np.load(io.BytesIO(data))["x"].tobytes(),
        "jpeg": lambda data: simplejpeg.decode_jpeg(data, "RGB").tobytes(),
    }[manifest.spec.content]
    for reader, truth in (
        ({}, undo),
        ({"decode": False, "check": "content"}, bytes),
        ({"check": "format"}, undo),
    ):
        loader = load(
            path,
            batch_size=7,
            seed=5,
            reader={"access": access, **reader},
            loader={"transport": transport, "workers": workers},
        )
        assert taken(loader) == [truth(row) for row in expected]


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("columns", [1, 40, 200])
def test_the_first_columns_are_the_first_bytes(
    make_dataset: Any, load: Any, columns: int, direct: bool
) -> None:
    """The shape of MLPerf's dlrm: 200 columns of 761 bytes, of which 40 columns (160 bytes) are
    read.
    """
    manifest, path = make_dataset(
        format="parquet",
        name="columns",
        sample_size={"mean": 761},
        columns=200,
        samples=3000,
        block_size=761 * 500,
        samples_per_shard=1500,
    )
    if direct and not LocalStorage(path).supports_direct(manifest.key(0)):
        pytest.skip("this file system has no O_DIRECT")
    expected = [row[: {1: 4, 40: 160, 200: 761}[columns]] for row in rows(manifest, path)]
    reader = {"columns": columns, "direct": direct, "access": "random"}
    assert taken(load(path, batch_size=500, reader=reader, loader={"workers": 0})) == expected
    one_by_one = make_reader(
        manifest, LocalStorage(path, direct=direct), ReaderSpec(columns=columns)
    )
    read = sum(
        one_by_one.read(np.arange(start, start + 100), None).stats.bytes_read
        for start in range(0, 3000, 100)
    )
    one_by_one.close()
    footers = 2 * 60_000  # of 3 row groups of 200 columns
    assert columns / 200 * 0.9 * manifest.header.sample_bytes < read
    # The first column chunks of a group, the footers, and what O_DIRECT reads around both.
    assert (
        read
        < manifest.header.stored_bytes * (columns / 200 + 0.05) + footers + (6 + 2) * 8192 * direct
    )


@pytest.mark.parametrize("crop", [10, 500, 5000])
def test_crop(make_dataset: Any, load: Any, crop: int) -> None:
    for spec in (
        {"sample_size": SIZES, "columns": 3},
        {"sample_size": {"mean": 700}, "columns": 3},
        {"sample_size": SIZES},
    ):
        manifest, path = make_dataset(format="parquet", block_size=20_000, **spec)
        expected = [row[:crop] for row in rows(manifest, path)]
        for check in ("none", "content"):
            assert (
                taken(
                    load(
                        path,
                        batch_size=9,
                        reader={"crop": crop, "check": check},
                        loader={"workers": 0},
                    )
                )
                == expected
            )


class TestAmplification:
    """200 rows of 2000 bytes in row groups of 10."""

    @pytest.fixture
    def data(self, make_dataset: Any) -> tuple[Manifest, Path]:
        return make_dataset(  # type: ignore[no-any-return]
            format="parquet",
            name="rows",
            samples=200,
            sample_size={"mean": 2000},
            block_size=20_000,
            samples_per_shard=100,
        )

    @staticmethod
    def cost(
        data: tuple[Manifest, Path], order: Any, batch: int = 1, **more: Any
    ) -> tuple[int, int]:
        manifest, path = data
        reader = make_reader(manifest, LocalStorage(path), ReaderSpec(direct=False), **more)
        stats = [
            reader.read(np.asarray(order[start : start + batch]), None).stats
            for start in range(0, len(order), batch)
        ]
        reader.close()
        return sum(s.bytes_read for s in stats), sum(s.sample_bytes for s in stats)

    @pytest.mark.parametrize("bytes_only", [False, True])
    def test_a_walk_reads_everything_once(
        self, data: tuple[Manifest, Path], bytes_only: bool
    ) -> None:
        manifest, _ = data
        assert len(set(manifest.samples["offset"][:100].tolist())) == 10
        for batch in (1, 7, 10, 200):
            read, stored = self.cost(data, np.arange(200), batch, bytes_only=bytes_only)
            assert (
                read == manifest.header.stored_bytes - 2 * 4
            )  # all but each file's PAR1 at its beginning
            assert read / stored == pytest.approx(1, abs=0.05)
            assert stored <= read

    @pytest.mark.parametrize("bytes_only", [False, True])
    def test_a_row_at_random_costs_its_group(
        self, data: tuple[Manifest, Path], bytes_only: bool
    ) -> None:
        order = np.arange(200).reshape(20, 10).T.reshape(-1)  # no two of a group follow each other
        read, stored = self.cost(data, order, bytes_only=bytes_only)
        assert read / stored == pytest.approx(10, rel=0.05)
        order = np.random.default_rng(0).permutation(200)
        read, stored = self.cost(data, order, bytes_only=bytes_only)
        assert 9 < read / stored < 10.5

    def test_within_a_batch_a_group_is_read_once(self, data: tuple[Manifest, Path]) -> None:
        order = np.random.default_rng(0).permutation(200)
        assert self.cost(data, order, 200) == self.cost(data, np.arange(200), 200)

    def test_a_second_epoch_reads_again(self, make_dataset: Any) -> None:
        """A single row group must not be kept for good: its bytes would come from nowhere."""
        data = make_dataset(format="parquet", samples=10, sample_size={"mean": 2000})
        for order in (np.tile(np.arange(10), 3), np.tile(np.arange(10)[::-1], 3)):
            for batch in (1, 5, 10):
                read, stored = self.cost(data, order, batch)
                assert read >= stored

    def test_compressed_samples_count_as_stored(self, make_dataset: Any) -> None:
        data = make_dataset(
            format="parquet",
            samples=60,
            compress_ratio=4,
            codec="zstd:1",
            block_size=200_000,
            samples_per_shard=30,
        )
        read, stored = self.cost(data, np.arange(60))
        assert stored <= read <= data[0].header.stored_bytes
        assert read / stored == pytest.approx(1, abs=0.05)
        assert stored < 0.5 * data[0].header.sample_bytes


class TestDamage:
    @pytest.fixture
    def copy(self, make_dataset: Any, tmp_path: Path) -> tuple[Manifest, Path]:
        manifest, path = make_dataset(
            format="parquet", name="damage", block_size=60_000, samples_per_shard=20
        )
        shutil.copytree(path, tmp_path / "copy")
        return manifest, tmp_path / "copy"

    @staticmethod
    def read(data: tuple[Manifest, Path], **reader: Any) -> None:
        made = make_reader(data[0], LocalStorage(data[1]), ReaderSpec(direct=False, **reader))
        try:
            made.read(np.arange(60), None)
        finally:
            made.close()

    @staticmethod
    def one_line(caught: Any) -> None:
        assert "\n" not in str(caught.value)
        assert "Traceback" not in str(caught.value)

    @pytest.mark.parametrize(
        ("where", "why"),
        [
            ("magic", "no PAR1 at its end"),
            ("length", "the Parquet footer is damaged: it claims"),
            ("start", "the Parquet footer is damaged: "),
            ("offset", "row group 6 is damaged: "),
        ],
    )
    def test_a_corrupt_footer(self, copy: tuple[Manifest, Path], where: str, why: str) -> None:
        file = copy[1] / copy[0].key(1)
        data = bytearray(file.read_bytes())
        start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        if (
            where == "offset"
        ):  # of the last row group's column chunk, in thrift's variable-length integers
            offset, code = int(copy[0].samples["offset"][39]) << 1, b""
            while offset:
                code += bytes([offset & 127 | (128 if offset > 127 else 0)])
                offset >>= 7
            assert code in data[start:]
            data[start:] = data[start:].replace(code, b"\xfe" * (len(code) - 1) + b"\x7e")
        else:
            at = {"magic": len(data) - 1, "length": len(data) - 6, "start": start}[where]
            data[at] ^= 0xFF
        file.write_bytes(data)
        for reader in ({}, {"check": "content"}):
            with pytest.raises(
                CorruptSampleError,
                match=rf"sample \d+ in shard {copy[0].key(1)} is damaged: .*({why})",
            ) as caught:
                self.read(copy, **reader)
            self.one_line(caught)
        report = verify(LocalStorage(copy[1]), copy[0], workers=0)
        assert {damage.shard for damage in report.damages} == {copy[0].key(1)}

    @pytest.mark.slow
    @pytest.mark.parametrize("codec", ["none", "gzip"])
    def test_no_byte_of_a_footer_ends_the_process(self, make_dataset: Any, codec: str) -> None:
        """pyarrow itself does so where a chunk's description doesn't add up (26.0: its
        histograms).
        """
        manifest, path = make_dataset(
            format="parquet",
            samples=4,
            sample_size={"mean": 50},
            block_size=100,
            columns=2,
            codec=codec,
        )
        shard = bytearray((path / manifest.key(0)).read_bytes())
        storage = MemoryStorage(objects={manifest.key(0): memoryview(shard)})
        damaged = 0
        for position in range(
            int(manifest.samples["offset"][3] + manifest.samples["stored"][3]), len(shard)
        ):
            right = shard[position]
            for wrong in (0, 0xFF, right ^ 1, right ^ 0x10):
                shard[position] = wrong
                for columns in (1, 2):
                    reader = make_reader(manifest, storage, ReaderSpec(columns=columns))
                    try:
                        reader.read(np.arange(4), None)
                    except CorruptSampleError as error:
                        assert "\n" not in str(error)  # noqa: PT017
                        damaged += 1
                    reader.close()
                list_or_error(shard)
            shard[position] = right
        assert damaged > 100

    def test_what_is_no_parquet_at_all(self, copy: tuple[Manifest, Path]) -> None:
        file = copy[1] / copy[0].key(0)
        size = file.stat().st_size
        file.write_bytes(b"plain text\n" * (size // 11) + b"x" * (size % 11))
        for bytes_only in (False, True):
            reader = make_reader(
                copy[0], LocalStorage(copy[1]), ReaderSpec(), bytes_only=bytes_only
            )
            with pytest.raises(CorruptSampleError, match="no PAR1 at its end") as caught:
                reader.read(np.arange(5), None)
            reader.close()
            self.one_line(caught)
        report = verify(LocalStorage(copy[1]), copy[0], workers=0)
        assert [damage.shard for damage in report.damages] == [copy[0].key(0)]
        assert "PAR1" in report.damages[0].what

    def test_a_footer_of_another_shard(
        self, copy: tuple[Manifest, Path], make_dataset: Any
    ) -> None:
        manifest, path = make_dataset(
            format="parquet", name="damage", block_size=60_000, samples_per_shard=30
        )
        (copy[1] / copy[0].key(2)).write_bytes((path / manifest.key(1)).read_bytes())
        with pytest.raises(CorruptSampleError) as caught:
            self.read(copy)
        self.one_line(caught)

    def test_a_flipped_page_bit(self, copy: tuple[Manifest, Path]) -> None:
        file = copy[1] / copy[0].key(1)
        data = bytearray(file.read_bytes())
        offset = int(copy[0].samples["offset"][25])
        data[offset + int(copy[0].samples["stored"][25]) // 2] ^= 4
        file.write_bytes(data)
        self.read(copy)  # nobody asked
        with pytest.raises(
            CorruptSampleError, match=r"row group \d+ is damaged: .*(CRC|crc|checksum)"
        ) as caught:
            self.read(copy, check="format")
        self.one_line(caught)
        with pytest.raises(CorruptSampleError, match="manifest"):
            self.read(copy, check="content")
        report = verify(LocalStorage(copy[1]), copy[0], workers=0)
        assert len(report.damages) == 1
        assert report.damages[0].shard == copy[0].key(1)

    def test_verify_finds_any_flipped_bit(self, make_dataset: Any) -> None:
        manifest, path = make_dataset(
            format="parquet",
            samples=6,
            sample_size={"mean": 100},
            samples_per_shard=3,
            block_size=200,
            columns=2,
            codec="gzip",
        )
        objects = {key: bytearray((path / key).read_bytes()) for key in manifest.keys()}  # noqa: SIM118
        storage = MemoryStorage(objects={key: memoryview(data) for key, data in objects.items()})
        assert verify(storage, manifest, workers=0).ok
        shard = objects[manifest.key(1)]
        for position in range(0, len(shard), 3):
            shard[position] ^= 16
            assert {damage.shard for damage in verify(storage, manifest, workers=0).damages} == {
                manifest.key(1)
            }, position
            shard[position] ^= 16
        assert verify(storage, manifest, workers=0).ok

    def test_a_shard_that_is_cut(self, copy: tuple[Manifest, Path]) -> None:
        file = copy[1] / copy[0].key(1)
        file.write_bytes(file.read_bytes()[:-3])
        report = verify(LocalStorage(copy[1]), copy[0], workers=0)
        assert "truncated" in report.damages[0].what
        file.write_bytes(b"")
        assert not verify(LocalStorage(copy[1]), copy[0], workers=0).ok


class TestRefused:
    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"columns": 6000}, "sample_size.min"),
            (
                {
                    "columns": 3,
                    "sample_size": {"distribution": "lognormal", "mean": 100, "sigma": 1},
                },
                "set sample_size.min",
            ),
            ({"codec": "lz4:4"}, "codec: lz4"),
            ({"sample_size": {"mean": "2GiB"}, "samples": 1}, "samples of up to 1 GiB"),
        ],
    )
    def test_by_its_spec(self, change: dict[str, Any], why: str) -> None:
        full = {
            "name": "x",
            "samples": 10,
            "sample_size": {"mean": 5000},
            "format": "parquet",
            **change,
        }
        with pytest.raises(SpecError, match=why) as caught:
            plan_shards(build(DatasetSpec, full, where="test"))
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("spec", "reader", "why"),
        [
            ({"format": "tar"}, {"columns": 2}, "'tar'"),
            ({"format": "parquet"}, {"columns": 2}, r"columns is 2\b.*\b1 column"),
            (
                {"format": "parquet", "columns": 3},
                {"columns": 2, "check": "content"},
                "check=content",
            ),
            (
                {"format": "parquet", "columns": 3, "content": "npz"},
                {"columns": 2},
                "npz",
            ),
        ],
    )
    def test_by_its_reader(
        self, make_dataset: Any, spec: dict[str, Any], reader: dict[str, Any], why: str
    ) -> None:
        manifest, path = make_dataset(**spec)
        with pytest.raises(UsageError, match=why) as caught:
            make_reader(manifest, LocalStorage(path), ReaderSpec(**reader))
        assert "\n" not in str(caught.value)


def list_or_error(shard: bytearray) -> None:
    try:
        list(PARQUET.unpack(memoryview(shard), check=True))
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017


def foreign(table: pa.Table, **more: Any) -> list[bytes]:
    out = io.BytesIO()
    pq.write_table(table, out, **more)
    return [bytes(sample) for sample in PARQUET.unpack(memoryview(out.getvalue()), check=True)]


class TestForeign:
    """Files of other writers: Hugging Face's images in structs, text, numbers only."""

    IMAGES = tuple(bytes([number]) * (100 + number) for number in range(50))

    @pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
    @pytest.mark.parametrize("version", ["1.0", "2.0"])
    def test_images_in_a_struct(self, compression: str, version: str) -> None:
        images = [
            {"bytes": image, "path": f"{number}.jpg"} for number, image in enumerate(self.IMAGES)
        ]
        table = pa.table({"label": list(range(50)), "text": ["a"] * 50, "image": images})
        found = foreign(table, row_group_size=8, compression=compression, data_page_version=version)
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
        assert foreign(pa.table({"n": range(12), "x": column}), row_group_size=5) == [
            value or b"" for value in values
        ]

    def test_fixed_lengths(self) -> None:
        assert foreign(pa.table({"x": pa.array([b"abcd", b"efgh", None], pa.binary(4))})) == [
            b"abcd",
            b"efgh",
            b"",
        ]

    def test_text_where_nothing_is_binary(self) -> None:
        assert foreign(pa.table({"n": [1, 2], "text": ["grün", ""]})) == ["grün".encode(), b""]

    def test_row_groups_where_there_are_only_numbers(self) -> None:
        table = pa.table({"a": np.arange(1000), "tokens": [list(range(5))] * 1000})
        out = io.BytesIO()
        pq.write_table(table, out, row_group_size=300)
        found = [bytes(sample) for sample in PARQUET.unpack(memoryview(out.getvalue()), check=True)]
        assert len(found) == 4
        assert b"".join(found) in out.getvalue()

    def test_an_empty_file(self) -> None:
        assert foreign(pa.table({"x": pa.array([], pa.binary())})) == []

    def test_encrypted_or_old_magic(self) -> None:
        with pytest.raises(ValueError, match="encrypted"):
            list(PARQUET.unpack(memoryview(b"PAR1" + bytes(100) + b"PARE"), check=False))


def test_a_failing_storage_leaves_no_shard_and_one_clear_error(tmp_path: Path) -> None:
    from contextlib import contextmanager

    from iobench.errors import StorageError
    from iobench.generator.writer import UnitWriter

    class Full(LocalStorage):
        @contextmanager
        def create(self, key: str, **more: Any) -> Iterator[Any]:
            with super().create(key, **more) as sink:
                written = 0

                class Sink:
                    def write(self, data: Any) -> None:
                        nonlocal written
                        written += len(data)
                        if written > 100_000:
                            raise OSError(28, "No space left on device")
                        sink.write(data)

                yield Sink()

    spec = build(
        DatasetSpec,
        {
            "name": "x",
            "samples": 20,
            "sample_size": {"mean": 20_000},
            "format": "parquet",
            "block_size": 50_000,
        },
        where="test",
    )
    storage = Full(tmp_path / "x")
    with pytest.raises(StorageError, match="No space left on device"):
        UnitWriter(spec, plan_shards(spec), storage).write(0)
    assert not [path for path in (tmp_path / "x").rglob("*") if path.is_file()]
