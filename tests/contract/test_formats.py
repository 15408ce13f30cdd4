"""The contract of every registered format, and independent readers of what it writes."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.base.errors import UsageError
from iobench.data.dataset import index_file
from iobench.data.formats import FORMATS
from iobench.data.formats.base import Format
from iobench.data.generator.cleaner import clean
from iobench.data.scan.scanner import scan
from iobench.data.verify import verify
from iobench.load.build import make_loader
from iobench.load.choose import make_reader
from iobench.settings.workload import ReaderSpec
from iobench.storage.local.storage import LocalStorage
from iobench.testing.data import FormatContract, assembled, flipped_bits_are_found, packed
from tests.conftest import MakeDataset
from tests.datasets import generated

NAMES = sorted(FORMATS.entries())
SUFFIX = ".bin"


class TestFormats(FormatContract):
    @pytest.fixture(params=NAMES)
    def form(self, request: pytest.FixtureRequest) -> Format:
        return FORMATS.open(request.param)


@pytest.mark.parametrize("size", [1, 1300, 2020, 2022, 4081])
def test_samples_of_any_size_fit_into_the_map_of_lmdb(size: int) -> None:
    """Its size is fixed before the samples are known: many of those that fill pages worst."""
    samples = [bytes([number % 251]) * size for number in range(5000)]
    shard, offsets, stored = assembled(FORMATS.open("lmdb"), samples)
    assert stored == [size] * 5000
    assert [shard[at] for at in offsets] == [number % 251 for number in range(5000)]


# Datasets


@pytest.mark.parametrize(("name", "package"), [("hdf5", "h5py"), ("lmdb", "lmdb")])
def test_generating_names_the_extra(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError) as caught:
        generated(tmp_path / "x", format=name)
    assert f"'{package}'" in str(caught.value)
    assert f"[{name}]" in str(caught.value)
    assert not (tmp_path / "x").exists()


BY_LIBRARIES: dict[str, dict[str, Any]] = {
    "hdf5": {"format": "hdf5", "samples": 300, "sample_size": {"mean": 900}, "codec": "gzip"},
    "lmdb": {"format": "lmdb", "samples": 300, "sample_size": {"mean": 2500}},
}
"""Formats whose libraries write shards that other machines must find the same, and that are read
without them.
"""

AGAIN = """
import sys
from iobench.data.generator.engine import generate
from iobench.settings.dataset import DatasetSpec
from iobench.settings.workload import ReaderSpec
from iobench.storage.local.storage import LocalStorage
junk = [bytes([n]) * 5000 for n in range(200)]; del junk
for name, spec in {specs!r}.items():
    spec = DatasetSpec.model_validate({{"name": "demo", **spec}})
    generate(spec, LocalStorage(sys.argv[1] + "/" + name), workers=0)
