"""Parquet shards: row groups and what they cost, columns, damage, and files of other writers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.base.errors import CorruptSampleError, UsageError
from iobench.data.verify import verify
from iobench.load.choose import make_reader
from iobench.record.manifest import Manifest
from iobench.settings.workload import ReaderSpec
from iobench.storage.local.storage import LocalStorage
from iobench.storage.simulated.memory import MemoryStorage
from tests.conftest import MakeDataset
from tests.contract.conftest import Load
from tests.contract.truth import in_order, stored

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.parametrize(("columns", "direct"), [(1, True), (40, False), (200, False)])
def test_the_first_columns_are_the_first_bytes(
    make_dataset: MakeDataset, load: Load, columns: int, direct: bool
) -> None:
    """The shape of MLPerf's dlrm: 200 columns of 761 bytes, of which 40 columns (160 bytes) are
    read.
    """
    manifest, path = make_dataset(
        format="parquet",
        name="columns",
        sample_size={"mean": 761},
        columns=200,
        samples=1200,
        block_size=761 * 200,
        samples_per_shard=600,
    )
    if direct and not LocalStorage(path).supports_direct(manifest.key(0)):
        pytest.skip("this file system has no O_DIRECT")
    expected = [row[: {1: 4, 40: 160, 200: 761}[columns]] for row in stored(manifest, path)]
    reader = {"columns": columns, "direct": direct, "access": "random"}
    assert in_order(load(path, batch_size=200, reader=reader)) == expected
    one_by_one = make_reader(
        manifest, LocalStorage(path, direct=direct), ReaderSpec(columns=columns)
    )
    read = sum(
        one_by_one.read(np.arange(start, start + 100), None).stats.bytes_read
        for start in range(0, 1200, 100)
    )
    one_by_one.close()
    footers = 2 * 60_000  # of 3 row groups of 200 columns
    assert columns / 200 * 0.9 * manifest.header.sample_bytes < read
    # The first column chunks of a group, the footers, and what O_DIRECT reads around both.
    assert (
        read
        < manifest.header.stored_bytes * (columns / 200 + 0.05) + footers + (6 + 2) * 8192 * direct
    )


class TestAmplification:
    """200 rows of 2000 bytes in row groups of 10."""

    @pytest.fixture
    def data(self, make_dataset: MakeDataset) -> tuple[Manifest, Path]:
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

    def test_a_second_epoch_reads_again(self, make_dataset: MakeDataset) -> None:
        """A single row group must not be kept for good: its bytes would come from nowhere."""
        data = make_dataset(format="parquet", samples=10, sample_size={"mean": 2000})
        for order in (np.tile(np.arange(10), 3), np.tile(np.arange(10)[::-1], 3)):
            for batch in (1, 5, 10):
                read, stored = self.cost(data, order, batch)
                assert read >= stored

    def test_compressed_samples_count_as_stored(self, make_dataset: MakeDataset) -> None:
        packed = {"block_size": 200_000, "samples_per_shard": 30}
        data = make_dataset(format="parquet", compress_ratio=4, codec="zstd:1", **packed)
        read, stored = self.cost(data, np.arange(60))
        assert stored <= read <= data[0].header.stored_bytes
        assert read / stored == pytest.approx(1, abs=0.05)
        assert stored < 0.5 * data[0].header.sample_bytes


class TestDamage:
    @pytest.fixture
    def copy(self, make_dataset: MakeDataset, tmp_path: Path) -> tuple[Manifest, Path]:
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

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("codec", "step"),
        [
            ("none", 9),
            pytest.param("none", 1, marks=pytest.mark.nightly),
            pytest.param("gzip", 1, marks=pytest.mark.nightly),
        ],
    )
    def test_no_byte_of_a_footer_ends_the_process(
        self, make_dataset: MakeDataset, codec: str, step: int
    ) -> None:
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
            int(manifest.samples["offset"][3] + manifest.samples["stored"][3]), len(shard), step
        ):
            right = shard[position]
            for wrong in (0, 0xFF, right ^ 1, right ^ 0x10):
                shard[position] = wrong
                for columns in (1, 2):
                    reader = make_reader(manifest, storage, ReaderSpec(columns=columns))
                    try:
                        reader.read(np.arange(4), None)
                    except CorruptSampleError:
                        damaged += 1
                    reader.close()
            shard[position] = right
        assert damaged > 100 // step

    def test_a_flipped_page_bit(self, copy: tuple[Manifest, Path]) -> None:
        file = copy[1] / copy[0].key(1)
        data = bytearray(file.read_bytes())
        offset = int(copy[0].samples["offset"][25])
        data[offset + int(copy[0].samples["stored"][25]) // 2] ^= 4
        file.write_bytes(data)
        self.read(copy)  # nobody asked
        with pytest.raises(
            CorruptSampleError, match=r"row group \d+ is damaged: .*(CRC|crc|checksum)"
        ):
            self.read(copy, check="format")
        with pytest.raises(CorruptSampleError, match="manifest"):
            self.read(copy, check="content")
        report = verify(LocalStorage(copy[1]), copy[0], workers=0)
        assert len(report.damages) == 1
        assert report.damages[0].shard == copy[0].key(1)


@pytest.mark.parametrize(
    ("spec", "reader", "why"),
    [
        ({"format": "tar"}, {"columns": 2}, "'tar'"),
        ({"format": "parquet"}, {"columns": 2}, "columns is 2"),
        ({"format": "parquet", "columns": 3}, {"columns": 2, "check": "content"}, "check=content"),
        ({"format": "parquet", "columns": 3, "content": "npz"}, {"columns": 2}, "npz"),
    ],
)
def test_columns_that_can_not_be_read_are_refused(
    make_dataset: MakeDataset, spec: dict[str, Any], reader: dict[str, Any], why: str
) -> None:
    manifest, path = make_dataset(**spec)
    with pytest.raises(UsageError, match=why):
        make_reader(manifest, LocalStorage(path), ReaderSpec(**reader))
