"""LMDB shards: the library alone is the truth; a sample is one range, read without the library."""

from __future__ import annotations

import io
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from iobench.errors import SpecError, UsageError
from iobench.formats.lmdb_tree import Tree
from iobench.generator import generate
from iobench.generator.plan import plan_shards
from iobench.load import make_loader, make_reader
from iobench.registry import CODECS, FORMATS
from iobench.scan import scan
from iobench.schema.base import build
from iobench.schema.dataset import DatasetSpec
from iobench.schema.workload import ReaderSpec
from iobench.storage.local.storage import LocalStorage
from iobench.verify import verify

pytestmark = pytest.mark.usefixtures("nothing_left")

LMDB = FORMATS.open("lmdb")
SIZES = {"distribution": "lognormal", "mean": 2500, "sigma": 1.2, "min": 8, "max": 40_000}


def by_library(path: Path) -> list[tuple[bytes, bytes]]:
    options = {"subdir": False, "lock": False, "readonly": True}
    with lmdb.open(str(path), **options) as environment, environment.begin() as transaction:
        return list(transaction.cursor())


def foreign(path: Path, fill: Callable[[Any], None], **options: Any) -> memoryview:
    """A file that ``fill`` wrote, with the library's defaults."""
    with lmdb.open(
        str(path), subdir=False, lock=False, sync=False, map_size=64 << 20, **options
    ) as environment:
        fill(environment)
    return memoryview(path.read_bytes())


def unpacked(shard: memoryview) -> list[bytes]:
    return [bytes(sample) for sample in LMDB.unpack(shard, check=True)]


@pytest.mark.parametrize(
    "spec",
    [
        {"sample_size": SIZES, "samples": 150, "samples_per_shard": 60},
        {"sample_size": {"mean": 30}, "samples": 500, "samples_per_shard": 500},
        {"sample_size": {"mean": 300_000}, "samples": 3, "samples_per_shard": 1},
        {"content": "npz", "samples_per_shard": 30},
    ],
    ids=lambda spec: "-".join(str(value) for value in spec.values()),
)
def test_every_byte_is_right(make_dataset: Any, spec: dict[str, Any]) -> None:
    manifest, path = make_dataset(format="lmdb", **spec)
    entries = [by_library(path / key) for key in manifest.keys()]  # noqa: SIM118
    assert [key for shard in entries for key, _ in shard] == [
        b"%09d" % place for shard in entries for place in range(len(shard))
    ]
    expected = [value for shard in entries for _, value in shard]
    assert len(expected) == manifest.sample_count
    assert verify(LocalStorage(path), manifest, workers=0).ok
    for reader in ({"access": "random"}, {"access": "sequential"}, {"mmap": True}):
        loader = make_loader(
            path,
            batch_size=7,
            reader={"decode": False, "check": "content", **reader},
            loader={"workers": 0},
        )
        found = {
            index: sample.numpy().tobytes()
            for batch in loader
            for index, sample in zip(batch.indices.tolist(), batch, strict=True)
        }
        loader.shutdown()
        assert [found[index] for index in range(len(expected))] == expected


@pytest.mark.parametrize("size", [1, 700, 1300, 1921, 2020, 2022, 4080, 4081])
def test_samples_of_any_size_fit_into_the_map(size: int) -> None:
    """Its size is fixed before the samples are known: many of those that fill pages worst."""
    count, shard = 5000, bytearray()
    made = build(
        DatasetSpec,
        {"name": "x", "samples": count, "sample_size": {"mean": size}, "format": "lmdb"},
        where="test",
    )
    samples = (bytes([number % 251]) * size for number in range(count))
    offset, stored = LMDB.assemble(
        map(memoryview, samples),
        np.full(count, size),
        shard.extend,
        spec=made,
        codec=CODECS.open("none"),
    )
    assert (stored == size).all()
    assert [shard[at] for at in offset.tolist()] == [number % 251 for number in range(count)]


def test_a_sample_costs_its_own_bytes(make_dataset: Any) -> None:
    manifest, path = make_dataset(format="lmdb", samples=20, sample_size={"mean": 50_000})
    reader = make_reader(manifest, LocalStorage(path), ReaderSpec(direct=False), bytes_only=True)
    stats = reader.read(np.arange(20), None).stats
    reader.close()
    assert stats.sample_bytes <= stats.bytes_read < stats.sample_bytes + 20 * 8192


