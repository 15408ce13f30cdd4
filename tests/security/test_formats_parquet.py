"""Parquet of others can't end the process, nor take more memory than it may have."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iobench.base.errors import CorruptSampleError, DatasetError, WorkerError
from iobench.base.limits import ALWAYS_FITS
from iobench.data.formats.parquet import Parquet
from iobench.data.scan.scanner import scan
from iobench.data.verify import verify
from iobench.load.choose import make_reader
from iobench.record.manifest import Manifest
from iobench.settings.workload import ReaderSpec
from iobench.storage.local.storage import LocalStorage
from iobench.storage.simulated.memory import MemoryStorage
from tests.children import in_child
from tests.fuzz.datasets import parquet as decode_parquet

CORPUS = Path(__file__).parent.parent / "corpus" / "parquet"


def written(table: pa.Table, **more: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **{"store_schema": False, **more})
    return out.getvalue()


def footer_of(data: bytes) -> tuple[bytes, int]:
    """The footer, and how many bytes come before it."""
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    return data[start:-8], start


def with_footer(data: bytes, footer: bytes) -> bytes:
    _, start = footer_of(data)
    return data[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def memory(data: bytes) -> MemoryStorage:
    return MemoryStorage(objects={"a.parquet": memoryview(data)})


class TestAnUnknownCodec:
    """pyarrow ends the process where it is asked for the codec of such a chunk."""

    DATA = (CORPUS / "unknown-codec.parquet").read_bytes()

    @pytest.mark.parametrize(("workers", "checksums"), [(0, True), (2, False)])
    def test_scan(self, workers: int, checksums: bool) -> None:
        ended = in_child(
            lambda: scan(memory(self.DATA), checksums=checksums, workers=workers).bytes_read
        )
        assert isinstance(ended.error, DatasetError)
        assert "a.parquet" in str(ended.error)

    @pytest.mark.parametrize("codec", [8, -1])
    def test_verify_and_the_reader(self, make_dataset: Any, codec: int) -> None:
        manifest, path = make_dataset(
            format="parquet", samples=6, sample_size={"mean": 40}, samples_per_shard=3, columns=2
        )
        objects = {key: (path / key).read_bytes() for key in manifest.keys()}  # noqa: SIM118
        victim = manifest.key(1)
        footer, _ = footer_of(objects[victim])
        place = footer.rindex(b"\x18\x04c001\x15") + len(b"\x18\x04c001\x15")
        changed = footer[:place] + bytes([codec * 2 & 127 | (codec < 0)]) + footer[place + 1 :]
        objects[victim] = with_footer(objects[victim], changed)
        storage = MemoryStorage(objects={key: memoryview(data) for key, data in objects.items()})
        report = in_child(lambda: verify(storage, manifest)).value
        assert {damage.shard for damage in report.damages} == {victim}
        ended = in_child(lambda: make_reader(manifest, storage, ReaderSpec()).read(SIX, None))
        assert isinstance(ended.error, CorruptSampleError)
        assert victim in str(ended.error)


SIX = np.arange(6)


def test_a_worker_of_verify_that_dies_is_one_line_that_names_the_file(
    make_dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, path = make_dataset(format="parquet", samples=6, sample_size={"mean": 40})
    monkeypatch.setattr(
        "iobench.data.verify.shards.ShardChecker._shard",
        lambda *_: os.kill(os.getpid(), signal.SIGKILL),
    )
    with pytest.raises(WorkerError, match=rf"signal 9 .*{manifest.key(0)}"):
        verify(LocalStorage(path), manifest)


def of_a_dictionary(**more: Any) -> bytes:
    constant = pa.DictionaryArray.from_arrays(
        pa.array([0] * 200, pa.int32()), pa.array([bytes(3 << 20)])
    )
    table = pa.table({"x": constant})
    return written(table, compression="zstd", dictionary_pagesize_limit=1 << 30, **more)


def of_prefixes() -> bytes:
    return written(
        pa.table({"x": [b"x" * (1 << 20)] * 200}),
        use_dictionary=False,
        column_encoding={"x": "DELTA_BYTE_ARRAY"},
        compression="zstd",
    )


def of_a_page() -> bytes:
    table = pa.table({"x": [bytes(ALWAYS_FITS + 1)]})
    return written(table, use_dictionary=False, compression="zstd", write_statistics=False)


BOMBS: dict[str, Callable[[], bytes]] = {
    **{path.stem: path.read_bytes for path in sorted(CORPUS.glob("lengths*"))},
    "a dictionary": (CORPUS / "dictionary.parquet").read_bytes,
    "a dictionary, with pages of the second version": lambda: of_a_dictionary(
        data_page_version="2.0"
    ),
    "common prefixes": of_prefixes,
    "a page": of_a_page,
    "rows": lambda: many_rows(),
}
"""A few kilobytes each, of far more."""


def many_rows() -> bytes:
    """A row group of nulls that claims four thousand million rows."""
    schema = pa.schema([pa.field("x", pa.binary(16), nullable=False)])
    data = written(pa.table({"x": [b"a" * 16] * 64}, schema), use_dictionary=False)
    footer, _ = footer_of(data)
    many = zigzagged(1 << 32)
    return with_footer(data, footer.replace(b"\x16" + zigzagged(64), b"\x16" + many))


def zigzagged(number: int) -> bytes:
    out, number = bytearray(), number << 1
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


@pytest.mark.parametrize("name", BOMBS)
def test_few_bytes_take_little_memory(name: str) -> None:
    data = BOMBS[name]()
    assert len(data) < 40_000
    ended = in_child(lambda: scan(memory(data), checksums=True, workers=0).bytes_read)
    assert isinstance(ended.error, DatasetError), ended
    assert "a.parquet" in str(ended.error)
    assert "more than" in str(ended.error) or "claims" in str(ended.error)
    assert ended.extra_bytes < 6 * ALWAYS_FITS


def hostile(data: bytes, sizes: list[int]) -> Manifest:
    """A manifest for a file that no scan would make, with these sizes of its rows."""
    good = written(pa.table({"x": [bytes([n]) * 9 for n in range(len(sizes))]}))
    manifest = scan(memory(good), workers=0).manifest
    begin, end = Parquet().open(memoryview(data), len(data)).extent(0)
    samples = {name: column.copy() for name, column in manifest.samples.items()}
    samples["size"][:] = sizes
    samples["offset"][:], samples["stored"][:] = begin, end - begin
    shards = {**manifest.shards, "size": np.array([len(data)])}
    return Manifest(manifest.header, samples, shards, ["a.parquet"])


def test_the_reader_decodes_no_more_than_the_manifest_says() -> None:
    data = (CORPUS / "dictionary.parquet").read_bytes()
    manifest = hostile(data, [10] * 60)
    ended = in_child(
        lambda: make_reader(manifest, memory(data), ReaderSpec()).read(np.arange(60), None)
    )
    assert isinstance(ended.error, CorruptSampleError)
    assert "more than 600 bytes" in str(ended.error)
    assert ended.extra_bytes < 6 * ALWAYS_FITS
    report = in_child(lambda: verify(memory(data), manifest, workers=0))
    assert "more than 600 bytes" in str(report.value.damages[0])
    assert report.extra_bytes < 6 * ALWAYS_FITS


TEXTS = ["lorem ipsum " * 50, "dolor", "", "sit amet" * 300]


@pytest.mark.parametrize(
    ("encoding", "version"), [("dictionary", "1.0"), ("DELTA_BYTE_ARRAY", "2.0"), ("PLAIN", "2.0")]
)
def test_rows_come_right_however_few_are_decoded_at_a_time(encoding: str, version: str) -> None:
    values = [None if n % 11 == 5 else TEXTS[n % 4].encode() for n in range(300)]
    how: dict[str, Any] = (
        {"use_dictionary": True}
        if encoding == "dictionary"
        else {"use_dictionary": False, "column_encoding": {"image.bytes": encoding}}
    )
    data = written(
        pa.table({"image": [{"bytes": value} for value in values]}),
        data_page_version=version,
        compression="snappy",
        **how,
    )
    shard = Parquet().open(memoryview(data), len(data))
    begin, end = shard.extent(0)
    parts = [(begin, memoryview(data)[begin:end])]
    for at_once in (1, 3000, 100_000, 1 << 30):
        pieces = list(shard.pieces(0, None, parts, check=True, at_once=at_once))
        assert len(pieces) == 1 if at_once == 1 << 30 else len(pieces) > 1
        found = [bytes(piece.content(row)) for piece in pieces for row in range(piece.count)]
        assert found == [value or b"" for value in values]
    whole = shard.decode(0, None, parts, check=True, most=sum(len(v or b"") for v in values))
    assert whole.count == 300
    with pytest.raises(ValueError, match="more than"):
        shard.decode(0, None, parts, check=True, most=1000)


DEEP = b"\x15\x02\x19" + b"\xfc\xff\x7f" + b"\x48\x01x\x15\x02\x00" * 16383


@pytest.mark.parametrize(
    "change",
    [
        lambda footer: footer[:-1],
        lambda _: b"\x00",
        lambda footer: footer.replace(b"\x15\x0c", b"\x15\x10", 1),
        lambda footer: footer.replace(b"\x25\x02", b"\x25\x06", 1),
        lambda _: DEEP,
        lambda _: b"\x19" * 5000,
        lambda _: b"\x1c" * 5000,
        lambda _: b"\x15\x02\x19\xfc\xff\xff\xff\xff\x0f",
    ],
    ids=["cut", "empty", "type", "repetition", "deep", "lists", "structs", "many"],
)
def test_footers_that_make_no_sense(change: Callable[[bytes], bytes]) -> None:
    data = written(pa.table({"x": [b"one", b"two"]}), write_statistics=False)
    changed = with_footer(data, change(footer_of(data)[0]))

    def read() -> None:
        with pytest.raises(ValueError, match="damaged"):
            decode_parquet(changed)

    assert in_child(read).extra_bytes < ALWAYS_FITS
