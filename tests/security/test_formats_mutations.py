"""Whatever becomes of a file: the right bytes, or one error, in scan, verify and the reader."""

from __future__ import annotations

import io
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iobench.base.errors import IobenchError
from iobench.data.verify import verify
from iobench.record.manifest import Manifest
from tests.looking import contents, look, stored_as

SPECS: dict[str, dict[str, Any]] = {
    "files of npz behind gzip": {"format": "files", "content": "npz", "codec": "gzip"},
    "tar behind zstd": {"format": "tar", "codec": "zstd", "compress_ratio": 3},
    "tfrecord of jpeg": {"format": "tfrecord", "content": "jpeg"},
    "tfrecord behind lz4": {"format": "tfrecord", "codec": "lz4", "compress_ratio": 3},
    "tokens": {"format": "tokens"},
    "mds": {"format": "mds"},
    "lmdb": {"format": "lmdb"},
    "hdf5 behind gzip": {"format": "hdf5", "codec": "gzip", "compress_ratio": 2},
    "parquet of columns behind zstd": {"format": "parquet", "columns": 3, "codec": "zstd"},
}


class Data(NamedTuple):
    """A dataset in memory. ``samples``: what each sample's content is."""

    manifest: Manifest
    objects: dict[str, bytes]
    samples: list[bytes]


@pytest.fixture(scope="module", params=list(SPECS))
def generated(request: pytest.FixtureRequest, make_dataset: Any) -> Data:
    manifest, path = make_dataset(
        name="mutated", samples=5, sample_size={"mean": 2500}, **SPECS[request.param]
    )
    objects = {key: (path / key).read_bytes() for key in manifest.keys()}  # noqa: SIM118
    storage = stored_as(objects)
    return Data(manifest, objects, contents(storage, manifest, decode=False))


@cache  # made by tests alone: pyarrow imports pandas for it
def foreign() -> dict[str, bytes]:
    """Files that iobench does not write: other layouts of the same formats."""
    random = np.random.default_rng(2)
    deflated, hdf5, table = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.savez_compressed(deflated, x=np.arange(500), y=random.random((3, 5)))
    with h5py.File(hdf5, "w") as file:
        file.create_dataset("x", data=random.integers(0, 9, (6, 40)), chunks=(1, 40), compression=1)
        vlen = file.create_dataset("v", (4,), h5py.vlen_dtype(np.uint8))
        for number in range(4):
            vlen[number] = np.arange(5 + number, dtype=np.uint8)
    images = [{"bytes": random.bytes(60), "path": f"{n}.jpg"} for n in range(9)]
    text = [["lorem", None, "ipsum" * 9][n % 3] for n in range(9)]
    columns = {"label": list(range(9)), "image": images, "text": text, "l": [[1, 2]] * 9}
    pq.write_table(pa.table(columns), table, row_group_size=4, compression="snappy")
    return dict(zip(FOREIGN, (each.getvalue() for each in (deflated, hdf5, table)), strict=True))


FOREIGN = ("a.npz", "a.h5", "a.parquet")


@st.composite
def mutation(draw: Any, size: int) -> list[tuple[int, str, int]]:
    """Where (mostly at the ends, where headers are), what, and a number for it."""
    near = st.integers(0, min(size, 600) - 1)
    place = st.one_of(near, near.map(lambda n: size - 1 - n), st.integers(0, size - 1))
    kind = st.sampled_from(["set", "flip", "cut", "insert", "end"])
    return draw(st.lists(st.tuples(place, kind, st.integers(0, 255)), min_size=1, max_size=3))


def mutated(data: bytes, changes: list[tuple[int, str, int]]) -> bytes:
    out = bytearray(data)
    for place, kind, number in changes:
        place = min(place, len(out) - 1)
        if kind == "set":
            out[place] = number
        elif kind == "flip":
            out[place] ^= 1 << number % 8
        elif kind == "cut" and len(out) > 20:
            del out[place : place + 1 + number % 8]
        elif kind == "insert":
            out[place:place] = bytes([number]) * (1 + number % 5)
        elif len(out) > 20:
            del out[max(10, place) :]
    return bytes(out)


QUICK = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUICK
@given(data=st.data())
def test_own_datasets(generated: Data, data: Any) -> None:
    manifest, objects, samples = generated
    victim = data.draw(st.sampled_from(sorted(objects)))
    bad = mutated(objects[victim], data.draw(mutation(len(objects[victim]))))
    storage = stored_as({**objects, victim: bad})
    report = verify(storage, manifest, workers=0)
    assert report.ok == (bad == objects[victim])
    try:
        found = contents(storage, manifest, decode=False, check="content")
    except IobenchError:
        pass
    else:
        assert found == samples
    with suppress(IobenchError):
        contents(storage, manifest)  # decoded, and nobody asked for checks


@QUICK
@given(data=st.data())
def test_data_that_is_scanned(generated: Data, data: Any) -> None:
    victim = data.draw(st.sampled_from(sorted(generated.objects)))
    changes = data.draw(mutation(len(generated.objects[victim])))
    look({victim: mutated(generated.objects[victim], changes)})


@pytest.mark.parametrize("name", FOREIGN)
@QUICK
@given(data=st.data())
def test_data_of_others(name: str, data: Any) -> None:
    good = foreign()[name]
    look({name: mutated(good, data.draw(mutation(len(good))))})


@pytest.mark.parametrize("name", FOREIGN)
def test_data_of_others_is_read_where_it_is_good(name: str) -> None:
    assert look({name: foreign()[name]}) > 0


CORPUS = Path(__file__).parent.parent / "corpus"
FORMATS = ("parquet", "tar", "tfrecord", "hdf5", "npz", "jpeg", "files")
INPUTS = sorted(
    str(path.relative_to(CORPUS))
    for form in FORMATS
    for path in (CORPUS / form).glob("*")
    if path.is_file() and not path.name.startswith("seed-")
)


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_that_once_did_harm(name: str) -> None:
    from tests.children import in_child

    path = CORPUS / name
    ended = in_child(lambda: look({path.name: path.read_bytes()}))
    assert ended.error is None
    assert ended.extra_bytes < 400 << 20


def test_the_corpus_says_what_its_files_are() -> None:
    page = (CORPUS / "README.md").read_text(encoding="utf-8")
    files = [path for path in CORPUS.rglob("*") if path.is_file() and path.name != "README.md"]
    assert len(files) >= 3
    for path in files:
        named = path.name.startswith("seed-") or f"`{path.relative_to(CORPUS)}`" in page
        assert named, path
        assert path.stat().st_size < 100_000
