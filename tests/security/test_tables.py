"""A manifest's tables are checked as tables: whatever number is planted is one line at the door."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iobench import make_loader
from iobench.base.errors import DatasetError, IobenchError
from iobench.cli.main import main
from iobench.data.dataset import load_manifest
from iobench.data.verify import verify
from iobench.record.arrow import check_plain
from iobench.record.manifest import MANIFEST, SAMPLES, SHARDS
from iobench.record.tables import MAX_SAMPLE_BYTES, MAX_SHARD_BYTES
from iobench.storage.local.storage import LocalStorage
from tests.children import in_child
from tests.security.hostile import Columns, make_socket, planted, replace_table

Plant = Callable[[Columns], object]


def put(column: str, row: int, value: int) -> Plant:
    return lambda columns: columns[column].__setitem__(row, value)


def swapped(column: str, one: int, other: int) -> Plant:
    def swap(columns: Columns) -> None:
        columns[column][[one, other]] = columns[column][[other, one]]

    return swap


IN_SAMPLES: dict[str, tuple[Plant, str, int]] = {
    # what: the change, the column and the row that the error names
    "shard beyond": (put("shard", 7, 4_000_000_000), "shard", 7),
    "shard of another": (put("shard", 7, 2), "shard", 8),
    "shard one early": (put("shard", 19, 1), "shard", 0),
    "shards swapped": (swapped("shard", 5, 45), "shard", 6),
    "offset negative": (put("offset", 3, -512), "offset", 3),
    "offset least": (put("offset", 3, -(2**63)), "offset", 3),
    "offset behind the end": (put("offset", 3, 2**40), "offset", 3),
    "offset and stored": (put("offset", 59, 10**5 * 5), "offset", 59),
    "stored negative": (put("stored", 0, -1), "stored", 0),
    "stored large": (put("stored", 0, 2**62), "stored", 0),
    "stored to overflow": (put("stored", 4, 2**63 - 1), "stored", 4),
    "size negative": (put("size", 9, -1), "size", 9),
    "size large": (put("size", 9, 2**62), "size", 9),
    "size of more than a sample": (put("size", 9, MAX_SAMPLE_BYTES + 1), "size", 9),
    "size that is not stored": (put("size", 9, 10), "size", 9),
}

IN_SHARDS: dict[str, tuple[Plant, str, int]] = {
    "size negative": (put("size", 1, -1), "size", 1),
    "size large": (put("size", 1, MAX_SHARD_BYTES + 1), "size", 1),
    "first not 0": (put("first", 0, 1), "first", 0),
    "first negative": (put("first", 1, -20), "first", 1),
    "first twice": (put("first", 2, 20), "first", 2),
    "no samples": (put("samples", 1, 0), "samples", 1),
    "samples negative": (put("samples", 1, -20), "samples", 1),
    "samples many": (put("samples", 0, 10**12), "samples", 0),
    "samples to overflow": (put("samples", 0, 2**63 - 1), "samples", 0),
}

HEADERS: dict[str, dict[str, Any]] = {
    "no bytes": {"stored_bytes": 0},
    "bytes negative": {"stored_bytes": -1},
    "other bytes": {"stored_bytes": 7},
    "more bytes than a number has": {"stored_bytes": 2**70},
    "other sample bytes": {"sample_bytes": 7},
    "no samples": {"samples": 0},
    "fewer samples": {"samples": 59},
    "samples negative": {"samples": -60},
    "fewer shards": {"shards": 2},
    "expansion": {"expansion": 1e300},
    "no expansion": {"expansion": float("nan")},
    "expansion beyond any codec": {"expansion": 50_000},
}


@pytest.fixture(scope="module")
def dataset(make_dataset: Any) -> Path:
    """60 samples in 3 shards."""
    return Path(make_dataset(format="tar", samples_per_shard=20)[1])


def one_line(folder: Path) -> str:
    """The same error by every way in; what it says."""
    with pytest.raises(DatasetError) as caught:
        load_manifest(folder)
    with pytest.raises(DatasetError):
        make_loader(folder, batch_size=4)
    text = str(caught.value)
    assert len(text) < 400
    return text


@pytest.mark.parametrize(
    ("table", "what"),
    [*(("samples", what) for what in IN_SAMPLES), *(("shards", what) for what in IN_SHARDS)],
)
def test_a_number_in_a_table(table: str, what: str, dataset: Path, tmp_path: Path) -> None:
    plant, column, row = {"samples": IN_SAMPLES, "shards": IN_SHARDS}[table][what]
    text = one_line(planted(dataset, tmp_path / "d", **{table: plant}))  # type: ignore[arg-type]
    assert all(part in text for part in (f"{table}.arrow", f"'{column}'", f"row {row},")), text


@pytest.mark.parametrize("what", HEADERS)
def test_a_number_in_the_header(what: str, dataset: Path, tmp_path: Path) -> None:
    assert "manifest" in one_line(planted(dataset, tmp_path / "d", header=HEADERS[what]))


@pytest.mark.parametrize(
    ("names", "row"),
    [
        (["a", "b", "../c"], 2),
        (["/etc/passwd", "b", "c"], 0),
        (["a", "b/../../c", "d"], 1),
        (["a", "", "c"], 1),
        (["a", "./b", "c"], 1),
        (["a", "b", "c\0"], 2),
        (["a", "b", "a"], 2),
    ],
)
def test_a_name(names: list[str], row: int, dataset: Path, tmp_path: Path) -> None:
    folder = planted(dataset, tmp_path / "d", names=names, header={"origin": str(tmp_path)})
    text = one_line(folder)
    assert all(part in text for part in (SHARDS, "'key'", f"row {row},")), text


@pytest.mark.parametrize("names", [[None, "b", "c"], [1, 2, 3], [b"\xff", b"b", b"c"]])
def test_a_name_that_is_no_text(names: list[Any], dataset: Path, tmp_path: Path) -> None:
    folder = planted(
        dataset, tmp_path / "d", names=["a", "b", "c"], header={"origin": str(tmp_path)}
    )
    table = pa.ipc.open_file(folder / SHARDS).read_all()
    column = table.column_names.index("key")
    replace_table(folder, SHARDS, arrow(table.set_column(column, "key", pa.array(names))))
    one_line(folder)


def arrow(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def test_a_codec_claims_no_more_than_codecs_can(make_dataset: Any, tmp_path: Path) -> None:
    _, root = make_dataset(codec="gzip", compress_ratio=2)
    good = load_manifest(root)
    assert (good.samples["size"] > good.samples["stored"]).all()
    claim = int(good.samples["stored"][5]) * (1 << 17)
    assert "sample 5 " in one_line(planted(root, tmp_path / "d", samples=put("size", 5, claim)))


def test_a_compressed_table_is_not_unpacked(dataset: Path, tmp_path: Path) -> None:
    """36 KB that would be 256 MiB: in a process of its own, whose memory is measured."""
    folder = planted(dataset, tmp_path / "d")
    table = pa.ipc.open_file(folder / SAMPLES).read_all()
    huge = pa.array([bytes(256 << 20)] + [b""] * 59, pa.large_binary())
    data = arrow(table.append_column("more", huge), compression="zstd")
    assert len(data) < 100_000
    with pytest.raises(ValueError, match="compressed"):
        check_plain(memoryview(data))
    replace_table(folder, SAMPLES, data)
    ended = in_child(lambda: load_manifest(folder) and None)
    assert isinstance(ended.error, DatasetError)
    assert ended.extra_bytes < 100 << 20


def test_no_byte_of_a_footer_leads_elsewhere(dataset: Path) -> None:
    """Each byte of the footer in turn is what a fuzzer would make of it: plain, or one
    ValueError.
    """
    good = (dataset / SAMPLES).read_bytes()
    check_plain(memoryview(good))
    length = int.from_bytes(good[-10:-6], "little")
    told = set()
    for place in range(len(good) - length - 10, len(good)):
        for value in (0x00, 0x7F, 0xFF, good[place] ^ 0x10):
            bad = bytearray(good)
            bad[place] = value
            try:
                check_plain(memoryview(bad))
            except ValueError as error:
                assert "\n" not in str(error)  # noqa: PT017
                told.add(str(error).split(" ")[1])
    assert {"footer", "has"} <= told  # damaged or leading out of the file; none, or dictionaries
    for short in (b"", good[:5], good[-10:], good[:-1]):
        with pytest.raises(ValueError, match="footer"):
            check_plain(memoryview(short))


def test_a_table_of_numbers_for_others(dataset: Path, tmp_path: Path) -> None:
    """Dictionaries are looked up by numbers of the file's own, which nothing has checked."""
    folder = planted(dataset, tmp_path / "d")
    table = pa.ipc.open_file(folder / SHARDS).read_all()
    replace_table(
        folder,
        SHARDS,
        arrow(table.append_column("key", pa.array(["a", "b", "c"]).dictionary_encode())),
    )
    one_line(folder)


