"""A few kilobytes never take gigabytes, whatever they claim."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import lz4.frame
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from iobench.base import buffers
from iobench.base.errors import DatasetError, IobenchError, NoMemoryError
from iobench.base.limits import ALWAYS_FITS, MAX_NPY_HEADER, MAX_PAX_HEADER
from iobench.data.codecs import CODECS
from iobench.data.contents import CONTENTS
from iobench.data.formats.tfrecord import masked_crc
from iobench.data.scan.scanner import scan
from iobench.data.verify import verify
from iobench.host.timeline import read_events, write_events
from iobench.load.build import make_loader
from iobench.load.choose import make_reader
from iobench.record.manifest import Manifest
from iobench.record.tables import check_claims
from iobench.record.training import EVENT_COLUMNS
from iobench.settings.workload import ReaderSpec
from iobench.storage.files import ReadWindow
from iobench.storage.local.storage import LocalStorage
from iobench.storage.simulated.memory import MemoryStorage
from tests.children import in_child

LITTLE = 3 * ALWAYS_FITS


def memory(**objects: bytes) -> MemoryStorage:
    return MemoryStorage(objects={k.replace("_", "."): memoryview(v) for k, v in objects.items()})


# npz


def npz(header: bytes, length: int, version: int, claimed: int = 0) -> bytes:
    """A deflated npz of one member whose npy header is ``length`` bytes long, or claims to be."""
    out = io.BytesIO()
    pack = "<I" if version > 1 else "<H"
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        begin = b"\x93NUMPY" + bytes([version, 0]) + struct.pack(pack, claimed or length)
        archive.writestr("x.npy", begin + header.ljust(length))
    return out.getvalue()


HEADER = b"{'descr': '|u1', 'fortran_order': False, 'shape': (0,), }"


@pytest.mark.parametrize(
    "given",
    [
        (HEADER, MAX_NPY_HEADER + 1, 2),
        (HEADER, 64 << 20, 2),
        (HEADER, 100, 2, 0xFFFFFFFF),
        (b"(" * 9000, 9000, 1),
        (b"-" * 9000 + b"1", 9001, 1),
        (b"[" * 5000 + b"]" * 5000, 10_000, 2),
    ],
    ids=["just too long", "64 MiB", "claims 4 GiB", "parentheses", "minus", "lists"],
)
def test_headers_of_arrays(given: tuple[Any, ...]) -> None:
    data = npz(*given)
    content = CONTENTS.open("arrays")

    def decoded() -> None:
        with pytest.raises(ValueError):
            content.decoded_bytes(memoryview(data))

    assert in_child(decoded).extra_bytes < 32 << 20
    ended = in_child(lambda: scan(memory(a_npz=data), workers=0).notes)
    assert "a.npz" in ended.value[0]
    assert "arrays" in ended.value[0]


# Codecs


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("gzip", lambda data: gzip.compress(data, 6)),
        ("zstd", lambda data: zstandard.compress(data, 9)),
        ("zstd", lambda data: zstandard.ZstdCompressor(write_content_size=False).compress(data)),
        ("lz4", lambda data: lz4.frame.compress(data, block_size=lz4.frame.BLOCKSIZE_MAX4MB)),
    ],
)
def test_codecs_take_no_more_than_they_may_return(
    name: str, compress: Callable[[bytes], bytes]
) -> None:
    stored = memoryview(compress(bytes(100 << 20)))
    codec = CODECS.open(name)
    for room in (1000, 20 << 20):
        out = memoryview(bytearray(room))

        def work(out: memoryview = out) -> None:
            with pytest.raises(ValueError, match="holds more than"):
                codec.decompress(stored, out)

        assert in_child(work).extra_bytes < 2 * room + (24 << 20)


def test_lz4_takes_memory_for_what_comes_and_not_for_all_of_it() -> None:
    content = np.random.default_rng(0).bytes(1 << 20) * 40
    stored = memoryview(lz4.frame.compress(content))
    out = memoryview(bytearray(len(content)))
    ended = in_child(lambda: CODECS.open("lz4").decompress(stored, out), room=48 << 20)
    assert ended.value == len(content)


# Containers


def hdf5(fill: Callable[[Any], None]) -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        fill(file)
    return out.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        hdf5(lambda f: f.create_dataset("x", (10**12, 1000), "u1", chunks=(1, 1000))),
        hdf5(lambda f: f.create_dataset("x", (10**15,), "u1", chunks=(10**6,), compression=1)),
        hdf5(lambda f: f.create_dataset("x", (10**9,), h5py.vlen_dtype("u1"), chunks=(10**6,))),
        hdf5(lambda f: f.create_dataset("x", data=np.zeros(10**7, "u1"), compression=9)),
    ],
    ids=["rows", "one sample", "elements", "zeros"],
)
def test_datasets_of_hdf5(data: bytes) -> None:
    assert len(data) < 40_000
    ended = in_child(lambda: scan(memory(a_h5=data), checksums=True, workers=0).bytes_read)
    assert ended.extra_bytes < LITTLE


def tar(pax: bytes, size: int | None = None) -> bytes:
    """A tar whose pax header holds these bytes, or claims ``size``."""
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, len(pax) if size is None else size
    member = tarfile.TarInfo("a.bin")
    member.size = 5
    blocks = header.tobuf(tarfile.USTAR_FORMAT) + pax + bytes(-len(pax) % 512)
    return blocks + member.tobuf(tarfile.USTAR_FORMAT) + b"hello" + bytes(507 + 1024)


@pytest.mark.parametrize(
    "data",
    [
        tar(b"0" * (200 << 10)),  # over which tarfile's regular expression takes hours
        tar(b"20 hdrcharset=" + b"1" * 5000),
        tar(b"x", size=(8 << 30) - 1),
        tar(b"7 a=bc\n" * (MAX_PAX_HEADER // 7 + 1)),
    ],
    ids=["digits", "digits behind a key", "claims 8 GiB", "too long"],
)
def test_headers_of_tars(data: bytes) -> None:
    ended = in_child(lambda: scan(memory(a_tar=data), workers=0).bytes_read)
    assert isinstance(ended.error, DatasetError)
    assert "a.tar" in str(ended.error)
    assert ended.extra_bytes < 32 << 20


def test_pax_headers_that_tars_really_have_are_read(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as file:
        for number in range(3):
            member = tarfile.TarInfo(f"{'long/' * 40}{number}.bin")
            member.size, member.mtime = 5, 1700000000.123456789
            member.pax_headers = {"SCHILY.xattr.user.note": "n" * 60_000}
            file.addfile(member, io.BytesIO(b"hello"))
    assert scan(LocalStorage(tmp_path)).manifest.sample_count == 3


def test_records_that_claim() -> None:
    head = struct.pack("<Q", 1 << 62)
    data = head + struct.pack("<I", masked_crc(memoryview(head))) + bytes(100)
    ended = in_child(lambda: scan(memory(a_tfrecord=data), workers=0).bytes_read)
    assert isinstance(ended.error, DatasetError)
    assert ended.extra_bytes < 32 << 20


# Manifests


def table(**columns: Any) -> dict[str, Any]:
    return {name: np.array(column, np.int64) for name, column in columns.items()}


def test_rows_of_a_block_share_its_stored_bytes() -> None:
    def check(*sizes: int) -> None:
        columns = {"shard": [0, 0, 0], "offset": [4, 4, 900], "stored": [100, 100, 50]}
        tables = table(**columns, size=sizes)
        check_claims(None, tables, "{}.parquet".format, blocks=True, plain=True)

    check(ALWAYS_FITS - 9, 9, ALWAYS_FITS)
    for sample, sizes in (
        (0, (ALWAYS_FITS - 9, 10, 5)),
        (2, (1, 1, ALWAYS_FITS + 1)),
        (0, (2**62, 2**62, 1)),  # whose sum is no number of 64 bits
    ):
        with pytest.raises(DatasetError, match=rf"sample {sample} in shard 0\.parquet"):
            check(*sizes)


def test_memory_is_taken_for_what_the_storage_has(make_dataset: Any) -> None:
    """A manifest may say that a sample has 3 GiB, and a shard may be as long as it likes."""
    manifest, path = make_dataset(format="tar")
    lying = Manifest(
        manifest.header,
        {
            **manifest.samples,
            "stored": np.where(np.arange(60) == 7, 3 << 30, manifest.samples["stored"]),
            "size": np.where(np.arange(60) == 7, 3 << 30, manifest.samples["size"]),
        },
        {**manifest.shards, "size": manifest.shards["size"] + (3 << 30)},
        packing=manifest.packing,
    )
    storage = LocalStorage(path)
    reader = in_child(
        lambda: make_reader(lying, storage, ReaderSpec(direct=False, check="content")).read(
            np.arange(60), None
        )
    )
    assert f"sample 7 in shard {lying.key(0)} is damaged: it would end" in str(reader.error)
    assert reader.extra_bytes < LITTLE
    ended = in_child(lambda: list(make_loader(lying, batch_size=9, storage=storage)))
    assert "sample 7" in str(ended.error)
    assert ended.extra_bytes < LITTLE
    checked = in_child(lambda: verify(storage, lying, workers=0))
    assert not checked.value.ok
    assert checked.extra_bytes < LITTLE


# Memory itself


def test_memory_that_is_not_there_is_one_line() -> None:
    for take in (buffers.private, buffers.shared):
        ended = in_child(lambda take=take: take(3 << 30) and None, room=1 << 30)
        assert isinstance(ended.error, NoMemoryError)
        assert "3.00 GiB of memory are needed" in str(ended.error)
    for prefault in (True, False):
        with pytest.raises(NoMemoryError):
            buffers.private(1 << 60, prefault=prefault)


def test_what_is_available_is_below_the_process_own_limit() -> None:
    free = buffers.available()
    assert 0 < free < 1 << 50
    room = 200 << 20
    ended = in_child(buffers.available, room=room)
    assert 0 < ended.value <= room


def test_a_sample_that_takes_too_much_is_named(make_dataset: Any) -> None:
    """Images decode to more than there is room for."""
    manifest, path = make_dataset(content="jpeg", samples=4, sample_size={"mean": 60_000})

    def work() -> None:
        reader = make_reader(manifest, LocalStorage(path), ReaderSpec(direct=False, crop=10))
        given = reader._memory

        def scarce(role: str, nbytes: int) -> memoryview:
            if role == "decoded":
                raise NoMemoryError("3.00 GiB of memory are needed", remedy="lower batch_size")
            return given(role, nbytes)

        reader._memory = scarce  # type: ignore[method-assign]
        reader.read(np.arange(4), None)

    with pytest.raises(NoMemoryError, match=f"sample 0 in shard {manifest.key(0)}"):
        work()


def test_windows_grow_with_objects_and_not_with_claims() -> None:
    storage = memory(a=bytes(1 << 20))
    ended = in_child(lambda: ReadWindow(storage, 2 << 30).open("a"))
    assert ended.value == 1 << 20
    assert ended.extra_bytes < 32 << 20
    window = ReadWindow(storage, 1 << 30, nbytes=4096)
    window.open("a")
    assert len(window.read(10, 900_000)) == 899_990
    for read in (window.read, window.apart, window.bytes):
        with pytest.raises(IobenchError, match="ends at byte 1048576"):
            read(0, (1 << 20) + 1)


def test_events_that_claim(tmp_path: Path) -> None:
    write_events(tmp_path / "few.parquet", [])
    names = {name: text.split(",")[0] for name, text in EVENT_COLUMNS.items() if name != "phase"}
    rows = 2_000_000
    columns: dict[str, Any] = {name: np.zeros(rows, kind) for name, kind in names.items()}
    columns["phase"] = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), ["x"])
    pq.write_table(pa.table(columns), tmp_path / "many.parquet", compression="zstd")
    ended = in_child(lambda: len(read_events(tmp_path / "many.parquet")["step"]))
    assert "a table of 2000000 step events claims" in str(ended.error)
    assert ended.extra_bytes < 64 << 20
