"""HDF5 shards: their bytes are where the manifest says, and files of other writers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from iobench.errors import CorruptSampleError
from iobench.load import make_reader
from iobench.registry import FORMATS
from iobench.schema.workload import ReaderSpec
from iobench.storage.local.storage import LocalStorage
from tests.conftest import MakeDataset

HDF5 = FORMATS.open("hdf5")


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_the_stored_bytes_are_where_the_manifest_says(
    make_dataset: MakeDataset, codec: str
) -> None:
    manifest, path = make_dataset(format="hdf5", codec=codec, compress_ratio=2)
    for key in manifest.keys():  # noqa: SIM118
        with h5py.File(path / key) as file:
            for place, name in enumerate(file):
                dataset = file[name]
                assert int(name) == place
                if codec == "none":
                    where = (dataset.id.get_offset(), dataset.size)
                else:
                    where = (
                        dataset.id.get_chunk_info(0).byte_offset,
                        dataset.id.get_chunk_info(0).size,
                    )
                assert where == (
                    manifest.samples["offset"][place],
                    manifest.samples["stored"][place],
                )
    reader = make_reader(manifest, LocalStorage(path), ReaderSpec(direct=False), bytes_only=True)
    stats = reader.read(np.arange(60), None).stats
    reader.close()
    assert stats.sample_bytes == manifest.samples["stored"].sum()
    assert stats.sample_bytes <= stats.bytes_read < stats.sample_bytes + 60 * 8192


def test_a_shard_that_is_no_hdf5_is_told_by_its_sample(
    make_dataset: MakeDataset, tmp_path: Path
) -> None:
    manifest, path = make_dataset(format="hdf5", codec="gzip:1", samples_per_shard=20)
    for key in manifest.keys():  # noqa: SIM118
        (tmp_path / key).parent.mkdir(exist_ok=True)
        (tmp_path / key).write_bytes((path / key).read_bytes())
    file = tmp_path / manifest.key(1)
    file.write_bytes(b"plain text " * (file.stat().st_size // 11 + 1))
    reader = make_reader(manifest, LocalStorage(tmp_path), ReaderSpec())
    with pytest.raises(CorruptSampleError, match=r"sample 20 in shard .*000001\.h5") as caught:
        reader.read(np.arange(60), None)
    reader.close()
    assert "\n" not in str(caught.value)


def foreign(fill: Any) -> list[bytes]:
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        fill(file)
    return [bytes(sample) for sample in HDF5.unpack(memoryview(out.getvalue()), check=True)]


class TestForeign:
    """Files of other writers."""

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
        found = foreign(
            lambda file: file.create_dataset("climate/data", data=self.CUBES, **options)
        )
        assert found == [cube.tobytes() for cube in self.CUBES]

    def test_one_dimension_is_one_sample(self) -> None:
        assert foreign(lambda file: file.create_dataset("x", data=np.arange(10))) == [
            np.arange(10).tobytes()
        ]
        assert foreign(lambda file: file.create_dataset("x", data=7.0)) == [
            np.float64(7.0).tobytes()
        ]

    def test_elements_of_their_own_length(self) -> None:
        def images(file: Any) -> None:
            data = file.create_dataset("images", (3,), dtype=h5py.vlen_dtype(np.uint8))
            for number in range(3):
                data[number] = np.full(10 + number, number, np.uint8)
            file["text"] = ["one", "zwö"]

        assert foreign(images) == [bytes(10), b"\1" * 11, b"\2" * 12, b"one", "zwö".encode()]

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

        assert foreign(links) == [b"mine"]

    def test_a_claim_is_not_believed(self) -> None:
        with pytest.raises(ValueError, match=r"claims 1000000000000000 bytes in 0 stored"):
            foreign(lambda file: file.create_dataset("x", (10**15,), np.uint8, chunks=(1 << 20,)))
        assert (
            foreign(lambda file: file.create_dataset("x", (0, 5), np.uint8, maxshape=(None, 5)))
            == []
        )
        assert foreign(lambda file: file.create_dataset("x", data=h5py.Empty("f4"))) == []