def read_all(folder: Path, loading: dict[str, Any]) -> None:
    for batch in make_loader(folder, batch_size=2, loader=loading):
        len(batch)


@pytest.mark.parametrize(
    ("transport", "workers"), [("ring", 0), ("ring", 1), ("tensor", 1), ("thread", 1), ("null", 0)]
)
def test_a_claim_that_no_memory_holds(
    transport: str, workers: int, make_dataset: Any, tmp_path: Path, nothing_left: set[int]
) -> None:
    """Tables that agree with one another, and tell of a sample of a tebibyte."""
    _, root = make_dataset(samples=8, sample_size={"mean": 2000})
    total = 7 * 2000 + MAX_SAMPLE_BYTES
    size = put("size", 3, MAX_SAMPLE_BYTES)
    folder = planted(
        root,
        tmp_path / "d",
        samples=lambda columns: (put("stored", 3, MAX_SAMPLE_BYTES)(columns), size(columns)),
        shards=size,
        header={"stored_bytes": total, "sample_bytes": total},
    )
    loading = {"workers": workers, "transport": transport}
    with pytest.raises(IobenchError):
        read_all(folder, loading)
    assert main(["verify", str(folder)]) == 1


# What lies in the place of a file


@pytest.mark.parametrize(
    ("name", "make"),
    [
        (MANIFEST, os.mkfifo),
        (MANIFEST, os.mkdir),
        (MANIFEST, make_socket),
        (SAMPLES, os.mkfifo),
        (SAMPLES, lambda path: path.symlink_to("/dev/zero")),
        (SHARDS, make_socket),
        (SHARDS, lambda path: path.symlink_to("/dev/tty")),
    ],
)
def test_what_is_no_file_is_one_line(
    name: str, make: Any, dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(dataset, tmp_path / "d"))
    (folder / name).unlink()
    make(folder / name)
    for words in (("verify", folder), ("plan", "demo", "--data", folder)):
        assert main([str(word) for word in words]) in (1, 2, 5)
        assert len(capsys.readouterr().err.splitlines()) == 1