"""


def test_the_same_spec_gives_the_same_bytes_in_another_process(
    make_dataset: MakeDataset, tmp_path: Path
) -> None:
    program = AGAIN.format(specs=BY_LIBRARIES)
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    for name, spec in BY_LIBRARIES.items():
        manifest, path = make_dataset(**spec)
        for key in manifest.keys():  # noqa: SIM118
            assert (path / key).read_bytes() == (tmp_path / name / key).read_bytes()


@pytest.mark.parametrize(("name", "package"), [("hdf5", "h5py"), ("lmdb", "lmdb")])
def test_reading_and_verifying_need_no_library(
    name: str, package: str, make_dataset: MakeDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, path = make_dataset(**BY_LIBRARIES[name])
    assert package not in vars(sys.modules[type(FORMATS.open(name)).__module__])
    monkeypatch.setitem(sys.modules, package, None)
    loader = make_loader(path, batch_size=9, loader={"workers": 0})
    assert sum(len(batch) for batch in loader) == 300
    loader.shutdown()
    assert verify(LocalStorage(path), manifest, workers=0).ok
    if name == "lmdb":  # whose tree is also walked without it
        found = scan(LocalStorage(path / "data"), workers=0).manifest
        for column in ("offset", "stored", "size"):
            assert (found.samples[column] == manifest.samples[column]).all()


@pytest.mark.parametrize(
    "spec",
    [
        {"format": "hdf5", "codec": "gzip"},
        {"format": "parquet", "block_size": 200, "columns": 2, "codec": "gzip"},
    ],
    ids=lambda spec: spec["format"],
)
def test_verify_finds_any_flipped_bit_of_what_is_compressed(
    spec: dict[str, Any], tmp_path: Path
) -> None:
    small = {"samples": 6, "sample_size": {"mean": 100}, "samples_per_shard": 3}
    flipped_bits_are_found(tmp_path, **spec, **small)


@pytest.mark.parametrize(("form", "codec"), [("hdf5", "none"), ("hdf5", "gzip"), ("lmdb", "none")])
def test_a_sample_of_an_assembled_shard_costs_its_own_bytes(
    make_dataset: MakeDataset, form: str, codec: str
) -> None:
    manifest, path = make_dataset(format=form, codec=codec)
    reader = make_reader(manifest, LocalStorage(path), ReaderSpec(direct=False), bytes_only=True)
    stats = reader.read(np.arange(60), None).stats
    reader.close()
    assert stats.sample_bytes == manifest.samples["stored"].sum()
    assert stats.sample_bytes <= stats.bytes_read < stats.sample_bytes + 60 * 8192


class TestTar:
    form = FORMATS.open("tar")

    def test_tarfile_reads_it(self) -> None:
        shard, _ = packed(self.form, [b"one", b"two" * 1000], first=41)
        with tarfile.open(fileobj=io.BytesIO(shard)) as archive:
            assert archive.getnames() == ["000000041.bin", "000000042.bin"]
            assert [archive.extractfile(m).read() for m in archive] == [b"one", b"two" * 1000]  # type: ignore[union-attr]

    @pytest.mark.parametrize("size", [8**11 - 1, 8**11])
    def test_sizes_above_8_gib(self, size: int) -> None:
        class Long:  # a sample of that length, without its bytes
            def __len__(self) -> int:
                return size

        info = tarfile.TarInfo.frombuf(self.form.frame(0, SUFFIX, Long()).head, "utf-8", "strict")
        assert info.size == size


def bitwise_crc32c(data: bytes) -> int:
    """The Castagnoli CRC from its definition (reflected polynomial 0x82F63B78), so as not to trust
    a library with itself.
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class TestMds:
    def test_some_shards_have_an_index_of_their_own(self, make_dataset: Any) -> None:
        """As the copy in memory needs it, over which a loader is measured without its storage."""
        manifest, root = make_dataset(format="mds", samples=25, samples_per_shard=10)
        found = index_file(manifest.part(np.array([2, 0])))
        assert found[0] == "data/index.json"
        shards = json.loads(found[1])["shards"]
        assert [shard["raw_data"]["basename"] for shard in shards] == [
            "demo-000002.mds",
            "demo-000000.mds",
        ]
        assert [shard["samples"] for shard in shards] == [5, 10]
        whole = json.loads((root / "data" / "index.json").read_text())
        assert (whole["version"], [whole["shards"][each] for each in (2, 0)]) == (2, shards)
        for shard in shards:
            size = (root / "data" / shard["raw_data"]["basename"]).stat().st_size
            assert shard["raw_data"]["bytes"] == size

    @pytest.mark.parametrize("damage", ["other", "shorter", "gone"])
    def test_a_damaged_index_is_found(self, tmp_path: Path, damage: str) -> None:
        manifest = generated(tmp_path, format="mds", samples=6, samples_per_shard=3)
        storage, index = LocalStorage(tmp_path), tmp_path / "data" / "index.json"
        assert verify(storage, manifest, workers=0).ok
        whole = index.read_bytes()
        if damage == "gone":
            index.unlink()
        else:
            index.write_bytes(whole[:-9] if damage == "shorter" else whole.replace(b"3", b"4"))
        (found,) = verify(storage, manifest, workers=0).damages
        assert (found.shard, found.sample) == ("data/index.json", None)

    def test_the_index_comes_back_and_goes(self, tmp_path: Path) -> None:
        """A start that was killed before its manifest is taken up again; clean takes the index
        along.
        """
        generated(tmp_path / "d", format="mds")
        (tmp_path / "d" / "manifest.json").unlink()
        index = tmp_path / "d" / "data" / "index.json"
        index.write_text("half of it")
        generated(tmp_path / "d", format="mds")
        assert sum(shard["samples"] for shard in json.loads(index.read_text())["shards"]) == 6
        clean(tmp_path / "d")
        assert list(tmp_path.iterdir()) == []


def masked(covered: bytes) -> bytes:
    """The CRC as TensorFlow writes it."""
    crc = bitwise_crc32c(covered)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


class TestTFRecord:
    form = FORMATS.open("tfrecord")

    def test_framing_is_what_tensorflow_documents(self) -> None:
        shard, _ = packed(self.form, [b"payload" * 9, b"x"])
        position = 0
        for _ in range(2):
            (length,) = struct.unpack_from("<Q", shard, position)
            data = shard[position + 12 : position + 12 + length]
            assert shard[position + 8 :][:4] == masked(shard[position : position + 8])
            assert shard[position + 12 + length :][:4] == masked(data)
            position += 12 + length + 4
        assert position == len(shard)
