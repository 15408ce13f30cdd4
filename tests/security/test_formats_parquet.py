"""Parquet of others can't end the process, nor take more memory than it may have."""

from __future__ import annotations

import io
import os
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iobench.errors import CorruptSampleError, DatasetError, IobenchError, WorkerError
from iobench.formats import parquet_footer
from iobench.formats.parquet import Parquet
from iobench.formats.parquet_footer import Footer
from iobench.formats.protobuf import varint
from iobench.formats.thrift import BINARY, I32, I64, STRUCT, Compact, ThriftWriter, listed
from iobench.limits import ALWAYS_FITS
from iobench.load import make_reader
from iobench.scan import scan
from iobench.scan.index import INDEXERS
from iobench.schema.manifest import Manifest
from iobench.schema.workload import ReaderSpec
from iobench.storage.local.storage import LocalStorage
from iobench.storage.simulated.memory import MemoryStorage
from iobench.verify import verify
from tests.children import in_child
from tests.pairs import pairs

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


def unpacked(data: bytes) -> list[bytes]:
    """The content of each row, as verify reads it."""
    opened, found = Parquet().open(memoryview(data), len(data)), []
    for group in range(opened.groups):
        begin, end = opened.extent(group)
        rows = opened.decode(group, None, [(begin, memoryview(data)[begin:end])], check=True)
        found += [bytes(rows.content(row)) for row in range(rows.count)]
    return found


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


