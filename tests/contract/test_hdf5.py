"""HDF5 shards: h5py alone is the truth; reading them takes one range each, and no h5py."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import simplejpeg

from iobench.errors import CorruptSampleError, SpecError, UsageError
from iobench.generator import generate
from iobench.generator.plan import plan_shards
from iobench.load import BatchLoader, make_loader, make_reader
from iobench.registry import FORMATS, Entry, Registry
from iobench.schema.base import build
from iobench.schema.dataset import DatasetSpec
from iobench.schema.manifest import Manifest
from iobench.schema.workload import ReaderSpec
from iobench.storage.local.storage import LocalStorage
from iobench.storage.simulated.memory import MemoryStorage
from iobench.verify import verify

pytestmark = pytest.mark.usefixtures("nothing_left")

TRANSPORTS = [("ring", 0), ("ring", 2), ("tensor", 2), ("thread", 2)]
SIZES = {"distribution": "lognormal", "mean": 3000, "sigma": 0.8, "min": 200, "max": 20_000}
HDF5 = FORMATS.open("hdf5")
DECODE = {
    "raw": bytes,
    "npz": lambda data: np.load(io.BytesIO(data))["x"].tobytes(),
    "jpeg": lambda data: simplejpeg.decode_jpeg(data, "RGB").tobytes(),
}


def datasets(manifest: Manifest, path: Path) -> list[bytes]:
    """Every dataset's bytes, in the order of their names, by h5py alone."""
    found = []
    for key in manifest.keys():  # noqa: SIM118
        with h5py.File(path / key) as file:
            assert list(file) == sorted(file)
            for name in file:
                assert file[name].compression == (None if manifest.spec.codec == "none" else "gzip")
                assert file[name].chunks == (
                    None if manifest.spec.codec == "none" else file[name].shape
                )
                found.append(file[name][:].tobytes())
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
        found.update(
            (i, sample.numpy().tobytes())
            for i, sample in zip(batch.indices.tolist(), batch, strict=True)
        )
    return [found[index] for index in range(len(found))]


@pytest.mark.parametrize(("transport", "workers"), TRANSPORTS)
@pytest.mark.parametrize(
    "spec",
    [
        {"samples_per_shard": 13},
        {"samples_per_shard": 1, "sample_size": {"mean": 70_000}},
        {"sample_size": SIZES, "codec": "gzip:1", "compress_ratio": 3},
        {"sample_size": {"mean": 30}, "samples": 500},
        {"content": "npz", "codec": "gzip"},
        {"content": "jpeg", "samples_per_shard": 30},
    ],
    ids=lambda spec: "-".join(str(value) for value in spec.values()),
)
def test_every_byte_is_right(
    make_dataset: Any, load: Any, spec: dict[str, Any], transport: str, workers: int
) -> None:
    manifest, path = make_dataset(format="hdf5", **spec)
    expected = datasets(manifest, path)
    assert len(expected) == manifest.sample_count
    assert verify(LocalStorage(path), manifest, workers=0).ok
    for reader, truth in (
        ({"access": "random"}, DECODE[manifest.spec.content]),
        ({"access": "sequential", "check": "content"}, DECODE[manifest.spec.content]),
        ({"decode": False, "check": "format"}, bytes),
    ):
        loader = load(
            path,
            batch_size=7,
            seed=5,
            reader=reader,
            loader={"transport": transport, "workers": workers},
        )
        assert taken(loader) == [truth(data) for data in expected]


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_the_stored_bytes_are_where_the_manifest_says(make_dataset: Any, codec: str) -> None:
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


