"""A dataset's manifest that is missing, damaged or not iobench's: one error, of the right kind."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.base.errors import DatasetError, StorageError
from iobench.data.dataset import Dataset, ResolvedSpec, cheaper_codecs, load_manifest
from iobench.record.manifest import (
    MANIFEST,
    MAX_HEADER_BYTES,
    SAMPLE_COLUMNS,
    SAMPLES,
    SHARD_COLUMNS,
    SHARDS,
    Header,
    hash_bytes,
    read_table,
    write_table,
)
from iobench.settings.base import build
from iobench.settings.dataset import DatasetSpec
from tests.processes import python


@pytest.fixture
def data(make_dataset: Any, tmp_path: Path) -> Path:
    """60 samples in 5 shards, to be damaged."""
    _, root = make_dataset(format="tar", samples_per_shard=12)
    return Path(shutil.copytree(root, tmp_path / "d"))


def refused(root: Path, kind: type[Exception] = DatasetError) -> str:
    with pytest.raises(kind) as caught:
        load_manifest(root)
    assert type(caught.value) is kind
    return str(caught.value)


def write_header(root: Path, **changes: object) -> None:
    header = json.loads((root / MANIFEST).read_text())
    (root / MANIFEST).write_text(json.dumps({**header, **changes}))


def put_table(root: Path, name: str, content: bytes) -> None:
    """Put a table in place of another, with its checksum in the header."""
    (root / name).write_bytes(content)
    tables = json.loads((root / MANIFEST).read_text())["tables"]
    write_header(root, tables={**tables, name: hash_bytes(content)})


# What is not there


def test_a_manifest_that_cannot_be_looked_at_may_be_intact(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.stat

    def refuse(path: Any, *arguments: Any, **more: Any) -> os.stat_result:
        if str(path).endswith(MANIFEST):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", refuse)
        assert str(data / MANIFEST) in refused(data, StorageError)


# The header


def test_a_header_that_is_too_long_is_not_read(data: Path) -> None:
    with (data / MANIFEST).open("ab") as file:
        file.truncate(MAX_HEADER_BYTES + 1)
    assert "4 MiB" in refused(data)


def test_a_level_that_the_codec_does_not_have(data: Path) -> None:
    text = (data / MANIFEST).read_text()
    (data / MANIFEST).write_text(text.replace('"codec": "none"', '"codec": "zstd:99"'))
    with pytest.raises(DatasetError, match="levels 1 to 22"):
        Dataset.open(str(data))


# Tables


def test_a_table_of_another_dataset(data: Path, make_dataset: Any) -> None:
    shutil.copy(make_dataset()[1] / SAMPLES, data / SAMPLES)
    assert SAMPLES in refused(data)


def test_names_of_shards_belong_to_scanned_data_only(data: Path) -> None:
    shards = dict(load_manifest(data).shards)
    names = [f"data/{number}.tar" for number in range(5)]
    put_table(data, SHARDS, write_table(SHARD_COLUMNS, shards, names))
    assert SHARDS in refused(data)


def shard_rows() -> dict[str, Any]:
    return {name: np.ones(2, dtype) for name, dtype in SHARD_COLUMNS.items()}


def test_names_that_this_locale_cannot_write(monkeypatch: pytest.MonkeyPatch) -> None:
    content = write_table(SHARD_COLUMNS, shard_rows(), ["a", "grün"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsencode", lambda name: name.encode("ascii"))
        with pytest.raises(DatasetError, match="LC_ALL"):
            read_table(SHARD_COLUMNS, content)


# The plug-ins of a dataset


def spec(**keys: Any) -> DatasetSpec:
    made = {"name": "x", "samples": 9, "sample_size": {"mean": 5000}, **keys}
    return build(DatasetSpec, made, where="test")


@pytest.mark.parametrize(
    ("keys", "cheaper"),
    [
        ({"codec": "gzip:9"}, ["zstd", "lz4", "none"]),
        ({"codec": "zstd"}, ["lz4", "none"]),
        ({"codec": "none"}, []),
        ({"codec": "gzip", "format": "hdf5", "samples_per_shard": 3}, ["none"]),
    ],
)
def test_cheaper_codecs_are_those_that_the_format_takes(
    keys: dict[str, Any], cheaper: list[str]
) -> None:
    assert cheaper_codecs(ResolvedSpec.of(spec(**keys))) == cheaper


# A million samples


MILLION = 10**6


@pytest.fixture(scope="module")
def million(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifest of a million files (which are not there)."""
    root = tmp_path_factory.mktemp("million")
    rows = np.arange(MILLION)
    one = {name: np.ones(MILLION, dtype) for name, dtype in SAMPLE_COLUMNS.items()}
    samples = write_table(SAMPLE_COLUMNS, {**one, "shard": rows, "offset": rows * 0})
    shards = write_table(
        SHARD_COLUMNS, {**{n: np.ones(MILLION, t) for n, t in SHARD_COLUMNS.items()}, "first": rows}
    )
    spec = build(
        DatasetSpec,
        {"name": "million", "samples": MILLION, "sample_size": {"mean": 1000}},
        where="test",
    )
    header = Header(
        generator="test",
        id="0" * 32,
        created="2026-01-01T00:00:00+00:00",
        spec=spec,
        samples=MILLION,
        shards=MILLION,
        stored_bytes=MILLION,
        sample_bytes=MILLION,
        tables={SAMPLES: hash_bytes(samples), SHARDS: hash_bytes(shards)},
    )
    (root / SAMPLES).write_bytes(samples)
    (root / SHARDS).write_bytes(shards)
    (root / MANIFEST).write_text(header.model_dump_json())
    return root


def test_memory_stays_small_in_the_process_and_its_workers(million: Path) -> None:
    """Peak memory of a whole process that loads the manifest and plans an epoch, and what a forked
    child adds (private pages).

    Pages of files do not count. How many of a library a process has depends on how it was written:
    the kernel maps larger pieces of a file that an installer wrote in larger pieces.
    """
    code = f"""
import os, warnings
from pathlib import Path
warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: a library has threads
def status(key):
    return int(next(l.split()[1] for l in open('/proc/self/status') if l.startswith(key)))
from iobench.data.dataset import load_manifest
manifest = load_manifest({str(million)!r})
from iobench.load.order import epoch_order
firsts, counts = manifest.shards['first'], manifest.shards['samples']
order = epoch_order(firsts, counts, sequential=False, shuffle=True, seed=1, epoch=0)
assert len(order) == {MILLION}
print(status('VmHWM') - status('RssFile'), flush=True)
if os.fork() == 0:
    total = sum(int(manifest.samples['size'][i]) for i in order[:20000].tolist())
    dirty = [l for l in open('/proc/self/smaps_rollup') if l.startswith('Private_Dirty')]
    private = sum(int(l.split()[1]) for l in dirty)
    print(private, flush=True)
    os._exit(0)
os.wait()
"""
    peak_kb, child_kb = map(int, python(code).split())
    assert peak_kb < 150_000
    assert child_kb < 30_000