# Anything at all


def check(folder: Path) -> None:
    """Either a dataset that can be read as far as it is whole, or one line."""
    with suppress(DatasetError):
        manifest = load_manifest(folder)
        verify(LocalStorage(folder), manifest, workers=0)
        with suppress(IobenchError):
            loading = {"workers": 0, "transport": "tensor"}
            for batch in make_loader(folder, batch_size=7, loader=loading):
                len(batch)


NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, 1, -1, 19, 20, 21, 60, 512, 2**31, 2**32 - 1, 2**62, 2**63 - 1]),
    st.integers(-5, 70),
)


_EXAMPLES = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@_EXAMPLES
@given(
    table=st.sampled_from([SAMPLES, SHARDS]),
    column=st.sampled_from(["shard", "offset", "stored", "size", "first", "samples"]),
    row=st.integers(0, 23),
    value=NUMBERS,
)
def test_any_number_in_any_place(
    table: str, column: str, row: int, value: int, make_dataset: Any, tmp_path: Path
) -> None:
    _, root = make_dataset(samples=24, format="tar", samples_per_shard=8, sample_size={"mean": 600})

    def plant(columns: Columns) -> None:
        if column in columns:
            array = columns[column]
            array[row % len(array)] = np.array([value]).astype(array.dtype)[0]

    target = tmp_path / "d"
    shutil.rmtree(target, ignore_errors=True)
    changes = {"samples": plant} if table == SAMPLES else {"shards": plant}
    check(planted(root, target, **changes))  # type: ignore[arg-type]