def test_the_same_spec_gives_the_same_bytes_in_another_process(
    make_dataset: Any, tmp_path: Path
) -> None:
    spec = {"samples": 300, "sample_size": SIZES, "format": "lmdb", "samples_per_shard": 150}
    manifest, path = make_dataset(**spec)
    program = (
        "import sys; from iobench.generator import generate; from iobench.schema.dataset import "
        "DatasetSpec;"
        "from iobench.storage.local.storage import LocalStorage;"
        "junk = [bytes([n]) * 5000 for n in range(200)]; del junk;"
        f"generate(DatasetSpec.model_validate({dict(spec, name='demo')!r}), "
        "LocalStorage(sys.argv[1]), workers=1)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "again")], check=True)
    for key in manifest.keys():  # noqa: SIM118
        assert (path / key).read_bytes() == (tmp_path / "again" / key).read_bytes()


def test_reading_and_scanning_need_no_library(
    make_dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, path = make_dataset(format="lmdb")
    monkeypatch.setitem(sys.modules, "lmdb", None)
    loader = make_loader(path, batch_size=9, loader={"workers": 0})
    assert sum(len(batch) for batch in loader) == 60
    loader.shutdown()
    assert verify(LocalStorage(path), manifest, workers=0).ok
    found = scan(LocalStorage(path / "data"), workers=0).manifest
    assert found.spec.format == "lmdb"
    for name in ("offset", "stored", "size"):
        assert (found.samples[name] == manifest.samples[name]).all()


def test_generating_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    given = {"name": "x", "samples": 3, "sample_size": {"mean": 100}, "format": "lmdb"}
    with pytest.raises(UsageError, match=r"needs the Python package 'lmdb'.*\[lmdb\]") as caught:
        generate(build(DatasetSpec, given, where="x"), LocalStorage(tmp_path / "x"), workers=0)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"codec": "zstd:1"}, "'zstd:1'"),
        ({"samples_per_shard": 300_000}, r"2 GiB, .*5\.6 GiB; lower samples_per_shard"),
        ({"shard_size": "3GiB"}, r"2 GiB, .*3\.0 GiB"),
        ({"columns": 2}, "has no columns"),
    ],
)
def test_what_it_can_not_hold_is_refused(change: dict[str, Any], why: str) -> None:
    given = {"name": "x", "samples": 10, "sample_size": {"mean": 20_000}, "format": "lmdb"}
    with pytest.raises(SpecError, match=why) as caught:
        plan_shards(build(DatasetSpec, {**given, **change}, where="test"))
    assert "\n" not in str(caught.value)


class TestForeign:
    """Files of other writers."""

    def test_many_transactions_that_replace_and_delete(self, tmp_path: Path) -> None:
        """Free pages are used again, so that entries lie in any order, below several branches."""
        draw = random.Random(3)

        def fill(environment: Any) -> None:
            for turn in range(12):
                with environment.begin(write=True) as transaction:
                    for _ in range(300):
                        key = b"%d" % draw.randrange(2000)
                        if turn and draw.random() < 0.2:
                            transaction.delete(key)
                        else:
                            size = draw.choice([0, 5, 700, 1900, 2020, 2030, 2040, 4080, 9000])
                            transaction.put(key, draw.randbytes(size))

        shard = foreign(tmp_path / "a.lmdb", fill)
        expected = by_library(tmp_path / "a.lmdb")
        assert len(expected) > 1000
        assert unpacked(shard) == [value for _, value in expected]
        tree = Tree(lambda begin, end: shard[begin:end], len(shard))
        assert [entry.key for entry in tree] == [key for key, _ in expected]

    def test_named_databases(self, tmp_path: Path) -> None:
        def fill(environment: Any) -> None:
            for name in (b"images", b"texts", b"none"):
                environment.open_db(name)
            several = environment.open_db(b"several", dupsort=True)
            with environment.begin(write=True) as transaction:
                for number in range(200):
                    for name in (b"images", b"texts"):
                        transaction.put(
                            b"%d" % number,
                            name * number,
                            db=environment.open_db(name, transaction),
                        )
                    transaction.put(b"x", b"%d" % number, db=several)
                transaction.put(b"main", b"value")

        shard = foreign(tmp_path / "a.lmdb", fill, max_dbs=4)
        numbers = sorted(range(200), key=str)
        assert unpacked(shard) == [
            *(b"images" * number for number in numbers),
            b"value",
            *(b"texts" * number for number in numbers),
        ]
        tree = Tree(lambda begin, end: shard[begin:end], len(shard))
        assert len(list(tree)) == 401
        assert tree.duplicates == 1

    def test_an_empty_file(self, tmp_path: Path) -> None:
        assert unpacked(foreign(tmp_path / "a.lmdb", lambda _: None)) == []


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    def fill(environment: Any) -> None:
        with environment.begin(write=True) as transaction:
            for number in range(120):
                transaction.put(b"%03d" % number, bytes([number]) * (number * 40), append=True)

    return bytes(foreign(tmp_path_factory.mktemp("x") / "a.lmdb", fill))


class TestDamage:
    def test_any_byte(self, shard: bytes) -> None:
        """Whatever is read lies within the file, and anything else is an error in one line."""
        bad, refused = bytearray(shard), 0
        for position in [*range(160), *range(4096, 4256), *range(8192, len(shard), 211)]:
            bad[position] ^= 0x41
            try:
                found = sum(map(len, LMDB.unpack(memoryview(bad), check=True)))
                assert found <= len(bad)
            except ValueError as error:
                refused += 1
                assert "\n" not in str(error)  # noqa: PT017
            bad[position] = shard[position]
        assert refused > 30

    def test_a_page_that_is_used_twice(self, shard: bytes) -> None:
        """A tree that leads back to itself would be endless."""
        with io.BytesIO(shard) as file:
            root = int.from_bytes(file.getbuffer()[4096 + 128 : 4096 + 136], "little")
        bad = bytearray(shard)
        begin = root * 4096
        first = int.from_bytes(bad[begin + 16 : begin + 18], "little")
        second = int.from_bytes(bad[begin + 18 : begin + 20], "little")
        assert bad[begin + 10] == 1, "the root is a branch"
        bad[begin + second : begin + second + 6] = bad[begin + first : begin + first + 6]
        with pytest.raises(ValueError, match="used twice"):
            list(LMDB.unpack(memoryview(bad), check=True))

    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (b"", "not an LMDB file"),
            (b"PAR1" * 3000, "not an LMDB file"),
            (bytes(10_000), "not an LMDB file"),
        ],
    )
    def test_what_is_no_lmdb(self, data: bytes, why: str) -> None:
        with pytest.raises(ValueError, match=why):
            list(LMDB.unpack(memoryview(data), check=True))