def test_the_same_spec_gives_the_same_bytes_in_another_process(
    make_dataset: Any, tmp_path: Path
) -> None:
    spec = {
        "samples": 300,
        "sample_size": {"distribution": "lognormal", "mean": 900, "sigma": 1.0},
        "format": "hdf5",
        "codec": "gzip",
    }
    manifest, path = make_dataset(**spec)
    program = (
        "import sys; from iobench.generator import generate; from iobench.schema.dataset import "
        "DatasetSpec;"
        "from iobench.storage.local.storage import LocalStorage;"
        f"generate(DatasetSpec.model_validate({dict(spec, name='demo')!r}), "
        "LocalStorage(sys.argv[1]), workers=1)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "again")], check=True)
    for key in manifest.keys():  # noqa: SIM118
        assert (path / key).read_bytes() == (tmp_path / "again" / key).read_bytes()


def test_reading_needs_no_h5py(make_dataset: Any) -> None:
    """And so do planning and verifying: the format's class is imported for its attributes, h5py
    only to build and to look inside.
    """
    _, path = make_dataset(format="hdf5", codec="gzip")
    program = (
        "import sys; sys.modules['h5py'] = None\n"
        "from iobench.load import make_loader; from iobench.verify import verify; from "
        "iobench.dataset import load_manifest\n"
        "from iobench.storage.local.storage import LocalStorage\n"
        "root = sys.argv[1]\n"
        "assert sum(len(b) for b in make_loader(root, batch_size=9, loader={'workers': 0})) == 60\n"
        "assert verify(LocalStorage(root), load_manifest(root), workers=0).ok\n"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)


def test_generating_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    spec = build(
        DatasetSpec,
        {"name": "x", "samples": 3, "sample_size": {"mean": 100}, "format": "hdf5"},
        where="test",
    )
    with pytest.raises(
        UsageError, match=r"format 'hdf5' needs the Python package 'h5py'.*\[hdf5\]"
    ) as caught:
        generate(spec, LocalStorage(tmp_path / "x"), workers=0)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"codec": "zstd:1"}, "'zstd'"),
        ({"codec": "lz4"}, "'lz4'"),
        ({"samples_per_shard": 300_000}, r"2 GiB, .*5\.6 GiB; lower samples_per_shard"),
        ({"shard_size": "3GiB"}, r"2 GiB, .*3\.0 GiB"),
        ({"columns": 2}, "has no columns"),
    ],
)
def test_what_it_can_not_hold_is_refused(change: dict[str, Any], why: str) -> None:
    spec = build(
        DatasetSpec,
        {"name": "x", "samples": 10, "sample_size": {"mean": 20_000}, "format": "hdf5", **change},
        where="test",
    )
    with pytest.raises(SpecError, match=why) as caught:
        plan_shards(spec)
    assert "\n" not in str(caught.value)


class TestDamage:
    @pytest.fixture
    def copy(self, make_dataset: Any, tmp_path: Path) -> tuple[Manifest, Path]:
        manifest, path = make_dataset(format="hdf5", codec="gzip:1", samples_per_shard=20)
        shutil.copytree(path, tmp_path / "copy")
        return manifest, tmp_path / "copy"

    def test_a_shard_that_is_no_hdf5(self, copy: tuple[Manifest, Path]) -> None:
        manifest, path = copy
        file = path / manifest.key(1)
        file.write_bytes(b"plain text " * (file.stat().st_size // 11 + 1))
        reader = make_reader(manifest, LocalStorage(path), ReaderSpec())
        with pytest.raises(
            CorruptSampleError,
            match=r"sample 20 in shard .*000001\.h5 is damaged: not a valid gzip stream",
        ) as caught:
            reader.read(np.arange(60), None)
        reader.close()
        assert "\n" not in str(caught.value)
        assert {
            damage.shard for damage in verify(LocalStorage(path), manifest, workers=0).damages
        } == {manifest.key(1)}

    @pytest.mark.parametrize("codec", ["none", "gzip"])
    def test_verify_finds_any_flipped_bit(self, make_dataset: Any, codec: str) -> None:
        manifest, path = make_dataset(
            format="hdf5", samples=6, sample_size={"mean": 100}, samples_per_shard=3, codec=codec
        )
        objects = {key: bytearray((path / key).read_bytes()) for key in manifest.keys()}  # noqa: SIM118
        storage = MemoryStorage(objects={key: memoryview(data) for key, data in objects.items()})
        assert verify(storage, manifest, workers=0).ok
        shard = objects[manifest.key(1)]
        for position in range(0, len(shard), 7):
            shard[position] ^= 16
            assert {damage.shard for damage in verify(storage, manifest, workers=0).damages} == {
                manifest.key(1)
            }, position
            shard[position] ^= 16
        assert verify(storage, manifest, workers=0).ok


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

    @pytest.mark.parametrize(
        "data", [b"", b"\x89HDF\r\n\x1a\n", b"\x89HDF\r\n\x1a\n" + bytes(3000), b"PAR1" * 100]
    )
    def test_what_is_no_hdf5(self, data: bytes) -> None:
        with pytest.raises(ValueError, match=r"signature|is damaged") as caught:
            list(HDF5.unpack(memoryview(data), check=True))
        assert "\n" not in str(caught.value)


def test_the_registry_knows_the_extra() -> None:
    entry = FORMATS.entries()["hdf5"]
    assert entry.extra == "hdf5"
    broken = Registry(
        "format", "none", {"hdf5": Entry(target="no_such_module:X", summary="", extra="hdf5")}
    )
    with pytest.raises(UsageError, match=r"pip install .*\[hdf5\]"):
        broken.load("hdf5")