class TestWorkersThatDie:
    """Whatever ends a process over a file is one line that names the file."""

    NAMES = ("a.parquet", "b.parquet", "c.parquet")

    @pytest.fixture
    def storage(self) -> MemoryStorage:
        data = written(pa.table({"x": [b"one", b"two"]}))
        return MemoryStorage(objects={name: memoryview(data) for name in self.NAMES})

    @pytest.mark.usefixtures("nothing_left")
    def test_in_the_walk_over_headers(
        self, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        index = INDEXERS["parquet"]

        def deadly(window: Any, key: str, size: int) -> Any:
            if key == "b.parquet":
                os.kill(os.getpid(), signal.SIGKILL)
            return index(window, key, size)

        monkeypatch.setitem(INDEXERS, "parquet", deadly)
        with pytest.raises(WorkerError, match=r"signal 9 .* b\.parquet") as caught:
            scan(storage)
        assert "\n" not in str(caught.value)

    def test_in_verify(self, make_dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        manifest, path = make_dataset(format="parquet", samples=6, sample_size={"mean": 40})
        monkeypatch.setattr(
            "iobench.verify.shards.ShardChecker._shard",
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


def of_lengths(encoding: int, *, codec: int = 0, version: int = 1, nullable: bool = False) -> bytes:
    """Four values whose lengths (and prefixes) are said to be 500 million, all of them alike."""
    right = b"\x80\x01\x04\x04\x00" + b"\x00" + bytes(4)
    many = varint(1 << 30) + b"\x01" + varint(500_000_000) + b"\x00" + b"\x00\x00"
    values = right + many if encoding == 7 else many
    levels = b"\x08\x01" if nullable else b""
    plain = values if version == 2 else (len(levels).to_bytes(4, "little") + levels) * nullable
    plain = plain if version == 2 else plain + values
    stored = pa.compress(plain, codec="snappy", asbytes=True) if codec else plain
    sizes = [len(plain), len(stored)] if version == 1 else [len(levels) + len(plain)] * 2
    if version == 2:
        sizes[1] = len(levels) + len(stored)
        about = ThriftWriter().number(1, I32, 4).number(2, I32, 0).number(3, I32, 4)
        about.number(4, I32, encoding).number(5, I32, len(levels)).number(6, I32, 0)
        stored = levels + stored
    else:
        about = ThriftWriter().number(1, I32, 4).number(2, I32, encoding)
        about.number(3, I32, 3).number(4, I32, 3)
    page = ThriftWriter().number(1, I32, 0 if version == 1 else 3)
    page.number(2, I32, sizes[0]).number(3, I32, sizes[1])
    page.struct(5 if version == 1 else 8, about.finish())
    return of_page(page.finish() + stored, 4, codec, nullable)


def of_page(page: bytes, rows: int, codec: int, nullable: bool) -> bytes:
    """A file of one column, whose one chunk is these bytes."""
    root = ThriftWriter().binary(4, b"schema").number(5, I32, 1).finish()
    leaf = ThriftWriter().number(1, I32, 6).number(3, I32, int(nullable)).binary(4, b"x").finish()
    about = ThriftWriter().number(1, I32, 6).list(2, listed(I32, [b"\x00"]))
    about.list(3, listed(BINARY, [b"\x01x"])).number(4, I32, codec).number(5, I64, rows)
    about.number(6, I64, len(page)).number(7, I64, len(page)).number(9, I64, 4)
    chunk = ThriftWriter().number(2, I64, 0).struct(3, about.finish()).finish()
    group = ThriftWriter().list(1, listed(STRUCT, [chunk])).number(2, I64, 0).number(3, I64, rows)
    footer = ThriftWriter().number(1, I32, 2).list(2, listed(STRUCT, [root, leaf]))
    footer.number(3, I64, rows).list(4, listed(STRUCT, [group.finish()]))
    return with_footer(b"PAR1" + page + bytes(8), footer.finish())


BOMBS: dict[str, Callable[[], bytes]] = {
    **{
        f"lengths {encoding} {codec} {version} {nullable}": partial(
            of_lengths, encoding, codec=codec, version=version, nullable=nullable
        )
        for encoding, codec, version, nullable in pairs((6, 7), (0, 1), (1, 2), (False, True))
    },
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


KINDS = {
    "binary": pa.binary(),
    "text": pa.string(),
    "numbers": pa.int64(),
    "fixed": pa.binary(5),
    "lists": pa.list_(pa.binary()),
    "struct": pa.struct([("n", pa.int32()), ("data", pa.binary())]),
}
VALUES: dict[str, Callable[[int], Any]] = {
    "binary": lambda n: b"b%d" % n,
    "text": lambda n: f"t{n}",
    "numbers": lambda n: n,
    "fixed": lambda n: b"%05d" % n,
    "lists": lambda n: [b"l%d" % n] * (n % 3),
    "struct": lambda n: {"n": n, "data": b"s%d" % n},
}


@settings(max_examples=25)
@given(
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4),
    rows=st.integers(1, 30),
    group=st.integers(1, 20),
    nulls=st.booleans(),
    compression=st.sampled_from(["none", "snappy", "gzip", "zstd", "lz4", "brotli"]),
    statistics=st.booleans(),
    page=st.sampled_from(["1.0", "2.0"]),
)
def test_our_reading_of_footers_is_pyarrows(
    kinds: list[str],
    rows: int,
    group: int,
    nulls: bool,
    compression: str,
    statistics: bool,
    page: str,
) -> None:
    """The same samples in the same places, of any schema that a writer may choose."""
    columns = {
        f"column {number} ü.{kind}": pa.array(
            [None if nulls and n % 4 == 1 else VALUES[kind](n) for n in range(rows)], KINDS[kind]
        )
        for number, kind in enumerate(kinds)
    }
    data = written(
        pa.table(columns),
        row_group_size=group,
        compression=compression,
        write_statistics=statistics,
        data_page_version=page,
    )
    metadata = pq.read_metadata(io.BytesIO(data))
    paths = [metadata.schema.column(n).path for n in range(metadata.num_columns)]
    of_bytes = [n for n, kind in enumerate(kinds) if kind in ("binary", "fixed", "struct")]
    of_text = [n for n, kind in enumerate(kinds) if kind == "text"]
    chosen = next(iter(of_bytes + of_text), None)
    footer = Footer(*footer_of(data))
    assert footer.schema.columns == metadata.num_columns == len(paths)
    for number in range(metadata.num_row_groups):
        chunks = [metadata.row_group(number).column(n) for n in range(metadata.num_columns)]
        mine = chunks if chosen is None else [chunks[leaf_number(kinds, chosen)]]
        begins = [min(c.data_page_offset, c.dictionary_page_offset or 1 << 60) for c in mine]
        ends = [b + c.total_compressed_size for b, c in zip(begins, mine, strict=True)]
        assert footer.extent(number) == (min(begins), max(ends))
        assert footer.groups[number].rows == metadata.row_group(number).num_rows
    if chosen is not None:
        column = list(columns.values())[chosen].to_pylist()
        assert unpacked(data) == [as_bytes(value) for value in column]


def leaf_number(kinds: list[str], chosen: int) -> int:
    """Of the leaf that holds the bytes: a struct has two."""
    before = sum(2 if kind == "struct" else 1 for kind in kinds[:chosen])
    return before + (kinds[chosen] == "struct")


def as_bytes(value: Any) -> bytes:
    if isinstance(value, dict):
        value = value["data"]
    return value.encode() if isinstance(value, str) else value or b""


@pytest.mark.parametrize(
    ("columns", "codec"), [(1, "zstd"), (14, "none"), (15, "zstd"), (40, "none")]
)
def test_own_row_groups_are_read_alike_on_both_ways(
    make_dataset: Any, monkeypatch: pytest.MonkeyPatch, columns: int, codec: str
) -> None:
    """By the regular expression that takes them over, and field by field."""
    manifest, path = make_dataset(
        format="parquet",
        samples=60,
        sample_size={"mean": 81},
        block_size=81 * 7,
        columns=columns,
        codec=codec,
    )
    data = (path / manifest.key(0)).read_bytes()
    footer, size = footer_of(data)
    plain = Footer(footer, size)
    assert all(group.place > 0 and not group.chunks for group in plain.groups)
    samples = unpacked(data)
    never = re.compile(rb"(?!)")
    monkeypatch.setattr(parquet_footer, "own_group", lambda _: never)
    slow = Footer(footer, size)
    assert all(group.place < 0 and group.chunks for group in slow.groups)
    for number in range(len(plain.groups)):
        assert plain.extent(number) == slow.extent(number)
        assert [plain.chunk(number, place) for place in range(columns)] == [
            slow.chunk(number, place) for place in range(columns)
        ]
    assert unpacked(data) == samples


def test_nothing_but_the_samples_columns_reaches_pyarrow() -> None:
    """Names, statistics, metadata of others: all of them are written by whoever wrote the file."""
    secret = "a name that nobody should see"
    table = pa.table({secret: [b"one", b"two"], "n": [1, 2]}).replace_schema_metadata(
        {"key": secret}
    )
    data = written(table, store_schema=True)
    footer, size = footer_of(data)
    assert footer.count(secret.encode()) > 2
    safe = Footer(footer, size).safe
    assert secret.encode() not in safe
    reader = Compact(safe)
    reader.skip(STRUCT)
    assert reader.position == len(safe)
    assert (
        pq.read_metadata(
            io.BytesIO(b"PAR1" + safe + len(safe).to_bytes(4, "little") + b"PAR1")
        ).num_columns
        == 1
    )


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
    footer, size = footer_of(data)
    with pytest.raises(ValueError):
        Footer(change(footer), size)


def test_every_error_is_iobenchs_own(make_dataset: Any) -> None:
    """A file that is empty, cut, or something else."""
    manifest, path = make_dataset(format="parquet", samples=6, sample_size={"mean": 40})
    good = (path / manifest.key(0)).read_bytes()
    for data in (b"P", b"PAR1PAR1", b"PAR1" + bytes(8) + b"PAR1", good[:-1], good[4:], good[:50]):
        with pytest.raises(IobenchError):
            scan(memory(data), workers=0)
